package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// rulesetScene shows the table, and that it does not grow with the Services.
func rulesetScene(ctx context.Context, s *screen, w *world) error {
	s.scene("The rules, and how many there are")
	listing, err := w.node.ns.Output("nft", "list", "table", "ip", "onerule")
	if err != nil {
		return err
	}
	before, err := w.listAll()
	if err != nil {
		return err
	}
	s.say("This is what the kernel lists, shortened: of sets and maps the number of elements, and what " +
		"says the same for UDP and SCTP only once.")
	s.file("nft list table ip onerule", shorten(listing, before[0].sets))
	took, err := w.addCrowd(ctx, before)
	if err != nil {
		return err
	}
	after, err := w.listAll()
	if err != nil {
		return err
	}
	s.say("Now %d Services more, of two endpoints each and both families, come in one file: in the kernel "+
		"%s after its rename.", crowdSize, figures(took))
	compare(s, before[0], after[0])
	for i, f := range families() {
		grown := after[i].sets["service-ips"] - before[i].sets["service-ips"]
		s.claim(after[i].rules == before[i].rules && after[i].chains == before[i].chains && len(after[i].sets) == len(before[i].sets) && grown == crowdSize,
			"table %s: %d frontends more, and the same %d rules, %d chains, %d sets and maps", f.table, grown, after[i].rules, after[i].chains, len(after[i].sets))
	}
	return sampleCrowd(ctx, s, w)
}

// listAll counts what is in the tables of both families.
func (w *world) listAll() ([]sizes, error) {
	var all []sizes
	for _, f := range families() {
		one, err := listSizes(w.node.ns, f.table)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// addCrowd adds many Services at once, and waits until both tables have them.
func (w *world) addCrowd(ctx context.Context, before []sizes) (time.Duration, error) {
	renamed, err := w.write("crowd.yaml", crowdManifest(w.pods[:2]))
	if err != nil {
		return 0, err
	}
	return eventually(ctx, fmt.Sprintf("the kernel has %d Services more", crowdSize), renamed, func() (bool, error) {
		now, err := w.listAll()
		if err != nil {
			return false, err
		}
		for i := range now {
			// A frontend's decision is written last: behind its endpoints.
			if now[i].sets["service-ips"] < before[i].sets["service-ips"]+crowdSize {
				return false, nil
			}
		}
		return true, nil
	})
}

// compare sets the table beside what kube-proxy's would be.
func compare(s *screen, before, after sizes) {
	few := kubeProxyFixed().plus(kubeProxyPort(2, false), 1).plus(kubeProxyPort(0, false), 1)
	many := few.plus(kubeProxyPort(2, false), crowdSize)
	row := func(what string, l layout, elements string) []string {
		return []string{what, fmt.Sprint(l.rules), fmt.Sprint(l.chains), fmt.Sprint(l.sets), elements}
	}
	of := func(z sizes) layout { return layout{z.rules, z.chains, len(z.sets)} }
	services := func(n int) string { return fmt.Sprintf("%d Services", n) }
	s.table(
		[]string{"IPv4 table", "rules", "chains", "sets and maps", "elements"},
		row("onerule, "+services(2), of(before), fmt.Sprint(before.elements())),
		row("onerule, "+services(2+crowdSize), of(after), fmt.Sprint(after.elements())),
		row("kube-proxy, "+services(2)+", computed", few, ""),
		row("kube-proxy, "+services(2+crowdSize)+", computed", many, ""),
	)
	s.bar("onerule", after.rules, max(after.rules, many.rules))
	s.bar("kube-proxy", many.rules, max(after.rules, many.rules))
	s.gap()
	fixed := kubeProxyFixed()
	s.say("onerule is counted. kube-proxy is computed: by pkg/proxy/nftables/proxier.go of Kubernetes v1.37.2, "+
		"a table has %d rules, %d chains and %d sets and maps, and each port of a ClusterIP that has endpoints "+
		"adds a chain and a rule, whose map is an anonymous one from 2 endpoints on. (With ClientIP affinity and n endpoints: "+
		"1 + n chains, 1 + 3n rules, 1 + n sets and maps.)", fixed.rules, fixed.chains, fixed.sets)
}

// sampleCrowd makes requests to some of the new Services.
func sampleCrowd(ctx context.Context, s *screen, w *world) error {
	const step = 20
	total := newTally()
	for i := 0; i < crowdSize; i += step {
		for family := range families() {
			t, err := w.pods[2].burst(ctx, crowd(i).frontend(family, servicePort), 1)
			if err != nil {
				return err
			}
			total.merge(t)
		}
	}
	s.claim(total.flawless(), "every %dth of them answers, over both families: %d requests, %d failed%s",
		step, total.requests, total.failed, total.failure())
	return nil
}

// restartScene kills the daemon and starts it again while requests go on.
func restartScene(ctx context.Context, s *screen, w *world) error {
	s.scene("Without the daemon, and after its return")
	s.say("oneruled only writes what changes. The kernel does the rest, also while nobody watches.")
	t := w.traffic(ctx, web())
	r, err := w.restart(ctx, t)
	tallies, stopped := t.stop()
	if err = errors.Join(err, stopped); err != nil {
		return err
	}
	total := newTally()
	for _, one := range tallies {
		total.merge(one)
	}
	s.claim(r.during > 0 && total.flawless(),
		"killed (SIGKILL) under traffic: %d requests ended while it was gone; of all %d before, during and after, %d failed%s, %d SYNs were lost",
		r.during, total.requests, total.failed, total.failure(), total.lost)
	s.claim(r.elements == 0 && r.rulesets == 0,
		"started again, healthy after %s: it wrote %d elements and ran nft %d times (onerule_nft_operations_total)", figures(r.took), r.elements, r.rulesets)
	s.claim(r.before == r.after, "the kernel agrees: its ruleset is generation %d, as before the kill (%d)", r.after, r.before)
	return nil
}

// A restart is what was seen of one.
type restart struct {
	during             int // requests that ended while no daemon ran
	took               time.Duration
	elements, rulesets int
	before, after      uint32 // generations of the kernel's ruleset
}

// restart kills the daemon, lets requests go on for a while, and starts it again.
func (w *world) restart(ctx context.Context, t *traffic) (r restart, err error) {
	if err := t.goOn(ctx); err != nil {
		return r, err
	}
	if r.before, err = generation(w.node.ns); err != nil {
		return r, err
	}
	if err := w.kill(); err != nil {
		return r, err
	}
	made := t.made()
	select {
	case <-ctx.Done():
		return r, ctx.Err()
	case <-time.After(time.Second):
	}
	r.during = t.made() - made
	if r.took, err = w.startProxy(ctx); err != nil {
		return r, err
	}
	if err := t.goOn(ctx); err != nil {
		return r, err
	}
	if r.elements, r.rulesets, err = w.written(ctx); err != nil {
		return r, err
	}
	r.after, err = generation(w.node.ns)
	return r, err
}

// made is how many requests of all streams have ended so far.
func (t *traffic) made() int {
	sum := 0
	for _, s := range t.streams {
		sum += s.made()
	}
	return sum
}
