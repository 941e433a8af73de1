package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"onerule/daemon/config"
	"onerule/daemon/model"
	"onerule/nft"
	"onerule/test/netns"
)

// newDaemon gives a daemon for IPv4 in a namespace. Its cleaner does not run.
func newDaemon(t *testing.T, ns *netns.NS) *Daemon {
	t.Helper()
	return newDaemonOf(t, ns, testSettings())
}

func testSettings() config.Settings {
	return config.Settings{Node: "n1", MasqueradeBit: 14, SyncPeriod: 30 * time.Second}
}

func newDaemonOf(t *testing.T, ns *netns.NS, s config.Settings) *Daemon {
	t.Helper()
	var d *Daemon
	err := ns.Do(func() (err error) {
		d, err = New(Config{Settings: s, Families: []nft.Family{nft.IPv4}, Version: "test", Log: logr.Discard()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	d.HostAddrs(nil)
	t.Cleanup(func() { _ = d.close() })
	return d
}

// web puts a Service with so many endpoints into the mailbox.
func web(d *Daemon, endpoints int) {
	n := model.Name{Namespace: "ns", Name: "web"}
	d.Changed(model.Change{Key: model.Key{Kind: model.KindService, Name: n}, Service: &model.Service{
		Name: n, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
	}})
	s := &model.EndpointSlice{Name: n, Service: n.Name, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Ready: true, Serving: true})
	}
	d.Changed(model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: n}, EndpointSlice: s})
}

func TestRulesForUnusedNumbersGo(t *testing.T) {
	ns := netns.New(t, "node")
	d := newDaemon(t, ns)
	d.Synced()
	rules := func() (n int) {
		_, n = d.programs[nft.IPv4].Sizes()
		return n
	}
	var with []int
	now := time.Now()
	err := ns.Do(func() error {
		for _, endpoints := range []int{1, 3, 1} {
			web(d, endpoints)
			if err := d.sync(t.Context()); err != nil {
				return err
			}
			with = append(with, rules())
		}
		for _, after := range []time.Duration{0, retireAfter / 2, 2 * retireAfter} {
			d.retire(t.Context(), now.Add(after))
			with = append(with, rules())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	one, three := with[0], with[1]
	if diff := cmp.Diff([]int{one, three, three, three, three, one}, with); one >= three || diff != "" {
		t.Errorf("rules (-want +got): %s", diff)
	}
}

// A write that hangs is a change that waits, and so is one that was given up.
func TestA10_2AHangingWriteIsNotHealthy(t *testing.T) {
	dir := t.TempDir()
	hangs, began := filepath.Join(dir, "hangs"), filepath.Join(dir, "began")
	nftPath, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n[ ! -e %s ] || { : >%s; exec sleep 60; }\nexec %s \"$@\"\n", hangs, began, nftPath)
	if err := os.WriteFile(filepath.Join(dir, "nft"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ns := netns.New(t, "node")
	d := newDaemon(t, ns)
	d.Synced()
	check := func(when string, patience time.Duration, want bool) {
		t.Helper()
		d.health.SetStaleAfter(patience)
		if got := d.health.Healthy(); got != want {
			t.Errorf("%s: healthy %v, want %v", when, got, want)
		}
	}
	web(d, 1)
	if err := ns.Do(func() error { return d.sync(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	check("after the load", time.Nanosecond, true)
	if err := os.WriteFile(hangs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	web(d, 2) // which needs a rule, and so nft
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ns.Do(func() error { return d.sync(ctx) }) }()
	awaitFile(t, began)
	check("for a moment", time.Minute, true)
	check("while the write hangs", time.Nanosecond, false)
	cancel()
	if err := <-ended; err == nil {
		t.Fatal("the write that hung ended well")
	}
	check("after it was given up", time.Nanosecond, false)
	if !d.waiting().IsZero() {
		t.Error("a change is still in hand")
	}
}

// awaitFile waits until a file exists, for 10 s at the most.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("no %s within 10 s", path)
		case <-tick.C:
		}
	}
}
