package nft

import (
	"fmt"
	"net/netip"
	"slices"
)

// balance is the chain of that name, and what it leads to.
func (w *way) balance(m SlotMap) {
	chain, f := m.balanceChain(w.proto()), w.Frontend
	w.Local = m.local()
	if to, ok := w.Routes[m.sticky()][f]; ok && w.pinned(m, to) {
		return
	}
	n, known := w.Counts[m][f]
	if known && n > 0 {
		set := m.countName(f.Protocol, n)
		w.stage(m.findChain(w.proto()), "goto "+set, "%s has %s: %s", set, f.text(""), counted(n))
		if w.choose(m, n) {
			return
		}
	}
	if slots := w.Slots[m][f]; len(slots) > 0 && slots[0].IsValid() {
		w.stage(chain, "dnat", "the number of endpoints is not known, so that the first one serves: %s has slot 0", m.Of(f.Protocol))
		w.arrive(slots[0])
		return
	}
	if n, none := w.Counts[m.cluster()][f]; none && n == 0 {
		w.stage(chain, "refuse", "%s has %s", m.cluster().EmptySet(), f.text(w.proto()))
		w.end(Refused, RefusedNoEndpoints)
		return
	}
	switch {
	case !m.local() || !known || n != 0:
		w.stage(chain, "drop", "no endpoint is held for %s, nor that it has none", f.text(w.proto()))
		w.end(Dropped, DroppedChanging)
	case w.RefuseWithoutLocal:
		w.stage(chain, "refuse", "%s has %s", m.EmptySet(), f.text(w.proto()))
		w.end(Refused, RefusedNoLocal)
	default:
		w.stage(chain, "drop", "%s has %s", m.EmptySet(), f.text(w.proto()))
		w.end(Dropped, DroppedNoLocal)
	}
}

// pinned sends a client where it is pinned to, if it is.
func (w *way) pinned(m SlotMap, chain string) bool {
	id := chain[len(stickyChain(m.pinScope(), "")):]
	to := w.pins.of(m.pinScope(), id)
	if !to.IsValid() {
		w.stage(m.balanceChain(w.proto()), "go on", "the Service has session affinity, and %s is not pinned yet", w.packet.Src)
		return false
	}
	w.stage(chain, "dnat", "session affinity: %s is pinned to %s", w.packet.Src, to)
	w.Pinned = true
	w.arrive(to)
	return true
}

// choose gives the endpoints that random numbers below n lead to, and says whether it
// is all of them. A slot that is missing leads to the first one, if that is there.
func (w *way) choose(m SlotMap, n int) bool {
	f, slots := w.Frontend, w.Slots[m][w.Frontend]
	there := 0
	for slot := range n {
		if slot < len(slots) && slots[slot].IsValid() {
			there++
			w.arrive(slots[slot])
		}
	}
	set := m.countName(f.Protocol, n)
	if there == n {
		w.stage(set, "dnat", "%s has them, one is drawn at random", m.Of(f.Protocol))
		return true
	}
	w.stage(set, "go on", "%s has %d of them", m.Of(f.Protocol), there)
	return false
}

func (w *way) arrive(to netip.AddrPort) {
	src := w.packet.Src
	// What ends in the node's own network never comes to postrouting.
	leaves := w.packet.Local || !slices.Contains(w.own, to.Addr())
	hairpin := src == to.Addr() && w.Addrs[Hairpins][src]
	w.Verdict = Translated
	w.Arrivals = append(w.Arrivals, Arrival{to, leaves && (w.Marked || hairpin)})
}

func compareArrivals(a, b Arrival) int { return a.Endpoint.Compare(b.Endpoint) }

func (w *way) isOwn(a netip.Addr) bool {
	if w.WithoutFib {
		return w.Addrs[NodeIPs][a]
	}
	return a.IsLoopback() || slices.Contains(w.own, a)
}

func (w *way) fromOwn() bool { return w.isOwn(w.packet.Src) }

func (w *way) takesNodePorts(dst netip.Addr) bool {
	if !w.NodePortsEverywhere || w.WithoutFib {
		return w.Addrs[NodePortIPs][dst]
	}
	return !dst.IsLoopback() && w.isOwn(dst)
}

func (w *way) whyNodePorts() string {
	if !w.NodePortsEverywhere || w.WithoutFib {
		return fmt.Sprintf("%s has %s", NodePortIPs, w.packet.Dst)
	}
	return fmt.Sprintf("%s is this node's", w.packet.Dst)
}

// rangeOf gives the range that an address is in.
func rangeOf(ranges []netip.Prefix, a netip.Addr) (netip.Prefix, bool) {
	for _, r := range ranges {
		if r.Contains(a) {
			return r, true
		}
	}
	return netip.Prefix{}, false
}
