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

	plans  map[model.Name]*Service
	owners map[Frontend]model.Name
	// losers holds the Services that claim a frontend of another one's, in order.
	losers map[Frontend][]model.Name
	addrs  map[netip.Addr]uses
	// checks holds the Services that claim a healthCheckNodePort, in order.
	checks map[uint16][]model.Name
	// told holds the notes on each Service that there are some on.
	told         map[model.Name][]model.Note
	noLocal      map[Family]NoLocal
	serviceCIDRs []netip.Prefix // merged
}

// NewLedger gives an empty ledger.
func NewLedger(cfg Config) *Ledger {
	return &Ledger{
		cfg:      cfg,
		services: map[model.Name]*model.Service{},
		slices:   map[model.Name]map[string]*model.EndpointSlice{},
		parents:  map[model.Name]model.Name{},
		cidrs:    map[string]*model.ServiceCIDR{},
		plans:    map[model.Name]*Service{},
		owners:   map[Frontend]model.Name{},
		losers:   map[Frontend][]model.Name{},
		addrs:    map[netip.Addr]uses{},
		checks:   map[uint16][]model.Name{},
		told:     map[model.Name][]model.Note{},
		noLocal:  map[Family]NoLocal{},
	}
}

// Applied says what changes did.
type Applied struct {
	// Touched names the outcomes that are others now.
	Touched Keys
	// Noted holds the notes on Services whose notes are others now: none, if all is well
	// with one again.
	Noted map[model.Name][]model.Note
	// HealthChecks says that HealthChecks gives something else now.
	HealthChecks bool
}

// NewApplied gives what changes nothing.
func NewApplied() Applied {
	return Applied{Touched: NewKeys(), Noted: map[model.Name][]model.Note{}}
}

// Apply takes changes in and plans the Services that they concern again. A change of one
// endpoint costs what its Service does, however many there are.
func (l *Ledger) Apply(changes []model.Change) Applied {
	b := l.begin()
	for _, c := range changes {
		switch c.Key.Kind {
		case model.KindService:
			l.setService(c)
			b.dirty[c.Key.Name] = true
		case model.KindEndpointSlice:
			for _, name := range l.setSlice(c) {
				b.dirty[name] = true
			}
		case model.KindServiceCIDR:
			l.setCIDR(c)
			b.ranges = true
		case model.KindNode:
			l.setNode(c, b.dirty)
		}
	}
	return b.settle()
}

// Reconfigure plans everything again, with another configuration.
func (l *Ledger) Reconfigure(cfg Config) Applied {
	b := l.begin()
	b.applied.Touched.Ranges = !slices.Equal(Merge(l.cfg.ClusterCIDRs), Merge(cfg.ClusterCIDRs))
	l.cfg = cfg
	for name := range l.services {
		b.dirty[name] = true
	}
	return b.settle()
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

// setNode marks the Services whose plan depends on what changed.
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

// ServiceOf gives the Service that a slice belongs to by what was applied so far, and false
// if the slice is not known.
func (l *Ledger) ServiceOf(slice model.Name) (model.Name, bool) {
	parent, held := l.parents[slice]
	return parent, held
}

func (l *Ledger) slicesOf(name model.Name) []*model.EndpointSlice {
	parts := l.slices[name]
	sorted := make([]*model.EndpointSlice, 0, len(parts))
	for _, key := range slices.Sorted(maps.Keys(parts)) {
		sorted = append(sorted, parts[key])
	}
	return sorted
}

// NoLocal gives how many service ports a Local policy leaves without endpoints on this
// node.
func (l *Ledger) NoLocal(f Family) NoLocal { return l.noLocal[f] }

func (l *Ledger) addNoLocal(old, now map[Family]NoLocal) {
	for _, f := range []Family{IPv4, IPv6} {
		sum := l.noLocal[f]
		sum.Internal += now[f].Internal - old[f].Internal
		sum.External += now[f].External - old[f].External
		if l.noLocal[f] = sum; sum == (NoLocal{}) {
			delete(l.noLocal, f)
		}
	}
}
