package plugin_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/test/netns"
)

// A smallNode has a few addresses to give: 10.2.0.2 to 10.2.0.6.
type smallNode struct {
	*node
	more object
}

func newSmallNode(t *testing.T, quarantine string) *smallNode {
	return &smallNode{newNode(t), object{"quarantine": quarantine, "ipam": object{"ranges": [][]object{{{"subnet": "10.2.0.0/29"}}}}}}
}

// pod gives an ADD of a pod of its own.
func (n *smallNode) pod(t *testing.T, id string) call {
	t.Helper()
	return add(id, "eth0", netns.New(t, id), n.config("1.1.0", n.more))
}

func (n *smallNode) got(t *testing.T, c call) string {
	t.Helper()
	return addresses(t, n.added(t, c))[0].String()
}

// fill takes all addresses.
func (n *smallNode) fill(t *testing.T) (pods []call) {
	t.Helper()
	for i := range 5 {
		pods = append(pods, n.pod(t, fmt.Sprint("c", i)))
		if got, want := n.got(t, pods[i]), fmt.Sprint("10.2.0.", i+2); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	return pods
}

func TestOrderOfAddresses(t *testing.T) {
	n := newSmallNode(t, "0s")
	pods := n.fill(t)
	t.Run("C57: neither network, nor gateway, nor broadcast is given", func(t *testing.T) {
		n.fail(t, n.pod(t, "more"), 100, "all addresses of 10.2.0.1-10.2.0.6 are taken")
	})
	t.Run("C57: the address that was released first is given first", func(t *testing.T) {
		for _, i := range []int{3, 0, 4} {
			n.succeed(t, pods[i].as("DEL"))
		}
		var got []string
		for i := range 3 {
			got = append(got, n.got(t, n.pod(t, fmt.Sprint("d", i))))
		}
		if d := cmp.Diff([]string{"10.2.0.5", "10.2.0.2", "10.2.0.6"}, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
}

func TestQuarantine(t *testing.T) {
	n := newSmallNode(t, "1h")
	pods := n.fill(t)
	n.succeed(t, pods[1].as("DEL"))
	next := n.pod(t, "next")
	t.Run("C11: an address that was released just now is not given: try again later", func(t *testing.T) {
		n.fail(t, next, 11, "released just now; the next one can be given in 59m")
	})
	t.Run("C30: unless it is asked for", func(t *testing.T) {
		c := next
		c.args = "IP=10.2.0.3"
		if got := n.got(t, c); got != "10.2.0.3" {
			t.Errorf("got %s", got)
		}
		n.succeed(t, c.as("DEL"))
	})
	t.Run("later it is", func(t *testing.T) {
		notes := filepath.Join(n.dataDir, "pods/released")
		n.Run(t, "sh", "-c", "rm "+notes+"/*-10.2.0.3")
		anHourAgo := fmt.Sprintf("%019d-10.2.0.3", time.Now().Add(-time.Hour).UnixNano())
		if err := os.WriteFile(filepath.Join(notes, anHourAgo), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := n.got(t, next); got != "10.2.0.3" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("a bad one is named", func(t *testing.T) {
		n.fail(t, call{verb: "ADD", container: "x", ifName: "eth0", netns: next.netns, stdin: n.config("1.1.0", object{"quarantine": "-1s"})}, 7, "quarantine")
	})
}

func TestFailedAddsDoNotUseUpThePool(t *testing.T) {
	n := newSmallNode(t, "1h")
	c := n.pod(t, "c1")
	for i := range 5 {
		n.Run(t, "ip", "route", "add", fmt.Sprint("10.2.0.", i+2), "dev", "uplink")
	}
	for i := range 12 {
		n.fail(t, c, 104, fmt.Sprint("10.2.0.", i%5+2)) // each in turn: one of them may work
	}
	n.Run(t, "ip", "route", "flush", "root", "10.2.0.0/29")
	n.added(t, c)
}

func TestSeveralRanges(t *testing.T) {
	n := newNode(t)
	more := object{"ipam": object{"ranges": [][]object{
		{{"subnet": "10.2.0.0/30"}, {"subnet": "10.3.0.0/30"}}, {{"subnet": "fd00:2::/126"}, {"subnet": "fd00:3::/112", "rangeStart": "fd00:3::8", "rangeEnd": "fd00:3::9"}},
	}}}
	var got [][]netip.Addr
	for i := range 2 {
		pod := netns.New(t, "pod")
		got = append(got, addresses(t, n.added(t, add(fmt.Sprint("c", i), "eth0", pod, n.config("1.1.0", more)))))
		connect(t, n.NS, pod, got[i][0])
		connect(t, n.NS, pod, got[i][1])
	}
	want := [][]netip.Addr{
		{netip.MustParseAddr("10.2.0.2"), netip.MustParseAddr("fd00:2::2")},
		{netip.MustParseAddr("10.3.0.2"), netip.MustParseAddr("fd00:2::3")},
	}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	t.Run("C57: the error names all ranges of the set", func(t *testing.T) {
		n.fail(t, add("c2", "eth0", netns.New(t, "pod"), n.config("1.1.0", more)), 100, "10.2.0.1-10.2.0.2, 10.3.0.1-10.3.0.2")
		if got := n.files(t); len(got) != 6 {
			t.Errorf("got %q, want two records and four reservations", got)
		}
	})
}

func TestReservation(t *testing.T) {
	n := newNode(t)
	before := time.Now()
	n.added(t, add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil)))
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{firstPod4, firstPod6} {
		t.Run("C57, D1: "+a+" has owner, boot and time", func(t *testing.T) {
			b, err := os.ReadFile(filepath.Join(n.dataDir, "pods/addresses", a))
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Container, Interface, BootID string
				Created                      time.Time
			}
			if err := json.Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			if got.Container != "c1" || got.Interface != "eth0" || got.BootID != strings.TrimSpace(string(boot)) || got.Created.Before(before) || got.Created.After(time.Now()) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestPoolAfterAReboot(t *testing.T) {
	n := newSmallNode(t, "5s")
	old := n.fill(t)
	n.Run(t, "sh", "-c", "for link in $(ip -o link | grep -o 'one[0-9a-f]*'); do ip link del $link; done")
	n.reboot(t)
	fresh := n.pod(t, "fresh")
	t.Run("D1: addresses of pods of an earlier boot are free at once", func(t *testing.T) {
		n.added(t, fresh)
	})
	t.Run("C37: a late DEL of such a pod leaves the new one alone", func(t *testing.T) {
		for _, c := range old {
			c.netns = ""
			n.succeed(t, c.as("DEL"))
		}
		check := n.checkOf(t, fresh)
		check.stdin = strings.Replace(check.stdin, podRange4, "10.2.0.0/29", 1)
		n.succeed(t, check)
		if got := n.files(t); len(got) != 2 {
			t.Errorf("got %q, want one record and one reservation", got)
		}
	})
}

func TestPoolOfPodsThatDied(t *testing.T) {
	n := newSmallNode(t, "0s")
	var pods []*netns.NS
	for i := range 5 {
		pods = append(pods, netns.New(t, "pod"))
		n.added(t, add(fmt.Sprint("c", i), "eth0", pods[i], n.config("1.1.0", n.more)))
	}
	next, last := n.pod(t, "next"), n.pod(t, "last")
	pods[2].Run(t, "ip", "link", "del", "eth0") // as when its namespace goes
	t.Run("D1, D3: the address of a pod that died without a DEL is found when it is needed", func(t *testing.T) {
		if got := n.got(t, next); got != "10.2.0.4" {
			t.Errorf("got %s", got)
		}
		n.fail(t, n.pod(t, "more"), 100, "10.2.0.1-10.2.0.6")
	})
	t.Run("D1, D3: also when its record is gone", func(t *testing.T) {
		pods[4].Run(t, "ip", "link", "del", "eth0")
		n.Run(t, "rm", filepath.Join(n.dataDir, "pods/attachments/c4:eth0.json"))
		if got := n.got(t, last); got != "10.2.0.6" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("C47: STATUS knows that an ADD would find it", func(t *testing.T) {
		c := statusOf(n.node, "10.2.0.0/29")
		n.fail(t, c, 50, "are taken")
		for _, i := range []int{0, 1, 3} {
			pods[i].Run(t, "ip", "link", "del", "eth0")
		}
		n.succeed(t, c)
	})
}

// Each file of the state, emptied or cut in half.
func TestTornFiles(t *testing.T) {
	for _, tc := range []struct {
		name string
		keep float64
	}{
		{"attachments/c2:eth0.json", 0}, {"attachments/c2:eth0.json", 0.5}, {"addresses/10.2.0.4", 0}, {"addresses/10.2.0.4", 0.5},
		{"status", 0}, {"journal", 0}, {"lock", 0},
	} {
		t.Run(fmt.Sprintf("D2, C54: %v of %s", tc.keep, tc.name), func(t *testing.T) {
			n := newSmallNode(t, "0s")
			pods := n.fill(t)
			path := filepath.Join(n.dataDir, "pods", tc.name)
			content, _ := os.ReadFile(path)
			if err := os.WriteFile(path, content[:int(float64(len(content))*tc.keep)], 0o600); err != nil {
				t.Fatal(err)
			}
			// The pool is full: now it matters what the files say.
			n.fail(t, n.pod(t, "more"), 100, "are taken")
			n.succeed(t, pods[2].as("DEL"))
			if got := n.got(t, n.pod(t, "next")); got != "10.2.0.4" {
				t.Errorf("got %s, want the address that was released", got)
			}
			n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", object{"cni.dev/valid-attachments": []object{}})})
			n.clean(t)
		})
	}
}

func TestTornReservationOfNobody(t *testing.T) {
	n := newSmallNode(t, "0s")
	n.fill(t)
	n.succeed(t, call{verb: "DEL", container: "c3", ifName: "eth0", stdin: n.config("1.1.0", n.more)})
	if err := os.WriteFile(filepath.Join(n.dataDir, "pods/addresses/10.2.0.5"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("D2, C47: STATUS does not call the pool exhausted", func(t *testing.T) {
		n.succeed(t, statusOf(n.node, "10.2.0.0/29"))
	})
	t.Run("D2: it blocks no address, and is put aside", func(t *testing.T) {
		if got := n.got(t, n.pod(t, "next")); got != "10.2.0.5" {
			t.Errorf("got %s", got)
		}
		entries, err := os.ReadDir(filepath.Join(n.dataDir, "pods/quarantine"))
		if err != nil || !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "10.2.0.5" }) {
			t.Errorf("got %v and %v in quarantine", entries, err)
		}
	})
}
