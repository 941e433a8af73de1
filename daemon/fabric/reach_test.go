package fabric_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"onerule/daemon/fabric/layout"
	"onerule/test/wired"
)

// reach checks that every pod, and every node, reaches every pod of the others, with packets as long as the way
// allows, and that longer ones are refused with the MTU that a sender needs to know.
func (w *world) reach(t *testing.T, encapsulated func(a, b *host) bool, overhead int) {
	t.Helper()
	for _, a := range w.nodes {
		for _, b := range w.nodes {
			if a == b {
				continue
			}
			want := 1500
			if encapsulated(a, b) {
				want -= overhead
			}
			for _, to := range b.podAddrs() {
				wired.Eventually(t, func() error { // neighbours of the underlay are looked for first
					_, err := ask(a.pod, to, want, time.Second)
					return err
				})
				if _, err := ask(a.ns, to, want, patience); err != nil {
					t.Error(err)
				}
				if want < 1500 {
					a.learnsMTU(t, b, 1500, want)
				}
				if err := transfer(a.pod, to); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// learnsMTU checks that a pod that sends too much is told how much it may send.
func (h *host) learnsMTU(t *testing.T, b *host, size, want int) {
	t.Helper()
	for _, to := range b.podAddrs() {
		wired.Eventually(t, func() error {
			got, err := ask(h.pod, to, size, 100*time.Millisecond)
			switch {
			case err == nil:
				return fmt.Errorf("a packet of %d bytes came to %s", size, to)
			case got != want || !errors.Is(err, unix.EMSGSIZE):
				return fmt.Errorf("the way to %s: %w, its MTU is %d, want %d", to, err, got, want)
			}
			return nil
		})
	}
}

func routed(a, b *host) bool { return a.Routed(b.Member) }

func TestPodsReachEachOther(t *testing.T) {
	w := newWorld(t)
	w.start(t, config())
	t.Run("D20 directly on the same layer 2 and by VXLAN through a router, at full MTU", func(t *testing.T) {
		w.reach(t, routed, 50)
	})
	t.Run("after the daemons are gone", func(t *testing.T) {
		for _, h := range w.nodes {
			h.stop()
		}
		w.reach(t, routed, 50)
	})
	t.Run("a restart writes nothing", func(t *testing.T) {
		for _, h := range w.nodes {
			h.start(t, config(), w.list())
			got := h.fabric.Counts()
			if got.Sets+got.Deletes+got.Settings+got.Repairs != 0 || got.Reads != 1 {
				t.Errorf("node %s: got %+v, want one read and no operation", h.node.Name, got)
			}
		}
	})
}

func TestEncapsulationAlways(t *testing.T) {
	w := newWorld(t)
	cfg := config()
	cfg.Layout.Encapsulation = layout.Always
	w.start(t, cfg)
	w.reach(t, func(a, b *host) bool { return true }, 50)
}

func TestUnderlayOfIPv6Only(t *testing.T) {
	w := newWorld(t)
	for _, h := range w.nodes {
		h.node.Addrs = h.node.Addrs[1:]
	}
	w.start(t, config())
	// IPv4 pods of nodes that have no IPv4 address go by VXLAN on the same layer 2, too.
	for _, h := range w.nodes {
		h.settle(t)
	}
	a, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
	for _, pair := range [][2]*host{{a, c}, {c, b}} {
		for _, to := range pair[1].podAddrs() {
			wired.Eventually(t, func() error { _, err := ask(pair[0].pod, to, 1430, time.Second); return err })
			if err := transfer(pair[0].pod, to); err != nil {
				t.Error(err)
			}
		}
		pair[0].learnsMTU(t, pair[1], 1500, 1430)
	}
	wired.Eventually(t, func() error { _, err := ask(a.pod, b.podAddrs()[0], 1430, time.Second); return err })
	wired.Eventually(t, func() error { _, err := ask(a.pod, b.podAddrs()[1], 1500, time.Second); return err })
}
