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
		Created:         s.Created,
		ClusterIPs:      slices.Clone(s.ClusterIPs),
		HealthCheckPort: s.HealthCheckNodePort,
	}
	b := builder{
		cfg: cfg, node: node, service: s, plan: &p,
		external: map[netip.Addr]bool{}, hairpins: map[netip.Addr]bool{}, readyHere: map[netip.Addr]bool{},
	}
	for _, port := range s.Ports {
		all := endpointsOf(port, parts)
		for _, vip := range s.ClusterIPs {
			c := place{cfg.NodeName, node.Zone}.choose(all, FamilyOf(vip))
			if cfg.KeepListed {
				c.listed = listed(all, FamilyOf(vip))
			}
			b.port(port, vip, c)
		}
	}
	slices.SortStableFunc(p.Decisions, func(a, b Decision) int { return a.Frontend.Compare(b.Frontend) })
	p.Decisions = slices.CompactFunc(p.Decisions, func(a, b Decision) bool { return a.Frontend == b.Frontend })
	p.Hairpins = slices.SortedFunc(maps.Keys(b.hairpins), netip.Addr.Compare)
	p.ExternalIPs = slices.SortedFunc(maps.Keys(b.external), netip.Addr.Compare)
	if p.HealthCheckPort != 0 {
		p.HealthCheck = HealthCheck{Service: s.Name, Endpoints: len(b.readyHere)}
	}
	return p
}

// A builder puts the plan of one Service together.
type builder struct {
	cfg     Config
	node    model.Node
	service *model.Service
	plan    *Service
	// What all ports have together.
	external, hairpins, readyHere map[netip.Addr]bool
}

// port plans a service port in the family of a ClusterIP.
func (b builder) port(port model.ServicePort, vip netip.Addr, c choice) {
	b.plan.hinted = b.plan.hinted || c.hinted
	first := len(b.plan.Decisions)
	for _, f := range b.frontends(port, vip) {
		b.plan.Decisions = append(b.plan.Decisions, b.decide(f.Frontend, f.kind, c))
	}
	own := b.plan.Decisions[first:]
	for i := range own {
		own[i].PortName = port.Name
	}
	local := slices.ContainsFunc(own, func(d Decision) bool { return d.Local })
	mark(b.readyHere, c.readyHere)
	mark(b.hairpins, c.clusterHere)
	if local {
		mark(b.hairpins, c.local)
	}
	b.affinity(port, FamilyOf(vip), own, local, c)
	b.noLocal(FamilyOf(vip), own, c)
}

func mark(addrs map[netip.Addr]bool, endpoints []netip.AddrPort) {
	for _, to := range endpoints {
		addrs[to.Addr()] = true
	}
}

// decide says what a frontend does.
func (b builder) decide(f Frontend, kind Kind, c choice) Decision {
	d := Decision{Frontend: f, Kind: kind, Endpoints: c.cluster, Local: b.service.ExternalLocal}
	if kind == ClusterIP {
		d.Local = b.service.InternalLocal
	}
	if d.Local {
		d.LocalEndpoints = c.local
	}
	d.Keep = c.serving
	if f.Protocol == model.TCP && b.cfg.KeepListed {
		d.Keep = c.listed
	}
	if kind != ClusterIP && slices.Contains(b.service.LoadBalancerIPs, f.Addr) {
		d.Guarded, d.Sources = b.sources(f.InFamily())
		b.plan.guarded = b.plan.guarded || d.Guarded
	}
	return d
}

// affinity pins clients of the frontends of a service port, if the Service asks for it.
func (b builder) affinity(port model.ServicePort, family Family, own []Decision, local bool, c choice) {
	if b.service.Affinity == 0 {
		return
	}
	a := Affinity{Seconds: b.service.Affinity, Local: local}
	if local {
		a.LocalEndpoints = c.local
	}
	// Only a ClusterIP never leaves the node: other frontends that are Local may for
	// clients of the cluster.
	if slices.ContainsFunc(own, func(d Decision) bool { return d.Kind != ClusterIP || !d.Local }) {
		a.Endpoints = c.cluster
	}
	key := ServicePort{b.service.Name, port.Name, port.Protocol, family}
	if b.plan.Affinities == nil {
		b.plan.Affinities = map[ServicePort]Affinity{}
	}
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
	if b.service.ExternalLocal && slices.ContainsFunc(own, func(d Decision) bool { return d.Kind != ClusterIP }) {
		n.External++
	}
	if n == (NoLocal{}) {
		return
	}
	if b.plan.NoLocal == nil {
		b.plan.NoLocal = map[Family]NoLocal{}
	}
	b.plan.NoLocal[family] = n
}
