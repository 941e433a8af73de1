package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/test/addr"
	"onerule/test/netns"
)

const (
	// block is how many connections are made on one path before the next has its
	// turn.
	block = 500
	// pathServices is how many Services have the most frequent number of endpoints.
	pathServices = 1000
)

// A path is a way to reach the server.
type path struct {
	name string
	to   netip.AddrPort
	all  []time.Duration // every connect
	// blocks holds the median of each block, to be compared with the block of
	// another path that ran at nearly the same time.
	blocks []time.Duration
}

// measurePaths connects through Services and past them, with more and more distinct
// numbers of endpoints in use.
func measurePaths(ctx context.Context, connects int, say func(string, ...any)) ([]*table, error) {
	t := &table{
		title:  "What a connection through a node pays",
		header: []string{"distinct numbers of endpoints in use", "path", "connect, median", "p99", "over conntrack alone", "over a direct connect"},
	}
	for _, numbers := range []int{1, 8, 32} {
		say("paths: %d distinct numbers of endpoints, %d connections each", numbers, connects)
		paths, err := measureNumbers(ctx, numbers, connects)
		if err != nil {
			return nil, fmt.Errorf("%d numbers of endpoints: %w", numbers, err)
		}
		for i, p := range paths {
			line := []string{fmt.Sprint(numbers), p.name, short(median(p.all)), short(quantile(p.all, 0.99))}
			for _, than := range paths[:min(i, 2)] {
				line = append(line, over(p, than))
			}
			t.row(line...)
		}
	}
	t.note("client - node - server, a namespace each; TCP; the time of connect(2); blocks of %d in turns; over: median of the differences between blocks of the same turn, and their share.", block)
	t.note("conntrack alone: through another node without our table. Direct: to an endpoint's own address through the node with our table. ClusterIP: %s Services have the most frequent number, one Service each other; the rarest is tried last.", count(pathServices))
	return []*table{t}, nil
}

// over says how much longer a path is than another.
func over(p, than *path) string {
	var more, share []float64
	for i := range min(len(p.blocks), len(than.blocks)) {
		d := float64(p.blocks[i] - than.blocks[i])
		more, share = append(more, d), append(share, 100*d/float64(than.blocks[i]))
	}
	return fmt.Sprintf("%+.2f µs (%+.1f %%)", median(more)/1e3, median(share))
}

func measureNumbers(ctx context.Context, numbers, connects int) ([]*path, error) {
	net, err := openPathNet()
	if err != nil {
		return nil, err
	}
	defer net.close()
	state, paths := pathState(numbers)
	if err := loadTable(ctx, net.node, state); err != nil {
		return nil, err
	}
	stop, err := net.serve()
	if err != nil {
		return nil, err
	}
	defer stop()
	err = net.client.Do(func() error {
		for turn := range connects / block {
			if err := ctx.Err(); err != nil {
				return err
			}
			for i := range paths { // another one begins each time
				if err := paths[(turn+i)%len(paths)].run(); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return paths, err
}

// run makes one block of connections. The caller's thread is in the client.
func (p *path) run() error {
	times := make([]time.Duration, 0, block)
	for range block {
		took, err := connect(p.to)
		if err != nil {
			return fmt.Errorf("%s: connect to %s: %w", p.name, p.to, err)
		}
		times = append(times, took)
	}
	p.all = append(p.all, times...)
	p.blocks = append(p.blocks, median(times))
	return nil
}

// connect connects and resets the connection, which leaves nothing behind in the
// client.
func connect(to netip.AddrPort) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return 0, err
	}
	sa := &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	start := monotonic()
	err = unix.Connect(fd, sa)
	return monotonic() - start, err
}

// pathState gives a table with as many distinct numbers of endpoints, and the paths
// to measure in it.
func pathState(numbers int) (nft.State, []*path) {
	s := nft.NewState()
	balance := func(service, n int) netip.AddrPort {
		s.Addrs[nft.ClusterIPs][vip(service)] = true
		var endpoints []netip.AddrPort
		for e := range n {
			endpoints = append(endpoints, netip.AddrPortFrom(servers(e), endpointPort))
		}
		s.Set(nft.Frontend{Addr: vip(service), Protocol: unix.IPPROTO_TCP, Port: servicePort}, nft.Route{Endpoints: endpoints})
		return netip.AddrPortFrom(vip(service), servicePort)
	}
	for i := range pathServices {
		balance(i, endpointsPerService)
	}
	paths := []*path{
		{name: "conntrack alone", to: netip.AddrPortFrom(bypassed(), endpointPort)},
		{name: "direct", to: netip.AddrPortFrom(servers(0), endpointPort)},
		{name: "ClusterIP, most frequent number", to: netip.AddrPortFrom(vip(pathServices/2), servicePort)},
	}
	for i := 1; i < numbers; i++ {
		to := balance(pathServices+i, endpointsPerService+i)
		if i == numbers-1 { // of equally frequent ones the highest comes last
			paths = append(paths, &path{name: "ClusterIP, rarest number", to: to})
		}
	}
	s.Ranges[nft.ServiceCIDRs] = []netip.Prefix{serviceRange()}
	s.Ranges[nft.PodCIDRs] = []netip.Prefix{podRange()}
	return s, paths
}

// maxServers is how many addresses the server has: as many as endpoints are used.
const maxServers = 64

// servers are the addresses of the server that are reached through the node, and
// bypassed is the one that is reached through the other node.
func servers(i int) netip.Addr { return addr.IPv4().OtherPod(i) }
func bypassed() netip.Addr     { return addr.Nth(netip.MustParsePrefix("198.51.100.0/24"), 10) }

// A pathNet is a client and a server with two nodes between them.
type pathNet struct{ client, node, bypass, server *netns.NS }

func (n *pathNet) close() {
	for _, ns := range []*netns.NS{n.client, n.node, n.bypass, n.server} {
		if ns != nil {
			_ = ns.Close()
		}
	}
}

// One link of four: the client's and the server's end with each node.
func linkAddr(link, end int) netip.Addr {
	return addr.Nth(netip.MustParsePrefix("192.0.2.0/24"), 4*link+1+end)
}

func openPathNet() (*pathNet, error) {
	n := &pathNet{}
	var errs []error
	for name, to := range map[string]**netns.NS{"client": &n.client, "node": &n.node, "bypass": &n.bypass, "server": &n.server} {
		var err error
		*to, err = netns.Open(name)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		n.close()
		return nil, err
	}
	err := errors.Join(n.wire(), n.routes())
	if err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *pathNet) wire() error {
	var errs []error
	for i, w := range []struct {
		a, b       *netns.NS
		aDev, bDev string
	}{
		{n.client, n.node, "node", "client"}, {n.node, n.server, "server", "node"},
		{n.client, n.bypass, "bypass", "client"}, {n.bypass, n.server, "server", "bypass"},
	} {
		errs = append(errs, netns.Connect(w.a, w.aDev, w.b, w.bDev),
			w.a.AddAddr(w.aDev, netip.PrefixFrom(linkAddr(i, 0), 30).String()),
			w.b.AddAddr(w.bDev, netip.PrefixFrom(linkAddr(i, 1), 30).String()))
	}
	return errors.Join(errs...)
}

func (n *pathNet) routes() error {
	var mine []string
	for i := range maxServers {
		mine = append(mine, servers(i).String()+"/32")
	}
	pods := addr.IPv4().OtherPods.String()
	errs := []error{
		n.server.AddAddr("lo", append(mine, bypassed().String()+"/32")...),
		n.client.AddRoute(serviceRange().String(), linkAddr(0, 1).String()),
		n.client.AddRoute(pods, linkAddr(0, 1).String()),
		n.node.AddRoute(pods, linkAddr(1, 1).String()),
		n.server.AddRoute(linkAddr(0, 0).String()+"/32", linkAddr(1, 0).String()),
		n.client.AddRoute(bypassed().String()+"/32", linkAddr(2, 1).String()),
		n.bypass.AddRoute(bypassed().String()+"/32", linkAddr(3, 1).String()),
		n.server.AddRoute(linkAddr(2, 0).String()+"/32", linkAddr(3, 0).String()),
	}
	for _, router := range []*netns.NS{n.node, n.bypass} {
		for key, value := range map[string]string{
			"net/ipv4/ip_forward": "1",
			// What was reset is forgotten soon, so that the table stays small.
			"net/netfilter/nf_conntrack_tcp_timeout_close": "1",
		} {
			errs = append(errs, write(router, key, value))
		}
	}
	// A rule that asks for conntrack, and no other, in the other node.
	_, err := n.bypass.Output("nft", "table ip bypass { chain c { type filter hook forward priority 0; ct state invalid counter; }; }")
	return errors.Join(append(errs, err)...)
}
