package inspect

import (
	"fmt"
	"net/netip"
)

// Besides is what other tables than that of Services do with a packet.
type Besides struct {
	// Spoofed is set if the guard drops it: pods send only with addresses of their own.
	Spoofed *Spoofed
	// HostPort is the port of a pod that it goes to, unless a Service takes it.
	HostPort *HostPort
	// Barriers are chains of others that drop packets of pods, in words.
	Barriers []string
}

// A Spoofed is a packet with a source address that its pod does not have.
type Spoofed struct {
	Table string
	// Nobody says that no pod of the node has the address at all; otherwise one has that is
	// behind another interface.
	Nobody bool
}

// A HostPort is a port of the node that a pod has.
type HostPort struct {
	Pod netip.AddrPort
	// Owner is the pod's, as the CNI plugin names it; "": it is not known.
	Owner string
	// Table, Map and Element are what the kernel has of it. Without a table the daemon itself
	// listens, at a loopback address; Fault says why it does not.
	Table, Map, Element, Fault string
	// Itself says that the pod is the sender, Whole that the table is as it was written.
	Itself, Whole bool
}

// besides adds what other tables do with a packet, where that is another thing.
func (c Case) besides(e *Explanation) {
	b := c.Besides
	if b.Spoofed != nil {
		c.spoofed(e, *b.Spoofed)
		return
	}
	if e.Verdict == "passes" && b.HostPort != nil {
		c.hostPort(e, *b.HostPort)
	}
	if c.forwarded(e) {
		for _, barrier := range b.Barriers {
			e.Notes = append(e.Notes, barrier+": what it does not accept before that is lost, which is not looked into here")
		}
	}
}

// spoofed is for what never comes to the table of Services.
func (c Case) spoofed(e *Explanation, s Spoofed) {
	e.Stages = []Stage{{"from-pods", fmt.Sprintf("table %s, before all others: %s is not routed to where it comes from", s.Table, c.Packet.Src), "drop"}}
	e.Verdict, e.Reached = "dropped", []Target{}
	e.Service, e.Port, e.Kind = "", "", ""
	e.Reason = fmt.Sprintf("it is spoofed: %s is the address of another pod, or of none, and the guard lets a pod send with its own only", c.Packet.Src)
	if s.Nobody {
		e.Reason = fmt.Sprintf("it is spoofed: no pod has the address %s, which is in a range of this node's pods, and the guard lets a pod send with its own only", c.Packet.Src)
	}
}

// hostPort is for what no Service takes, and a pod has.
func (c Case) hostPort(e *Explanation, h HostPort) {
	if h.Fault != "" {
		e.Reason = fmt.Sprintf("it is a host port of the pod at %s, and the daemon can't listen there, and tries again: %s", h.Pod, h.Fault)
		return
	}
	e.Verdict, e.Kind, e.HostPort = "translated", "hostPort", h.Owner
	e.Reason = fmt.Sprintf("no Service has it, and it is a host port of the pod at %s", h.Pod)
	if h.Owner != "" {
		e.Reason += fmt.Sprintf(" (%s: container and interface)", h.Owner)
	}
	masqueraded := h.Itself
	if h.Table == "" {
		e.Verdict, masqueraded = "proxied", true
		e.Reason += ": no rule translates it, the daemon itself listens there, and connects to the pod anew"
	} else {
		e.Stages = append(e.Stages, Stage{"hostports", fmt.Sprintf("table %s, map %s has %s", h.Table, h.Map, h.Element), "dnat"})
		if h.Itself {
			e.Stages = append(e.Stages, Stage{"postrouting", fmt.Sprintf("table %s: hairpins has %s", h.Table, h.Pod.Addr()), "masquerade"})
		}
		if !h.Whole {
			e.Wrong = append(e.Wrong, "table "+h.Table+" has other rules than were written")
		}
	}
	e.Reached = []Target{{Endpoint{Address: h.Pod.String(), Node: c.Place.Node, Here: true, State: "attached"}, masqueraded}}
}

// forwarded says whether the packet passes the forward hook on its way.
func (c Case) forwarded(e *Explanation) bool {
	if c.Packet.Local {
		return false
	}
	switch e.Verdict {
	case "passes":
		return !c.own(c.Packet.Dst)
	case "translated":
		for _, t := range e.Reached {
			if to, err := netip.ParseAddrPort(t.Address); err == nil && !c.own(to.Addr()) {
				return true
			}
		}
	}
	return false
}
