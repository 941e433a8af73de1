package plan

import (
	"maps"
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

// ForService plans one Service from its slices, which come sorted by name, and the node
// that this is for.
func ForService(cfg Config, node model.Node, s *model.Service, parts []*model.EndpointSlice) Service {
	p := Service{
		Created:    s.Created,
		ClusterIPs: slices.Clone(s.ClusterIPs),
		Affinities: map[ServicePort]Affinity{},
		NoLocal:    map[Family]NoLocal{},
	}
	b := builder{cfg, node, s, parts, &p, map[netip.Addr]bool{}, map[netip.Addr]bool{}}
	for _, vip := range s.ClusterIPs {
		b.addrs(FamilyOf(vip))
	}
	for _, port := range s.Ports {
		all := endpointsOf(port, parts)
		for _, vip := range s.ClusterIPs {
			b.port(port, vip, place{cfg.NodeName, node.Zone}.choose(all, FamilyOf(vip)))
		}
	}
	slices.SortStableFunc(p.Decisions, func(a, b Decision) int { return a.Frontend.Compare(b.Frontend) })
	p.Decisions = slices.CompactFunc(p.Decisions, func(a, b Decision) bool { return a.Frontend == b.Frontend })
	p.Hairpins = slices.SortedFunc(maps.Keys(b.hairpins), netip.Addr.Compare)
	p.ExternalIPs = slices.SortedFunc(maps.Keys(b.external), netip.Addr.Compare)
	if s.HealthCheckNodePort != 0 {
		p.HealthCheckPort = s.HealthCheckNodePort
		p.HealthCheck = HealthCheck{Service: s.Name, Endpoints: localReady(cfg.NodeName, s.Ports, parts)}
	}
	return p
}

// A builder puts the plan of one Service together.
type builder struct {
	cfg                Config
	node               model.Node
	service            *model.Service
	parts              []*model.EndpointSlice
	plan               *Service
	external, hairpins map[netip.Addr]bool
}

// addrs notes the external addresses of a family.
func (b builder) addrs(family Family) {
	for _, list := range [][]netip.Addr{b.externalIPs(), b.service.LoadBalancerIPs} {
		for _, addr := range list {
			if FamilyOf(addr) == family {
				b.external[addr] = true
			}
		}
	}
}

func (b builder) externalIPs() []netip.Addr {
	if b.cfg.WithoutExternalIPs {
		return nil
	}
	return b.service.ExternalIPs
}

// port plans a service port in the family of a ClusterIP. Where addresses coincide the
// ClusterIP comes before external IPs, and those before load balancers'.
func (b builder) port(port model.ServicePort, vip netip.Addr, c choice) {
	s, family := b.service, FamilyOf(vip)
	maps.Copy(b.hairpins, c.here)
	b.plan.hinted = b.plan.hinted || c.hinted
	add := func(kind Kind, f Frontend) {
		d := Decision{Frontend: f, Kind: kind, Endpoints: c.cluster}
		d.Frontend.Protocol = port.Protocol
		if d.Local = s.ExternalLocal; kind == ClusterIP {
			d.Local = s.InternalLocal
		}
		if d.Local {
			d.LocalEndpoints = c.local
		}
		if port.Protocol != model.TCP {
			d.Serving = c.serving
		}
		if kind == LoadBalancerIP {
			d.Guarded, d.Sources = b.sources(family)
			b.plan.guarded = b.plan.guarded || d.Guarded
		}
		b.plan.Decisions = append(b.plan.Decisions, d)
	}
	first := len(b.plan.Decisions)
	add(ClusterIP, Frontend{Addr: vip, Port: port.Port})
	for _, of := range []struct {
		kind  Kind
		addrs []netip.Addr
	}{{ExternalIP, b.externalIPs()}, {LoadBalancerIP, s.LoadBalancerIPs}} {
		for _, addr := range of.addrs {
			if FamilyOf(addr) == family {
				add(of.kind, Frontend{Addr: addr, Port: port.Port})
			}
		}
	}
	if port.NodePort != 0 {
		add(NodePort, Frontend{Family: family, Port: port.NodePort})
	}
	own := b.plan.Decisions[first:]
	b.affinity(port, family, own, c)
	b.noLocal(family, own, c)
}

// affinity pins clients of the frontends of a service port, if the Service asks for it.
func (b builder) affinity(port model.ServicePort, family Family, own []Decision, c choice) {
	if b.service.Affinity == 0 {
		return
	}
	a := Affinity{Seconds: b.service.Affinity, Endpoints: c.cluster}
	if a.Local = slices.ContainsFunc(own, func(d Decision) bool { return d.Local }); a.Local {
		a.LocalEndpoints = c.local
	}
	key := ServicePort{b.service.Name, port.Name, port.Protocol, family}
	b.plan.Affinities[key] = a
	for i := range own {
		own[i].Affinity, own[i].AffinitySeconds, own[i].AffinityLocal = key, a.Seconds, a.Local
	}
}

// noLocal counts what a Local policy leaves without endpoints on this node.
func (b builder) noLocal(family Family, own []Decision, c choice) {
	if len(c.local) > 0 || len(c.cluster) == 0 {
		return
	}
	n := b.plan.NoLocal[family]
	if b.service.InternalLocal {
		n.Internal++
	}
	if b.service.ExternalLocal && len(own) > 1 {
		n.External++
	}
	if n != (NoLocal{}) {
		b.plan.NoLocal[family] = n
	}
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

// localReady counts the addresses on this node that are ready for any port.
func localReady(node string, ports []model.ServicePort, parts []*model.EndpointSlice) int {
	addrs := map[netip.Addr]bool{}
	for _, port := range ports {
		for to, e := range endpointsOf(port, parts) {
			if e.Ready && (place{node: node}).here(e) {
				addrs[to.Addr()] = true
			}
		}
	}
	return len(addrs)
}
