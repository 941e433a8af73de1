package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"onerule/daemon/inspect"
	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
)

// lookTwice is how often the kernel is looked at when it holds something else than it
// should: a change may be under way.
const lookTwice = 3

// Explain says what becomes of a packet in the kernel now.
func (d *Daemon) Explain(ctx context.Context, q inspect.Query) (inspect.Explanation, error) {
	family := familyOf(q.To.Addr())
	if !slices.Contains(d.cfg.Families, family) {
		return inspect.Explanation{}, inspect.Wrong("%s is not served on this node", familyLabel(family))
	}
	var c inspect.Case
	for range lookTwice {
		if err := d.ask(ctx, func() { c = d.caseOf(family, q) }); err != nil {
			return inspect.Explanation{}, err
		}
		route, err := d.routed(&c, q)
		if err != nil {
			return inspect.Explanation{}, err
		}
		if c.Seen, err = nft.LookAt(c.Config, c.Packet); err != nil {
			return inspect.Explanation{}, err
		}
		if c.Besides, err = d.besides(c, q); err != nil {
			return inspect.Explanation{}, err
		}
		for id := range c.Seen.Keys.Affinities {
			if _, ours := c.Wanted.Affinities[id]; !ours {
				delete(c.Seen.Keys.Affinities, id)
			}
		}
		if c.Besides.Spoofed != nil { // by which link it comes is not known, unless it was said
			c.Packet.Iif = q.In
		}
		if !route {
			e := c.Explain()
			e.Notes = append(e.Notes, fmt.Sprintf("this node has no route to %s: its own connections fail before any rule sees them", q.To.Addr()))
			return e, nil
		}
		if c.Seen.Wrong == "" && !c.Differs() {
			break
		}
	}
	return d.explained(c), nil
}

// explained adds what the daemon knows besides.
func (d *Daemon) explained(c inspect.Case) inspect.Explanation {
	e := c.Explain()
	if !d.isLoaded() {
		e.Notes = append(e.Notes, "this daemon has not loaded its tables yet")
	}
	return e
}

// caseOf gives what the loop knows about a question.
func (d *Daemon) caseOf(family nft.Family, q inspect.Query) inspect.Case {
	protocol := protocolOf(q.Protocol)
	to := plan.Frontend{Addr: q.To.Addr(), Protocol: protocol, Port: q.To.Port()}
	nodePort := plan.Frontend{Family: plan.Family(family), Protocol: protocol, Port: q.To.Port()}
	c := inspect.Case{
		Place: d.place(), Config: d.skeleton(family), Own: slices.Clone(d.addrs.of(family)),
		Packet:    nft.Packet{Src: q.From, Dst: q.To.Addr(), Protocol: uint8(protocol), Port: q.To.Port(), Iif: q.In},
		Facts:     map[nft.Frontend]plan.Facts{},
		Decisions: map[nft.Frontend]plan.Decision{},
	}
	keys := plan.NewKeys()
	keys.Frontends[to], keys.Frontends[nodePort], keys.Ranges = true, true, true
	for f, decision := range d.ledger.Decide(keys).Decisions {
		c.Decisions[frontend(f)] = decision
		c.Facts[frontend(f)], _ = d.ledger.Facts(d.ledger.Owner(f))
		if decision.Affinity != (plan.ServicePort{}) {
			keys.Affinities[decision.Affinity] = true
		}
	}
	if decision, ours := c.Decisions[frontend(nodePort)]; ours && d.onLoopback(family) && q.To.Addr() == loopbackOf(family) && protocol == model.TCP {
		s, _ := loopbackService(decision)
		c.Loopback = &inspect.Loopback{Endpoints: s.Endpoints, Fault: d.loopback.fault(q.To)}
	}
	// The sender's address may follow from a route: all of the node's are looked for.
	for _, a := range append(slices.Clone(c.Own), q.To.Addr(), q.From) {
		if a.IsValid() {
			keys.Addrs[a] = true
		}
	}
	_, c.Wanted = d.wants(family, keys)
	return c
}

// wants gives what the table is to hold at keys.
func (d *Daemon) wants(family nft.Family, keys plan.Keys) (nft.Keys, nft.State) {
	names, want := Spell(family, keys, d.ledger.Decide(keys))
	d.wanted[family].spell(names, want)
	d.spellLoopback(family, want)
	return names, want
}

func protocolOf(word string) model.Protocol {
	switch word {
	case "UDP":
		return model.UDP
	case "SCTP":
		return model.SCTP
	}
	return model.TCP
}

// routed finds out where the packet comes from: the address that the kernel gives to what
// the node sends, and the interface that the others come in by. It gives false if the
// node can't send it.
func (d *Daemon) routed(c *inspect.Case, q inspect.Query) (ok bool, err error) {
	p := &c.Packet
	p.Local = !q.From.IsValid() || slices.Contains(c.Own, q.From) || q.From.IsLoopback()
	if !p.Local {
		if p.Iif == "" {
			p.Iif = interfaceTo(q.From)
		}
		p.Returns = p.Iif != "" && p.Iif == interfaceTo(q.To.Addr())
		return true, nil
	}
	if q.In != "" {
		return false, inspect.Wrong("what this node sends comes in by no interface")
	}
	routes, err := netlink.RouteGet(p.Dst.AsSlice())
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		if !p.Src.IsValid() {
			p.Src = append(slices.Clone(c.Own), loopbackOf(familyOf(p.Dst)))[0]
		}
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask for the route to %s: %w", p.Dst, err)
	}
	if !p.Src.IsValid() && len(routes) > 0 {
		src, _ := netip.AddrFromSlice(routes[0].Src)
		p.Src = src.Unmap()
	}
	if !p.Src.IsValid() {
		p.Src = loopbackOf(familyOf(p.Dst))
	}
	return true, nil
}

// interfaceTo names the interface by which an address is reached, "" if it is not known.
func interfaceTo(a netip.Addr) string {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return ""
	}
	link, err := net.InterfaceByIndex(routes[0].LinkIndex)
	if err != nil {
		return ""
	}
	return link.Name
}
