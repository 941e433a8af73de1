package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"onerule/nft/inspect"
)

// read gives what sets and maps of our table hold, and the elements that cannot be
// ours. Slots that are missing in the middle of a frontend hold the zero value.
func read(family Family, names []string) (State, []stray, Operations, error) {
	s := NewState()
	var strays []stray
	var done Operations
	r, err := inspect.Open()
	if err != nil {
		return s, nil, done, err
	}
	defer func() { _ = r.Close() }()
	for _, name := range names {
		done.Listings++
		odd, err := s.readSet(r, family, name)
		if err != nil {
			return s, nil, done, fmt.Errorf("read table %s %s: %w", family, TableName, err)
		}
		strays = append(strays, odd...)
	}
	return s, strays, done, nil
}

// readSet reads one set.
func (s State) readSet(r *inspect.Reader, family Family, set string) ([]stray, error) {
	var part setReading
	err := settled(r, func() (err error) {
		part, err = readOnce(r, family, set)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.merge(RangeSet(set), part), nil
}

// settled calls f, which reads something, until no commit fell into it, a few times:
// commits to other tables do no harm. The kernel does not say that a listing missed
// elements because the set changed meanwhile (6.18).
func settled(r *inspect.Reader, f func() error) error {
	if err := r.Whole(f); !errors.Is(err, inspect.ErrBusy) {
		return err
	}
	return nil
}

// A setReading is what one listing of one set gave.
type setReading struct {
	state  State
	marks  []mark // of a range set
	strays []stray
}

func readOnce(r *inspect.Reader, family Family, set string) (setReading, error) {
	part := setReading{state: NewState()}
	err := r.EachElement(family.table(), set, func(e inspect.Element) error {
		if e.CatchAll { // we never write one
			part.strays = append(part.strays, stray{set: set, catchAll: true})
			return nil
		}
		if set == string(ServiceCIDRs) || set == string(PodCIDRs) {
			k := reader{family: family, b: e.Key}
			part.marks = append(part.marks, mark{k.addr(), e.End})
			return nil
		}
		if !part.state.take(family, set, e) {
			part.strays = append(part.strays, stray{set: set, key: slices.Clone(e.Key), keyEnd: slices.Clone(e.KeyEnd)})
		}
		return nil
	})
	return part, err
}

// merge adds what was read of one set. A frontend that is in two sets of counts is a
// stray in the second.
func (s State) merge(set RangeSet, part setReading) []stray {
	for name, m := range part.state.Addrs {
		maps.Copy(s.Addrs[name], m)
	}
	for name, m := range part.state.Routes {
		maps.Copy(s.Routes[name], m)
	}
	for name, m := range part.state.Slots {
		maps.Copy(s.Slots[name], m)
	}
	for name, m := range part.state.Counts {
		for f, n := range m {
			if other, twice := s.Counts[name][f]; twice && other != n {
				part.strays = append(part.strays, stray{set: string(set), key: keyOf(countElement(name, f, n))})
				continue
			}
			s.Counts[name][f] = n
		}
	}
	maps.Copy(s.Members, part.state.Members)
	for f, ranges := range part.state.Sources {
		slices.SortFunc(ranges, netip.Prefix.Compare)
		s.Sources[f] = ranges
	}
	if ranges := prefixesOf(part.marks); len(ranges) > 0 {
		s.Ranges[set] = ranges
	}
	return part.strays
}

// take adds an element to the state, unless it is not of the shape that we write.
func (s State) take(family Family, set string, e inspect.Element) bool {
	k := &reader{family: family, b: e.Key}
	if m, protocol, ok := slotMapOf(set); ok {
		return s.takeSlot(k, m, protocol, e)
	}
	if c, ok := countOf(set); ok {
		f := Frontend{Protocol: c.protocol}
		if c.slots.NodePorts() {
			f.Port = k.lonePort()
		} else {
			f.Addr, f.Port = k.addr(), k.port()
		}
		return k.whole() && s.takeCount(c.slots, f, c.n)
	}
	if m, ok := emptySetOf(set); ok {
		f := k.frontend(m.NodePorts())
		return k.whole() && s.takeCount(m, f, 0)
	}
	switch {
	case isRouteMap(set):
		f := k.frontend(RouteMap(set).NodePorts())
		if !k.whole() || e.Chain == "" || e.Verdict != verdictOf(set) {
			return false
		}
		s.Routes[RouteMap(set)][f] = e.Chain
	case isMemberSet(set):
		return s.takeMember(k, set)
	case set == AllowedSources:
		return s.takeSource(k, family, e)
	default:
		return s.takeAddr(k, AddrSet(set))
	}
	return true
}

// verdictOf gives the verdict of all elements of a map: whoever exchanges one for the other
// has the packet go on elsewhere behind the chain.
func verdictOf(set string) int32 {
	if RouteMap(set).Returns() {
		return unix.NFT_JUMP
	}
	return unix.NFT_GOTO
}

func (s State) takeSlot(k *reader, m SlotMap, protocol uint8, e inspect.Element) bool {
	f := Frontend{Protocol: protocol}
	if !m.NodePorts() {
		f.Addr = k.addr()
	}
	f.Port = k.port()
	slot := k.number()
	v := reader{family: k.family, b: e.Value}
	endpoint := netip.AddrPortFrom(v.addr(), v.port())
	if !k.whole() || !v.whole() || slot > maxSlot {
		return false
	}
	takeSlot(s.Slots[m], f, int(slot), endpoint)
	return true
}

func (s State) takeMember(k *reader, set string) bool {
	endpoint := netip.AddrPortFrom(k.addr(), k.port())
	if !k.whole() {
		return false
	}
	if s.Members[set] == nil {
		s.Members[set] = map[netip.AddrPort]bool{}
	}
	s.Members[set][endpoint] = true
	return true
}

func (s State) takeSource(k *reader, family Family, e inspect.Element) bool {
	f, from := k.frontend(false), k.addr()
	end := reader{family: family, b: e.KeyEnd}
	last, to := end.frontend(false), end.addr()
	if !k.whole() || !end.whole() || f != last {
		return false
	}
	ranges := cover(from, to.Next())
	if len(ranges) != 1 {
		return false // we write prefixes
	}
	s.Sources[f] = append(s.Sources[f], ranges[0])
	return true
}

func (s State) takeAddr(k *reader, set AddrSet) bool {
	addr := k.addr()
	if set == Hairpins && k.addr() != addr || !k.whole() || s.Addrs[set] == nil {
		return false
	}
	s.Addrs[set][addr] = true
	return true
}

func (s State) takeCount(m SlotMap, f Frontend, n int) bool {
	s.Counts[m][f] = n
	return true
}

// maxSlot is beyond what any Service has; it keeps a foreign element from making us
// allocate.
const maxSlot = 1 << 20

func takeSlot(m map[Frontend][]netip.AddrPort, f Frontend, slot int, endpoint netip.AddrPort) {
	slots := m[f]
	for len(slots) <= slot {
		slots = append(slots, netip.AddrPort{})
	}
	slots[slot] = endpoint
	m[f] = slots
}

// mark is where a range begins, or where it has ended.
type mark struct {
	addr netip.Addr
	end  bool
}

// prefixesOf is the inverse of intervals.
func prefixesOf(marks []mark) []netip.Prefix {
	slices.SortFunc(marks, func(a, b mark) int { return a.addr.Compare(b.addr) })
	var prefixes []netip.Prefix
	for i, m := range marks {
		if m.end {
			continue
		}
		var end netip.Addr // invalid: behind the last address
		if i+1 < len(marks) {
			end = marks[i+1].addr
		}
		prefixes = append(prefixes, cover(m.addr, end)...)
	}
	return prefixes
}

// cover splits the range from start to before end into the largest prefixes.
func cover(start, end netip.Addr) []netip.Prefix {
	var prefixes []netip.Prefix
	for start.IsValid() && start != end && len(prefixes) < 256 {
		bits := start.BitLen()
		for bits > 0 {
			wider := netip.PrefixFrom(start, bits-1)
			if wider.Masked().Addr() != start || (end.IsValid() && LastOf(wider).Compare(end) >= 0) {
				break
			}
			bits--
		}
		p := netip.PrefixFrom(start, bits)
		prefixes = append(prefixes, p)
		start = LastOf(p).Next()
	}
	return prefixes
}

// reader takes a key or a value apart. It goes on past the end with zeros, and
// whole says whether everything fitted.
type reader struct {
	family Family
	b      []byte
	short  bool
}

func (r *reader) next(n int) []byte {
	if len(r.b) < n {
		r.short = true
		return make([]byte, n)
	}
	part := r.b[:n]
	r.b = r.b[n:]
	return part
}

func (r *reader) addr() netip.Addr {
	if r.family == IPv6 {
		return netip.AddrFrom16([16]byte(r.next(16)))
	}
	return netip.AddrFrom4([4]byte(r.next(4)))
}

// frontend reads one; a NodePort has no address.
func (r *reader) frontend(nodePort bool) Frontend {
	var f Frontend
	if !nodePort {
		f.Addr = r.addr()
	}
	f.Protocol = r.byte()
	f.Port = r.port()
	return f
}

// lonePort reads a port that is a key by itself: those are not padded.
func (r *reader) lonePort() uint16 { return binary.BigEndian.Uint16(r.next(2)) }

func (r *reader) byte() uint8    { return r.next(4)[0] }
func (r *reader) port() uint16   { return binary.BigEndian.Uint16(r.next(4)) }
func (r *reader) number() uint32 { return binary.NativeEndian.Uint32(r.next(4)) }

// whole says whether everything fitted and nothing is left.
func (r *reader) whole() bool { return !r.short && len(r.b) == 0 }
