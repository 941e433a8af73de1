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

// StaleAt says when Unpin has something to do next, and false if it has not.
func (p *Program) StaleAt() (next time.Time, ok bool) {
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
	if !p.known {
		return 0, nil
	}
	deleted := 0
	for _, id := range slices.Sorted(maps.Keys(p.stale)) {
		s := p.stale[id]
		if s.due.After(now) {
			continue
		}
		n, err := p.unpin(id)
		deleted += n
		if err != nil {
			return deleted, fmt.Errorf("delete pins of service port %s: %w", id, err)
		}
		if n == 0 && s.read {
			delete(p.stale, id)
			continue
		}
		s.read, s.due = true, now.Add(readAgain)
	}
	return deleted, nil
}

// unpin deletes the pins of one service port to anything but its members.
func (p *Program) unpin(id string) (deleted int, err error) {
	d, err := openDump()
	if err != nil {
		return 0, err
	}
	defer func() { _ = d.close() }()
	for _, scope := range pinScopes() {
		addrs, ports := pinMaps(scope, id)
		pins, listings, err := readPins(d, p.rules.skeleton.Family, addrs, ports)
		p.total.add(Operations{Listings: listings})
		if errors.Is(err, unix.ENOENT) {
			continue // there are none of this scope, or the affinity is gone
		}
		if err != nil {
			return deleted, err
		}
		stale := pins.notIn(p.have.Members[memberSet(scope, id)])
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

func readPins(d *dump, family Family, addrs, ports string) (pins, int, error) {
	all := pins{}
	of := func(client netip.Addr) *pin {
		if all[client] == nil {
			all[client] = &pin{}
		}
		return all[client]
	}
	err := d.elements(family, addrs, func(e rawElement) error {
		k, v := reader{family: family, b: e.key}, reader{family: family, b: e.value}
		of(k.addr()).addr = v.addr()
		return nil
	})
	if err != nil {
		return nil, 1, err
	}
	err = d.elements(family, ports, func(e rawElement) error {
		k, v := reader{family: family, b: e.key}, reader{family: family, b: e.value}
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
