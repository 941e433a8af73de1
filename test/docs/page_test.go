// Package docs_test holds README.md and the pages of docs/ to what there is: every flag,
// command, metric, alert, target of make, file, table, chain and map that they name exists,
// and every link leads somewhere.
package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the repository's.
const root = "../.."

// A page is a text for people.
type page struct {
	path string // from the root
	text string // without code
	code []line // of code, with what is above it taken off
}

// A line is one of code. Where a piece of code shows a prompt, lines without one are output.
type line struct {
	number, piece int
	text          string
}

// commands gives the lines of a page that are typed, or may be.
func (p page) commands() []span {
	prompts := map[int]bool{}
	for _, l := range p.code {
		prompts[l.piece] = prompts[l.piece] || strings.HasPrefix(l.text, "$ ")
	}
	var list []span
	for _, l := range p.code {
		text, prompt := strings.CutPrefix(l.text, "$ ")
		first, _, _ := strings.Cut(text, " ")
		rule := regexp.MustCompile(`^ip6? [sd]addr `).MatchString(text) // of nft
		if prompt || !prompts[l.piece] && knownProgram(first) && !rule {
			text, _, _ = strings.Cut(text, " # ")
			list = append(list, span{l.number, strings.TrimSpace(text)})
		}
	}
	return list
}

// pages reads README.md and docs/.
func pages(t *testing.T) []page {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) < 5 {
		t.Fatalf("docs/ has %d pages, want those of installation, migration, operation, the way it works, and limits", len(paths))
	}
	var list []page
	for _, p := range append(paths, filepath.Join(root, "README.md")) {
		list = append(list, parse(readFile(t, p), strings.TrimPrefix(p, root+"/")))
	}
	return list
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// parse tells code from text. Code is fenced, or stands four columns in, behind an empty line.
func parse(text, path string) page {
	p := page{path: path}
	piece, fenced, above := 0, false, "" // above is the line before; empty: code may begin
	for i, l := range strings.Split(text, "\n") {
		indented := strings.HasPrefix(l, "    ") && above == ""
		switch {
		case strings.HasPrefix(strings.TrimSpace(l), "```"):
			fenced = !fenced
			l = ""
		case fenced || indented:
			p.code = append(p.code, line{i + 1, piece, strings.TrimSpace(l)})
			l = ""
		case l != "":
			piece++
		}
		p.text += l + "\n"
		above = strings.TrimSpace(l)
	}
	return p
}

// messages gives what a page shows of a log: lines that begin with a message in quotes.
func (p page) messages() []span {
	var list []span
	for _, l := range p.code {
		if found := regexp.MustCompile(`^"([^"]+)"`).FindStringSubmatch(l.text); found != nil {
			list = append(list, span{l.number, found[1]})
		}
	}
	return list
}

// A span is a piece of code within text.
type span struct {
	number int
	text   string
}

// spans gives all pieces of code within text, each in one line.
func (p page) spans() []span {
	var list []span
	for _, at := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatchIndex(p.text, -1) {
		list = append(list, span{
			number: 1 + strings.Count(p.text[:at[0]], "\n"),
			text:   strings.Join(strings.Fields(p.text[at[2]:at[3]]), " "),
		})
	}
	return list
}

// anchors gives what links into a page may name: its headings, as they are shown by those who
// render it.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := strings.ToLower(h[1])
		name = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(name, "")
		found[strings.ReplaceAll(name, " ", "-")] = true
	}
	return found
}

func TestCodeIsToldFromText(t *testing.T) {
	p := parse("one `a\n  b` two\n\n    $ make code # now\n    make more\n\ntext\n\n```\nmake fenced\n```\n- item\n    goes on\n", "page")
	var code []string
	for _, l := range p.code {
		code = append(code, l.text)
	}
	if got, want := strings.Join(code, "|"), "$ make code # now|make more|make fenced"; got != want {
		t.Errorf("code: got %q, want %q", got, want)
	}
	if got := p.commands(); len(got) != 2 || got[0].text != "make code" || got[1].text != "make fenced" {
		t.Errorf("commands: got %v", got)
	}
	if got := p.spans(); len(got) != 1 || got[0].text != "a b" || got[0].number != 1 {
		t.Errorf("spans: got %v", got)
	}
	if got := anchors("# What a node lacks\n## /healthz, and so on\n"); !got["what-a-node-lacks"] || !got["healthz-and-so-on"] {
		t.Errorf("anchors: got %v", got)
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, p := range pages(t) {
		for _, found := range link.FindAllStringSubmatch(p.text, -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(found[1], "#")
			target := filepath.Join(root, p.path)
			if file != "" {
				target = filepath.Join(root, filepath.Dir(p.path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s leads nowhere: %v", p.path, found[1], err)
			} else if anchor != "" && !anchors(readFile(t, target))[anchor] {
				t.Errorf("%s: %s: there is no such heading", p.path, found[1])
			}
		}
	}
}

// Every page of docs/ can be found from README.md.
func TestReadmeNamesEveryPage(t *testing.T) {
	readme := readFile(t, filepath.Join(root, "README.md"))
	for _, p := range pages(t) {
		if p.path != "README.md" && !strings.Contains(readme, "("+p.path+")") {
			t.Errorf("README.md has no link to %s", p.path)
		}
	}
}
