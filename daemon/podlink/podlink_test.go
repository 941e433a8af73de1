package podlink_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"onerule/daemon/podlink"
	"onerule/test/netns"
	"onerule/test/wired"
)

const (
	hostMAC = "02:00:00:00:01:01"
	podMAC  = "02:00:00:00:02:02"
)

// A node is one with links of pods, none of which is as its record says.
type node struct {
	ns    *netns.NS
	state string
	mu    sync.Mutex
	kinds []string
	notes []string // with the kinds
	log   []string
}

func newNode(t *testing.T) *node {
	t.Helper()
	return &node{ns: netns.New(t, "node"), state: t.TempDir()}
}

// link makes a link that is down and has nothing.
func (n *node) link(t *testing.T, name string) {
	t.Helper()
	n.ns.Run(t, "ip", "link", "add", name, "type", "veth", "peer", "name", peer(name))
}

// whole makes a link as the record says.
func (n *node) whole(t *testing.T, link string) {
	t.Helper()
	n.link(t, link)
	for _, command := range []string{
		"ip link set LINK address " + hostMAC, "sysctl -w net.ipv6.conf.LINK.accept_ra=0", "ip link set LINK up", "ip link set PEER up",
		"ip addr add fe80::1/64 dev LINK nodad", "ip neigh add 10.1.0.2 lladdr " + podMAC + " dev LINK nud permanent",
		"ip neigh add fd00:1::2 lladdr " + podMAC + " dev LINK nud permanent", "ip route add 10.1.0.2 dev LINK proto 111 scope link",
		"ip -6 route add fd00:1::2 dev LINK proto 111",
	} {
		n.run(t, strings.NewReplacer("LINK", link, "PEER", peer(link)).Replace(command))
	}
}

// peer names the pod's end of a link.
func peer(link string) string { return "peer" + link[len(link)-2:] }

// record writes what the plugin would have; change makes it another.
func (n *node) record(t *testing.T, link string, change func(map[string]any)) {
	t.Helper()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	r := map[string]any{
		"bootID": strings.TrimSpace(string(boot)), "created": time.Now().Add(-time.Hour), "hostLink": link,
		"hostMAC": hostMAC, "podMAC": podMAC, "addresses": []string{"10.1.0.2", "fd00:1::2"},
	}
	change(r)
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	n.file(t, link+".json", b)
}

func (n *node) file(t *testing.T, name string, content []byte) {
	t.Helper()
	path := filepath.Join(n.state, "pods", "attachments", name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// keep runs a Keeper until the test ends.
func (n *node) keep(t *testing.T) {
	t.Helper()
	k := podlink.New(podlink.Config{State: n.state, Sysctls: "/proc/sys/net", Log: n.logger(t), Foreign: func(kind, note string) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.kinds, n.notes = append(n.kinds, kind), append(n.notes, note)
	}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.ns.Do(func() error { return k.Run(ctx) }) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// logger keeps each line beside the test's log.
func (n *node) logger(t *testing.T) logr.Logger {
	return funcr.New(func(_, line string) {
		t.Log(line)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.log = append(n.log, line)
	}, funcr.Options{})
}

// logged gives the lines of the log that say something, and noted the notes of what was
// counted.
func (n *node) logged(something string) []string { return n.saying(&n.log, something) }
func (n *node) noted(something string) []string  { return n.saying(&n.notes, something) }

func (n *node) saying(list *[]string, something string) (found []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, line := range *list {
		if strings.Contains(line, something) {
			found = append(found, line)
		}
	}
	return found
}

// run runs a command of words.
func (n *node) run(t *testing.T, command string) string {
	t.Helper()
	f := strings.Fields(command)
	return n.ns.Run(t, f[0], f[1:]...)
}

// counted takes what was told so far.
func (n *node) counted() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	kinds := n.kinds
	n.kinds = nil
	return kinds
}

func (n *node) up(t *testing.T, link string) bool {
	t.Helper()
	return strings.Contains(n.ns.Run(t, "ip", "link", "show", "dev", link), ",UP")
}

func (n *node) awaitUp(t *testing.T, link string) {
	t.Helper()
	wired.Eventually(t, func() error {
		if !n.up(t, link) {
			return fmt.Errorf("%s is down", link)
		}
		return nil
	})
}

// What is no pod's, of another boot, or may still be the plugin's work, is left alone.
func TestD12_OnlyLinksOfPodsThatAreDoneAreMended(t *testing.T) {
	n := newNode(t)
	others := map[string]func(name string){
		"one000000000001": func(name string) {
			n.record(t, name, func(r map[string]any) { r["created"] = time.Now() })
		},
		"one000000000002": func(name string) {
			n.record(t, name, func(r map[string]any) { r["bootID"] = "another" })
		},
		"one000000000003": func(string) {},
		"one000000000004": func(name string) { n.file(t, name+".json", []byte(`{"hostLink":"`+name+`","boot`)) },
		"one000000000005": func(name string) {
			n.record(t, name, func(r map[string]any) { r["podMAC"] = "none" })
		},
		"one000000000006": func(name string) {
			n.record(t, name, func(r map[string]any) { r["addresses"] = []string{"::ffff:10.1.0.2"} })
		},
		"onerule-other":   func(name string) { n.record(t, name, func(map[string]any) {}) },
		"one00000000000x": func(name string) { n.record(t, name, func(map[string]any) {}) },
	}
	for name, write := range others {
		n.link(t, name)
		write(name)
	}
	const last = "oneffffffffffff" // links are looked at in their order
	n.link(t, last)
	n.record(t, last, func(map[string]any) {})
	n.keep(t)
	n.awaitUp(t, last)
	for name := range others {
		if n.up(t, name) {
			t.Errorf("%s was mended", name)
		}
	}
	want := "10.1.0.2 dev " + last + " proto 111 scope link"
	wired.Eventually(t, func() error {
		if got := strings.TrimSpace(n.ns.Run(t, "ip", "route")); !strings.Contains(got, want) || strings.Count(got, "\n") > 0 {
			return fmt.Errorf("routes are %q, want %q", got, want)
		}
		return nil
	})
	if got := n.counted(); got != nil {
		t.Errorf("counted are %q: nobody knows who did it when", got)
	}
}

// A link that the plugin makes while the Keeper runs is its work until it is whole. From then
// on what differs is others'.
func TestD12_ALinkThatIsWholeIsKept(t *testing.T) {
	n := newNode(t)
	n.keep(t)
	const link = "one00000000000a"
	n.record(t, link, func(r map[string]any) { r["created"] = time.Now() })
	n.whole(t, link)
	if got := n.counted(); got != nil {
		t.Errorf("the plugin's work is counted as %q", got)
	}
	// Nobody tells when it was seen whole: until then it stays as it is.
	neighbour := []string{"neigh", "replace", "10.1.0.2", "lladdr", podMAC, "dev", link, "nud", "permanent"}
	wired.Eventually(t, func() error {
		n.ns.Run(t, "ip", "neigh", "del", "10.1.0.2", "dev", link)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range 20 {
			<-tick.C
			if strings.Contains(n.ns.Run(t, "ip", "neigh"), "10.1.0.2") {
				return nil
			}
		}
		n.ns.Run(t, "ip", neighbour...)
		for range 20 {
			<-tick.C
		}
		return fmt.Errorf("it is not taken for whole")
	})
	if diff := cmp.Diff([]string{"neighbour"}, n.counted()); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	n.ns.Run(t, "ip", "link", "set", link, "down")
	n.awaitUp(t, link)
	var got []string
	wired.Eventually(t, func() error {
		got = append(got, n.counted()...)
		if diff := cmp.Diff([]string{"link", "address", "neighbour", "route"}, got); diff != "" {
			return fmt.Errorf("counted (-want +got):\n%s", diff)
		}
		return nil
	})
}
