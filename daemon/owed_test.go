package daemon

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"onerule/daemon/config"
	"onerule/daemon/inspect"
	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
	"onerule/test/netns"
	"onerule/test/rig"
)

// caused gives a slice with an endpoint, which follows from something at a second.
func caused(name string, second int64, endpoint string) model.Change {
	n := model.Name{Namespace: "ns", Name: name}
	return model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: n}, EndpointSlice: &model.EndpointSlice{
		Name: n, Service: name, Triggered: second * int64(time.Second), Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr(endpoint)}},
	}}
}

// What is owed to a family is so until it is written, whatever becomes of the other one.
func TestWhatIsOwedOutlivesWritesThatFail(t *testing.T) {
	o := newOwed([]nft.Family{nft.IPv4, nft.IPv6})
	add := func(second int64, touches string, list ...model.Change) {
		l, touched := newLetters(), plan.NewKeys()
		l.since = time.Unix(second, 0)
		for _, c := range list {
			l.changes[c.Key] = c
		}
		touched.Addrs[netip.MustParseAddr(touches)] = true
		o.add(l, touched)
	}
	check := func(when string, family nft.Family, since int64, touched int, causes ...int64) {
		t.Helper()
		of := o.of(family)
		var got []int64
		for _, name := range []string{"a", "b", "c"} {
			if at, ok := of.caused[caused(name, 1, "::").Key]; ok {
				got = append(got, at.Unix())
			}
		}
		if diff := cmp.Diff(causes, got); diff != "" || len(of.touched.Addrs) != touched || !of.since.Equal(time.Unix(since, 0)) {
			t.Errorf("%s: %s is owed %d addresses since %v, want %d since %d; causes (-want +got): %s", when, family, len(of.touched.Addrs), of.since, touched, since, diff)
		}
	}
	add(10, "10.0.0.1", caused("a", 5, "10.0.0.1"), caused("b", 6, "fd00::1"), caused("c", 7, "10.0.0.3"))
	check("at first", nft.IPv4, 10, 1, 5, 7)
	check("at first", nft.IPv6, 10, 0, 6)
	o.written(nft.IPv6)
	add(20, "fd00::2", caused("a", 15, "10.0.0.2"), model.Change{Key: caused("c", 0, "::").Key})
	check("one slice changed again, and one is gone", nft.IPv4, 10, 1, 5)
	check("after it was written", nft.IPv6, 20, 1)
	if got := o.written(nft.IPv4); len(got) != 1 {
		t.Errorf("got causes %v of what is written, want that of one slice", got)
	}
	if objects, since := o.told(); objects != 3 || !since.Equal(time.Unix(10, 0)) {
		t.Errorf("got %d objects since %v, want 3 since the first came", objects, since)
	}
	if objects, since := o.told(); objects != 0 || !since.IsZero() || !o.of(nft.IPv4).touched.Empty() {
		t.Errorf("got %d objects since %v when all is told, want none", objects, since)
	}
}

// R10: how long a change took counts from when it came, also if the first write of it fails.
func TestR10AChangeThatFailsAtFirstIsToldOf(t *testing.T) {
	refuses, ns := rig.Refusing(t), netns.New(t, "node")
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon(t, ns)
		d.Synced()
		var written []string
		d.cfg.Written = func(changes int, took time.Duration) { written = append(written, took.String()) }
		round := func(well bool) {
			t.Helper()
			if err := ns.Do(func() error { return d.round(t.Context()) }); (err == nil) != well {
				t.Fatalf("a sync ended with %v", err)
			}
		}
		web(d, 1)
		round(true)
		<-time.After(time.Second)
		web(d, 2) // which needs a rule, and so nft
		d.letters.changes[caused("web", 0, "::").Key].EndpointSlice.Triggered = time.Now().UnixNano()
		if err := os.WriteFile(refuses, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		round(false)
		<-time.After(40 * time.Second)
		if err := os.Remove(refuses); err != nil {
			t.Fatal(err)
		}
		round(true)
		if diff := cmp.Diff([]string{"0s", "40s"}, written); diff != "" {
			t.Errorf("changes took (-want +got): %s", diff)
		}
		want := &inspect.Change{At: time.Now(), Objects: 2, Seconds: 40}
		if diff := cmp.Diff(want, d.history.lastChange); diff != "" {
			t.Errorf("the last change (-want +got): %s", diff)
		}
		if n, sum := observed(t, d, "kubeproxy_network_programming_duration_seconds"); n != 1 || sum != 40 {
			t.Errorf("%d slices took %v s from their cause, want one 40 s", n, sum)
		}
	})
}

// observed gives how many values a histogram has, and their sum.
func observed(t *testing.T, d *Daemon, name string) (n uint64, sum float64) {
	t.Helper()
	families, err := d.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				n, sum = n+m.GetHistogram().GetSampleCount(), sum+m.GetHistogram().GetSampleSum()
			}
		}
	}
	return n, sum
}

// A load that can't delete what others left in the table is done: what goes with it is, and
// changes go on. It is told, and tried again.
func TestR10ALoadThatCanNotTidyIsDoneAllTheSame(t *testing.T) {
	keeps, ns := rig.KeepsForeign(t), netns.New(t, "node")
	d := newDaemon(t, ns)
	sync := func() {
		t.Helper()
		if err := ns.Do(func() error { return d.sync(t.Context()) }); err != nil {
			t.Fatalf("a sync ended with %v", err)
		}
	}
	nodePorts(d, 1)
	d.Synced()
	sync()
	ns.Run(t, "nft", "add", "chain", "ip", nft.TableName, "foreign")
	if err := os.WriteFile(keeps, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := testSettings()
	s.NodePortAddresses = config.NodePortAddresses{Localhost: true, All: true}
	d.Configured(s)
	began := time.Now()
	sync()
	if load := d.history.load(nft.IPv4); !load.At.After(began) || len(d.rejects) != 1 {
		t.Errorf("the last load was at %v, and the NodePorts %v are refused on loopback, want a load after %v, and one", load.At, d.rejects, began)
	}
	var told inspect.Status
	if d.owned(&told); len(told.Degraded) != 1 || !strings.Contains(told.Degraded[0], "table ip onerule has more than it should") {
		t.Errorf("told is %q", told.Degraded)
	}
	if err := os.Remove(keeps); err != nil {
		t.Fatal(err)
	}
	sync() // which is too early to try again
	if chains := ns.Run(t, "nft", "list", "chains"); !strings.Contains(chains, "foreign") {
		t.Errorf("the chain of others is gone at once: %s", chains)
	}
	d.finishAt[nft.IPv4] = time.Now()
	sync()
	if chains := ns.Run(t, "nft", "list", "chains"); strings.Contains(chains, "foreign") {
		t.Errorf("the chain of others is still there: %s", chains)
	}
	if err := d.programs[nft.IPv4].Unfinished(); err != nil {
		t.Errorf("left to do is %v", err)
	}
}

// What comes while the ranges of pods are awaited counts as not written, and is written in
// both families once they are there.
func TestA13_2WhatComesWhileRangesAreAwaitedIsWritten(t *testing.T) {
	ns := netns.New(t, "node")
	s := testSettings()
	s.Detector.Mode, s.ClusterCIDRs = config.ClusterCIDR, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	var d *Daemon
	err := ns.Do(func() (err error) {
		d, err = New(Config{Settings: s, Families: []nft.Family{nft.IPv4, nft.IPv6}, Version: "test", Log: logr.Discard()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.stopWaiting(); _ = d.close() })
	d.HostAddrs(nil)
	d.Synced()
	check := func(when string, want error, services int) {
		t.Helper()
		if err := ns.Do(func() error { return d.round(t.Context()) }); !errors.Is(err, want) {
			t.Fatalf("%s: a sync ended with %v, want %v", when, err, want)
		}
		if _, got := d.unwritten(); got != services {
			t.Errorf("%s: %d Services are not written, want %d", when, got, services)
		}
		for family, vip := range map[string]string{"ip": "10.96.0.1", "ip6": "fd96::1"} {
			routes := ns.Run(t, "nft", "list", "map", family, nft.TableName, string(nft.ServiceIPs))
			if got := strings.Contains(routes, vip); got != (services == 0) {
				t.Errorf("%s: %s is in the kernel: %t", when, vip, got)
			}
		}
	}
	if err := ns.Do(func() error { return d.round(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	s.Detector.Mode = config.NodeCIDR
	d.Configured(s)
	if err := ns.Do(func() error { return d.round(t.Context()) }); !errors.Is(err, errNoRanges) {
		t.Fatalf("without ranges a sync ended with %v, want %v", err, errNoRanges)
	}
	nodePorts(d, 1)
	check("a Service comes", errNoRanges, 1)
	check("nothing comes", errNoRanges, 1)
	d.Changed(model.Change{Key: d.nodeKey(), Node: &model.Node{Name: "n1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}})
	check("the ranges come", nil, 0)
}
