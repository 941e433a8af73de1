package plan

import (
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

// A place is where the node is.
type place struct {
	node, zone string
}

// here says whether an endpoint is on this node.
func (p place) here(e model.Endpoint) bool { return e.Node != "" && e.Node == p.node }

// nearest follows hints: those for nodes if all ready endpoints have some and any is for
// this node, else those for zones in the same way; else it ignores them. Endpoints that
// are not ready do not matter.
func (p place) nearest(ready []netip.AddrPort, all map[netip.AddrPort]model.Endpoint) []netip.AddrPort {
	for _, by := range []struct {
		name  string
		hints func(*model.Hints) []string
	}{
		{p.node, func(h *model.Hints) []string { return h.Nodes }},
		{p.zone, func(h *model.Hints) []string { return h.Zones }},
	} {
		near, ok := hintedFor(by.name, ready, func(to netip.AddrPort) []string {
			if h := all[to].Hints; h != nil {
				return by.hints(h)
			}
			return nil
		})
		if ok {
			return near
		}
	}
	return ready
}

// hintedFor gives the endpoints that have a hint for a name, if there are any and each
// endpoint has a hint.
func hintedFor(name string, ready []netip.AddrPort, hints func(netip.AddrPort) []string) (near []netip.AddrPort, ok bool) {
	if name == "" {
		return nil, false
	}
	for _, to := range ready {
		list := hints(to)
		if len(list) == 0 {
			return nil, false
		}
		if slices.Contains(list, name) {
			near = append(near, to)
		}
	}
	return near, len(near) > 0
}
