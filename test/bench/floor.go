package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/test/netns"
)

// A floor is a table of the same size in a namespace of its own, to which the same
// elements are written with nothing around it: what the kernel alone costs.
type floor struct {
	ns    *netns.NS
	conn  *nftables.Conn
	table *nftables.Table
	// fresh numbers the addresses that are written, below those of any endpoint.
	fresh int
}

func openFloor(ctx context.Context, c *cluster) (*floor, error) {
	ns, err := netns.Open("floor")
	if err != nil {
		return nil, err
	}
	f := &floor{ns: ns, table: &nftables.Table{Name: nft.TableName, Family: nftables.TableFamilyIPv4}}
	state := stateOf(c)
	// One more frontend, so that there is a set for one endpoint less.
	state.Set(nft.Frontend{Addr: vip(len(c.endpoints)), Protocol: unix.IPPROTO_TCP, Port: servicePort}, nft.Route{Endpoints: c.sorted(0)[1:]})
	if err := loadTable(ctx, ns, state); err != nil {
		f.close()
		return nil, err
	}
	f.conn, err = nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(ns.Fd()), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return c.SetReadBuffer(1 << 20)
	}))
	if err != nil {
		f.close()
		return nil, fmt.Errorf("open netlink socket for nftables: %w", err)
	}
	return f, nil
}

func (f *floor) close() {
	if f.conn != nil {
		_ = f.conn.CloseLasting()
	}
	_ = f.ns.Close()
}

// stateOf gives what a table holds for a cluster.
func stateOf(c *cluster) nft.State {
	s := nft.NewState()
	for i := range c.endpoints {
		s.Addrs[nft.ClusterIPs][vip(i)] = true
		s.Set(nft.Frontend{Addr: vip(i), Protocol: unix.IPPROTO_TCP, Port: servicePort}, nft.Route{Endpoints: c.sorted(i)})
	}
	s.Ranges[nft.ServiceCIDRs] = []netip.Prefix{serviceRange()}
	s.Ranges[nft.PodCIDRs] = []netip.Prefix{podRange()}
	return s
}

// loadTable writes a whole table in a namespace.
func loadTable(ctx context.Context, ns *netns.NS, state nft.State) error {
	return ns.Do(func() error {
		p, err := nft.Open(nft.Config{Family: nft.IPv4, MasqueradeBit: 14, Detector: nft.DetectCIDR})
		if err != nil {
			return err
		}
		defer p.Close()
		return p.Load(ctx, state, nft.NewKeys())
	})
}

func (f *floor) set(name string) *nftables.Set { return &nftables.Set{Table: f.table, Name: name} }

func (f *floor) endpoints() *nftables.Set { return f.set(nft.Endpoints.Of(unix.IPPROTO_TCP)) }

func (f *floor) freshValue() []byte {
	f.fresh++
	return endpointValue(netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, byte(f.fresh >> 8), byte(f.fresh)}), endpointPort))
}

// replace puts another endpoint into a slot.
func (f *floor) replace(service, slot int) (time.Duration, error) {
	key, value := clusterIPOf(service).slotKey(slot), f.freshValue()
	return f.timed(func() error {
		if err := f.conn.SetDeleteElements(f.endpoints(), []nftables.SetElement{{Key: key}}); err != nil {
			return err
		}
		return f.conn.SetAddElements(f.endpoints(), []nftables.SetElement{{Key: key, Val: value}})
	})
}

// shrink takes a Service's last endpoint of ten away, grow brings one back.
func (f *floor) shrink(service int) (time.Duration, error) {
	return f.timed(func() error {
		if err := f.conn.SetDeleteElements(f.endpoints(), []nftables.SetElement{{Key: clusterIPOf(service).slotKey(endpointsPerService - 1)}}); err != nil {
			return err
		}
		return f.move(service, endpointsPerService, endpointsPerService-1)
	})
}

func (f *floor) grow(service int) (time.Duration, error) {
	value := f.freshValue()
	return f.timed(func() error {
		if err := f.conn.SetAddElements(f.endpoints(), []nftables.SetElement{{Key: clusterIPOf(service).slotKey(endpointsPerService - 1), Val: value}}); err != nil {
			return err
		}
		return f.move(service, endpointsPerService-1, endpointsPerService)
	})
}

func (f *floor) move(service, from, to int) error {
	if err := f.conn.SetDeleteElements(f.set(countSet(nft.Endpoints, from)), []nftables.SetElement{{Key: clusterIPOf(service).countKey()}}); err != nil {
		return err
	}
	return f.conn.SetAddElements(f.set(countSet(nft.Endpoints, to)), []nftables.SetElement{{Key: clusterIPOf(service).countKey()}})
}

// verdict writes the verdict of a frontend anew: what a change would cost if the
// verdict said how many endpoints there are (nft/README.md, decisions). The kernel
// walks every verdict of the table for it.
func (f *floor) verdict(service int) (time.Duration, error) {
	set, key := f.set(string(nft.ServiceIPs)), clusterIPOf(service).routeKey()
	return f.timed(func() error {
		if err := f.conn.SetDeleteElements(set, []nftables.SetElement{{Key: key}}); err != nil {
			return err
		}
		to := &expr.Verdict{Kind: expr.VerdictGoto, Chain: nft.Entry{}.Chain(unix.IPPROTO_TCP)}
		return f.conn.SetAddElements(set, []nftables.SetElement{{Key: key, VerdictData: to}})
	})
}

// timed writes one transaction.
func (f *floor) timed(transaction func() error) (time.Duration, error) {
	start := monotonic()
	if err := transaction(); err != nil {
		return 0, fmt.Errorf("encode elements: %w", err)
	}
	if err := f.conn.Flush(); err != nil {
		return 0, fmt.Errorf("write elements of the kernel floor: %w", err)
	}
	return monotonic() - start, nil
}
