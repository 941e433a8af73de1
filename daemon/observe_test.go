package daemon

import (
	"os"
	"testing"
	"time"

	"onerule/test/netns"
	"onerule/test/rig"
)

// sample gives the value of a metric's only sample of IPv4, or -1.
func sample(t *testing.T, d *Daemon, name string) float64 {
	t.Helper()
	families, err := d.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name || len(f.GetMetric()) != 1 {
			continue
		}
		return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
	}
	return -1
}

// What the kernel refuses is counted, by what it was for, and what it was to bring in
// waits.
func TestA11_2WhatTheKernelRefusesIsCounted(t *testing.T) {
	const rules = "kubeproxy_sync_proxy_rules_"
	refuses, ns := rig.Refusing(t), netns.New(t, "node")
	d := newDaemon(t, ns)
	d.Synced()
	check := func(when string, want map[string]float64) {
		t.Helper()
		for name, value := range want {
			if got := sample(t, d, rules+name); got != value {
				t.Errorf("%s: %s is %v, want %v", when, name, got, value)
			}
		}
	}
	round := func(endpoints int, well bool) {
		t.Helper()
		web(d, endpoints)
		if err := ns.Do(func() error { return d.round(t.Context()) }); (err == nil) != well {
			t.Fatalf("a sync ended with %v", err)
		}
	}
	round(3, true)
	round(1, true)
	check("all is well", map[string]float64{"nftables_sync_failures_total": 0, "nftables_cleanup_failures_total": 0, "service_changes_pending": 0})
	last := sample(t, d, rules+"last_timestamp_seconds")

	if err := os.WriteFile(refuses, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() error { d.retire(t.Context(), time.Now().Add(2*retireAfter)); return nil }); err != nil {
		t.Fatal(err)
	}
	round(5, false) // which needs a rule, and so nft
	check("nft refuses", map[string]float64{
		"nftables_sync_failures_total": 1, "nftables_cleanup_failures_total": 1,
		"service_changes_pending": 1, "endpoint_changes_pending": 1, "last_timestamp_seconds": last,
	})
	if queued := sample(t, d, rules+"last_queued_timestamp_seconds"); queued <= last {
		t.Errorf("last asked for at %v, and written at %v", queued, last)
	}
	if err := os.Remove(refuses); err != nil {
		t.Fatal(err)
	}
	round(5, true)
	check("all is well again", map[string]float64{"nftables_sync_failures_total": 1, "service_changes_pending": 0, "endpoint_changes_pending": 0})
	if now := sample(t, d, rules+"last_timestamp_seconds"); now <= last {
		t.Errorf("written at %v, and before at %v", now, last)
	}
}
