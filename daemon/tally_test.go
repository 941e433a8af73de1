package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"onerule/bpf"
	"onerule/daemon/metrics"
	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/test/bpffs"
	"onerule/test/netns"
)

// newCounters counts in a namespace of its own, with room for so many keys. Nothing is
// sent there: tests add what would have been counted.
func newCounters(t *testing.T, size uint32) *bpf.Counters {
	t.Helper()
	var c *bpf.Counters
	err := netns.New(t, "node").Do(func() (err error) {
		c, err = bpf.Open(bpf.Options{Size: size, IPv6: true, Log: logr.Discard()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// vipOf gives a frontend at the n-th ClusterIP of a family.
func vipOf(family plan.Family, n int) plan.Frontend {
	a := netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
	if family == plan.IPv6 {
		a = netip.AddrFrom16([16]byte{0xfd, 14: byte(n >> 8), 15: byte(n)})
	}
	return plan.Frontend{Addr: a, Protocol: model.TCP, Port: 80}
}

// backends gives endpoints from one number to the one before another.
func backends(family plan.Family, from, to int) []netip.AddrPort {
	var list []netip.AddrPort
	for n := from; n < to; n++ {
		a := netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})
		if family == plan.IPv6 {
			a = netip.AddrFrom16([16]byte{0xfd, 1, 14: byte(n >> 8), 15: byte(n)})
		}
		list = append(list, netip.AddrPortFrom(a, 8080))
	}
	return list
}

func countedFor(service string, family plan.Family, endpoints []netip.AddrPort) counted {
	return counted{of: plan.ServicePort{Service: model.Name{Namespace: "ns", Name: service}, Protocol: model.TCP, Family: family}, endpoints: endpoints}
}

type frontends map[plan.Frontend]counted

// all brings in what a load left.
func (t *tally) all(test *testing.T) {
	for t.turn() {
		// another one
	}
	t.sweep(test.Context())
}

// change is what the loop does around a write.
func (t *tally) change(now frontends) {
	t.begin(now)
	t.end(now)
}

func hitsOf(t *testing.T, of *tally) map[string]uint64 {
	t.Helper()
	list, err := of.hits()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, h := range list {
		got[h.Service+" "+h.Endpoint] = h.Connections
	}
	return got
}

// sumsOf gives what is told of each Service.
func sumsOf(t *testing.T, of *tally) map[string]uint64 {
	t.Helper()
	sums := map[string]uint64{}
	for hit, n := range hitsOf(t, of) {
		service, _, _ := strings.Cut(hit, " ")
		sums[service] += n
	}
	return sums
}

func hit(t *testing.T, of *tally, f plan.Frontend, endpoint netip.AddrPort, n uint64) {
	t.Helper()
	if err := of.counters.Load().Add(keysOf(f, []netip.AddrPort{endpoint})[0], n); err != nil {
		t.Fatal(err)
	}
}

func keysIn(t *testing.T, c *bpf.Counters) int {
	t.Helper()
	n := 0
	if err := c.Hits(func(bpf.Key, uint64) { n++ }); err != nil {
		t.Fatal(err)
	}
	return n
}

func eachFamily(t *testing.T, f func(t *testing.T, family plan.Family)) {
	for name, family := range map[string]plan.Family{"IPv4": plan.IPv4, "IPv6": plan.IPv6} {
		t.Run(name, func(t *testing.T) { f(t, family) })
	}
}

func TestKeysFollowTheEndpoints(t *testing.T) {
	eachFamily(t, func(t *testing.T, family plan.Family) {
		of := newTally(newCounters(t, 0), logr.Discard())
		f, e := vipOf(family, 1), backends(family, 0, 3)
		check := func(when string, want map[string]uint64) {
			t.Helper()
			if diff := cmp.Diff(want, hitsOf(t, of)); diff != "" {
				t.Errorf("%s (-want +got): %s", when, diff)
			}
		}
		of.load(family, frontends{f: countedFor("web", family, e[:2])})
		of.all(t)
		check("loaded", map[string]uint64{"web " + e[0].String(): 0, "web " + e[1].String(): 0})
		hit(t, of, f, e[0], 3)
		hit(t, of, f, e[1], 4)
		of.change(frontends{f: countedFor("web", family, e[1:])})
		check("one has left", map[string]uint64{"web ": 3, "web " + e[1].String(): 4, "web " + e[2].String(): 0})
		of.change(frontends{f: countedFor("web", family, nil)})
		check("all have left", map[string]uint64{"web ": 7})
		of.change(frontends{f: countedFor("web", family, e[:1])})
		hit(t, of, f, e[0], 1)
		check("one has come back", map[string]uint64{"web ": 7, "web " + e[0].String(): 1})
		of.change(frontends{f: countedFor("heir", family, e[:1])})
		check("it is another Service's", map[string]uint64{"heir " + e[0].String(): 0})
		hit(t, of, f, e[0], 1)
		of.load(family, frontends{})
		of.all(t)
		if n := keysIn(t, of.counters.Load()); n != 0 {
			t.Errorf("%d keys are left when nobody has the frontend", n)
		}
	})
}

// A daemon that begins with what is there already writes no key: in a map that is full no
// other would have room.
func TestARestartWithTheSameWritesNoKey(t *testing.T) {
	const services, endpoints = 20, 5
	c := newCounters(t, services*endpoints+1)
	all := frontends{}
	for n := range services {
		all[vipOf(plan.IPv4, n)] = countedFor("web", plan.IPv4, backends(plan.IPv4, n, n+endpoints))
	}
	before := newTally(c, logr.Discard())
	before.load(plan.IPv4, all)
	before.all(t)
	hit(t, before, vipOf(plan.IPv4, 3), backends(plan.IPv4, 4, 5)[0], 9)
	hit(t, before, vipOf(plan.IPv4, 3), nobody(plan.IPv4), 2)
	if n := keysIn(t, c); n != services*endpoints+1 {
		t.Fatalf("the map holds %d keys, want it full", n)
	}
	lines := 0
	after := newTally(c, funcr.New(func(_, args string) { lines++; t.Log(args) }, funcr.Options{}))
	after.load(plan.IPv4, all)
	after.all(t)
	if lines != 0 || len(after.lacking) > 0 {
		t.Errorf("it has written: %d lines said, %d frontends lack keys", lines, len(after.lacking))
	}
	if diff := cmp.Diff(hitsOf(t, before), hitsOf(t, after)); diff != "" {
		t.Errorf("after a restart (-before +after): %s", diff)
	}
}

// What the daemon before knew of a family counts until this one knows the family; what an
// endpoint has counted that left meanwhile is kept.
func TestAFamilyThatIsNotLoadedYetIsLeftAlone(t *testing.T) {
	c := newCounters(t, 0)
	before := newTally(c, logr.Discard())
	for _, family := range []plan.Family{plan.IPv4, plan.IPv6} {
		f, e := vipOf(family, 1), backends(family, 0, 2)
		before.change(frontends{f: countedFor("web", family, e), vipOf(family, 2): countedFor("gone", family, e)})
		hit(t, before, f, e[0], 3)
		hit(t, before, f, e[1], 4)
	}
	of := newTally(c, logr.Discard())
	of.load(plan.IPv4, frontends{vipOf(plan.IPv4, 1): countedFor("web", plan.IPv4, backends(plan.IPv4, 0, 1))})
	of.all(t)
	of.load(plan.IPv6, frontends{vipOf(plan.IPv6, 1): countedFor("web", plan.IPv6, backends(plan.IPv6, 1, 2))})
	of.all(t)
	want := map[string]uint64{"web ": 7, "web 10.1.0.0:8080": 3, "web [fd01::1]:8080": 4}
	if diff := cmp.Diff(want, hitsOf(t, of)); diff != "" {
		t.Errorf("(-want +got): %s", diff)
	}
	if n := keysIn(t, c); n != 4 {
		t.Errorf("the map holds %d keys, want 2 of each family", n)
	}
}

// A part of what the daemon before has counted is never told for all of it: whoever reads
// takes a sum that falls for one that began anew, and its return for connections.
func TestARestartTellsAllOrNothing(t *testing.T) {
	const services = 2*perTurn + 10
	families := []plan.Family{plan.IPv4, plan.IPv6}
	ns, dir := netns.New(t, "node"), bpffs.New(t)
	all := map[plan.Family]frontends{plan.IPv4: {}, plan.IPv6: {}}
	for _, family := range families {
		for n := range services {
			all[family][vipOf(family, n)] = countedFor(fmt.Sprint("web", n%2), family, backends(family, n, n+1))
		}
	}
	begin := func() *tally {
		var c *bpf.Counters
		if err := ns.Do(func() (err error) {
			c, err = bpf.Open(bpf.Options{Dir: dir, IPv6: true, Log: logr.Discard()})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		of := newTally(nil, logr.Discard())
		for _, family := range families {
			of.await(family)
		}
		of.use(c, nil)
		return of
	}
	before := begin()
	for _, family := range families {
		before.load(family, all[family])
		before.all(t)
		for f, c := range all[family] {
			hit(t, before, f, c.endpoints[0], 3)
		}
	}
	want := map[string]uint64{"web0": 3 * services, "web1": 3 * services}
	if diff := cmp.Diff(want, sumsOf(t, before)); diff != "" {
		t.Fatalf("the daemon before (-want +got): %s", diff)
	}
	if err := before.close(); err != nil {
		t.Fatal(err)
	}

	after, told := begin(), 0
	defer func() { _ = after.close() }()
	check := func(when string) {
		t.Helper()
		sums := sumsOf(t, after)
		if len(sums) == 0 && told == 0 {
			return
		}
		told++
		if diff := cmp.Diff(want, sums); diff != "" {
			t.Errorf("%s (-want +got): %s", when, diff)
		}
	}
	check("at the start")
	for _, family := range append(families, families...) { // the second time as after a repair
		after.load(family, all[family])
		check(fmt.Sprint("loaded ", family))
		for turn := 1; after.turn(); turn++ {
			check(fmt.Sprint("turn ", turn, " of ", family))
		}
		check(fmt.Sprint("brought in ", family))
		after.sweep(t.Context())
		check(fmt.Sprint("swept ", family))
	}
	if told == 0 {
		t.Error("nothing is told at all")
	}
}

func TestAChangeThatFailsLeavesNoKey(t *testing.T) {
	of := newTally(newCounters(t, 0), logr.Discard())
	f, e := vipOf(plan.IPv4, 1), backends(plan.IPv4, 0, 3)
	of.load(plan.IPv4, frontends{f: countedFor("web", plan.IPv4, e[:1])})
	of.all(t)
	of.begin(frontends{f: countedFor("web", plan.IPv4, e[:2]), vipOf(plan.IPv4, 2): countedFor("new", plan.IPv4, e)})
	of.load(plan.IPv4, frontends{f: countedFor("web", plan.IPv4, e[2:])})
	of.all(t)
	if diff := cmp.Diff(map[string]uint64{"web " + e[2].String(): 0}, hitsOf(t, of)); diff != "" || keysIn(t, of.counters.Load()) != 1 {
		t.Errorf("%d keys, hits (-want +got): %s", keysIn(t, of.counters.Load()), diff)
	}
}

// Changes come while what a load left is brought in, also those that take it back.
func TestChangesWhileALoadIsBroughtIn(t *testing.T) {
	of := newTally(newCounters(t, 0), logr.Discard())
	f, e := vipOf(plan.IPv4, 1), backends(plan.IPv4, 0, 2)
	of.change(frontends{f: countedFor("web", plan.IPv4, e[:1])})
	of.load(plan.IPv4, frontends{f: countedFor("web", plan.IPv4, e[1:])})
	back := frontends{f: countedFor("web", plan.IPv4, e[:1]), vipOf(plan.IPv4, 2): countedFor("new", plan.IPv4, e)}
	of.begin(back)
	of.all(t)
	of.end(back)
	of.all(t)
	want := map[string]uint64{"web " + e[0].String(): 0, "new " + e[0].String(): 0, "new " + e[1].String(): 0}
	if diff := cmp.Diff(want, hitsOf(t, of)); diff != "" || keysIn(t, of.counters.Load()) != len(want) {
		t.Errorf("%d keys, hits (-want +got): %s", keysIn(t, of.counters.Load()), diff)
	}
}

// A map that is full is said once; who found no room gets it when there is some.
func TestAFullMapOfEndpoints(t *testing.T) {
	var said []string
	of := newTally(newCounters(t, 10), funcr.New(func(_, args string) { said = append(said, args) }, funcr.Options{}))
	first, e := vipOf(plan.IPv4, 1), backends(plan.IPv4, 0, 8)
	of.change(frontends{first: countedFor("first", plan.IPv4, e)})
	for n := range 5 {
		of.change(frontends{vipOf(plan.IPv4, 2+n): countedFor(fmt.Sprint("web", n), plan.IPv4, e[:2])})
	}
	if len(said) != 1 || !strings.Contains(said[0], bpf.ErrFull.Error()) || !of.isFull() {
		t.Errorf("a map that is full is said %d times, want once: %q", len(said), said)
	}
	if n := keysIn(t, of.counters.Load()); n != 10 {
		t.Errorf("the map holds %d keys, want 10", n)
	}
	of.change(frontends{first: {}})
	of.all(t)
	if n := keysIn(t, of.counters.Load()); n != 10 || of.isFull() {
		t.Errorf("with room %d keys are held, full %t, want all 10", n, of.isFull())
	}
	of.change(frontends{vipOf(plan.IPv4, 20): countedFor("more", plan.IPv4, e[:1])})
	if len(said) != 2 {
		t.Errorf("full again is said: %q", said)
	}
}

func TestFiftyThousandEndpoints(t *testing.T) {
	const services, endpoints = 50, 1000
	c := newCounters(t, 0)
	all := frontends{}
	for n := range services {
		all[vipOf(plan.IPv6, n)] = countedFor(fmt.Sprint("web", n), plan.IPv6, backends(plan.IPv6, n*endpoints, (n+1)*endpoints))
	}
	of := newTally(c, funcr.New(func(_, args string) { t.Error(args) }, funcr.Options{}))
	of.load(plan.IPv6, all)
	of.all(t)
	list, err := of.hits()
	if err != nil || len(list) != services*endpoints {
		t.Errorf("%d endpoints are told, %v, want %d", len(list), err, services*endpoints)
	}
	of.load(plan.IPv6, frontends{})
	of.all(t)
	if n := keysIn(t, c); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

// One endpoint's change takes as much whatever else there is.
func TestOneChangeTakesNoMoreWithMoreServices(t *testing.T) {
	allocations := func(services int) float64 {
		of := newTally(newCounters(t, 0), logr.Discard())
		all := frontends{}
		for n := range services {
			all[vipOf(plan.IPv4, n)] = countedFor(fmt.Sprint("web", n), plan.IPv4, backends(plan.IPv4, n, n+10))
		}
		of.load(plan.IPv4, all)
		of.all(t)
		f, n := vipOf(plan.IPv4, services/2), 0
		changes := []frontends{
			{f: countedFor("web", plan.IPv4, backends(plan.IPv4, 20000, 20010))},
			{f: countedFor("web", plan.IPv4, backends(plan.IPv4, 20001, 20011))},
		}
		return testing.AllocsPerRun(50, func() {
			of.change(changes[n%2])
			n++
		})
	}
	few, many := allocations(100), allocations(3000)
	if few != many {
		t.Errorf("%v allocations with 100 Services, %v with 3,000", few, many)
	}
}

// What moves while the map is read is told once, not twice or never.
func TestHitsNeverFall(t *testing.T) {
	of := newTally(newCounters(t, 0), logr.Discard())
	e := backends(plan.IPv4, 0, 1000)
	f := vipOf(plan.IPv4, 1)
	of.change(frontends{f: countedFor("web", plan.IPv4, e)})
	const each = 25
	for _, e := range e {
		hit(t, of, f, e, each)
	}
	done := make(chan bool)
	go func() { // ends after so many changes
		defer close(done)
		for out := range e { // which moves what it has counted
			of.change(frontends{f: countedFor("web", plan.IPv4, slices.Delete(slices.Clone(e), out, out+1))})
		}
	}()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		var got uint64
		for _, n := range hitsOf(t, of) {
			got += n
		}
		if want := each * uint64(len(e)); got != want {
			t.Fatalf("the sum is %d, want %d", got, want)
		}
	}
}

func TestNothingIsCountedWithoutCounters(t *testing.T) {
	of := newTally(nil, logr.Discard())
	of.change(frontends{vipOf(plan.IPv4, 1): {}})
	of.load(plan.IPv4, frontends{})
	of.reject(nil)
	rejected, err := of.rejected(false)
	if of.mode() != "" || len(rejected) > 0 || err != nil || of.isFull() {
		t.Errorf("mode %q, rejected %v, %v", of.mode(), rejected, err)
	}
	if err := of.close(); err != nil {
		t.Error(err)
	}
}

func TestHitsThatCannotBeRead(t *testing.T) {
	of := newTally(newCounters(t, 0), logr.Discard())
	if err := of.close(); err != nil {
		t.Fatal(err)
	}
	var none []metrics.Hit
	got, err := of.hits()
	if err == nil || !cmp.Equal(got, none) || errors.Is(err, bpf.ErrFull) {
		t.Errorf("got %v, %v, want an error", got, err)
	}
}
