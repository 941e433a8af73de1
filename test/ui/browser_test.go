package ui_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"onerule/test/netns"
)

// loadLimit is how long a page may take the browser.
const loadLimit = time.Minute

// A browser is a headless Chromium in a network namespace: it reaches what listens there,
// and nothing else.
type browser struct {
	bin string
	ns  *netns.NS
}

// newBrowser skips the test where there is none, unless the machine has been set up for
// all tests.
func newBrowser(t *testing.T, ns *netns.NS) browser {
	t.Helper()
	bin, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("ONERULE_PRIVILEGED") != "" {
			t.Fatalf("%v: sh test/setup.sh chromium installs it", err)
		}
		t.Skipf("NOT TESTED: what a browser shows: %v", err)
	}
	return browser{bin, ns}
}

// A look is how a page is looked at.
type look struct {
	width, height int
	dark          bool
	picture       string        // name of the picture that is kept; empty: none
	after         time.Duration // of the page's own clock
}

// open loads a page, and gives what became of it.
func (b browser) open(t *testing.T, url string, l look) *html.Node {
	t.Helper()
	home := t.TempDir()
	scheme := 1 // Chromium's number for light
	if l.dark {
		scheme = 0
	}
	args := []string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-proxy-server",
		"--user-data-dir=" + filepath.Join(home, "profile"),
		fmt.Sprintf("--window-size=%d,%d", l.width, l.height),
		fmt.Sprintf("--blink-settings=preferredColorScheme=%d", scheme),
		"--dump-dom",
	}
	if l.after > 0 {
		args = append(args, fmt.Sprintf("--virtual-time-budget=%d", l.after.Milliseconds()))
	}
	if l.picture != "" {
		args = append(args, "--screenshot="+filepath.Join(artifacts(t), l.picture))
	}
	out := b.run(t, home, append(args, url))
	doc, err := html.Parse(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// run runs the browser to its end, and gives what it printed.
func (b browser) run(t *testing.T, home string, args []string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), loadLimit)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, b.bin, args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &errs, 5*time.Second
	if err := b.ns.Start(cmd); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	if err := cmd.Wait(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("chromium: %v: %s", err, errs.String())
	}
	return out.String()
}

// artifacts is where pictures are kept: beside what make test has built.
func artifacts(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("ONERULE_BIN"); dir != "" {
		return dir
	}
	return t.ArtifactDir()
}

// drawn says whether a picture shows something.
func drawn(t *testing.T, picture string) {
	t.Helper()
	info, err := os.Stat(filepath.Join(artifacts(t), picture))
	if err != nil || info.Size() < 5000 || time.Since(info.ModTime()) > loadLimit {
		t.Errorf("no new picture of a page: %v %v", info, err)
	}
}

// measuring is a page that tells its layout: each bar its width in pixels, and the page
// how much wider than the window it is.
func measuring(page []byte) []byte {
	const script = `<script>
for (const b of document.querySelectorAll(".bar")) b.setAttribute("data-pixels", b.getBoundingClientRect().width);
document.body.setAttribute("data-beyond", document.documentElement.scrollWidth - window.innerWidth);
document.body.setAttribute("data-paper", getComputedStyle(document.body).backgroundColor);
</script></body>`
	return bytes.Replace(page, []byte("</body>"), []byte(script), 1)
}

// all gives the elements that have a class, or a name.
func all(n *html.Node, what string) []*html.Node {
	var found []*html.Node
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && (d.Data == what || strings.Contains(" "+attribute(d, "class")+" ", " "+what+" ")) {
			found = append(found, d)
		}
	}
	return found
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func has(n *html.Node, name string) bool {
	for _, a := range n.Attr {
		if a.Key == name {
			return true
		}
	}
	return false
}

// text gives what is written in an element.
func text(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// bars gives a width of each endpoint's bar, by the key of its Service and its address.
func bars(t *testing.T, page *html.Node, width func(*html.Node) string) map[string]map[string]float64 {
	t.Helper()
	found := map[string]map[string]float64{}
	for _, s := range all(page, "service") {
		of := map[string]float64{}
		found[attribute(s, "data-key")] = of
		for _, item := range all(s, "li") {
			bar := all(item, "bar")[0]
			n, err := strconv.ParseFloat(width(bar), 64)
			if err != nil {
				t.Fatalf("a bar has no width: %v", err)
			}
			of[text(all(item, "address")[0])] = n
		}
	}
	return found
}

// styled is the width that the page asks for, pixels the one that the browser gives.
func styled(bar *html.Node) string {
	return strings.TrimSuffix(strings.TrimPrefix(attribute(bar, "style"), "width:"), "%")
}

func pixels(bar *html.Node) string { return attribute(bar, "data-pixels") }
