package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"onerule/daemon/config"
	"onerule/daemon/sysctl"
)

// A record holds the lines of a log, readable while it grows.
type record struct {
	mu    sync.Mutex
	lines []string
}

func (r *record) tuning(dir string) *tuning {
	log := funcr.New(func(_, line string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lines = append(r.lines, line)
	}, funcr.Options{})
	t := newTuning(filepath.Join(dir, "proc"), log)
	t.roots.Sys = filepath.Join(dir, "sys")
	t.retry = 5 * time.Millisecond
	return t
}

// of counts the lines that hold a text.
func (r *record) of(text string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(strings.Join(r.lines, "\n"), text)
}

const udpTimeout = "proc/net/netfilter/nf_conntrack_udp_timeout"

func put(t *testing.T, path, value string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(value), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// await waits for a file to hold a value.
func await(t *testing.T, path, want string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	got := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		b, _ := os.ReadFile(path)
		if got = string(b); got == want {
			return
		}
	}
	t.Fatalf("%s holds %q, want %q", path, got, want)
}

// What the kernel does not have yet is said once, tried again, and set when it is there;
// then others follow.
func TestA12_7R37SettingsThatCannotBeSetAreTriedAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, udpTimeout)
	var log record
	tuned := log.tuning(dir)
	ctx, stop := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	defer ended.Wait()
	defer stop()
	ended.Go(func() { tuned.run(ctx, config.Conntrack{UDPTimeout: time.Minute}) })
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 4 {
		<-tick.C
	}
	put(t, path, "30")
	await(t, path, "60")
	tuned.change(ctx, config.Conntrack{UDPTimeout: 2 * time.Minute})
	await(t, path, "120")
	stop()
	ended.Wait()
	if missing, set := log.of("is not there"), log.of("connection tracking is set"); missing != 1 || set != 2 {
		t.Errorf("got %d lines of what is missing and %d of changes, want 1 and 2: %q", missing, set, log.lines)
	}
}

func TestWhatIsNotAsWantedIsSaidInALine(t *testing.T) {
	for _, c := range []struct {
		name string
		out  sysctl.Outcome
		want string
	}{
		{"all is", sysctl.Outcome{Changes: []sysctl.Change{{File: "/f", From: 1, To: 2}}}, ""},
		{"R37: nothing is", sysctl.Outcome{
			Failures: []error{errors.New("set 2 instead of 1"), fmt.Errorf("set 3: %w", os.ErrPermission)},
			Missing:  []string{"/m"},
			Kept:     []sysctl.Change{{File: "/k", From: 1, To: 2}},
		}, "set 2 instead of 1; set 3: permission denied; /m is not there; /k: 1 to 2 is for the machine to set, not for this network namespace"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := lacks(c.out); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// A process that only does this and ends has no other try.
func TestA14_12WhatCanNotBeSetIsAnErrorOfWhoSetsItOnce(t *testing.T) {
	dir, r := t.TempDir(), &record{}
	if err := os.MkdirAll(filepath.Join(dir, udpTimeout), 0o755); err != nil {
		t.Fatal(err)
	}
	err := r.tuning(dir).once(config.Conntrack{UDPTimeout: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "nf_conntrack_udp_timeout") {
		t.Errorf("got %v", err)
	}
	if n := r.of("tried again"); n != 0 {
		t.Errorf("it promises to try again %d times", n)
	}
}
