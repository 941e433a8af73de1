package rows_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/netns"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// pods is how many pods each node has. The rows that need clients beside endpoints
// use pod 0 for the client.
const pods = 3

// A world is the hosts with one daemon on their node, and the manifest files that it
// reads.
type world struct {
	h     *hosts.Hosts
	d     *rig.Daemon
	flags []string
	files map[string][]string
	marks int
	// empty is what the sets of both tables hold without a row's files.
	empty map[string]float64
}

func newWorld(t *testing.T) *world {
	w := &world{h: hosts.New(t, pods, 8080, 8081), files: map[string][]string{}}
	for _, p := range addr.Both() {
		// Somebody outside has addresses that could be ClusterIPs, and would answer.
		for _, a := range []netip.Addr{stranger(p), squatter(p)} {
			w.h.Outside.Addr(t, "eth0", netip.PrefixFrom(a, a.BitLen()).String())
			w.h.ServeOn(t, w.h.Outside, netip.AddrPortFrom(a, 80))
		}
	}
	return w
}

// begin starts the daemon with these flags.
func (w *world) begin(t *testing.T, flags ...string) {
	t.Helper()
	w.flags = flags
	w.d = rig.New(t, w.h.Node, flags...)
	w.write("cidrs.yaml", rig.ServiceCIDR("kubernetes", addr.IPv4().ServiceCIDR, addr.IPv6().ServiceCIDR))
	w.d.Run()
	w.d.AwaitHealthy()
	w.settle(t)
	w.empty = w.elements()
}

// restart ends the daemon and starts another one with the same files and other flags.
func (w *world) restart(t *testing.T, flags ...string) {
	t.Helper()
	w.d.Stop()
	w.flags = flags
	w.d = rig.New(t, w.h.Node, flags...)
	for name, documents := range w.files {
		w.d.Write(name, documents...)
	}
	w.d.Run()
	w.d.AwaitHealthy()
	w.h.Forget(t)
}

// detectBoth are the flags by which pods of both families are told apart.
func detectBoth(more ...string) []string {
	return append([]string{"--cluster-cidr", fmt.Sprintf("%s,%s", addr.IPv4().ClusterCIDR, addr.IPv6().ClusterCIDR)}, more...)
}

// stranger is the address of somebody outside in a range that is no ServiceCIDR yet.
func stranger(p addr.Plan) netip.Addr { return addr.Nth(p.SecondServiceCIDR, 9) }

// squatter is the address of somebody outside in the ServiceCIDR.
func squatter(p addr.Plan) netip.Addr { return p.VIP(7) }

// senders are clients that go by the node to what is outside.
func senders(p addr.Plan) []oracle.Packet {
	return append(hosts.Clients(p)[:2], oracle.Packet{From: oracle.Outside, Src: p.OtherNode()})
}

// write writes a file and does not wait.
func (w *world) write(name string, documents ...string) {
	w.files[name] = documents
	w.d.Write(name, documents...)
}

// put writes a file and waits until what it says is in the kernel. Flows from before
// are forgotten.
func (w *world) put(t *testing.T, name string, documents ...string) {
	t.Helper()
	w.write(name, documents...)
	w.settle(t)
	w.h.Forget(t)
}

// remove deletes a file and waits as put does.
func (w *world) remove(t *testing.T, name string) {
	t.Helper()
	delete(w.files, name)
	w.d.Remove(name)
	w.settle(t)
	w.h.Forget(t)
}

// settle waits until everything written so far is in the kernel: it writes a mark, of
// the kind of object that comes last of those read together, in the family that is
// written last, and waits until the kernel has it.
func (w *world) settle(t *testing.T) {
	t.Helper()
	w.marks++
	mark := netip.MustParsePrefix(fmt.Sprintf("fd00:ffff:0:%x::/64", w.marks))
	w.write("mark.yaml", rig.ServiceCIDR("zz-mark", mark))
	rig.Eventually(t, "what was written is in the kernel", func() error {
		out, err := w.h.Node.Output("nft", "list", "set", "ip6", "onerule", "service-cidrs")
		if err == nil && !strings.Contains(out, mark.String()) {
			err = fmt.Errorf("no mark %s in %s", mark, out)
		}
		return err
	})
}

// clear removes what a row wrote, and checks that the tables hold as much as before it.
func (w *world) clear(t *testing.T, row string) {
	t.Helper()
	for _, name := range slices.Collect(maps.Keys(w.files)) {
		if name != "cidrs.yaml" && name != "mark.yaml" {
			delete(w.files, name)
			w.d.Remove(name)
		}
	}
	w.settle(t)
	w.h.Forget(t)
	rig.Eventually(t, row+": everything of it is deleted", func() error { // ranges are written first
		if diff := cmp.Diff(w.empty, w.elements()); diff != "" {
			return fmt.Errorf("elements (-before +after): %s", diff)
		}
		return nil
	})
}

// elements gives how much each set of both tables holds, without empty ones.
func (w *world) elements() map[string]float64 {
	sizes := w.d.Series("onerule_elements") // by family and set
	maps.DeleteFunc(sizes, func(_ string, n float64) bool { return n == 0 })
	return sizes
}

// each runs a test for both families.
func each(t *testing.T, f func(t *testing.T, p addr.Plan)) {
	for _, p := range addr.Both() {
		t.Run(familyOf(p), func(t *testing.T) { f(t, p) })
	}
}

func familyOf(p addr.Plan) string {
	if p.VIP(0).Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// nftFamily is nft's word for the family.
func nftFamily(p addr.Plan) string {
	if p.VIP(0).Is4() {
		return "ip"
	}
	return "ip6"
}

// A place is where clients send to.
type place struct {
	addr     netip.Addr
	protocol model.Protocol
	port     uint16
}

func at(a netip.Addr, protocol model.Protocol, port uint16) place { return place{a, protocol, port} }

func (p place) from(client oracle.Packet) oracle.Packet {
	client.Dst, client.Protocol, client.Port = p.addr, p.protocol, p.port
	return client
}

// repeats is how often what must be reached is looked at, so that an endpoint that
// must not be reached would show: 1 in 2^12 that it would not.
const repeats = 12

// sees sends packets of one client to a place and says what is wrong with what it
// sees. An answer must come before a SYN would be sent again, a refusal at once. That
// is tried twice: on a busy machine a client can oversleep, and what takes a second
// by itself always does.
func (w *world) sees(t *testing.T, client oracle.Packet, to place, want oracle.Outcome) {
	t.Helper()
	times, tries, patience := 1, 1, hosts.Patience
	switch want.Verdict {
	case oracle.Reached:
		times = repeats
	case oracle.Refused:
		tries, patience = 2, hosts.Lost
	}
	for range times {
		var wrong string
		for range tries {
			var err error
			if wrong, err = w.h.Check(to.from(client), want, patience); err != nil {
				t.Error(err)
				return
			}
			if wrong == "" {
				break
			}
		}
		if wrong != "" {
			t.Errorf("from %s %s to %s %s: %s", client.From, client.Src, netip.AddrPortFrom(to.addr, to.port), to.protocol, wrong)
			return
		}
	}
}

// reached checks that a pod, the node and somebody outside all reach these endpoints
// and no others, each with the address that it must have there.
func (w *world) reached(t *testing.T, p addr.Plan, to place, endpoints ...netip.AddrPort) {
	t.Helper()
	for _, client := range hosts.Clients(p) {
		w.sees(t, client, to, w.arriving(client, endpoints...))
	}
}

// arriving is what must come of a client's packets if pods are told apart (A2): those
// that are none are seen as the node.
func (w *world) arriving(client oracle.Packet, endpoints ...netip.AddrPort) oracle.Outcome {
	want := oracle.Outcome{Verdict: oracle.Reached}
	for _, e := range endpoints {
		// What ends on the node is not sent on, and so not masqueraded.
		sentOn := client.From == oracle.Node || !slices.Contains(w.h.NodeAddrs(), e.Addr())
		want.Arrivals = append(want.Arrivals, oracle.Arrival{Endpoint: e, Masqueraded: client.From != oracle.Pod && sentOn})
	}
	return want
}

func (w *world) refused(t *testing.T, p addr.Plan, to ...place) {
	t.Helper()
	for _, client := range hosts.Clients(p) {
		for _, place := range to {
			w.sees(t, client, place, oracle.Outcome{Verdict: oracle.Refused})
		}
	}
}

func (w *world) dropped(t *testing.T, p addr.Plan, to ...place) {
	t.Helper()
	w.silent(t, hosts.Clients(p), to...)
}

// strangerDropped checks that nothing reaches the stranger by way of the node.
func (w *world) strangerDropped(t *testing.T, p addr.Plan) {
	t.Helper()
	w.silent(t, senders(p), at(stranger(p), model.TCP, 80), at(stranger(p), model.UDP, 80))
}

// silent checks that none of these clients hears anything, all at once: each has to
// wait.
func (w *world) silent(t *testing.T, clients []oracle.Packet, to ...place) {
	t.Helper()
	var waiting sync.WaitGroup
	for _, client := range clients {
		for _, place := range to {
			waiting.Go(func() { w.sees(t, client, place, oracle.Outcome{Verdict: oracle.Dropped}) })
		}
	}
	waiting.Wait()
}

// passes checks that what goes to the stranger by way of the node is not ours.
func (w *world) passes(t *testing.T, p addr.Plan) {
	t.Helper()
	for _, client := range senders(p) {
		for _, proto := range []model.Protocol{model.TCP, model.UDP} {
			w.sees(t, client, at(stranger(p), proto, 80), oracle.Outcome{Verdict: oracle.Untouched})
		}
	}
}

// said counts the log lines that hold all these texts.
func (w *world) said(texts ...string) int {
	n := 0
	for line := range strings.Lines(w.d.Log()) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			n++
		}
	}
	return n
}

// ruleset lists our table of a family.
func (w *world) ruleset(t *testing.T, p addr.Plan) string {
	t.Helper()
	return w.h.Node.Run(t, "nft", "list", "table", nftFamily(p), "onerule")
}

// script loads an nft script in the node.
func script(t *testing.T, ns *netns.NS, text string) {
	t.Helper()
	if err := ns.Do(func() error { return nftScript(text) }); err != nil {
		t.Fatal(err)
	}
}
