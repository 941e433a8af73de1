package nft

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"onerule/nft/inspect"
)

// affinities are those that the kernel has rules for, with the time since when nobody
// has used them; zero: they are in use, as far as is known.
type affinities map[Affinity]time.Time

// keep gives those of the list, with the times that are known.
func (a affinities) keep(list []Affinity) affinities {
	kept := affinities{}
	for _, one := range list {
		kept[one] = a[one]
	}
	return kept
}

func (a affinities) list() []Affinity { return slices.SortedFunc(maps.Keys(a), compareAffinities) }

func compareAffinities(a, b Affinity) int { return cmp.Compare(a.pinChain(), b.pinChain()) }

// missing gives those of a state that are not there.
func (a affinities) missing(s State) []Affinity {
	var list []Affinity
	for _, one := range s.Affinities {
		if _, ok := a[one]; !ok {
			list = append(list, one)
		}
	}
	slices.SortFunc(list, compareAffinities)
	return list
}

func (a affinities) without(gone []Affinity) []Affinity {
	return slices.DeleteFunc(a.list(), func(one Affinity) bool { return slices.Contains(gone, one) })
}

// idle gives those that nobody has used for as long as linger, and takes note of those
// that nobody uses now.
func (a affinities) idle(have State, now time.Time, linger time.Duration) []Affinity {
	var old []Affinity
	for one, since := range a {
		switch {
		case have.Affinities[one.ID] == one:
			a[one] = time.Time{}
		case since.IsZero():
			a[one] = now
		case now.Sub(since) >= linger:
			old = append(old, one)
		}
	}
	slices.SortFunc(old, compareAffinities)
	return old
}

// readAgain is how long after pins were read they are read again: a packet that was
// under way when its endpoint left can pin its client after a reading (96 of 49,196
// pins, 6.18).
const readAgain = time.Second

// stalePins says for which service ports, by ID, pins to endpoints that left are to be
// looked for.
type stalePins map[string]*staleness

type staleness struct {
	due  time.Time // zero: now
	read bool      // at least once since the last endpoint left
}

func (s stalePins) removed(e Element) {
	if isMemberSet(e.Set) {
		_, id, _ := strings.Cut(e.Set, memberPrefix)
		s[id] = &staleness{}
	}
}

// all is for after a load: endpoints may have left while nobody looked.
func (s stalePins) all(list map[string]Affinity) {
	for id := range list {
		s[id] = &staleness{}
	}
}

// readsPins says whether pins can be read: one reading at a time, and none while a load is
// due, after which all are looked for.
func (p *Program) readsPins() bool { return p.known && !p.reading }

// StaleAt says when there are pins to be read next, and false if there are none or none can
// be read now: who ends a reading, or loads, asks again.
func (p *Program) StaleAt() (next time.Time, ok bool) {
	if !p.readsPins() {
		return next, false
	}
	for _, s := range p.stale {
		if !ok || s.due.Before(next) {
			next, ok = s.due, true
		}
	}
	return next, ok
}

// Unpin deletes the pins to endpoints that left, of the service ports that lost any
// since the last time and of those whose last reading still found some. It reads
// nothing but the pins of these service ports. It gives how many pins it deleted.
func (p *Program) Unpin(now time.Time) (int, error) {
	r, err := p.BeginPins(now)
	if r == nil || err != nil {
		return 0, err
	}
	r.Read()
	return p.EndPins(r, now)
}

// A PinReading is of the pins of service ports that lost endpoints. The kernel lists
// large maps slowly, by the square of their size (131,072 pins: seconds), so they are
// read beside everything else: one reading of a Program at a time.
type PinReading struct {
	reader *inspect.Reader
	family Family
	ports  []*portReading
	err    error
}

type portReading struct {
	id       string
	of       *staleness      // what it is for: endpoints that leave meanwhile want another one
	found    map[string]pins // by scope
	listings int
}

// BeginPins prepares the reading of what is due now, nil if nothing is. EndPins has to
// follow.
func (p *Program) BeginPins(now time.Time) (*PinReading, error) {
	if !p.readsPins() {
		return nil, nil
	}
	r := &PinReading{family: p.rules.skeleton.Family}
	for _, id := range slices.Sorted(maps.Keys(p.stale)) {
		if s := p.stale[id]; !s.due.After(now) {
			r.ports = append(r.ports, &portReading{id: id, of: s, found: map[string]pins{}})
		}
	}
	if len(r.ports) == 0 {
		return nil, nil
	}
	if p.pinReader == nil {
		var err error
		if p.pinReader, err = inspect.Open(); err != nil {
			return nil, err
		}
	}
	r.reader, p.reading = p.pinReader, true
	return r, nil
}

// Read reads the pins, from any goroutine.
func (r *PinReading) Read() {
	for _, port := range r.ports {
		if r.err = port.read(r.reader, r.family); r.err != nil {
			r.err = fmt.Errorf("read pins of service port %s: %w", port.id, r.err)
			return
		}
	}
}

func (r *portReading) read(from *inspect.Reader, family Family) error {
	for _, scope := range pinScopes() {
		addrs, ports := pinMaps(scope, r.id)
		found, listings, err := readPins(from, family, addrs, ports)
		r.listings += listings
		if errors.Is(err, unix.ENOENT) {
			continue // there are none of this scope, or the affinity is gone
		}
		if err != nil {
			return err
		}
		r.found[scope] = found
	}
	return nil
}

// EndPins deletes what a reading found of pins to anything but members as they are now.
// It gives how many pins it deleted.
func (p *Program) EndPins(r *PinReading, now time.Time) (deleted int, err error) {
	p.reading = false
	for _, port := range r.ports {
		p.total.add(Operations{Listings: port.listings})
		port.of.due = now.Add(readAgain)
	}
	if r.err != nil {
		return 0, errors.Join(r.err, p.closePins())
	}
	if !p.known {
		return 0, nil
	}
	for _, port := range r.ports {
		n, err := p.unpin(port)
		deleted += n
		if err != nil {
			return deleted, fmt.Errorf("delete pins of service port %s: %w", port.id, err)
		}
		if n == 0 && port.of.read && p.stale[port.id] == port.of {
			delete(p.stale, port.id)
		}
		port.of.read = true
	}
	return deleted, nil
}

// closePins closes the socket that pins are read through. It is kept between readings:
// closing one right after elements were deleted waits in the kernel until they are freed,
// some 15 ms (6.18), and so does the next transaction.
func (p *Program) closePins() error {
	if p.pinReader == nil {
		return nil
	}
	err := p.pinReader.Close()
	p.pinReader = nil
	return err
}

// unpin deletes what was read of one service port and is a pin to anything but its members.
func (p *Program) unpin(r *portReading) (deleted int, err error) {
	for _, scope := range pinScopes() {
		addrs, ports := pinMaps(scope, r.id)
		stale := r.found[scope].notIn(p.have.Members[memberSet(scope, r.id)])
		if len(stale) == 0 {
			continue
		}
		done, err := p.elements.deleteSome([]string{addrs, ports}, stale)
		p.total.add(done)
		if err != nil {
			return deleted, err
		}
		deleted += len(stale)
	}
	return deleted, nil
}

// pins are clients with the endpoint of each. One without an address or a port is none,
// but would become one with the next connection of the client.
type pins map[netip.Addr]*pin

type pin struct {
	addr netip.Addr
	port uint16
}

func readPins(r *inspect.Reader, family Family, addrs, ports string) (pins, int, error) {
	all := pins{}
	of := func(client netip.Addr) *pin {
		if all[client] == nil {
			all[client] = &pin{}
		}
		return all[client]
	}
	err := r.EachElement(family.table(), addrs, func(e inspect.Element) error {
		k, v := reader{family: family, b: e.Key}, reader{family: family, b: e.Value}
		of(k.addr()).addr = v.addr()
		return nil
	})
	if err != nil {
		return nil, 1, err
	}
	err = r.EachElement(family.table(), ports, func(e inspect.Element) error {
		k, v := reader{family: family, b: e.Key}, reader{family: family, b: e.Value}
		of(k.addr()).port = v.lonePort()
		return nil
	})
	return all, 2, err
}

// notIn gives the clients that are pinned to anything else than these endpoints.
func (p pins) notIn(members map[netip.AddrPort]bool) []netip.Addr {
	addrs, ports := map[netip.Addr]bool{{}: true}, map[uint16]bool{0: true}
	for ep := range members {
		addrs[ep.Addr()], ports[ep.Port()] = true, true
	}
	var clients []netip.Addr
	for client, pin := range p {
		whole := pin.addr.IsValid() && pin.port != 0
		if whole && !members[netip.AddrPortFrom(pin.addr, pin.port)] || !addrs[pin.addr] || !ports[pin.port] {
			clients = append(clients, client)
		}
	}
	return clients
}
