package nft

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// An Element is one element of a set or map. Which fields count depends on the
// set: addresses and hairpins have Addr; routes have the frontend and Chain;
// endpoints have the frontend, Slot and Endpoint; allowed sources have the frontend and
// Source; members have Endpoint.
type Element struct {
	Set      string // its name in the kernel
	Frontend Frontend
	Slot     int
	Chain    string
	Endpoint netip.AddrPort
	Source   netip.Prefix
}

// A Step is a group of writes that must not be torn apart: what one address needs.
type Step struct {
	Delete, Add []Element
}

// Size is the number of writes.
func (s Step) Size() int { return len(s.Delete) + len(s.Add) }

// Changes lead from one state to another. They are applied in this order: Ranges and
// First, then Steps, then Last and RangesLast. An element to delete comes before one to
// add, so that a value is replaced within one transaction.
type Changes struct {
	// Ranges holds the whole new content of range sets that change.
	Ranges map[RangeSet][]netip.Prefix
	// First lets sources in before any frontend asks for them: the kernel does not
	// commit an interval set at the same moment as the other sets of a transaction.
	First []Step
	// Steps begin with members and with the hairpins that come, and end with those that
	// go: what they are too many for is torn into transactions in this order.
	Steps []Step
	// Last takes out the sources of frontends that ask for them no more.
	Last []Step
	// RangesLast is as Ranges for what must not be in force before the elements
	// are: what drops the traffic to addresses that nobody holds.
	RangesLast map[RangeSet][]netip.Prefix
}

// Empty says whether nothing has to be written.
func (c Changes) Empty() bool { return c.Size() == 0 }

// Size is the number of element writes.
func (c Changes) Size() int {
	n := len(c.Ranges) + len(c.RangesLast)
	for _, s := range c.all() {
		n += s.Size()
	}
	return n
}

// all gives the steps in the order in which they are applied.
func (c Changes) all() []Step { return slices.Concat(c.First, c.Steps, c.Last) }

// Diff gives the changes from have to want. It is pure, and its result depends on
// nothing but the two values. Slots are compared by position: see Settle.
func Diff(have, want State) Changes {
	d, first, last := newDiffer(), newDiffer(), newDiffer()
	before, after := newDiffer(), newDiffer()
	for _, name := range slices.Sorted(maps.Keys(want.Slots)) {
		diffMaps(have.Slots[name], want.Slots[name], slices.Equal, func(f Frontend, old, now []netip.AddrPort) {
			d.slots(name, f, old, now)
		})
	}
	for _, name := range slices.Sorted(maps.Keys(want.Counts)) {
		d.allCounts(name, have.Counts[name], want.Counts[name])
	}
	for _, name := range slices.Sorted(maps.Keys(want.Routes)) {
		diffMaps(have.Routes[name], want.Routes[name], equal, func(f Frontend, old, now string) {
			d.route(name, f, old, now)
		})
	}
	for _, name := range slices.Sorted(maps.Keys(want.Addrs)) {
		diffMaps(have.Addrs[name], want.Addrs[name], equal, func(addr netip.Addr, old, now bool) {
			to := d
			switch {
			case name == Hairpins && now:
				to = before
			case name == Hairpins:
				to = after
			}
			to.addr(name, addr, old, now)
		})
	}
	diffMaps(have.Sources, want.Sources, slices.Equal, func(f Frontend, old, now []netip.Prefix) {
		if now == nil {
			last.sources(f, old, nil)
			return
		}
		first.sources(f, old, now)
	})
	c := Changes{First: first.sorted(), Last: last.sorted()}
	c.Steps = slices.Concat(before.sorted(), diffMembers(have.Members, want.Members), d.sorted(), after.sorted())
	c.Ranges = diffRanges(have, want, PodCIDRs)
	c.RangesLast = diffRanges(have, want, ServiceCIDRs)
	return c
}

// diffMembers gives a step for each set of members: they are in before a connection
// goes to them, so that its client can be pinned.
func diffMembers(have, want map[string]map[netip.AddrPort]bool) []Step {
	var steps []Step
	names := map[string]bool{}
	add(names, maps.Keys(have))
	add(names, maps.Keys(want))
	for _, set := range slices.Sorted(maps.Keys(names)) {
		var s Step
		diffMaps(have[set], want[set], equal, func(ep netip.AddrPort, old, _ bool) {
			e := Element{Set: set, Endpoint: ep}
			if old {
				s.Delete = append(s.Delete, e)
				return
			}
			s.Add = append(s.Add, e)
		})
		if s.Size() > 0 {
			s.sort()
			steps = append(steps, s)
		}
	}
	return steps
}

func equal[T comparable](a, b T) bool { return a == b }

// diffMaps calls f for each key whose value differs, with the zero value for one
// that is missing.
func diffMaps[K comparable, V any](have, want map[K]V, same func(a, b V) bool, f func(key K, old, now V)) {
	for key, now := range want {
		if old, ok := have[key]; !ok || !same(old, now) {
			f(key, old, now)
		}
	}
	var none V
	for key, old := range have {
		if _, ok := want[key]; !ok {
			f(key, old, none)
		}
	}
}

func diffRanges(have, want State, name RangeSet) map[RangeSet][]netip.Prefix {
	if slices.Equal(have.Ranges[name], want.Ranges[name]) {
		return nil
	}
	return map[RangeSet][]netip.Prefix{name: want.Ranges[name]}
}

// differ collects writes by address: a frontend is never dispatched to before its
// endpoints are in, and an address never refuses before its frontends are in.
type differ struct {
	steps map[Frontend]*Step
}

func newDiffer() differ { return differ{map[Frontend]*Step{}} }

func (d *differ) step(f Frontend) *Step {
	key := f.step()
	s := d.steps[key]
	if s == nil {
		s = &Step{}
		d.steps[key] = s
	}
	return s
}

func (d *differ) slots(name SlotMap, f Frontend, old, now []netip.AddrPort) {
	s := d.step(f)
	set := name.Of(f.Protocol)
	for i := range max(len(old), len(now)) {
		gone := i < len(old) && (i >= len(now) || old[i] != now[i])
		added := i < len(now) && (i >= len(old) || old[i] != now[i])
		// A slot that the kernel lacks is held by the zero value: see read.
		if gone && old[i].IsValid() {
			s.Delete = append(s.Delete, Element{Set: set, Frontend: f, Slot: i, Endpoint: old[i]})
		}
		if added {
			s.Add = append(s.Add, Element{Set: set, Frontend: f, Slot: i, Endpoint: now[i]})
		}
	}
}

// allCounts moves frontends between the sets of counts. 0 is a count too, so that
// one that is missing must be told apart.
func (d *differ) allCounts(name SlotMap, have, want map[Frontend]int) {
	for f, now := range want {
		if old, ok := have[f]; ok && old == now {
			continue
		}
		s := d.step(f)
		s.Add = append(s.Add, countElement(name, f, now))
	}
	for f, old := range have {
		if now, ok := want[f]; ok && now == old {
			continue
		}
		s := d.step(f)
		s.Delete = append(s.Delete, countElement(name, f, old))
	}
}

func countElement(m SlotMap, f Frontend, n int) Element {
	if n == 0 {
		return Element{Set: m.EmptySet(), Frontend: f}
	}
	return Element{Set: m.countName(f.Protocol, n), Frontend: f}
}

func (d *differ) sources(f Frontend, old, now []netip.Prefix) {
	s := d.step(f)
	for _, p := range old {
		if !slices.Contains(now, p) {
			s.Delete = append(s.Delete, Element{Set: AllowedSources, Frontend: f, Source: p})
		}
	}
	for _, p := range now {
		if !slices.Contains(old, p) {
			s.Add = append(s.Add, Element{Set: AllowedSources, Frontend: f, Source: p})
		}
	}
}

func (d *differ) route(name RouteMap, f Frontend, old, now string) {
	s := d.step(f)
	if old != "" {
		s.Delete = append(s.Delete, Element{Set: string(name), Frontend: f, Chain: old})
	}
	if now != "" {
		s.Add = append(s.Add, Element{Set: string(name), Frontend: f, Chain: now})
	}
}

func (d *differ) addr(name AddrSet, addr netip.Addr, old, now bool) {
	s := d.step(Frontend{Addr: addr})
	e := Element{Set: string(name), Frontend: Frontend{Addr: addr}}
	if old {
		s.Delete = append(s.Delete, e)
	}
	if now {
		s.Add = append(s.Add, e)
	}
}

func (d *differ) sorted() []Step {
	steps := make([]Step, 0, len(d.steps))
	for _, key := range slices.SortedFunc(maps.Keys(d.steps), Frontend.Compare) {
		s := d.steps[key]
		if s.Size() == 0 {
			continue
		}
		s.sort()
		steps = append(steps, *s)
	}
	return steps
}

func (s Step) sort() {
	slices.SortFunc(s.Delete, compareElements)
	slices.SortFunc(s.Add, compareElements)
}

func compareElements(a, b Element) int {
	return cmp.Or(cmp.Compare(a.Set, b.Set), a.Frontend.Compare(b.Frontend), cmp.Compare(a.Slot, b.Slot),
		a.Endpoint.Compare(b.Endpoint), a.Source.Compare(b.Source))
}
