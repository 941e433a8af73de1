package invariants_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/rig"
)

const (
	flips         = 1000
	flipping      = 20 // how many Services flip
	flipsAtOnce   = 4  // before the daemon is given the time to see them
	mostEndpoints = 6
	refusedOf100  = 10
	leastRefused  = 6 // fewer would show too little: flips go on until then
)

// One transaction in ten fails while endpoints flip, those of nft and those of elements:
// in the end every Service has the endpoints that it should, and there is nothing left
// for a new start to write.
func TestR11NoChangeIsLostWhenWritesFail(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	p, ns := addr.IPv4(), netns.New(t, "node")
	d := rig.New(t, ns, "--cluster-cidr", p.ClusterCIDR.String())
	r := newRefuser(t, d, seed)
	d.Run()
	d.AwaitHealthy()
	begun, _ := r.counts(t)
	r.refuse(refusedOf100)
	random, want := rand.New(rand.NewPCG(seed, 1)), map[netip.Addr][]netip.AddrPort{}
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for n := range 5 * flips {
		if n%flipsAtOnce == 0 {
			<-tick.C
			if _, failed := r.counts(t); n >= flips && failed >= leastRefused {
				break
			}
		}
		flip(d, p, random, want)
	}
	awaitWanted(t, ns, want)
	seen, failed := r.counts(t)
	said := d.Metric("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "ip_family", "IPv4")
	t.Logf("%d of %d transactions failed, %v syncs", failed, seen-begun, said)
	if failed < leastRefused || said < leastRefused {
		t.Errorf("%d transactions and %v syncs failed: the test shows too little", failed, said)
	}
	r.refuse(0)
	d.Stop()
	d.Run()
	d.AwaitHealthy()
	if ops := operations(d); ops["add"]+ops["delete"] != 0 {
		t.Errorf("a new start did %v, want no element written", ops)
	}
	awaitWanted(t, ns, want)
}

// flip gives a Service other endpoints, or none.
func flip(d *rig.Daemon, p addr.Plan, random *rand.Rand, want map[netip.Addr][]netip.AddrPort) {
	i := random.IntN(flipping)
	name, vip := fmt.Sprintf("flip-%d", i), p.VIP(i)
	var list []netip.Addr
	for _, n := range random.Perm(2 * mostEndpoints)[:random.IntN(mostEndpoints+1)] {
		list = append(list, p.OtherPod(n))
	}
	slices.SortFunc(list, netip.Addr.Compare)
	want[vip] = nil
	for _, a := range list {
		want[vip] = append(want[vip], netip.AddrPortFrom(a, 8080))
	}
	d.Write(name+".yaml", rig.Service(name, []netip.Addr{vip}, "web/TCP/80"), rig.Slice(name+"-1", name, list, "web/TCP/8080"))
}

// awaitWanted waits until the kernel has these endpoints of each ClusterIP, in as many
// slots, and knows how many they are.
func awaitWanted(t *testing.T, ns *netns.NS, want map[netip.Addr][]netip.AddrPort) {
	t.Helper()
	rig.Eventually(t, "every Service has its endpoints", func() error {
		got, numbers := inKernel(t, ns)
		for vip := range want {
			if _, ok := got[vip]; !ok {
				got[vip] = nil // none
			}
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			return fmt.Errorf("endpoints (-want +got): %s", diff)
		}
		for vip, endpoints := range want {
			if set := setOf(len(endpoints)); !slices.Equal(numbers[vip], []string{set}) {
				return fmt.Errorf("%s with %d endpoints is in the sets %v, want %s", vip, len(endpoints), numbers[vip], set)
			}
		}
		return nil
	})
}

// setOf names the set that frontends with so many endpoints are in.
func setOf(endpoints int) string {
	if endpoints == 0 {
		return "no-endpoints"
	}
	return fmt.Sprintf("lb-tcp-%d", endpoints)
}

// inKernel gives the endpoints by ClusterIP, sorted, and in which sets of those that say
// how many there are it is.
func inKernel(t *testing.T, ns *netns.NS) (endpoints map[netip.Addr][]netip.AddrPort, numbers map[netip.Addr][]string) {
	t.Helper()
	endpoints, numbers = map[netip.Addr][]netip.AddrPort{}, map[netip.Addr][]string{}
	text := ns.Run(t, "nft", "list", "map", "ip", "onerule", "endpoints-tcp")
	for _, m := range regexp.MustCompile(`(\S+) \. 80 \. \d+ : (\S+) \. (\d+)`).FindAllStringSubmatch(text, -1) {
		vip := netip.MustParseAddr(m[1])
		endpoints[vip] = append(endpoints[vip], netip.MustParseAddrPort(m[2]+":"+m[3]))
	}
	for _, list := range endpoints {
		slices.SortFunc(list, netip.AddrPort.Compare)
	}
	table := ns.Run(t, "nft", "list", "table", "ip", "onerule")
	for _, set := range regexp.MustCompile(`(?s)\tset (lb-tcp-\d+|no-endpoints) \{.*?\n\t\}`).FindAllStringSubmatch(table, -1) {
		for _, m := range regexp.MustCompile(`(\d+\.\d+\.\d+\.\d+) \. `).FindAllStringSubmatch(set[0], -1) {
			vip := netip.MustParseAddr(m[1])
			numbers[vip] = append(numbers[vip], set[1])
		}
	}
	return endpoints, numbers
}
