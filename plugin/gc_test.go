package plugin_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/test/netns"
)

// records lists the attachments on record.
func (n *node) records(t testing.TB) []string {
	t.Helper()
	return slices.DeleteFunc(n.files(t), func(name string) bool { return filepath.Ext(name) != ".json" })
}

func attachment(container string) object { return object{"containerID": container, "ifname": "eth0"} }

func TestGC(t *testing.T) {
	const list, older = "cni.dev/valid-attachments", "cni.dev/attachments"
	all := []string{"c1:eth0.json", "c2:eth0.json", "c3:eth0.json"}
	for _, tc := range []struct {
		name string
		keys object
		want []string
	}{
		{"C48, D39: two of three are valid", object{list: []object{attachment("c1"), attachment("c2")}}, all[:2]},
		{"C48: another interface of a valid container is not", object{list: []object{{"containerID": "c1", "ifname": "net1"}}}, nil},
		{"C50, D39: an empty list", object{list: []object{}}, nil},
		{"C50, D39: null", object{list: nil, "keep": 1}, all},
		{"C50, D39: no key", nil, all},
		{"C50: the older key", object{older: []object{attachment("c3")}}, all[2:]},
		{"C50: both keys: the first counts", object{list: []object{attachment("c1")}, older: []object{}}, all[:1]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			for _, id := range []string{"c1", "c2", "c3"} {
				n.added(t, add(id, "eth0", netns.New(t, id), n.config("1.1.0", nil)))
			}
			n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", tc.keys)})
			got := n.records(t)
			if d := cmp.Diff(append([]string(nil), tc.want...), got); d != "" {
				t.Error(d)
			}
			if files := n.files(t); len(files) != 3*len(tc.want) {
				t.Errorf("got files %q, want a record and two reservations each", files)
			}
			if len(tc.want) == 0 {
				n.clean(t)
			}
		})
	}
}

func TestGCWithoutList(t *testing.T) {
	n := newNode(t)
	var pods []*netns.NS
	for _, id := range []string{"c1", "c2", "c3"} {
		pods = append(pods, netns.New(t, id))
		n.added(t, add(id, "eth0", pods[len(pods)-1], n.config("1.1.0", nil)))
	}
	pods[0].Run(t, "ip", "link", "del", "eth0")
	n.Run(t, "sed", "-i", `s/"bootID": "[^"]*"/"bootID": "another"/`, filepath.Join(n.dataDir, "pods/attachments/c2:eth0.json"))
	t.Run("C50, D39: only what is provably dead goes", func(t *testing.T) {
		n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", nil)})
		if d := cmp.Diff([]string{"c3:eth0.json"}, n.records(t)); d != "" {
			t.Error(d)
		}
	})
	t.Run("C48: reservations without a record, with a list", func(t *testing.T) {
		path := filepath.Join(n.dataDir, "pods/addresses/10.1.0.200")
		if err := os.WriteFile(path, []byte("c9\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
		n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", object{"cni.dev/valid-attachments": []object{attachment("c3")}})})
		if got := n.files(t); len(got) != 3 || slices.Contains(got, "10.1.0.200") {
			t.Errorf("got files %q", got)
		}
	})
	t.Run("C15, D2: what killed writers left, without a list", func(t *testing.T) {
		before := n.files(t)
		for _, name := range []string{"attachments/.c8:eth0.json.new", "addresses/.10.1.0.99.new", "addresses/.fd00:1::99.new"} {
			if err := os.WriteFile(filepath.Join(n.dataDir, "pods", name), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", nil)})
		if d := cmp.Diff(before, n.files(t)); d != "" {
			t.Errorf("(-before +after):\n%s", d)
		}
	})
	t.Run("C48: another network is not touched", func(t *testing.T) {
		n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", object{"name": "others", "cni.dev/valid-attachments": []object{}})})
		if got := n.records(t); len(got) != 1 {
			t.Errorf("got %q", got)
		}
	})
	t.Run("C49: an attachment younger than the GC stays", func(t *testing.T) {
		record := filepath.Join(n.dataDir, "pods/attachments/c3:eth0.json")
		n.Run(t, "sed", "-i.old", `s/"created": "[^"]*"/"created": "2999-01-01T00:00:00Z"/`, record)
		n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", object{"cni.dev/valid-attachments": []object{}})})
		if got := n.files(t); !slices.Contains(got, "c3:eth0.json") {
			t.Errorf("got files %q", got)
		}
		n.Run(t, "mv", record+".old", record)
	})
	t.Run("C48, D39: each removal is in the journal, with its reason", func(t *testing.T) {
		b, err := os.ReadFile(filepath.Join(n.dataDir, "pods/journal"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"GC: removing pods/c1/eth0 with [10.1.0.2 fd00:1::2]: its link is gone\n",
			"GC: removing pods/c2/eth0 with [10.1.0.3 fd00:1::3]: it is of an earlier boot\n",
			"GC: removing pods/c9/eth0 with []: the runtime does not list it\n",
		} {
			if !strings.Contains(string(b), want) {
				t.Errorf("got journal %s, want %s", b, want)
			}
		}
	})
	t.Run("C48: errors are reported together, the rest is done", func(t *testing.T) {
		n.added(t, add("c4", "eth0", netns.New(t, "c4"), n.config("1.1.0", nil)))
		gc := call{verb: "GC", stdin: n.config("1.1.0", object{"cni.dev/valid-attachments": []object{}})}
		dir := filepath.Join(n.dataDir, "pods/addresses")
		gc.wrap = []string{"unshare", "-m", "sh", "-c", "mount --bind " + dir + " " + dir + " && mount -o remount,bind,ro " + dir + ` && exec "$0"`}
		n.fail(t, gc, 108, "c3/eth0")
		n.fail(t, gc, 108, "c4/eth0")
		gc.wrap = nil
		n.succeed(t, gc)
		n.clean(t)
	})
	t.Run("a list that is none", func(t *testing.T) {
		n.fail(t, call{verb: "GC", stdin: n.config("1.1.0", object{"cni.dev/valid-attachments": "c3"})}, 6, "valid-attachments")
		n.fail(t, call{verb: "GC", stdin: n.config("1.1.0", object{"cni.dev/valid-attachments": []object{{"containerID": "c3"}}})}, 7, "ifname")
	})
}

// beginGC starts a GC that has looked at the clock and waits for the end of its input,
// which finish gives it.
func (n *node) beginGC(t *testing.T, valid []object) (finish func() error) {
	t.Helper()
	cmd := n.command(call{verb: "GC"})
	cmd.Stdin = nil
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	stdin := n.config("1.1.0", object{"cni.dev/valid-attachments": valid})
	// More than a pipe holds: it has begun to read when all is written.
	if _, err := io.WriteString(in, strings.Repeat(" ", 1<<17)+stdin[:len(stdin)-1]); err != nil {
		t.Fatal(err)
	}
	return func() error {
		_, err := io.WriteString(in, "}")
		return errors.Join(err, in.Close(), cmd.Wait())
	}
}

func TestGCSparesWhatComesWhileItRuns(t *testing.T) {
	rounds := soaking(60, 200)
	n := newNode(t)
	pod := netns.New(t, "pod")
	t.Run("C49, D39: a new attachment that the list does not have", func(t *testing.T) {
		valid := []object{}
		for i := range rounds {
			c := add(fmt.Sprint("c", i), fmt.Sprint("e", i), pod, n.config("1.1.0", nil))
			finish := n.beginGC(t, valid)
			added := make(chan struct{})
			go func() { n.added(t, c); close(added) }()
			if err := finish(); err != nil {
				t.Fatalf("round %d: GC: %v", i, err)
			}
			<-added
			n.succeed(t, n.checkOf(t, c))
			valid = append(valid, object{"containerID": c.container, "ifname": c.ifName})
		}
		if got := len(n.records(t)); got != rounds {
			t.Errorf("got %d attachments, want %d", got, rounds)
		}
	})
}
