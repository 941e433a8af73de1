package plan

import (
	"maps"
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

// A Ledger holds the facts and the plan of every Service, and settles what Services
// share: frontends that two of them claim, and addresses that several use. Only
// what a change touches is planned again.
type Ledger struct {
	cfg      Config
	services map[model.Name]*model.Service
	slices   map[model.Name]map[string]*model.EndpointSlice // by Service, then by slice
	parents  map[model.Name]model.Name                      // the Service of each slice
	cidrs    map[string]*model.ServiceCIDR
	node     model.Node // the zero value: not known

	plans  map[model.Name]Service
	owners map[Frontend]model.Name
	// losers holds the Services that claim a frontend of another one's, in order.
	losers      map[Frontend][]model.Name
	clusterIPs  map[netip.Addr]int // number of Services that use it
	externalIPs map[netip.Addr]int
	hairpins    map[netip.Addr]int
	// checks holds the Services that claim a healthCheckNodePort, in order.
	checks  map[uint16][]model.Name
	noLocal map[Family]NoLocal
}

// NewLedger gives an empty ledger.
func NewLedger(cfg Config) *Ledger {
	return &Ledger{
		cfg:         cfg,
		services:    map[model.Name]*model.Service{},
		slices:      map[model.Name]map[string]*model.EndpointSlice{},
		parents:     map[model.Name]model.Name{},
		cidrs:       map[string]*model.ServiceCIDR{},
		plans:       map[model.Name]Service{},
		owners:      map[Frontend]model.Name{},
		losers:      map[Frontend][]model.Name{},
		clusterIPs:  map[netip.Addr]int{},
		externalIPs: map[netip.Addr]int{},
		hairpins:    map[netip.Addr]int{},
		checks:      map[uint16][]model.Name{},
		noLocal:     map[Family]NoLocal{},
	}
}

// Applied says what changes did.
type Applied struct {
	// Touched names the outcomes that may be others now.
	Touched Keys
	// Noted holds the notes on Services whose notes may have changed.
	Noted map[model.Name][]model.Note
	// HealthChecks says that HealthChecks gives something else now.
	HealthChecks bool
}

// Apply takes changes in and plans the Services that they concern again.
func (l *Ledger) Apply(changes []model.Change) Applied {
	a := newApplied()
	dirty := map[model.Name]bool{}
	for _, c := range changes {
		switch c.Key.Kind {
		case model.KindService:
			l.setService(c)
			dirty[c.Key.Name] = true
		case model.KindEndpointSlice:
			for _, name := range l.setSlice(c) {
				dirty[name] = true
			}
		case model.KindServiceCIDR:
			l.setCIDR(c)
			a.Touched.Ranges = true
		case model.KindNode:
			l.setNode(c, dirty)
		}
	}
	l.replanAll(dirty, &a)
	return a
}

// Reconfigure plans everything again, with another configuration.
func (l *Ledger) Reconfigure(cfg Config) Applied {
	a := newApplied()
	a.Touched.Ranges = true
	l.cfg = cfg
	dirty := map[model.Name]bool{}
	for name := range l.services {
		dirty[name] = true
	}
	l.replanAll(dirty, &a)
	return a
}

func newApplied() Applied {
	return Applied{Touched: NewKeys(), Noted: map[model.Name][]model.Note{}}
}

func (l *Ledger) replanAll(dirty map[model.Name]bool, a *Applied) {
	for _, name := range slices.SortedFunc(maps.Keys(dirty), model.Name.Compare) {
		l.replan(name, a)
	}
}

// setNode names the Services whose plan depends on what changed.
func (l *Ledger) setNode(c model.Change, dirty map[model.Name]bool) {
	if c.Key.Name.Name != l.cfg.NodeName {
		return
	}
	var now model.Node
	if c.Node != nil {
		now = *c.Node
	}
	zone, addrs := now.Zone != l.node.Zone, !slices.Equal(now.Addrs, l.node.Addrs)
	l.node = now
	if !zone && !addrs {
		return
	}
	for name, p := range l.plans {
		if zone && p.hinted || addrs && p.guarded {
			dirty[name] = true
		}
	}
}

func (l *Ledger) setService(c model.Change) {
	if c.Service == nil {
		delete(l.services, c.Key.Name)
		return
	}
	l.services[c.Key.Name] = c.Service
}

// setSlice gives the Services that the slice belonged and belongs to.
func (l *Ledger) setSlice(c model.Change) []model.Name {
	var concerned []model.Name
	slice := c.Key.Name
	if parent, held := l.parents[slice]; held {
		concerned = append(concerned, parent)
		delete(l.parents, slice)
		if delete(l.slices[parent], slice.Name); len(l.slices[parent]) == 0 {
			delete(l.slices, parent)
		}
	}
	if c.EndpointSlice != nil {
		parent := model.Name{Namespace: slice.Namespace, Name: c.EndpointSlice.Service}
		concerned = append(concerned, parent)
		l.parents[slice] = parent
		if l.slices[parent] == nil {
			l.slices[parent] = map[string]*model.EndpointSlice{}
		}
		l.slices[parent][slice.Name] = c.EndpointSlice
	}
	return concerned
}

func (l *Ledger) setCIDR(c model.Change) {
	if c.ServiceCIDR == nil {
		delete(l.cidrs, c.Key.Name.Name)
		return
	}
	l.cidrs[c.Key.Name.Name] = c.ServiceCIDR
}

// replan plans one Service again and names what came out otherwise than before.
func (l *Ledger) replan(name model.Name, a *Applied) {
	old := l.plans[name]
	var now Service
	s := l.services[name]
	if s != nil {
		now = ForService(l.cfg, l.node, s, l.slicesOf(name))
	}
	before := l.outcomes(old.Decisions, now.Decisions)
	for _, d := range old.Decisions {
		l.release(d.Frontend, name)
	}
	if s == nil {
		delete(l.plans, name)
	} else {
		l.plans[name] = now
	}
	for _, d := range now.Decisions {
		l.claim(d.Frontend, name)
	}
	l.compare(name, before, a)
	count(l.clusterIPs, old.ClusterIPs, now.ClusterIPs, a.Touched.Addrs)
	count(l.externalIPs, old.ExternalIPs, now.ExternalIPs, a.Touched.Addrs)
	count(l.hairpins, old.Hairpins, now.Hairpins, a.Touched.Addrs)
	touchAffinities(old.Affinities, now.Affinities, a.Touched.Affinities)
	l.check(name, old, now, a)
	l.sumNoLocal(old.NoLocal, now.NoLocal)
}

// compare names the frontends that have another outcome, and the Services whose notes
// may be others.
func (l *Ledger) compare(name model.Name, before map[Frontend]outcome, a *Applied) {
	concerned := map[model.Name]bool{name: true}
	for f, was := range before {
		d, ours := l.decision(f)
		if was.ours != ours || !was.decision.equal(d) {
			a.Touched.Frontends[f] = true
		}
		concerned[l.owners[f]] = true
		for _, loser := range l.losers[f] {
			concerned[loser] = true
		}
	}
	delete(concerned, model.Name{}) // a frontend that nobody holds any more
	for n := range concerned {
		a.Noted[n] = l.notes(n)
	}
}

func touchAffinities(old, now map[ServicePort]Affinity, touched map[ServicePort]bool) {
	for port, a := range now {
		if was, ok := old[port]; !ok || !was.equal(a) {
			touched[port] = true
		}
	}
	for port := range old {
		if _, ok := now[port]; !ok {
			touched[port] = true
		}
	}
}

func (l *Ledger) sumNoLocal(old, now map[Family]NoLocal) {
	for _, f := range []Family{IPv4, IPv6} {
		sum := l.noLocal[f]
		sum.Internal += now[f].Internal - old[f].Internal
		sum.External += now[f].External - old[f].External
		if l.noLocal[f] = sum; sum == (NoLocal{}) {
			delete(l.noLocal, f)
		}
	}
}

// NoLocal gives how many service ports a Local policy leaves without endpoints on this
// node.
func (l *Ledger) NoLocal(f Family) NoLocal { return l.noLocal[f] }

func (l *Ledger) slicesOf(name model.Name) []*model.EndpointSlice {
	parts := l.slices[name]
	sorted := make([]*model.EndpointSlice, 0, len(parts))
	for _, key := range slices.Sorted(maps.Keys(parts)) {
		sorted = append(sorted, parts[key])
	}
	return sorted
}

type outcome struct {
	decision Decision
	ours     bool
}

func (l *Ledger) outcomes(lists ...[]Decision) map[Frontend]outcome {
	m := map[Frontend]outcome{}
	for _, list := range lists {
		for _, d := range list {
			decision, ours := l.decision(d.Frontend)
			m[d.Frontend] = outcome{decision, ours}
		}
	}
	return m
}

// decision gives what the owner of a frontend decided for it.
func (l *Ledger) decision(f Frontend) (Decision, bool) {
	owner, ours := l.owners[f]
	if !ours {
		return Decision{}, false
	}
	return l.plans[owner].decision(f)
}

func (s Service) decision(f Frontend) (Decision, bool) {
	i, found := slices.BinarySearchFunc(s.Decisions, f, func(d Decision, f Frontend) int { return d.Frontend.Compare(f) })
	if !found {
		return Decision{}, false
	}
	return s.Decisions[i], true
}

// count moves a Service's uses of addresses and names those that begin or cease to
// be used at all.
func count(uses map[netip.Addr]int, old, now []netip.Addr, touched map[netip.Addr]bool) {
	before := map[netip.Addr]bool{}
	for _, addr := range slices.Concat(old, now) {
		before[addr] = uses[addr] > 0
	}
	for _, addr := range now {
		uses[addr]++
	}
	for _, addr := range old {
		if uses[addr]--; uses[addr] == 0 {
			delete(uses, addr)
		}
	}
	for addr, used := range before {
		if used != (uses[addr] > 0) {
			touched[addr] = true
		}
	}
}

// Decide gives the outcome for some keys.
func (l *Ledger) Decide(k Keys) Outcome {
	out := newOutcome()
	for f := range k.Frontends {
		if d, ours := l.decision(f); ours {
			out.Decisions[f] = d
		}
	}
	for addr := range k.Addrs {
		if l.clusterIPs[addr] > 0 {
			out.ClusterIPs[addr] = true
		}
		if l.externalIPs[addr] > 0 {
			out.ExternalIPs[addr] = true
		}
		if l.hairpins[addr] > 0 {
			out.Hairpins[addr] = true
		}
	}
	for port := range k.Affinities {
		if a, ours := l.plans[port.Service].Affinities[port]; ours {
			out.Affinities[port] = a
		}
	}
	if k.Ranges {
		l.decideRanges(&out)
	}
	return out
}

func (l *Ledger) decideRanges(out *Outcome) {
	var cidrs []netip.Prefix
	for _, c := range l.cidrs {
		cidrs = append(cidrs, c.CIDRs...)
	}
	out.ServiceCIDRs = Merge(cidrs)
	out.PodCIDRs = Merge(l.cfg.ClusterCIDRs)
}

// All names every outcome that there is.
func (l *Ledger) All() Keys {
	k := l.Of(func(model.Name) bool { return true })
	k.Ranges = true
	return k
}

// Of names the outcomes of the Services that match.
func (l *Ledger) Of(match func(model.Name) bool) Keys {
	k := NewKeys()
	for name, p := range l.plans {
		if !match(name) {
			continue
		}
		for _, d := range p.Decisions {
			k.Frontends[d.Frontend] = true
		}
		for _, list := range [][]netip.Addr{p.ClusterIPs, p.ExternalIPs, p.Hairpins} {
			for _, addr := range list {
				k.Addrs[addr] = true
			}
		}
		for port := range p.Affinities {
			k.Affinities[port] = true
		}
	}
	return k
}

func newOutcome() Outcome {
	return Outcome{
		Decisions:   map[Frontend]Decision{},
		ClusterIPs:  map[netip.Addr]bool{},
		ExternalIPs: map[netip.Addr]bool{},
		Hairpins:    map[netip.Addr]bool{},
		Affinities:  map[ServicePort]Affinity{},
	}
}

// equal compares all that a decision says.
func (d Decision) equal(o Decision) bool {
	return d.Frontend == o.Frontend && d.Kind == o.Kind && d.Local == o.Local && d.Guarded == o.Guarded &&
		d.Affinity == o.Affinity && d.AffinitySeconds == o.AffinitySeconds && d.AffinityLocal == o.AffinityLocal &&
		slices.Equal(d.Endpoints, o.Endpoints) && slices.Equal(d.LocalEndpoints, o.LocalEndpoints) &&
		slices.Equal(d.Serving, o.Serving) && slices.Equal(d.Sources, o.Sources)
}

func (a Affinity) equal(o Affinity) bool {
	return a.Seconds == o.Seconds && a.Local == o.Local &&
		slices.Equal(a.Endpoints, o.Endpoints) && slices.Equal(a.LocalEndpoints, o.LocalEndpoints)
}
