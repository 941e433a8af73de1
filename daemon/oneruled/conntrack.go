package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"onerule/daemon/config"
	"onerule/daemon/sysctl"
)

// tuneRetry is how often settings of connection tracking that could not be brought in
// are tried again: the kernel's module may be loaded since, or a mount be writable.
const tuneRetry = time.Minute

// A tuning holds the kernel's connection tracking to settings. What cannot be set costs
// that setting and nothing else: Services are served all the same.
type tuning struct {
	roots   sysctl.Roots
	log     logr.Logger
	retry   time.Duration
	changes chan config.Conntrack
	said    string // of what is not as wanted
}

// newTuning makes one that writes below a folder, which is like /proc/sys.
func newTuning(dir string, log logr.Logger) *tuning {
	roots := sysctl.Host()
	roots.Proc = dir
	return &tuning{roots: roots, log: log, retry: tuneRetry, changes: make(chan config.Conntrack)}
}

// run brings settings in, and those that come later, until ctx ends.
func (t *tuning) run(ctx context.Context, wanted config.Conntrack) {
	for {
		var again <-chan time.Time
		if !t.apply(wanted) {
			again = time.After(t.retry)
		}
		select {
		case <-ctx.Done():
			return
		case wanted = <-t.changes:
		case <-again:
		}
	}
}

// change brings other settings in.
func (t *tuning) change(ctx context.Context, wanted config.Conntrack) {
	select {
	case <-ctx.Done():
	case t.changes <- wanted:
	}
}

// apply says whether nothing is left to try again. It logs what it did, and what is not
// as wanted where that is news.
func (t *tuning) apply(c config.Conntrack) bool {
	out := t.set(c)
	if lacks := lacks(out); lacks != t.said {
		t.said = lacks
		if lacks != "" {
			t.log.Info("connection tracking is not all as wanted, Services are served all the same", "lacks", lacks, "tried again after", t.retry)
		}
	}
	return out.Complete()
}

// once brings settings in, for a process that ends: what can't be written is an error then.
func (t *tuning) once(c config.Conntrack) error {
	out := t.set(c)
	if err := errors.Join(out.Failures...); err != nil {
		return fmt.Errorf("set connection tracking: %w", err)
	}
	if lacks := lacks(out); lacks != "" {
		t.log.Info("connection tracking is not all as wanted, Services are served all the same", "lacks", lacks)
	}
	return nil
}

func (t *tuning) set(c config.Conntrack) sysctl.Outcome {
	out := sysctl.Apply(t.roots, sysctl.Settings{
		MaxPerCore: c.MaxPerCore, Min: c.Min,
		TCPEstablished: c.TCPEstablishedTimeout, TCPCloseWait: c.TCPCloseWaitTimeout,
		UDP: c.UDPTimeout, UDPStream: c.UDPStreamTimeout,
		BeLiberal: c.TCPBeLiberal,
	})
	for _, change := range out.Changes {
		t.log.Info("connection tracking is set", "change", change.String())
	}
	return out
}

// lacks says in a line what is not as wanted, nothing if all is.
func lacks(out sysctl.Outcome) string {
	var list []string
	if err := errors.Join(out.Failures...); err != nil {
		list = append(list, strings.Split(err.Error(), "\n")...)
	}
	for _, file := range out.Missing {
		list = append(list, file+" is not there")
	}
	for _, kept := range out.Kept {
		list = append(list, kept.String()+" is for the machine to set, not for this network namespace")
	}
	return strings.Join(list, "; ")
}
