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
	unanswered   bool   // of those only the ones that nobody has answered
	lists        *lists // nil: both are empty
}

type lists struct {
	keep   []netip.AddrPort // sorted
	except []netip.Addr
}

// A look is what there is to look for.
type look struct{ untranslated, translated, unanswered bool }

func (m mark) looks() look {
	return look{m.untranslated, m.translated && !m.unanswered, m.translated && m.unanswered}
}

func (l look) any() bool { return l != look{} }

func (l look) and(o look) look {
	return look{l.untranslated || o.untranslated, l.translated || o.translated, l.unanswered || o.unanswered}
}

// listings gives which entries the kernel is asked for.
func (l look) listings() (list []flows.Which) {
	if l.translated {
		return []flows.Which{flows.All}
	}
	if l.untranslated {
		list = append(list, flows.WithoutDNAT)
	}
	if l.unanswered {
		list = append(list, flows.Unanswered)
	}
	return list
}

// marked gives what facts make of the flows to a frontend for a cleaner.
func marked(f nft.Frontend, facts Facts, cfg Config) mark {
	tcp := f.Protocol == unix.IPPROTO_TCP
	m := mark{owned: facts.Owned, untranslated: facts.Owned && facts.New && !cfg.Unanswered, unanswered: cfg.Unanswered}
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
	if !f.Translated {
		return m.untranslated, nil
	}
	if !m.translated || m.unanswered && f.Answered {
		return false, nil
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

// looks says what there is to look for.
func (v view) looks() (l look) {
	for _, layer := range v {
		for _, m := range layer {
			if l = l.and(m.looks()); l.translated {
				return l // all entries are listed then
			}
		}
	}
	return l
}

// merged gives one layer.
func (v view) merged() marks {
	sum := marks{}
	for _, layer := range slices.Backward(v) {
		for f, m := range layer {
			sum.add(f, m)
		}
	}
	return sum
}
