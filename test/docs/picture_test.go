package docs_test

import (
	"encoding/xml"
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"onerule/nft"
)

// A label is a text of a picture that has a class.
type label struct{ class, text string }

// A picture is what an SVG says.
type picture struct {
	labels  []label
	ids     map[string]bool
	refers  []string // to ids
	outside []string // what it would fetch
	style   string
}

// draw reads an SVG as browsers do that are strict.
func draw(text string) (picture, error) {
	p := picture{ids: map[string]bool{}}
	d := xml.NewDecoder(strings.NewReader(text))
	d.Strict = true
	var open []label
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return p, nil
		}
		if err != nil {
			return p, err
		}
		switch t := token.(type) {
		case xml.StartElement:
			open = append(open, label{class: p.attributes(t.Attr)})
			if t.Name.Local == "style" {
				open[len(open)-1].class = "style"
			}
		case xml.CharData:
			if len(open) > 0 {
				open[len(open)-1].text += string(t)
			}
		case xml.EndElement:
			last := open[len(open)-1]
			open = open[:len(open)-1]
			if last.class == "style" {
				p.style = last.text
			} else {
				p.labels = append(p.labels, label{last.class, strings.TrimSpace(last.text)})
			}
		}
	}
}

// attributes takes in those of an element, and gives its class.
func (p *picture) attributes(list []xml.Attr) (class string) {
	for _, a := range list {
		switch a.Name.Local {
		case "class":
			class = a.Value
		case "id":
			p.ids[a.Value] = true
		case "aria-labelledby":
			p.refers = append(p.refers, strings.Fields(a.Value)...)
		case "href", "src":
			p.outside = append(p.outside, a.Value)
		}
	}
	return class
}

func TestThePictureShowsTheTables(t *testing.T) {
	text := readFile(t, filepath.Join(root, "docs", "packet.svg"))
	p, err := draw(text)
	if err != nil {
		t.Fatal(err)
	}
	o := ours(t)
	shown := map[string]bool{}
	for _, l := range p.labels {
		known := map[string]map[string]bool{"chain": o.chains, "set": o.sets}[l.class]
		if known != nil && !known[l.text] {
			t.Errorf("it shows the %s %s, which there is not", l.class, l.text)
		}
		if l.class != "" && !strings.Contains(p.style, "."+l.class+" ") && !strings.Contains(p.style, "."+l.class+",") {
			t.Errorf("class %s has no style", l.class)
		}
		shown[l.text] = true
	}
	for _, c := range nft.NewSkeleton(nft.Config{Family: nft.IPv4}).Chains {
		if c.Base != nil && !shown[c.Name] {
			t.Errorf("it does not show %s, where packets come in", c.Name)
		}
	}
	for _, found := range regexp.MustCompile(`url\(#?([^)]*)\)`).FindAllStringSubmatch(text, -1) {
		p.refers = append(p.refers, found[1])
	}
	for _, id := range p.refers {
		if !p.ids[id] {
			t.Errorf("it refers to %s, which there is not", id)
		}
	}
	if len(p.outside) > 0 {
		t.Errorf("it needs %q from elsewhere", p.outside)
	}
	// Texts are readable on its own page, light and dark.
	if !strings.Contains(p.style, "prefers-color-scheme: dark") || strings.Count(p.style, ".page {") != 2 || strings.Count(p.style, "text {") != 2 {
		t.Error("page and texts do not have colours for light and dark")
	}
}

func TestAPictureThatIsWrongIsSeen(t *testing.T) {
	if _, err := draw(`<svg><text>a</svg>`); err == nil {
		t.Error("an element that does not end is no error")
	}
	p, err := draw(`<svg><style>.chain { }</style><text class="small">to <tspan class="chain">nowhere</tspan></text><image href="http://192.0.2.1/a.png"/></svg>`)
	if err != nil {
		t.Fatal(err)
	}
	if p.labels[0] != (label{"chain", "nowhere"}) || len(p.outside) != 1 || p.style == "" {
		t.Errorf("got %+v", p)
	}
}
