// Package sysctl sets what a Service proxy wants of the kernel's connection tracking.
// Whatever cannot be set is said and left: a node whose limits are somebody else's
// business serves its frontends all the same.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Roots are where the kernel's files are.
type Roots struct {
	Proc string // with net/netfilter below: /proc/sys
	Sys  string // with module and devices below: /sys
}

// Host gives the roots of the machine.
func Host() Roots { return Roots{Proc: "/proc/sys", Sys: "/sys"} }

// Settings are what is wanted. What is 0 or false is left as it is.
type Settings struct {
	MaxPerCore, Min              int // entries: see Max
	TCPEstablished, TCPCloseWait time.Duration
	UDP, UDPStream               time.Duration
	BeLiberal                    bool // let TCP segments pass that are out of the window
}

// A Change is a value that was set.
type Change struct {
	File     string
	From, To int
}

func (c Change) String() string { return fmt.Sprintf("%s: %d to %d", c.File, c.From, c.To) }

// An Outcome says what became of settings.
type Outcome struct {
	Changes []Change
	// Missing are the files that the kernel does not have: a module is not loaded, or
	// this namespace has no such setting.
	Missing []string
	// Failures say which file could not be read or written, and why.
	Failures []error
	// Kept are limits below what is wanted that are the machine's: the network
	// namespace may not set them, now or later.
	Kept []Change
}

// Complete says that all is as wanted. If not, Apply again later: modules are loaded when
// they are needed first, and what is read-only may be remounted.
func (o Outcome) Complete() bool { return len(o.Missing)+len(o.Failures) == 0 }

// Apply brings the kernel's files to the settings. What has its value is not written. The
// limit of entries and the size of their hash table are only raised, the latter to a
// quarter of what the settings make of the limit. Files of the network namespace are
// those of the calling thread.
func Apply(r Roots, s Settings) Outcome {
	a := application{roots: r}
	a.limit(s)
	for _, t := range []struct {
		name string
		want time.Duration
	}{
		{"nf_conntrack_tcp_timeout_established", s.TCPEstablished},
		{"nf_conntrack_tcp_timeout_close_wait", s.TCPCloseWait},
		{"nf_conntrack_udp_timeout", s.UDP},
		{"nf_conntrack_udp_timeout_stream", s.UDPStream},
	} {
		if t.want > 0 {
			a.set(a.netfilter(t.name), seconds(t.want), different)
		}
	}
	if s.BeLiberal {
		a.set(a.netfilter("nf_conntrack_tcp_be_liberal"), 1, different)
	}
	return a.Outcome
}

// seconds rounds up: a timeout of 0 would end flows at once.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

type application struct {
	roots Roots
	Outcome
}

func (a *application) netfilter(name string) string {
	return filepath.Join(a.roots.Proc, "net/netfilter", name)
}

// limit raises the limit of entries and the hash table.
func (a *application) limit(s Settings) {
	if s.MaxPerCore <= 0 {
		return
	}
	cpus, err := OnlineCPUs(a.roots)
	if err != nil {
		a.failed(err)
		return
	}
	most, path := Max(s.MaxPerCore, s.Min, cpus), a.netfilter("nf_conntrack_max")
	if machines(path) {
		a.keep(path, most)
		return
	}
	a.set(path, most, less)
	a.set(a.hashTable(), most/4, less)
}

// hashTable gives the file of the hash table's size. A container sees /sys read-only, so the
// setting of the network comes first.
func (a *application) hashTable() string {
	path := a.netfilter("nf_conntrack_buckets")
	if _, err := os.Stat(path); err == nil && !machines(path) {
		return path
	}
	return filepath.Join(a.roots.Sys, "module/nf_conntrack/parameters/hashsize")
}

// machines says whether a limit that all network namespaces share is read-only in this
// one: the kernel lets the initial one alone write it. The hash table goes with it.
func machines(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Perm()&0o222 == 0
}

// keep says that a limit stays, if it is too low.
func (a *application) keep(path string, want int) {
	have, err := read(path)
	if err != nil {
		a.failed(fmt.Errorf("read what may be below %d: %w", want, err))
		return
	}
	if less(have, want) {
		a.Kept = append(a.Kept, Change{path, have, want})
	}
}

// When a value is written.
func different(have, want int) bool { return have != want }
func less(have, want int) bool      { return have < want }

// set writes a file whose value is to be written.
func (a *application) set(path string, want int, write func(have, want int) bool) {
	have, err := read(path)
	switch {
	case err != nil:
		a.failed(fmt.Errorf("read what to set to %d: %w", want, err))
	case write(have, want):
		if err := overwrite(path, want); err != nil {
			a.failed(fmt.Errorf("set %d instead of %d: %w", want, have, err))
			return
		}
		a.Changes = append(a.Changes, Change{path, have, want})
	}
}

func (a *application) failed(err error) {
	var path *fs.PathError
	if errors.Is(err, fs.ErrNotExist) && errors.As(err, &path) {
		a.Missing = append(a.Missing, path.Path)
		return
	}
	a.Failures = append(a.Failures, err)
}

func read(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(b))
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is no number", path, text)
	}
	return n, nil
}

// overwrite creates nothing: the kernel has the file, or nobody does.
func overwrite(path string, value int) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(value))
	return errors.Join(err, f.Close())
}
