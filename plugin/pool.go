package plugin

import (
	"fmt"
	"math/big"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// A pool is what is known of the addresses of a network while their lock is held,
// by names of files alone: an ADD reads no other attachment's reservation.
type pool struct {
	taken    map[netip.Addr]bool
	released []formerLease // the oldest release first, the last one of each address
}

// A formerLease is an address that was given back, and when.
type formerLease struct {
	addr netip.Addr
	at   time.Time
}

// A shortage says why there is no address to give, with the code that tells so.
type shortage struct {
	code uint
	text string
}

func (e *shortage) Error() string { return e.text }

// choose takes the address that is wanted. Without one it takes an address that was
// never given, or else the one that was released first. One that was released within
// the quarantine is not given: packets to its former pod may still be on their way.
func (p *pool) choose(set rangeSet, want netip.Addr, now time.Time, quarantine time.Duration) (netip.Addr, error) {
	if want.IsValid() {
		if p.taken[want] {
			return want, &shortage{codeAddressUnavailable, fmt.Sprintf("%s is taken", want)}
		}
		return want, nil
	}
	if a, ok := p.neverGiven(set); ok {
		return a, nil
	}
	for _, former := range p.released {
		if p.taken[former.addr] || !set.holds(former.addr) {
			continue
		}
		// A clock that was set back by more than the quarantine proves nothing.
		if age := now.Sub(former.at); age.Abs() < quarantine {
			return former.addr, &shortage{types.ErrTryAgainLater, fmt.Sprintf(
				"all free addresses of %s were released just now; the next one can be given in %s", set, (quarantine - age).Round(time.Millisecond))}
		}
		return former.addr, nil
	}
	return netip.Addr{}, &shortage{codePoolExhausted, fmt.Sprintf("pool exhausted: all addresses of %s are taken", set)}
}

// neverGiven looks at one address more than it knows, at most.
func (p *pool) neverGiven(set rangeSet) (netip.Addr, bool) {
	given := make(map[netip.Addr]bool, len(p.released))
	for _, former := range p.released {
		given[former.addr] = true
	}
	for _, s := range set {
		for a := s.first; a.IsValid() && a.Compare(s.last) <= 0; a = a.Next() {
			if a != s.gateway && !p.taken[a] && !given[a] {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

// size gives how many addresses a set has to give.
func (set rangeSet) size() *big.Int {
	sum := new(big.Int)
	for _, s := range set {
		first, last := new(big.Int).SetBytes(s.first.AsSlice()), new(big.Int).SetBytes(s.last.AsSlice())
		sum.Add(sum, last.Sub(last, first).Add(last, big.NewInt(1)))
		if s.first.Compare(s.gateway) <= 0 && s.gateway.Compare(s.last) <= 0 {
			sum.Sub(sum, big.NewInt(1))
		}
	}
	return sum
}

// free gives how many addresses of a set are not taken.
func (p *pool) free(set rangeSet) *big.Int {
	left := set.size()
	for a, taken := range p.taken {
		if taken && set.holds(a) {
			left.Sub(left, big.NewInt(1))
		}
	}
	return left
}
