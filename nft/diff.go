package nft

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// An Element is one element of a set or map. Which fields count depends on the
// set: addresses and hairpins have Addr; routes have the frontend and Chain;
// endpoints have the frontend, Slot and Endpoint.
type Element struct {
	Set      string // its name in the kernel
	Frontend Frontend
	Slot     int
	Chain    string
	Endpoint netip.AddrPort
}

// A Step is a group of writes that must not be torn apart: what one address needs.
type Step struct {
	Delete, Add []Element
}

// Size is the number of writes.
func (s Step) Size() int { return len(s.Delete) + len(s.Add) }

// Changes lead from one state to another. They are applied in this order: Ranges,
// then Steps, then RangesLast. An element to delete comes before one to add, so
// that a value is replaced within one transaction.
type Changes struct {
	// Ranges holds the whole new content of range sets that change.
	Ranges map[RangeSet][]netip.Prefix
	Steps  []Step
	// RangesLast is as Ranges for what must not be in force before the elements
	// are: what drops the traffic to addresses that nobody holds.
	RangesLast map[RangeSet][]netip.Prefix
}

// Empty says whether nothing has to be written.
func (c Changes) Empty() bool {
	return len(c.Steps) == 0 && len(c.Ranges) == 0 && len(c.RangesLast) == 0
}

// Size is the number of element writes.
func (c Changes) Size() int {
	n := len(c.Ranges) + len(c.RangesLast)
	for _, s := range c.Steps {
		n += s.Size()
	}
	return n
}

// Diff gives the changes from have to want. It is pure, and its result depends on
// nothing but the two values. Slots are compared by position: see Settle.
func Diff(have, want State) Changes {
	d := differ{steps: map[netip.Addr]*Step{}}
	for _, name := range slices.Sorted(maps.Keys(want.Slots)) {
		diffMaps(have.Slots[name], want.Slots[name], slices.Equal, func(f Frontend, old, now []netip.AddrPort) {
			d.slots(name, f, old, now)
		})
	}
	for _, name := range slices.Sorted(maps.Keys(want.Counts)) {
		d.allCounts(have.Counts[name], want.Counts[name])
	}
	for _, name := range slices.Sorted(maps.Keys(want.Routes)) {
		diffMaps(have.Routes[name], want.Routes[name], equal, func(f Frontend, old, now string) {
			d.route(name, f, old, now)
		})
	}
	for _, name := range slices.Sorted(maps.Keys(want.Addrs)) {
		diffMaps(have.Addrs[name], want.Addrs[name], equal, func(addr netip.Addr, old, now bool) {
			d.addr(name, addr, old, now)
		})
	}
	c := Changes{Steps: d.sorted()}
	c.Ranges = diffRanges(have, want, PodCIDRs)
	c.RangesLast = diffRanges(have, want, ServiceCIDRs)
	return c
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
	steps map[netip.Addr]*Step
}

func (d *differ) step(addr netip.Addr) *Step {
	s := d.steps[addr]
	if s == nil {
		s = &Step{}
		d.steps[addr] = s
	}
	return s
}

func (d *differ) slots(name SlotMap, f Frontend, old, now []netip.AddrPort) {
	s := d.step(f.Addr)
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
func (d *differ) allCounts(have, want map[Frontend]int) {
	for f, now := range want {
		if old, ok := have[f]; ok && old == now {
			continue
		}
		s := d.step(f.Addr)
		s.Add = append(s.Add, countElement(f, now))
	}
	for f, old := range have {
		if now, ok := want[f]; ok && now == old {
			continue
		}
		s := d.step(f.Addr)
		s.Delete = append(s.Delete, countElement(f, old))
	}
}

func countElement(f Frontend, n int) Element {
	if n == 0 {
		return Element{Set: NoEndpoints, Frontend: f}
	}
	return Element{Set: countName(f.Protocol, n), Frontend: f}
}

func (d *differ) route(name RouteMap, f Frontend, old, now string) {
	s := d.step(f.Addr)
	if old != "" {
		s.Delete = append(s.Delete, Element{Set: string(name), Frontend: f, Chain: old})
	}
	if now != "" {
		s.Add = append(s.Add, Element{Set: string(name), Frontend: f, Chain: now})
	}
}

func (d *differ) addr(name AddrSet, addr netip.Addr, old, now bool) {
	s := d.step(addr)
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
	for _, addr := range slices.SortedFunc(maps.Keys(d.steps), netip.Addr.Compare) {
		s := d.steps[addr]
		slices.SortFunc(s.Delete, compareElements)
		slices.SortFunc(s.Add, compareElements)
		steps = append(steps, *s)
	}
	return steps
}

func compareElements(a, b Element) int {
	return cmp.Or(cmp.Compare(a.Set, b.Set), a.Frontend.Compare(b.Frontend), cmp.Compare(a.Slot, b.Slot))
}

// Of names the map of a protocol.
func (s SlotMap) Of(protocol uint8) string { return string(s) + "-" + protocolWord(protocol) }

// slotMapOf is the inverse of Of.
func slotMapOf(set string) (SlotMap, uint8, bool) {
	for _, p := range Protocols() {
		if name, ok := strings.CutSuffix(set, "-"+p.Word); ok {
			return SlotMap(name), p.Number, true
		}
	}
	return "", 0, false
}

// Text gives the element in nft's words, without the set that it is in.
func (e Element) Text() string {
	f := e.Frontend
	switch {
	case e.Set == string(Hairpins):
		return fmt.Sprintf("%s . %s", f.Addr, f.Addr)
	case e.Endpoint.IsValid():
		return fmt.Sprintf("%s . %d . %d : %s . %d", f.Addr, f.Port, e.Slot, e.Endpoint.Addr(), e.Endpoint.Port())
	case e.Chain != "":
		return fmt.Sprintf("%s . %s . %d : goto %s", f.Addr, protocolWord(f.Protocol), f.Port, e.Chain)
	case e.Set == NoEndpoints:
		return fmt.Sprintf("%s . %s . %d", f.Addr, protocolWord(f.Protocol), f.Port)
	case f.Protocol != 0:
		return fmt.Sprintf("%s . %d", f.Addr, f.Port)
	}
	return f.Addr.String()
}

// Text gives the changes as an nft script for a table.
func (c Changes) Text(family Family) string {
	var b strings.Builder
	line := func(verb, set, element string) {
		fmt.Fprintf(&b, "%s element %s %s %s { %s }\n", verb, family, TableName, set, element)
	}
	ranges := func(m map[RangeSet][]netip.Prefix) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(&b, "flush set %s %s %s\n", family, TableName, name)
			for _, p := range m[name] {
				line("add", string(name), p.String())
			}
		}
	}
	ranges(c.Ranges)
	for _, s := range c.Steps {
		for _, e := range s.Delete {
			line("delete", e.Set, e.Text())
		}
		for _, e := range s.Add {
			line("add", e.Set, e.Text())
		}
	}
	ranges(c.RangesLast)
	return b.String()
}

// countOf is the inverse of countName.
func countOf(name string) (protocol uint8, n int, ok bool) {
	rest, ok := strings.CutPrefix(name, "lb-")
	if !ok {
		return 0, 0, false
	}
	word, digits, ok := strings.Cut(rest, "-")
	if !ok {
		return 0, 0, false
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || strconv.Itoa(n) != digits {
		return 0, 0, false
	}
	for _, p := range Protocols() {
		if p.Word == word {
			return p.Number, n, true
		}
	}
	return 0, 0, false
}
