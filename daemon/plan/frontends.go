package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

// String gives the frontend for people.
func (f Frontend) String() string {
	if !f.Addr.IsValid() {
		return fmt.Sprintf("NodePort %d %s", f.Port, f.Protocol)
	}
	return fmt.Sprintf("%s %s", netip.AddrPortFrom(f.Addr, f.Port), f.Protocol)
}

type kindOfFrontend struct {
	Frontend
	kind Kind
}

// frontends gives those of a service port in the family of a ClusterIP, distinct. Where
// addresses of a Service coincide the ClusterIP comes before external IPs, and those
// before load balancers'.
func (b builder) frontends(port model.ServicePort, vip netip.Addr) []kindOfFrontend {
	family := FamilyOf(vip)
	list := []kindOfFrontend{{Frontend{Addr: vip, Protocol: port.Protocol, Port: port.Port}, ClusterIP}}
	for _, of := range []struct {
		kind  Kind
		addrs []netip.Addr
	}{{ExternalIP, b.externalIPs()}, {LoadBalancerIP, b.service.LoadBalancerIPs}} {
		for _, addr := range of.addrs {
			if FamilyOf(addr) != family {
				continue
			}
			b.external[addr] = true
			if !slices.ContainsFunc(list, func(k kindOfFrontend) bool { return k.Addr == addr }) {
				list = append(list, kindOfFrontend{Frontend{Addr: addr, Protocol: port.Protocol, Port: port.Port}, of.kind})
			}
		}
	}
	if port.NodePort != 0 {
		list = append(list, kindOfFrontend{Frontend{Family: family, Protocol: port.Protocol, Port: port.NodePort}, NodePort})
	}
	return list
}

func (b builder) externalIPs() []netip.Addr {
	if b.cfg.WithoutExternalIPs {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(b.service.ExternalIPs), func(a netip.Addr) bool { return !b.cfg.admits(a) })
}

// admits says whether an external IP may be served: whoever may write Services could take
// the traffic to any address otherwise.
func (c Config) admits(external netip.Addr) bool {
	return c.ExternalIPs == nil || slices.ContainsFunc(c.ExternalIPs, func(p netip.Prefix) bool { return p.Contains(external) })
}

// sources gives who may use the load balancer IPs of a family, if not everybody. A range
// that has an address of this node lets in what the node sends to the load balancer and
// gets back with that one's address.
func (b builder) sources(family Family) (guarded bool, sources []netip.Prefix) {
	for _, p := range b.service.SourceRanges {
		if FamilyOf(p.Addr()) != family {
			continue
		}
		if p.Bits() == 0 {
			return false, nil
		}
		sources = append(sources, p)
	}
	if len(sources) == 0 {
		return false, nil
	}
	ours := func(p netip.Prefix) bool { return slices.ContainsFunc(b.node.Addrs, p.Contains) }
	if slices.ContainsFunc(sources, ours) {
		for _, addr := range b.service.LoadBalancerIPs {
			if FamilyOf(addr) == family {
				sources = append(sources, netip.PrefixFrom(addr, addr.BitLen()))
			}
		}
	}
	return true, Merge(sources)
}
