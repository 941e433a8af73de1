package conntrack

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/nft/flows"
)

// Facts say what is so of a frontend once a write is done. The lists may be in any order.
// They are kept as they are where they are sorted (netip.AddrPort.Compare), so do not
// write to them afterwards.
type Facts struct {
	// Owned says that packets to the frontend are ours to lead. If not it is gone: its
	// Service, port or address went.
	Owned bool
	// New says that packets to it were not ours before, or that this is not known: flows
	// that go past it are looked for.
	New bool
	// Keep are the endpoints that flows may go on to: of UDP and SCTP, whose flows have no
	// end of their own, all that serve, terminating or not, whichever of them policies
	// choose for new ones. Of TCP the same, or all that are listed, whatever their
	// conditions, with ResetRemoved. Of a frontend that is gone there are none.
	Keep []netip.AddrPort
	// Except are, for a NodePort, the addresses of the node where another frontend has
	// the protocol and port: an external or load balancer IP.
	Except []netip.Addr
}

// A mark says what is stale among the flows to a frontend. After a load there is one for
// each frontend of the table, so it is small.
type mark struct {
	owned        bool
	untranslated bool   // flows without a DNAT, which go past it
	translated   bool   // flows with one, but for lists.keep
	lists        *lists // nil: both are empty
}

type lists struct {
	keep   []netip.AddrPort // sorted
	except []netip.Addr
}

func (m mark) looks() bool { return m.untranslated || m.translated }

// marked gives what facts make of the flows to a frontend for a cleaner.
func marked(f nft.Frontend, facts Facts, cfg Config) mark {
	tcp := f.Protocol == unix.IPPROTO_TCP
	m := mark{owned: facts.Owned, untranslated: facts.Owned && facts.New && !cfg.Unanswered}
	m.translated = tcp && (cfg.Unanswered || cfg.ResetRemoved) || !tcp && !cfg.Unanswered
	l := lists{except: facts.Except}
	if m.translated {
		l.keep = sorted(facts.Keep)
	}
	if len(l.keep)+len(l.except) > 0 {
		m.lists = &l
	}
	return m
}

func sorted(list []netip.AddrPort) []netip.AddrPort {
	if slices.IsSortedFunc(list, netip.AddrPort.Compare) {
		return list
	}
	list = slices.Clone(list)
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// stale says whether a flow to the frontend is.
func (m mark) stale(f flows.Flow) (bool, error) {
	if !f.Translated || !m.translated {
		return !f.Translated && m.untranslated, nil
	}
	endpoint, err := f.Answer()
	if err != nil || m.lists == nil {
		return err == nil, err
	}
	_, kept := slices.BinarySearchFunc(m.lists.keep, endpoint, netip.AddrPort.Compare)
	return !kept, nil
}

// marks are those of one family. A NodePort has no address.
type marks map[nft.Frontend]mark

// add takes a newer mark in. It says all that the older one did, but for flows from before
// the frontend was ours, which are still to be looked for.
func (m marks) add(f nft.Frontend, newer mark) {
	newer.untranslated = newer.untranslated || newer.owned && m[f].untranslated
	m[f] = newer
}

func (m marks) addAll(newer marks) {
	for f, mark := range newer {
		m.add(f, mark)
	}
}

// A view is marks of several times, the newest first.
type view []marks

// of gives the mark that is about a flow's destination, and the frontend that has it: the
// address and port themselves, or else a NodePort at one of the node's addresses.
func (v view) of(to nft.Frontend, node map[netip.Addr]bool) (nft.Frontend, mark, bool) {
	if m, ok := v.find(to); ok || !node[to.Addr] {
		return to, m, ok
	}
	at := to.Addr
	to.Addr = netip.Addr{}
	m, ok := v.find(to)
	if !ok || m.lists != nil && slices.Contains(m.lists.except, at) {
		return to, mark{}, false
	}
	return to, m, true
}

func (v view) find(f nft.Frontend) (newest mark, ok bool) {
	for _, layer := range v {
		m, in := layer[f]
		switch {
		case in && !ok:
			newest, ok = m, true
		case in && newest.owned:
			newest.untranslated = newest.untranslated || m.untranslated
		}
	}
	return newest, ok
}

// looks says whether there is anything to look for, and whether among translated flows.
func (v view) looks() (anything, translated bool) {
	for _, layer := range v {
		for _, m := range layer {
			anything = anything || m.looks()
			if m.translated {
				return true, true
			}
		}
	}
	return anything, false
}

// merged gives one layer.
func (v view) merged() marks {
	sum := marks{}
	for _, layer := range slices.Backward(v) {
		sum.addAll(layer)
	}
	return sum
}
