package nft_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"onerule/nft"
	"onerule/test/netns"
)

// pinned puts pins of clients into the kernel, as the rules do.
func pinned(t *testing.T, ns *netns.NS, family nft.Family, id, scope string, to netip.AddrPort, first, n int) {
	t.Helper()
	var addrs, ports []string
	for i := range n {
		client := endpoint(family, 100_000+first+i).Addr()
		addrs = append(addrs, fmt.Sprintf("%s : %s", client, to.Addr()))
		ports = append(ports, fmt.Sprintf("%s : %d", client, to.Port()))
	}
	ns.Run(t, "nft", "-f", file(t, fmt.Sprintf("add element %[1]s onerule pins-%[2]saddr-%[3]s { %[4]s }\nadd element %[1]s onerule pins-%[2]sport-%[3]s { %[5]s }\n",
		family, scope, id, strings.Join(addrs, ", "), strings.Join(ports, ", "))))
}

func pinsLeft(t *testing.T, ns *netns.NS, family nft.Family, id, scope string) string {
	t.Helper()
	count := func(kind string) int {
		return strings.Count(elements(t, ns, family, "map", "pins-"+scope+kind+"-"+id), " : ")
	}
	return fmt.Sprint(count("addr"), " ", count("port"))
}

// Pins to an endpoint that left go for good, and no others; nothing else is listed.
func TestPinsGoWithTheirEndpoint(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		p := program(t, ns, config(family))
		want := world(family, 3, 2)
		a := sticky(want, family)
		load(t, ns, p, copyOf(want))
		now := time.Unix(1000, 0)
		unpin := func(after time.Duration) (n int) {
			t.Helper()
			do(t, ns, func() (err error) { n, err = p.Unpin(now.Add(after)); return err })
			return n
		}
		unpin(0)
		unpin(time.Second)
		if _, more := p.StaleAt(); more {
			t.Fatal("pins are still looked for after a load without any")
		}
		list := endpoints(family, 7000, 3)
		for i, ep := range list {
			pinned(t, ns, family, a.ID, "", ep, 1000*i, 1000)
		}
		pinned(t, ns, family, a.ID, "local-", list[0], 0, 10)

		keys := nft.NewKeys()
		keys.Affinities[a.ID] = true
		want.Pin(a, list[1:], nil)
		done := update(t, ns, p, keys, copyOf(want))
		if want := (nft.Operations{Transactions: 1, Deleted: 2}); done != want {
			t.Errorf("an endpoint less did %+v, want %+v", done, want)
		}
		before := p.Done()
		if n := unpin(10 * time.Second); n != 1010 {
			t.Errorf("deleted %d pins, want 1010", n)
		}
		if n := p.Done().Listings - before.Listings; n != 4 {
			t.Errorf("listed %d maps, want the 4 of this service port", n)
		}
		if got := pinsLeft(t, ns, family, a.ID, ""); got != "2000 2000" {
			t.Errorf("%s pins are left, want those to the other endpoints", got)
		}
		if got := pinsLeft(t, ns, family, a.ID, "local-"); got != "0 0" {
			t.Errorf("%s local pins are left, want none", got)
		}
		pinned(t, ns, family, a.ID, "", list[0], 0, 1) // by a packet that was under way
		if n := unpin(10 * time.Second); n != 0 {
			t.Errorf("read again at once: %d", n)
		}
		for _, want := range []int{1, 0} {
			if n := unpin(time.Minute); n != want {
				t.Errorf("deleted %d pins, want %d", n, want)
			}
			now = now.Add(time.Minute)
		}
		if _, more := p.StaleAt(); more {
			t.Error("pins are still looked for after a reading found none")
		}
	})
}

// A new timeout or policy keeps the pins, and a restart does.
func TestPinsSurviveChangesOfTheirAffinity(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		p := program(t, ns, config(family))
		list := endpoints(family, 7000, 3)
		a := nft.Affinity{ID: nft.AffinityID("ns/sticky/TCP"), Protocol: 6, Seconds: 60}
		state := func(a nft.Affinity) nft.State {
			s := nft.NewState()
			s.Pin(a, list, list[:1])
			s.Set(web(family, 1), nft.Route{Endpoints: list, Affinity: a})
			return s
		}
		keys := frontends(web(family, 1))
		keys.Affinities[a.ID] = true
		load(t, ns, p, state(a))
		pinned(t, ns, family, a.ID, "", list[2], 0, 100)
		rules := func() int { return strings.Count(listing(t, ns, family), "update @pins-addr-"+a.ID) }
		for _, change := range []func(){
			func() { a.Seconds = 10800 },
			func() { a.Local = true },
			func() { a.Local = false },
		} {
			change()
			if done := update(t, ns, p, keys, state(a)); done.Rulesets > 1 {
				t.Errorf("%+v did %+v, want one ruleset at most", a, done)
			}
			retire(t, ns, p, 0, 0)
			retire(t, ns, p, time.Minute, 0)
			if n := rules(); n != 1 {
				t.Errorf("%+v: %d rules pin, want 1: those of before are to go", a, n)
			}
		}
		done := load(t, ns, program(t, ns, config(family)), state(a))
		if done.Transactions != 0 {
			t.Errorf("a restart did %+v, want nothing", done)
		}
		if got := pinsLeft(t, ns, family, a.ID, ""); got != "100 100" {
			t.Errorf("%s pins are left, want all 100", got)
		}
		other := nft.NewState()
		update(t, ns, p, keys, other)
		retire(t, ns, p, 0, 0)
		retire(t, ns, p, time.Minute, 0)
		if got := listing(t, ns, family); strings.Contains(got, a.ID) {
			t.Errorf("something is left of an affinity that nobody has:\n%s", got)
		}
	})
}

// While pins are read, which takes long where there are many, endpoints come and go: what
// is deleted is what leads to nobody in the end, and who left meanwhile is looked for.
func TestPinsAreReadBesideWrites(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		p := program(t, ns, config(family))
		want := world(family, 3, 2)
		a := sticky(want, family)
		load(t, ns, p, copyOf(want))
		list := endpoints(family, 7000, 3)
		keys := nft.NewKeys()
		keys.Affinities[a.ID] = true
		has := func(eps ...netip.AddrPort) {
			t.Helper()
			want.Pin(a, eps, nil)
			update(t, ns, p, keys, copyOf(want))
		}
		now := time.Unix(1000, 0)
		has(list...)
		for i, ep := range list {
			pinned(t, ns, family, a.ID, "", ep, 100*i, 100)
		}
		has(list[2])

		r := begin(t, ns, p, now)
		if r == nil {
			t.Fatal("nothing is read after two endpoints left")
		}
		if _, more := p.StaleAt(); more {
			t.Error("more is to be read while a reading is under way")
		}
		has(list[0])
		if begin(t, ns, p, now) != nil {
			t.Fatal("a second reading begins beside the first")
		}
		r.Read()
		end := func(want int) {
			t.Helper()
			do(t, ns, func() error {
				n, err := p.EndPins(r, now)
				if n != want {
					t.Errorf("deleted %d pins, want %d", n, want)
				}
				return err
			})
		}
		end(200) // those to the first endpoint stay: it is back
		if got := pinsLeft(t, ns, family, a.ID, ""); got != "100 100" {
			t.Errorf("%s pins are left, want 100", got)
		}
		if at, more := p.StaleAt(); !more || at.After(now) {
			t.Errorf("after an endpoint left meanwhile pins are read at %v (%t), want at once", at, more)
		}
	})
}

// While a load is due pins can't be told from stale ones: nobody is told to look at them, and
// after it all are looked at.
func TestPinsWaitForALoad(t *testing.T) {
	ns := netns.New(t, "node")
	p, want := program(t, ns, config(nft.IPv4)), world(nft.IPv4, 3, 2)
	sticky(want, nft.IPv4)
	check := func(when string, want bool) {
		t.Helper()
		_, more := p.StaleAt()
		if more != want {
			t.Errorf("%s: pins are to be read: %t, want %t", when, more, want)
		}
		if reads := begin(t, ns, p, time.Unix(1000, 0)) != nil; reads != more {
			t.Errorf("%s: they are read: %t, and are to be: %t", when, reads, more)
		}
	}
	load(t, ns, p, copyOf(want))
	p.Doubt()
	check("while a load is due", false)
	load(t, ns, p, copyOf(want))
	check("after it", true)
}

func begin(t *testing.T, ns *netns.NS, p *nft.Program, now time.Time) (r *nft.PinReading) {
	t.Helper()
	do(t, ns, func() (err error) { r, err = p.BeginPins(now); return err })
	return r
}

// Pins are read through one socket, which stays: to close it would take longer than all
// the rest of a change. Close closes it.
func TestPinsAreReadThroughOneSocket(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		before := sockets(t, ns)
		p := program(t, ns, config(family))
		want := world(family, 3, 2)
		sticky(want, family)
		load(t, ns, p, want)
		loaded := sockets(t, ns)
		now := time.Unix(1000, 0)
		unpin := func(at time.Time) {
			t.Helper()
			do(t, ns, func() error { _, err := p.Unpin(at); return err })
		}
		unpin(now)
		first := sockets(t, ns)
		if len(first) != len(loaded)+1 {
			t.Errorf("got netlink sockets %v after pins were read, and %v before", first, loaded)
		}
		unpin(now.Add(time.Second))
		if again := sockets(t, ns); !slices.Equal(again, first) {
			t.Errorf("got netlink sockets %v after pins were read again, want %v", again, first)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if left := sockets(t, ns); !slices.Equal(left, before) {
			t.Errorf("got netlink sockets %v after Close, want %v", left, before)
		}
	})
}

// sockets gives the netfilter sockets of a namespace by inode.
func sockets(t *testing.T, ns *netns.NS) []string {
	t.Helper()
	var list []string
	do(t, ns, func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netlink")
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 9 && f[1] == "12" && f[2] != "0" { // NETLINK_NETFILTER, not the kernel's own
				list = append(list, f[9])
			}
		}
		return err
	})
	slices.Sort(list)
	return list
}
