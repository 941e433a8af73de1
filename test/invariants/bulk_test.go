package invariants_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/rig"
)

const (
	// bulkServices have three endpoints each, and so six elements: their frontend and
	// its number of endpoints, the ClusterIP, and the endpoints.
	bulkServices, bulkElements = 5000, 6
	// largest is how many elements a commit may have: 20,000, and those of one address.
	largest = 20_000 + 100
)

// All Services of a cluster at once are written by as many elements for each, and so is
// their end; no commit is larger than what the kernel does without being held up, or than
// the buffers are. Nothing is listed, and no other Service notices. A cold start does the
// same.
func TestR2R350AllAtOnceIsWrittenInBoundedParts(t *testing.T) {
	p := addr.IPv4()
	h := newHosts(t)
	h.serve(t, p)
	d := rig.New(t, h.node)
	writeWeb(d, p, backends)
	d.Run()
	d.AwaitHealthy()
	awaitEndpoints(t, h.node, p, backends)
	elements, targets := d.Series("onerule_elements"), []netip.AddrPort{netip.AddrPortFrom(p.VIP(0), 80)}
	h.settle(t, targets)
	s, commits := h.stream(t, targets), watchCommits(t, h.node)

	before := operations(d)
	d.Write("many.yaml", many(p, bulkServices, 3)...)
	awaitElements(t, d, "lb-tcp-3", bulkServices)
	inBulk(t, "all come", since(d, before), "add", "delete")
	before = operations(d)
	d.Remove("many.yaml")
	awaitElements(t, d, "lb-tcp-3", 0)
	inBulk(t, "all go", since(d, before), "delete", "add")
	if diff := cmp.Diff(filled(elements), filled(d.Series("onerule_elements"))); diff != "" {
		t.Errorf("elements afterwards (-before +after): %s", diff)
	}
	s.finish().judgeStream(t)

	d.Write("many.yaml", many(p, bulkServices, 3)...)
	d.Stop()
	h.node.Run(t, "nft", "delete", "table", "ip", "onerule")
	d.Run()
	d.AwaitHealthy()
	inBulk(t, "a cold start", since(d, map[string]float64{}), "add", "delete")
	if n := d.Metric("kubeproxy_sync_proxy_rules_nftables_sync_failures_total"); n != 0 {
		t.Errorf("%v writes failed", n)
	}
	commits.judge(t, 3*bulkServices*bulkElements)
}

// inBulk checks the operations of a step that adds or deletes what all Services have. The
// Services of a file can be written before their slices, and be without endpoints for a
// moment. A hundred endpoints are hairpins, and the rules for three come with the first.
func inBulk(t *testing.T, when string, got map[string]float64, kind, other string) {
	t.Helper()
	t.Logf("%s: %v", when, got)
	const few = 200
	switch n := got[kind] - got[other]; {
	case n < bulkServices*bulkElements || n > bulkServices*bulkElements+few, got[other] > bulkServices:
		t.Errorf("%s: operations are %v, want %d of kind %s", when, got, bulkServices*bulkElements, kind)
	case got["list"] != 0 || got["ruleset"] > 4:
		t.Errorf("%s: operations are %v, want no listing, and no more rules than those of a table", when, got)
	}
}

// filled gives the sizes of those sets that hold something.
func filled(sizes map[string]float64) map[string]float64 {
	maps.DeleteFunc(sizes, func(_ string, n float64) bool { return n == 0 })
	return sizes
}

// awaitElements waits until a set of IPv4 holds so many elements.
func awaitElements(t *testing.T, d *rig.Daemon, set string, want float64) {
	t.Helper()
	rig.Eventually(t, "the change is written", func() error {
		if got := d.Metric("onerule_elements", "ip_family", "IPv4", "set", set); got != want {
			return fmt.Errorf("%v elements in %s, want %v", got, set, want)
		}
		return nil
	})
}

// commits are the transactions of a namespace, as the kernel tells them.
type commits struct {
	conn *netlink.Conn
	mu   sync.Mutex
	// sizes says how many elements each one added or deleted, and err why there are no
	// more of them.
	sizes []int
	err   error
}

func watchCommits(t *testing.T, ns *netns.NS) *commits {
	t.Helper()
	c := &commits{}
	err := ns.Do(func() (err error) {
		if c.conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
			return err
		}
		return errors.Join(c.conn.SetReadBuffer(128<<20), c.conn.JoinGroup(unix.NFNLGRP_NFTABLES))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.conn.Close() })
	go c.read() // ends when the connection is closed
	return c
}

func (c *commits) read() {
	elements := 0
	for {
		messages, err := c.conn.Receive()
		c.mu.Lock()
		for _, m := range messages {
			switch m.Header.Type {
			case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSETELEM, unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELSETELEM:
				elements++
			case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN: // the last one of a commit
				c.sizes, elements = append(c.sizes, elements), 0
			}
		}
		c.err = err
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// judge waits until the kernel has told of all elements, and says what is wrong with the
// commits.
func (c *commits) judge(t *testing.T, elements int) {
	t.Helper()
	rig.Eventually(t, "the kernel tells of all elements", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		sum := 0
		for _, n := range c.sizes {
			sum += n
		}
		if sum < elements {
			return errors.Join(fmt.Errorf("it told of %d, want %d", sum, elements), c.err)
		}
		return c.err
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	most := slices.Max(c.sizes)
	t.Logf("%d commits of up to %d elements", len(c.sizes), most)
	if most > largest {
		t.Errorf("a commit has %d elements, want %d at most", most, largest)
	}
}
