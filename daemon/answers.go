package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"onerule/daemon/inspect"
	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
)

var _ inspect.Daemon = (*Daemon)(nil)

// forStatus is how long a status waits for the loop: it is asked for when things go wrong,
// and says what is known without it.
const forStatus = 2 * time.Second

// unheardOf is how long an API server may be silent before a status says so.
const unheardOf = 10 * time.Second

// Status says what the daemon and its tables are like.
func (d *Daemon) Status(ctx context.Context) (inspect.Status, error) {
	s := inspect.Status{
		Version: d.cfg.Version, PID: os.Getpid(), Node: d.cfg.Settings.Node, Mode: "nftables", Source: d.origin(),
		Kernel: d.cfg.Machine.Kernel, Nft: d.cfg.Machine.Nft, Counting: d.tally.mode(),
		PendingSeconds: d.health.Pending().Seconds(), Degraded: []string{}, Tables: []inspect.Table{},
	}
	d.history.into(&s)
	d.degraded(&s)
	ctx, cancel := context.WithTimeout(ctx, forStatus)
	defer cancel()
	if err := d.ask(ctx, func() { d.owned(&s) }); err != nil && !errors.Is(err, errWaiting) {
		s.Degraded = append(s.Degraded, fmt.Sprintf("%v: sizes are not known", err))
	}
	return s, nil
}

// origin says where objects come from.
func (d *Daemon) origin() string {
	s := d.cfg.Settings
	switch {
	case s.Manifests != "":
		return "files in " + s.Manifests
	case s.Client.Master != "":
		return "API server " + s.Client.Master
	case s.Client.Kubeconfig != "":
		return "API server of " + s.Client.Kubeconfig
	}
	return "API server of the pod's service account"
}

// degraded says what is known to be amiss without the loop.
func (d *Daemon) degraded(s *inspect.Status) {
	add := func(format string, args ...any) { s.Degraded = append(s.Degraded, fmt.Sprintf(format, args...)) }
	if s.Loaded == nil {
		add("no table is loaded yet")
	}
	if pending, late := d.health.Late(); late {
		add("a change has been waiting for the kernel for %s", pending.Round(time.Second))
	}
	if d.cfg.Lost != nil {
		if lost := d.cfg.Lost(); lost > unheardOf {
			add("the API server has not been heard for %s: what it said last counts", lost.Round(time.Second))
		}
	}
	for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		if err := d.cfg.Machine.Without[f]; err != nil {
			add("%s is not served: %v", familyLabel(f), err)
		}
	}
	if d.cfg.WithoutFib {
		add("the kernel lacks the expression fib: the node's own addresses are elements, a moment after they change")
	}
	if d.network != nil {
		s.Degraded = append(s.Degraded, d.network.Degraded()...)
		s.PodNetwork = podNetwork(d.network.Summary())
	}
	if why := d.tally.off(); why != nil {
		add("connections are not counted: %v", why)
	}
	if d.tally.isFull() {
		add("connections of some endpoints are not counted: the map of counters is full")
	}
}

// owned adds what the loop owns.
func (d *Daemon) owned(s *inspect.Status) {
	all := d.ledger.All()
	s.Services, s.Frontends = len(d.ledger.Names()), len(all.Frontends)
	for _, family := range d.cfg.Families {
		p := d.programs[family]
		sizes, rules := p.Sizes()
		t := inspect.Table{Family: familyLabel(family), Name: tableName(family), Known: p.Known(), Rules: rules, Load: d.history.load(family), Sets: []inspect.Set{}}
		for _, name := range slices.Sorted(maps.Keys(sizes)) {
			if sizes[name] > 0 {
				t.Sets = append(t.Sets, inspect.Set{Name: name, Elements: sizes[name]})
				t.Elements += sizes[name]
			}
		}
		s.Tables = append(s.Tables, t)
		if err := p.Unfinished(); err != nil {
			s.Degraded = append(s.Degraded, fmt.Sprintf("table %s has more than it should: %v", tableName(family), err))
		}
	}
	if d.awaitsPodCIDRs() {
		s.Degraded = append(s.Degraded, fmt.Sprintf("node %s has no spec.podCIDRs yet: pods are told by them", s.Node))
	}
	switch skipped := d.skipped(); len(skipped) {
	case 0:
	case 1:
		s.Degraded = append(s.Degraded, "1 object, or part of one, is skipped: "+skipped[0])
	default:
		s.Degraded = append(s.Degraded, fmt.Sprintf("%d objects, or parts of such, are skipped, the first one: %s", len(skipped), skipped[0]))
	}
}

func tableName(family nft.Family) string { return fmt.Sprintf("%s %s", family, nft.TableName) }

// skipped says what is wrong with objects now.
func (d *Daemon) skipped() []string {
	var list []string
	for of, notes := range d.notes {
		_, object, _ := strings.Cut(of, ": ")
		for _, n := range notes {
			list = append(list, strings.TrimSpace(fmt.Sprintf("%s %s: %s", object, n.Field, n.Detail)))
		}
	}
	slices.Sort(list)
	return list
}

// Hits gives what was counted.
func (d *Daemon) Hits(context.Context) (inspect.Hits, error) {
	h := inspect.Hits{At: time.Now(), Hits: []inspect.Hit{}}
	if d.tally.mode() == "" {
		h.Off = "connections are not counted (--bpf-dir off)"
		if why := d.tally.off(); why != nil {
			h.Off = fmt.Sprintf("connections are not counted: %v", why)
		}
		return h, nil
	}
	if !d.tally.isWhole() {
		h.Off = "what connections were counted is not known yet: the daemon has just begun"
		return h, nil
	}
	list, err := d.tally.hits()
	if err != nil {
		return h, fmt.Errorf("read what was counted: %w", err)
	}
	for _, hit := range list {
		h.Hits = append(h.Hits, inspect.Hit{Namespace: hit.Namespace, Service: hit.Service, Port: hit.Port, Protocol: hit.Protocol, Endpoint: hit.Endpoint, Connections: hit.Connections})
	}
	return h, nil
}

// Services says what is decided about all Services, or those with a name. The loop only
// names what it knows of each: what follows from that is put in words beside it.
func (d *Daemon) Services(ctx context.Context, name string, each func(inspect.Service) error) error {
	var facts []plan.Facts
	var place inspect.Place
	var refuse bool
	if err := d.ask(ctx, func() {
		place, refuse, facts = d.place(), d.settings.RejectWithoutLocalEndpoints, d.factsOf(name)
	}); err != nil {
		return err
	}
	if name != "" && len(facts) == 0 {
		return inspect.Wrong("no Service %s is known: headless and ExternalName Services, and those of other proxies, never are", name)
	}
	for _, f := range facts {
		if err := each(place.Describe(f, refuse)); err != nil {
			return err
		}
	}
	return nil
}

// factsOf gives what is known of all Services, or those with a name.
func (d *Daemon) factsOf(name string) (list []plan.Facts) {
	sourced := d.sourced()
	for _, n := range d.ledger.Names() {
		if !matches(n, name) {
			continue
		}
		if f, ok := d.ledger.Facts(n); ok {
			f.Notes = append(f.Notes, sourced[model.Key{Kind: model.KindService, Name: n}.String()]...)
			list = append(list, f)
		}
	}
	return list
}

// sourced gives what is wrong with objects as they came, by object. Of one that stands in a
// file, notes also name the file.
func (d *Daemon) sourced() map[string][]model.Note {
	by := map[string][]model.Note{}
	for of, notes := range d.notes {
		object, ok := strings.CutPrefix(of, bySource)
		if !ok {
			continue
		}
		if _, inFile, ok := strings.Cut(object, ": "); ok {
			object = inFile
		}
		by[object] = append(by[object], notes...)
	}
	return by
}

func matches(n model.Name, asked string) bool {
	return asked == "" || asked == n.String() || asked == n.Name
}

func (d *Daemon) place() inspect.Place {
	return inspect.Place{Node: d.cfg.Settings.Node}
}
