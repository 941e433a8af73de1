package plugin

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"onerule/nft/hostport"
)

// allocate reserves one address of each range set for an attachment, the requested
// ones where they were asked for, and writes its record. All or none. Where none is left,
// it looks for pods that died without a DEL.
func (p Process) allocate(s *store, c *config, rec *record) error {
	err := s.reserve(c, rec, p.Now())
	if !outOfAddresses(err) || p.sweepDead(s, rec) == 0 {
		return err
	}
	return s.reserve(c, rec, p.Now())
}

func outOfAddresses(err error) bool {
	var short *shortage
	return errors.As(err, &short)
}

// reserve does it under the lock. The record comes before the reservations, which are
// copies of it: whatever a SIGKILL leaves of the two says whose it is.
func (s *store) reserve(c *config, rec *record, now time.Time) error {
	unlock, err := s.lockAddresses()
	if err != nil {
		return err
	}
	defer unlock()
	last, release, err := s.beside(now)
	if err != nil {
		return err
	}
	defer release()
	p, err := s.readPool()
	if err != nil {
		return failure(types.ErrIOFailure, err, "address store")
	}
	if rec.Addresses, err = s.chooseAll(p, c, rec, now); err != nil {
		return err
	}
	if rec.HostPorts, err = hostport.Claims(c.ports, rec.Addresses); err != nil {
		return badPorts(err)
	}
	content, err := s.writeRecord(rec)
	if err != nil {
		return failure(types.ErrIOFailure, err, "state store")
	}
	err = s.writeReservations(rec.Addresses, content)
	if err == nil {
		err = s.claimTheirs(rec, last)
	}
	if err != nil {
		return failure(types.ErrIOFailure, errors.Join(err, s.takeBack(rec.Addresses)), "address store")
	}
	return nil
}

// takeBack undoes reservations that nobody has used.
func (s *store) takeBack(addrs []netip.Addr) error {
	err := s.removeHalfWritten()
	for _, a := range addrs {
		if e := os.Remove(s.reservationPath(a)); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func (s *store) readPool() (*pool, error) {
	taken, _, err := s.takenAddresses()
	if err != nil {
		return nil, err
	}
	p := &pool{taken: make(map[netip.Addr]bool, len(taken))}
	for _, a := range taken {
		p.taken[a] = true
	}
	p.released, err = s.formerLeases()
	return p, err
}

// chooseAll reads what is in the files of others only when it must. Sets do not
// overlap: the parser sees to that.
func (s *store) chooseAll(p *pool, c *config, rec *record, now time.Time) ([]netip.Addr, error) {
	wants, err := assign(c.ips, c.ranges)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for i, set := range c.ranges {
		addr, err := s.chooseOne(p, set, wants[i], now, c.quarantine)
		if outOfAddresses(err) {
			if err = s.dropVoid(rec.BootID); err == nil {
				p, err = s.readPool()
			}
			if err == nil {
				addr, err = s.chooseOne(p, set, wants[i], now, c.quarantine)
			}
		}
		var short *shortage
		if errors.As(err, &short) {
			return nil, failure(short.code, short, "no address to give")
		}
		if err != nil {
			return nil, failure(types.ErrIOFailure, err, "address store")
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// chooseOne passes over what the plugin before us has given meanwhile.
func (s *store) chooseOne(p *pool, set rangeSet, want netip.Addr, now time.Time, quarantine time.Duration) (netip.Addr, error) {
	for {
		addr, err := p.choose(set, want, now, quarantine)
		if err != nil {
			return addr, err
		}
		late, err := s.adoptLate(addr)
		if err != nil || !late {
			return addr, err
		}
		fresh, err := s.readPool()
		if err != nil {
			return addr, err
		}
		*p = *fresh
	}
}

// assign gives each requested address to the first range set that has it and has no
// other one yet.
func assign(requested []netip.Addr, sets []rangeSet) ([]netip.Addr, error) {
	requested = slices.Clone(requested)
	slices.SortFunc(requested, netip.Addr.Compare)
	wants := make([]netip.Addr, len(sets))
	for _, a := range slices.Compact(requested) {
		at := -1
		for i, set := range sets {
			if at < 0 && !wants[i].IsValid() && set.holds(a) {
				at = i
			}
		}
		if at < 0 {
			return nil, failure(codeAddressUnavailable, nil, "requested address %s: in no range, or in one that another request took", a)
		}
		wants[at] = a
	}
	return wants, nil
}

// dropVoid frees the reservations that mean nothing: those of an earlier boot, and
// files that can't be read, unless a record of this boot speaks of the address. A
// pod may be using that one, so it is written anew. It runs under the lock.
func (s *store) dropVoid(boot string) error {
	all, bad, err := s.reservations()
	for a, r := range all {
		if r.BootID != boot && r.BootID != "" {
			err = errors.Join(err, s.free(a, r.Created))
		}
	}
	if len(bad) == 0 {
		return err
	}
	claimed := s.claims(boot)
	for _, a := range bad {
		if rec := claimed[a]; rec != nil {
			err = errors.Join(err, s.writeReservation(a, rec.reservation()))
		} else {
			err = errors.Join(err, s.putAside(s.reservationPath(a)))
		}
	}
	return err
}

// claims gives the records of this boot by the addresses that they speak of.
func (s *store) claims(boot string) map[netip.Addr]*record {
	claimed := map[netip.Addr]*record{}
	for _, rec := range s.livingRecords(boot) {
		for _, a := range rec.Addresses {
			claimed[a] = rec
		}
	}
	return claimed
}
