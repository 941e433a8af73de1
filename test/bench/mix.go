package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// kindChanges are the changes to Services of one kind in a mixed cluster.
type kindChanges struct {
	kind               serviceKind
	services           int
	replaced, numbered series
}

// measureMix measures a cluster of all kinds: changes to whatever Service comes, then
// to those of each kind.
func measureMix(ctx context.Context, services, changes int, progress func(string, ...any)) (*scale, error) {
	return measureMixResting(ctx, services, changes, restFor, progress)
}

// measureMixResting is the same, where the operations of a change are all those within
// a time of rest.
func measureMixResting(ctx context.Context, services, changes int, rest time.Duration, progress func(string, ...any)) (*scale, error) {
	m := &scaler{cluster: newMix(services), rest: rest, result: &scale{services: services}}
	of := func(format string, args ...any) { progress("the mix: "+format, args...) }
	return m.result, m.measure(of, func() error {
		of("%d services: 2 x %d changes, then as many to each of %d kinds", services, changes, len(serviceKinds()))
		if err := m.firstOf(ctx, &m.result.first, serviceKinds()...); err != nil {
			return err
		}
		all := drawn{of: m.other, slot: eachSlot, pins: true}
		if err := m.changeDrawn(ctx, all, changes, &m.result.replaced, &m.result.numbered); err != nil {
			return err
		}
		for _, k := range serviceKinds() {
			if err := m.changeKind(ctx, k, changes); err != nil {
				return fmt.Errorf("kind %s: %w", k, err)
			}
		}
		return nil
	})
}

// firstOf takes a Service of each kind to one endpoint less, and back: nobody of the
// kind had that number before, or for a while.
func (m *scaler) firstOf(ctx context.Context, to *series, kinds ...serviceKind) error {
	var back series
	return m.counted(ctx, to, slices.Contains(kinds, sticky), func() error {
		for _, k := range kinds {
			service := m.cluster.ofKind(k)[0]
			m.cluster.shrink(service, 1)
			if err := m.change(ctx, to, service, true); err != nil {
				return err
			}
			m.cluster.grow(service, 1)
			if err := m.change(ctx, &back, service, true); err != nil {
				return err
			}
		}
		return nil
	})
}

// drawn says which Services change, and which of their endpoints is replaced.
type drawn struct {
	of, slot func(i int) int
	pins     bool // some of the Services have session affinity
}

func eachSlot(i int) int { return i % endpointsPerService }

// changeKind makes changes to Services of a kind. Where an endpoint on our node takes
// more work than another, it is that.
func (m *scaler) changeKind(ctx context.Context, k serviceKind, n int) error {
	services := m.cluster.ofKind(k)
	d := drawn{
		of:   func(i int) int { return services[(i*7919+13)%len(services)] },
		slot: eachSlot,
		pins: k == sticky,
	}
	if k == local {
		d.slot = func(int) int { return 0 }
	}
	m.result.kinds = append(m.result.kinds, kindChanges{kind: k, services: len(services)})
	to := &m.result.kinds[len(m.result.kinds)-1]
	var warm series
	if err := m.firstOf(ctx, &warm, k); err != nil {
		return err
	}
	return m.changeDrawn(ctx, d, n, &to.replaced, &to.numbered)
}

// changeDrawn replaces endpoints, then takes one away and brings one.
func (m *scaler) changeDrawn(ctx context.Context, d drawn, n int, replaced, numbered *series) error {
	err := m.counted(ctx, replaced, d.pins, func() error {
		for i := range n {
			service := d.of(i)
			m.cluster.replace(service, d.slot(i))
			if err := m.change(ctx, replaced, service, i%looked == 0); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return m.counted(ctx, numbered, d.pins, func() error {
		for i := range n {
			service := d.of(i / 2)
			if i%2 == 0 {
				m.cluster.shrink(service, 1)
			} else {
				m.cluster.grow(service, 1)
			}
			if err := m.change(ctx, numbered, service, i%looked < 2); err != nil {
				return err
			}
		}
		return nil
	})
}

// restFor is longer than a daemon waits until it looks again for pins to endpoints
// that left.
const restFor = 1500 * time.Millisecond

// awaitRest waits until the subject has done nothing for a while.
func (m *scaler) awaitRest(ctx context.Context) error {
	if m.rest == 0 {
		return nil
	}
	again := time.NewTicker(m.rest)
	defer again.Stop()
	last := -1.0
	for range 20 {
		did, err := m.subject.operations()
		if err != nil {
			return err
		}
		total := 0.0
		for _, n := range did {
			total += n
		}
		if total == last {
			return nil
		}
		last = total
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
		}
	}
	return fmt.Errorf("the daemon did not come to rest within %v after the last change", 20*m.rest)
}
