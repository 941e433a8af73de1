package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"onerule/bpf"
	"onerule/nft"
)

const (
	// hitTurns is how often counting is begun and ended, each with connects and a transfer:
	// many and short ones, since the machine is now faster and now slower.
	hitTurns = 160
	// hitTransfer is sent over one connection in each half of a turn.
	hitTransfer = 64 << 20
	// Where transfers go, through a Service of their own.
	sinkPort = 8081
)

// sinkService is behind those of pathState.
func sinkService() netip.AddrPort { return netip.AddrPortFrom(vip(2*pathServices), servicePort) }

// A half is what was measured with or without counting.
type half struct {
	connect []time.Duration // the median of each block
	rate    []float64       // of each transfer, in bytes a second
}

// runs are what the kernel says of the programs that count.
type runs struct {
	took  time.Duration
	count uint64
}

func (r runs) minus(o runs) runs { return runs{r.took - o.took, r.count - o.count} }

// A counted is a path whose node counts, now and then.
type counted struct {
	net     *pathNet
	path    *path
	with    half
	without half
	// The times of the programs in nanoseconds, and how often they run for a connect.
	perConnect, perPacket, runs []float64
	mode                        string
}

// measureHits connects and transfers with and without the programs that count.
func measureHits(ctx context.Context, say func(string, ...any)) ([]*table, error) {
	net, err := openPathNet()
	if err != nil {
		return nil, err
	}
	defer net.close()
	state, paths := pathState(1)
	sink := netip.AddrPortFrom(servers(0), sinkPort)
	state.Addrs[nft.ClusterIPs][sinkService().Addr()] = true
	state.Set(nft.Frontend{Addr: sinkService().Addr(), Protocol: unix.IPPROTO_TCP, Port: servicePort}, nft.Route{Endpoints: []netip.AddrPort{sink}})
	if err := loadTable(ctx, net.node, state); err != nil {
		return nil, err
	}
	stop, err := net.serve()
	if err != nil {
		return nil, err
	}
	defer stop()
	endSink, err := serveSink(net.server, sink)
	if err != nil {
		return nil, err
	}
	defer endSink()
	c := &counted{net: net, path: paths[len(paths)-1]}
	for turn := range hitTurns {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if turn%40 == 0 {
			say("hits: turn %d of %d", turn+1, hitTurns)
		}
		if err := c.turn(turn%2 == 0); err != nil {
			return nil, err
		}
	}
	if err := c.time(); err != nil {
		return nil, err
	}
	return []*table{c.table()}, nil
}

// turn measures both halves, one of them first. Counting is begun for each, and ended before
// the one without: what comes before a measurement is the same then.
func (c *counted) turn(withFirst bool) error {
	for _, with := range []bool{withFirst, !withFirst} {
		counters, err := c.count()
		if err != nil {
			return err
		}
		to, end := &c.with, counters.Close
		if !with {
			if err := counters.Close(); err != nil {
				return err
			}
			to, end = &c.without, func() error { return nil }
		}
		err = c.net.client.Do(func() error {
			if err := c.path.run(); err != nil {
				return err
			}
			to.connect = append(to.connect, c.path.blocks[len(c.path.blocks)-1])
			took, err := transfer(sinkService(), hitTransfer)
			to.rate = append(to.rate, hitTransfer/took.Seconds())
			return err
		})
		if err := errors.Join(err, end()); err != nil {
			return err
		}
	}
	return nil
}

// count begins to count for all that is connected to.
func (c *counted) count() (*bpf.Counters, error) {
	var counters *bpf.Counters
	err := c.net.node.Do(func() (err error) {
		counters, err = bpf.Open(bpf.Options{Log: logr.Discard()})
		return err
	})
	if err != nil {
		return nil, err
	}
	c.mode = counters.Mode()
	keys := []bpf.Key{{Frontend: sinkService(), Endpoint: netip.AddrPortFrom(servers(0), sinkPort), Protocol: unix.IPPROTO_TCP}}
	for n := range pathServices { // as in a cluster of that size
		for e := range endpointsPerService {
			keys = append(keys, bpf.Key{
				Frontend: netip.AddrPortFrom(vip(n), servicePort), Endpoint: netip.AddrPortFrom(servers(e), endpointPort), Protocol: unix.IPPROTO_TCP,
			})
		}
	}
	if err := counters.Put(keys); err != nil {
		return nil, errors.Join(err, counters.Close())
	}
	return counters, nil
}

// time has the kernel time its programs: for packets of one connection, and for all
// packets of connects.
func (c *counted) time() error {
	others, err := programs()
	if err != nil {
		return err
	}
	counters, err := c.count()
	if err != nil {
		return err
	}
	defer counters.Close()
	stop, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		return fmt.Errorf("have the kernel time its programs: %w", err)
	}
	defer stop.Close()
	for range 8 {
		packets, err := ran(others, func() error {
			return c.net.client.Do(func() error {
				_, err := transfer(sinkService(), hitTransfer)
				return err
			})
		})
		if err != nil {
			return err
		}
		connects, err := ran(others, func() error { return c.net.client.Do(c.path.run) })
		if err != nil {
			return err
		}
		c.perPacket = append(c.perPacket, float64(packets.took)/float64(packets.count))
		c.perConnect = append(c.perConnect, float64(connects.took)/block)
		c.runs = append(c.runs, float64(connects.count)/block)
	}
	return nil
}

// ran gives what the programs that were not there before did meanwhile.
func ran(others map[ebpf.ProgramID]runs, f func() error) (runs, error) {
	sum := func() (runs, error) {
		all, err := programs()
		var s runs
		for id, r := range all {
			if _, other := others[id]; !other {
				s.took, s.count = s.took+r.took, s.count+r.count
			}
		}
		return s, err
	}
	before, err := sum()
	if err != nil {
		return runs{}, err
	}
	if err := f(); err != nil {
		return runs{}, err
	}
	after, err := sum()
	if err == nil && after.count <= before.count {
		err = errors.New("no program ran")
	}
	return after.minus(before), err
}

// programs gives those of the machine that count hits, by ID.
func programs() (map[ebpf.ProgramID]runs, error) {
	all := map[ebpf.ProgramID]runs{}
	for id, err := ebpf.ProgramGetNextID(0); ; id, err = ebpf.ProgramGetNextID(id) {
		if errors.Is(err, unix.ENOENT) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list BPF programs: %w", err)
		}
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it has gone
		}
		info, err := p.Info()
		stats, statsErr := p.Stats()
		_ = p.Close()
		if err := errors.Join(err, statsErr); err != nil {
			return nil, fmt.Errorf("look at BPF program %d: %w", id, err)
		}
		if len(info.Name) > 5 && info.Name[:6] == "count_" {
			all[id] = runs{stats.Runtime, stats.RunCount}
		}
	}
}

func (c *counted) table() *table {
	t := &table{
		title:  "What counting connections costs, mode " + c.mode,
		header: []string{"", "without", "with", "with : without"},
	}
	ratios := func(with, without []float64) []float64 {
		var list []float64
		for i := range with {
			list = append(list, with[i]/without[i])
		}
		return list
	}
	ns := func(list []time.Duration) []float64 {
		var all []float64
		for _, d := range list {
			all = append(all, float64(d))
		}
		return all
	}
	t.row("connect through a ClusterIP, median", short(median(c.without.connect)), short(median(c.with.connect)),
		quartiles(ratios(ns(c.with.connect), ns(c.without.connect))))
	t.row("throughput of one connection, median", perSecond(median(c.without.rate)), perSecond(median(c.with.rate)),
		quartiles(ratios(c.with.rate, c.without.rate)))
	t.row(fmt.Sprintf("the programs, for a new connection (%.1f runs)", median(c.runs)), "", fmt.Sprintf("%.0f ns", median(c.perConnect)))
	t.row("the programs, for a packet of an open one", "", fmt.Sprintf("%.0f ns", median(c.perPacket)))
	t.note("client - node - server; with and without in turns, %d of each with %d connects and %s; the ratio is the median of those of each turn, and the quartiles. The programs are timed by the kernel, which makes them slower by some tens of ns.",
		hitTurns, block, megabytes(hitTransfer))
	return t
}

// quartiles gives a median with the range that half of the list lies in.
func quartiles(list []float64) string {
	return fmt.Sprintf("%.3f (%.2f to %.2f)", median(list), quantile(list, 0.25), quantile(list, 0.75))
}

func perSecond(rate float64) string { return fmt.Sprintf("%.2f GB/s", rate/1e9) }
