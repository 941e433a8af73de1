package network

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"onerule/test/rig"
)

// A bench has a sweeper with a script in the place of the plugin.
type bench struct {
	*sweeper
	script string

	mu     sync.Mutex
	lines  []string
	counts []swept
}

func newBench(t *testing.T) *bench {
	b := &bench{script: filepath.Join(t.TempDir(), "plugin")}
	b.sweeper = &sweeper{
		plugins: []string{filepath.Join(t.TempDir(), "none"), b.script}, state: t.TempDir(), sysctls: "/host/proc/sys",
		count: func(s swept) { b.put(func() { b.counts = append(b.counts, s) }) },
		log:   funcr.New(func(_, line string) { b.put(func() { b.lines = append(b.lines, line) }) }, funcr.Options{}),
	}
	return b
}

func (b *bench) put(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// says has the plugin be a script.
func (b *bench) says(t *testing.T, script string) {
	t.Helper()
	if err := os.WriteFile(b.script, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// logged counts the lines with a text.
func (b *bench) logged(text string) (lines int) {
	b.put(func() {
		for _, line := range b.lines {
			lines += strings.Count(line, text)
		}
	})
	return lines
}

func TestC52WhatTheSweepIsToldAboutIsLoggedOnce(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"a plugin that could not remove all": {`echo '{"files": 2, "strangers": ["onex"]}'; echo "onerule: no space" >&2; exit 1`, "exit status 1: onerule: no space"},
		"one that knows no sweep":            {`echo "CNI plugin onerule" >&2`, "unexpected end of JSON input"},
		"one that can't be run":              {`exit`, "no CNI plugin at"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.says(t, c.script)
			if name == "one that can't be run" {
				b.plugins = b.plugins[:1]
			}
			for range 2 {
				b.tell(b.sweep(t.Context()))
			}
			if n := b.logged(c.want); n != 1 {
				t.Errorf("%q is logged %d times, want once: %q", c.want, n, b.lines)
			}
			b.plugins = []string{b.script}
			b.says(t, `echo '{}'`)
			b.tell(b.sweep(t.Context()))
			b.says(t, `echo no`)
			b.tell(b.sweep(t.Context()))
			if n := b.logged("may stay"); n != 2 {
				t.Errorf("faults are logged %d times, want again after it went well: %q", n, b.lines)
			}
		})
	}
}

func TestC52SweepsGoOn(t *testing.T) {
	b := newBench(t)
	b.says(t, `[ "$1" = sweep ] && [ "$2" = "`+b.state+`" ] && [ "$ONERULE_SYSCTL_DIR" = /host/proc/sys ] && echo '{"attachments": 1, "addresses": 2, "links": 3, "hostPorts": 4, "files": 5, "strangers": ["onex"]}'`)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		b.run(ctx, time.Millisecond)
	}()
	rig.Eventually(t, "sweeps", func() (err error) {
		b.put(func() {
			if len(b.counts) < 3 {
				err = fmt.Errorf("%d were counted", len(b.counts))
			}
		})
		return err
	})
	cancel()
	<-done
	want := map[string]int{"attachment": 1, "address": 2, "link": 3, "host_port": 4, "file": 5}
	for kind, count := range b.counts[0].kinds() {
		if count != want[kind] {
			t.Errorf("%s: counted %d, want %d", kind, count, want[kind])
		}
	}
	if n := b.logged("nothing on record speaks of them"); n != 1 {
		t.Errorf("links of strangers are logged %d times, want once", n)
	}
}
