package plan

import (
	"cmp"
	"fmt"
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

	plans  map[model.Name]Service
	owners map[Frontend]model.Name
	// losers holds the Services that claim a frontend of another one's, in order.
	losers     map[Frontend][]model.Name
	clusterIPs map[netip.Addr]int // number of Services that use it
	hairpins   map[netip.Addr]int
}

// NewLedger gives an empty ledger.
func NewLedger(cfg Config) *Ledger {
	return &Ledger{
		cfg:        cfg,
		services:   map[model.Name]*model.Service{},
		slices:     map[model.Name]map[string]*model.EndpointSlice{},
		parents:    map[model.Name]model.Name{},
		cidrs:      map[string]*model.ServiceCIDR{},
		plans:      map[model.Name]Service{},
		owners:     map[Frontend]model.Name{},
		losers:     map[Frontend][]model.Name{},
		clusterIPs: map[netip.Addr]int{},
		hairpins:   map[netip.Addr]int{},
	}
}

// Applied says what changes did.
type Applied struct {
	// Touched names the outcomes that may be others now.
	Touched Keys
	// Noted holds the notes on Services whose notes may have changed.
	Noted map[model.Name][]model.Note
}

// Apply takes changes in and plans the Services that they concern again.
func (l *Ledger) Apply(changes []model.Change) Applied {
	a := Applied{Touched: NewKeys(), Noted: map[model.Name][]model.Note{}}
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
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(dirty), model.Name.Compare) {
		l.replan(name, &a)
	}
	return a
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
		now = ForService(l.cfg, s, l.slicesOf(name))
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
	concerned := map[model.Name]bool{name: true}
	for f, was := range before {
		endpoints, ours := l.endpoints(f)
		if was.ours != ours || !slices.Equal(was.endpoints, endpoints) {
			a.Touched.Frontends[f] = true
		}
		concerned[l.owners[f]] = true
		for _, loser := range l.losers[f] {
			concerned[loser] = true
		}
	}
	count(l.clusterIPs, old.ClusterIPs, now.ClusterIPs, a.Touched.Addrs)
	count(l.hairpins, old.Hairpins, now.Hairpins, a.Touched.Addrs)
	delete(concerned, model.Name{}) // a frontend that nobody holds any more
	for n := range concerned {
		a.Noted[n] = l.notes(n)
	}
}

func (l *Ledger) slicesOf(name model.Name) []*model.EndpointSlice {
	parts := l.slices[name]
	sorted := make([]*model.EndpointSlice, 0, len(parts))
	for _, key := range slices.Sorted(maps.Keys(parts)) {
		sorted = append(sorted, parts[key])
	}
	return sorted
}

type outcome struct {
	endpoints []netip.AddrPort
	ours      bool
}

func (l *Ledger) outcomes(lists ...[]Decision) map[Frontend]outcome {
	m := map[Frontend]outcome{}
	for _, list := range lists {
		for _, d := range list {
			endpoints, ours := l.endpoints(d.Frontend)
			m[d.Frontend] = outcome{endpoints, ours}
		}
	}
	return m
}

// endpoints gives what the owner of a frontend decided for it.
func (l *Ledger) endpoints(f Frontend) ([]netip.AddrPort, bool) {
	owner, ours := l.owners[f]
	if !ours {
		return nil, false
	}
	decisions := l.plans[owner].Decisions
	i, found := slices.BinarySearchFunc(decisions, f, func(d Decision, f Frontend) int { return d.Frontend.Compare(f) })
	if !found {
		return nil, false
	}
	return decisions[i].Endpoints, true
}

// claim gives a frontend to a Service unless an older one holds it; at equal age
// the lower name does. So the order in which objects arrive decides nothing.
func (l *Ledger) claim(f Frontend, name model.Name) {
	holder, held := l.owners[f]
	if !held {
		l.owners[f] = name
		return
	}
	loser := name
	if l.older(name, holder) < 0 {
		l.owners[f] = name
		loser = holder
	}
	l.losers[f] = append(l.losers[f], loser)
	slices.SortFunc(l.losers[f], l.older)
}

// release takes a Service's claim back. The next in order inherits the frontend.
func (l *Ledger) release(f Frontend, name model.Name) {
	losers := l.losers[f]
	switch {
	case l.owners[f] != name:
		losers = slices.DeleteFunc(losers, func(n model.Name) bool { return n == name })
	case len(losers) == 0:
		delete(l.owners, f)
	default:
		l.owners[f], losers = losers[0], losers[1:]
	}
	if len(losers) == 0 {
		delete(l.losers, f)
		return
	}
	l.losers[f] = losers
}

// older compares the ages that the plans were made with, not those of the facts: in a
// batch the facts are ahead of the claims of the Services that are planned later, and
// owners and losers would be in no order.
func (l *Ledger) older(x, y model.Name) int {
	return cmp.Or(cmp.Compare(l.plans[x].Created, l.plans[y].Created), x.Compare(y))
}

func (l *Ledger) notes(name model.Name) []model.Note {
	var notes []model.Note
	for _, d := range l.plans[name].Decisions {
		owner := l.owners[d.Frontend]
		if owner == name {
			continue
		}
		notes = append(notes, model.Note{
			Reason: model.ReasonDuplicateFrontend,
			Field:  "spec.clusterIPs",
			Detail: fmt.Sprintf("%s %s is held by Service %s", netip.AddrPortFrom(d.Frontend.Addr, d.Frontend.Port), d.Frontend.Protocol, owner),
		})
	}
	return notes
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
		if endpoints, ours := l.endpoints(f); ours {
			out.Decisions[f] = endpoints
		}
	}
	for addr := range k.Addrs {
		if l.clusterIPs[addr] > 0 {
			out.ClusterIPs[addr] = true
		}
		if l.hairpins[addr] > 0 {
			out.Hairpins[addr] = true
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
	k := NewKeys()
	for f := range l.owners {
		k.Frontends[f] = true
	}
	for addr := range l.clusterIPs {
		k.Addrs[addr] = true
	}
	for addr := range l.hairpins {
		k.Addrs[addr] = true
	}
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
		for _, addr := range slices.Concat(p.ClusterIPs, p.Hairpins) {
			k.Addrs[addr] = true
		}
	}
	return k
}

func newOutcome() Outcome {
	return Outcome{
		Decisions:  map[Frontend][]netip.AddrPort{},
		ClusterIPs: map[netip.Addr]bool{},
		Hairpins:   map[netip.Addr]bool{},
	}
}
