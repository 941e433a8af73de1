package plugin_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fsnotify/fsnotify"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// A stage is a step that takes something back. Its event says that the step is being
// done, and next what is still there when nothing came after it.
type stage struct {
	name  string
	event func(t *testing.T, n *node, pod *netns.NS) (seen <-chan struct{}, stop func())
	next  func(t *testing.T, n *node) bool
}

func stages() []stage {
	has := func(file string) func(*testing.T, *node) bool {
		return func(t *testing.T, n *node) bool { return strings.Contains(strings.Join(n.files(t), " "), file) }
	}
	return []stage{
		{"the rules", func(t *testing.T, _ *node, pod *netns.NS) (<-chan struct{}, func()) {
			return kernelEvent(t, pod, unix.RTNLGRP_IPV4_RULE, unix.RTM_DELRULE)
		}, func(t *testing.T, n *node) bool { return strings.Contains(links(t, n.NS), ": one") }},
		{"the host ports", func(t *testing.T, n *node, _ *netns.NS) (<-chan struct{}, func()) {
			dir := filepath.Join(n.dataDir, "pods/hostports")
			if err := os.MkdirAll(dir, 0o700); err != nil { // before an ADD there is none
				t.Fatal(err)
			}
			return fileEvent(t, dir, fsnotify.Remove)
		}, func(t *testing.T, n *node) bool { return strings.Contains(links(t, n.NS), ": one") }},
		{"the link", func(t *testing.T, n *node, _ *netns.NS) (<-chan struct{}, func()) {
			return kernelEvent(t, n.NS, unix.RTNLGRP_LINK, unix.RTM_DELLINK)
		}, has(".json")},
		{"the record", func(t *testing.T, n *node, _ *netns.NS) (<-chan struct{}, func()) {
			return fileEvent(t, filepath.Join(n.dataDir, "pods/attachments"), fsnotify.Remove)
		}, has("10.1.0.77")},
		{"the addresses", func(t *testing.T, n *node, _ *netns.NS) (<-chan struct{}, func()) {
			return fileEvent(t, filepath.Join(n.dataDir, "pods/released"), fsnotify.Create)
		}, func(*testing.T, *node) bool { return true }},
	}
}

// kernelEvent waits for a message of a kind in a namespace.
func kernelEvent(t *testing.T, in *netns.NS, group uint, kind uint16) (<-chan struct{}, func()) {
	t.Helper()
	var s *nl.NetlinkSocket
	if err := in.Do(func() (err error) { s, err = nl.Subscribe(unix.NETLINK_ROUTE, group); return err }); err != nil {
		t.Fatal(err)
	}
	// So that it ends when the socket is closed.
	if err := s.SetReceiveTimeout(&unix.Timeval{Sec: 5}); err != nil {
		t.Fatal(err)
	}
	seen := make(chan struct{})
	go func() {
		for {
			messages, _, err := s.Receive()
			if err != nil {
				return
			}
			for _, m := range messages {
				if m.Header.Type == kind {
					close(seen)
					return
				}
			}
		}
	}()
	return seen, s.Close
}

// fileEvent waits for a change in a directory.
func fileEvent(t *testing.T, dir string, op fsnotify.Op) (<-chan struct{}, func()) {
	t.Helper()
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(dir); err != nil {
		t.Fatal(err)
	}
	seen := make(chan struct{})
	go func() { // ends with the watcher
		for e := range w.Events {
			if e.Has(op) && !strings.HasPrefix(filepath.Base(e.Name), ".") {
				close(seen)
				return
			}
		}
	}()
	return seen, func() { _ = w.Close() }
}

// killedAt kills a call when an event is seen, and says whether that ended it.
func (n *node) killedAt(t *testing.T, c call, seen <-chan struct{}) bool {
	t.Helper()
	cmd := n.command(c)
	cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
	if c.stdout != nil {
		cmd.Stdout = c.stdout
	}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // ends with the process
		select {
		case <-seen:
			_ = cmd.Process.Kill()
		case <-ended:
		}
	}()
	_ = cmd.Wait()
	close(ended)
	return cmd.ProcessState.ExitCode() == -1
}

// TestKillAtEachUndoStep kills an ADD that takes back what it did, and a DEL, in each
// of their steps, some times each.
func TestKillAtEachUndoStep(t *testing.T) {
	const times, most = 5, 150
	n, pod := newNode(t), podWithDefaultRoute(t)
	c := add("c1", "eth1", pod, n.config("1.1.0", object{"runtimeConfig": object{
		"ips": []string{"10.1.0.77", "fd00:1::77"}, "portMappings": bothProtocols(hostPort)}}))
	n.succeed(t, c)
	n.succeed(t, c.as("DEL")) // the directories are there
	// What fails an ADD is that its result can't be printed, after the last step.
	c.stdout = full(t)
	for _, verb := range []string{"ADD", "DEL"} {
		for _, at := range stages() {
			t.Run("C15, C28, C38: "+verb+" is killed when it takes back "+at.name, func(t *testing.T) {
				hits, tries := 0, 0
				for ; hits < times && tries < most && !t.Failed(); tries++ {
					c := c
					if verb == "DEL" {
						c.stdout = nil
						n.succeed(t, c)
					}
					seen, stop := at.event(t, n, pod)
					if n.killedAt(t, c.as(verb), seen) && at.next(t, n) {
						hits++
					}
					stop()
					n.collected(t, pod)
				}
				if hits < times {
					t.Errorf("got %d kills in %d tries, want %d", hits, tries, times)
				}
				t.Logf("%d kills in %d tries", hits, tries)
			})
		}
	}
}
