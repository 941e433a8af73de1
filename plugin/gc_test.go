package plugin_test

import (
	"os"
	"path/filepath"
	"slices"
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
		{"item 48: two of three are valid", object{list: []object{attachment("c1"), attachment("c2")}}, all[:2]},
		{"item 48: another interface of a valid container is not", object{list: []object{{"containerID": "c1", "ifname": "net1"}}}, nil},
		{"item 50: an empty list", object{list: []object{}}, nil},
		{"item 50: null", object{list: nil, "keep": 1}, all},
		{"item 50: no key", nil, all},
		{"item 50: the older key", object{older: []object{attachment("c3")}}, all[2:]},
		{"item 50: both keys: the first counts", object{list: []object{attachment("c1")}, older: []object{}}, all[:1]},
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
	t.Run("item 50: only what is provably dead goes", func(t *testing.T) {
		n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", nil)})
		if d := cmp.Diff([]string{"c3:eth0.json"}, n.records(t)); d != "" {
			t.Error(d)
		}
	})
	t.Run("item 48: reservations without a record, with a list", func(t *testing.T) {
		path := filepath.Join(n.dataDir, "pods/addresses/10.1.0.200")
		if err := os.WriteFile(path, []byte("c9\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
		n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", object{"cni.dev/valid-attachments": []object{attachment("c3")}})})
		if got := n.files(t); len(got) != 3 || slices.Contains(got, "10.1.0.200") {
			t.Errorf("got files %q", got)
		}
	})
	t.Run("item 48: another network is not touched", func(t *testing.T) {
		n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", object{"name": "others", "cni.dev/valid-attachments": []object{}})})
		if got := n.records(t); len(got) != 1 {
			t.Errorf("got %q", got)
		}
	})
	t.Run("item 49: an attachment younger than the GC stays", func(t *testing.T) {
		record := filepath.Join(n.dataDir, "pods/attachments/c3:eth0.json")
		n.Run(t, "sed", "-i.old", `s/"created": "[^"]*"/"created": "2999-01-01T00:00:00Z"/`, record)
		n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", object{"cni.dev/valid-attachments": []object{}})})
		if got := n.files(t); !slices.Contains(got, "c3:eth0.json") {
			t.Errorf("got files %q", got)
		}
		n.Run(t, "mv", record+".old", record)
	})
	t.Run("item 48: errors are reported together, the rest is done", func(t *testing.T) {
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

func TestStatus(t *testing.T) {
	n := newNode(t)
	status := func(more object) call { return call{verb: "STATUS", stdin: n.config("1.1.0", more)} }
	small := object{"ipam": object{"ranges": [][]object{{{"subnet": "10.2.0.0/29"}}}}}
	t.Run("item 46: silent when ADD would work, and makes nothing", func(t *testing.T) {
		n.succeed(t, status(nil))
		if _, err := os.Stat(n.dataDir); !os.IsNotExist(err) {
			t.Errorf("the state directory is there: %v", err)
		}
	})
	t.Run("item 47: no ranges", func(t *testing.T) {
		n.fail(t, status(object{"ipam": object{}}), 50, "no IP ranges")
		n.succeed(t, status(object{"ipam": object{}, "capabilities": object{"ipRanges": true}}))
	})
	t.Run("item 47: the pool is exhausted", func(t *testing.T) {
		for _, id := range []string{"c1", "c2", "c3", "c4", "c5"} {
			n.succeed(t, status(small))
			n.added(t, add(id, "eth0", netns.New(t, id), n.config("1.1.0", small)))
		}
		n.fail(t, status(small), 50, "10.2.0.1-10.2.0.6")
		n.fail(t, add("c6", "eth0", netns.New(t, "c6"), n.config("1.1.0", small)), 100, "exhausted")
		n.succeed(t, add("c1", "eth0", n.outside, n.config("1.1.0", small)).as("DEL"))
		n.succeed(t, status(small))
	})
	t.Run("item 47: forwarding is off under living pods", func(t *testing.T) {
		n.Sysctl(t, "net.ipv4.ip_forward", "0")
		n.fail(t, status(small), 51, "ip_forward")
	})
	t.Run("item 47: a read-only store", func(t *testing.T) {
		c := status(small)
		c.wrap = []string{"unshare", "-m", "sh", "-c", "mount --bind " + n.dataDir + " " + n.dataDir + " && mount -o remount,bind,ro " + n.dataDir + ` && exec "$0"`}
		n.fail(t, c, 50, "read-only")
	})
}
