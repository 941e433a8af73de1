package docs_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/test/netns"
	"onerule/test/rig"
)

// What docs/install.md shows of the preflight has a line for each thing that it looks at, in
// the order in which it does. What it finds is another machine's.
func TestThePreflightLooksAtWhatIsShown(t *testing.T) {
	bin, node := rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), netns.New(t, "node")
	cmd := exec.Command(bin, "install", "--preflight")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := node.Start(cmd); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // 2 where a node lacks something
	shown := lookedAt(readFile(t, filepath.Join(root, "docs/install.md")))
	if len(shown) < 10 {
		t.Fatalf("docs/install.md shows only %q", shown)
	}
	if diff := cmp.Diff(shown, lookedAt(out.String())); diff != "" {
		t.Errorf("what is looked at (-shown +printed): %s", diff)
	}
}

// lookedAt gives the first words of lines with a verdict.
func lookedAt(text string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^ *(?:OK|WARN|FAIL) +(\S+(?: \S+)*)  `).FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}
