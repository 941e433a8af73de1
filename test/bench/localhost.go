package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"onerule/test/addr"
	"onerule/test/netns"
)

// localhostGoal is the least share of a direct connection's throughput.
const localhostGoal = 0.9

const (
	localhostTurns = 60 // of each sort for each contender
	// localhostService is one with a NodePort in a cluster of mixed kinds.
	localhostService = 3
	// payload is what a transfer brings, over a connection of its own.
	payload = 1 << 20
	// perTurn are connects and transfers on one way before the next has its turn.
	perTurn = 20
)

// What a client asks the server for.
const (
	askByte    = 'b'
	askPayload = 'p'
)

// A localhost is a node with a proxy, and the server behind its NodePorts.
type localhost struct {
	name         string
	node, server *netns.NS
	to           netip.AddrPort
	end          []func()

	first timings // from connect to the first byte of an answer
	fresh timings // from connect to the last byte of a payload
	open  timings // of a payload over a connection that is open
}

// measureLocalhost compares a NodePort on 127.0.0.1 with a connection to the endpoint,
// and with kube-proxy's if that is asked for.
func measureLocalhost(ctx context.Context, withPeer bool, say func(string, ...any)) ([]*table, error) {
	say("localhost: begin")
	list, err := localhostContenders(ctx, withPeer, say)
	if err != nil {
		return nil, err
	}
	var ways []*localhost
	defer func() {
		for _, w := range ways {
			w.close()
		}
	}()
	for _, c := range list {
		w, err := c.onLoopback(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		ways = append(ways, w)
	}
	// Directly, from the first one's node.
	direct := &localhost{name: "direct", node: ways[0].node, to: netip.AddrPortFrom(loopbackServer(), endpointPort)}
	all := append([]*localhost{direct}, ways...)
	say("localhost: %d turns of %d connects and %d transfers each way", localhostTurns, perTurn, perTurn)
	for turn := range localhostTurns {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for i := range all { // another one begins each time
			if err := all[(turn+i)%len(all)].run(); err != nil {
				return nil, err
			}
		}
	}
	return []*table{localhostTable(all)}, nil
}

// localhostContenders are proxies with NodePorts on loopback addresses.
func localhostContenders(ctx context.Context, withPeer bool, say func(string, ...any)) ([]contender, error) {
	var list []contender
	if withPeer {
		all, err := contenders(ctx, say)
		if err != nil {
			return nil, err
		}
		list = all
		list[1].args = append(slices.Clone(list[1].args), "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true")
	} else {
		ours, err := ourselves()
		if err != nil {
			return nil, err
		}
		list = []contender{ours}
	}
	for i := range list {
		list[i].args = append(slices.Clone(list[i].args), "--nodeport-addresses=127.0.0.0/8")
	}
	return list, nil
}

func loopbackServer() netip.Addr { return addr.IPv4().OtherPod(0) }

// onLoopback starts a contender on a node with a server behind it.
func (c contender) onLoopback(ctx context.Context) (w *localhost, err error) {
	w = &localhost{name: c.name, to: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), nodePortOf(localhostService))}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if err := w.wire(); err != nil {
		return w, err
	}
	stop, err := serveAnswers(w.server, netip.AddrPortFrom(loopbackServer(), endpointPort))
	if err != nil {
		return w, err
	}
	w.end = append(w.end, stop)
	cl := newMix(mixEvery)
	cl.endpoints[localhostService] = []netip.Addr{loopbackServer()}
	api, err := newAPIServer(cl)
	if err != nil {
		return w, err
	}
	url, stop, err := api.listen(w.node)
	if err != nil {
		return w, err
	}
	w.end = append(w.end, stop)
	k, err := openKernel(w.node)
	if err != nil {
		return w, err
	}
	w.end = append(w.end, k.close)
	r := &ring{ns: w.node, url: url, api: api, kernel: k, last: cl.ofKind(clusterIP)[0]}
	p, err := c.start(ctx, r, &outside{})
	if err != nil {
		return w, err
	}
	w.end = append(w.end, p.kill)
	return w, w.await(ctx)
}

// await waits until the port answers.
func (w *localhost) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		var err error
		if err = w.node.Do(func() error { _, err := fetch(w.to, askByte, make([]byte, 1)); return err }); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the NodePort on %s does not answer: %w", w.to, err)
		case <-again.C:
		}
	}
}

func (w *localhost) wire() error {
	var errs []error
	for name, to := range map[string]**netns.NS{"node": &w.node, "server": &w.server} {
		ns, err := netns.Open(name)
		if *to = ns; ns != nil {
			w.end = append(w.end, func() { _ = ns.Close() })
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	server := loopbackServer().String() + "/32"
	return errors.Join(
		netns.Connect(w.node, "server", w.server, "node"),
		w.node.AddAddr("server", netip.PrefixFrom(linkAddr(0, 0), 30).String()),
		w.server.AddAddr("node", netip.PrefixFrom(linkAddr(0, 1), 30).String(), server),
		w.node.AddRoute(server, linkAddr(0, 1).String()),
	)
}

func (w *localhost) close() {
	for _, end := range slices.Backward(w.end) {
		end()
	}
}

// run makes one turn.
func (w *localhost) run() error {
	err := w.node.Do(func() error {
		buf := make([]byte, 256<<10)
		for range perTurn {
			took, err := fetch(w.to, askByte, buf)
			if err != nil {
				return err
			}
			w.first.add(took)
			if took, err = fetch(w.to, askPayload, buf); err != nil {
				return err
			}
			w.fresh.add(took)
		}
		return w.runOpen(buf)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	for _, s := range []*timings{&w.first, &w.fresh, &w.open} {
		s.end()
	}
	return nil
}

// runOpen transfers over one connection, after a first time that sets its windows.
func (w *localhost) runOpen(buf []byte) error {
	fd, err := connectTo(w.to)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	for i := range perTurn + 1 {
		start := monotonic()
		if err := ask(fd, askPayload, buf); err != nil {
			return err
		}
		if i > 0 {
			w.open.add(monotonic() - start)
		}
	}
	return nil
}

// The timings are one figure of a way: all of them, and the median of each turn, to be
// compared with that of others in it.
type timings struct{ all, turn, medians []time.Duration }

func (s *timings) add(d time.Duration) { s.turn = append(s.turn, d) }

func (s *timings) end() {
	s.all, s.medians, s.turn = append(s.all, s.turn...), append(s.medians, median(s.turn)), nil
}

// beside gives how fast it is beside another one, in the median of all turns.
func (s *timings) beside(o *timings) float64 {
	var list []float64
	for i, d := range s.medians {
		list = append(list, float64(o.medians[i])/float64(d))
	}
	return median(list)
}

// fetch connects and asks: how long that takes until all has come.
func fetch(from netip.AddrPort, what byte, buf []byte) (time.Duration, error) {
	start := monotonic()
	fd, err := connectTo(from)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := ask(fd, what, buf); err != nil {
		return 0, fmt.Errorf("%s: %w", from, err)
	}
	return monotonic() - start, nil
}

func connectTo(to netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	late := unix.NsecToTimeval(int64(10 * time.Second))
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &late),
		unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}))
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("connect to %s: %w", to, err)
	}
	return fd, nil
}

// ask sends what is asked for and reads until all has come.
func ask(fd int, what byte, buf []byte) error {
	if _, err := unix.Write(fd, []byte{what}); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	size := 1
	if what == askPayload {
		size = payload
	}
	for got := 0; got < size; {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("read after %d bytes of %d: %w", got, size, err)
		}
		got += n
	}
	return nil
}

func localhostTable(all []*localhost) *table {
	t := &table{
		title:  "A NodePort on 127.0.0.1",
		header: []string{"", "connect to first byte, median", "p99", "1 MiB, new connection", "of direct", "1 MiB, open connection", "of direct"},
	}
	direct := all[0]
	for i, w := range all {
		fresh, open := w.fresh.beside(&direct.fresh), w.open.beside(&direct.open)
		judged := func(of float64) string {
			if i != 1 {
				return fmt.Sprintf("%.2f", of)
			}
			return fmt.Sprintf("%.2f %s", of, verdict(of >= localhostGoal))
		}
		t.row(w.name, short(median(w.first.all)), short(quantile(w.first.all, 0.99)), short(median(w.fresh.all)), judged(fresh), short(median(w.open.all)), judged(open))
	}
	if len(all) > 2 {
		t.row(all[1].beside(all[2])...)
	}
	t.note("Goals: %.2g of direct, and ahead of kube-proxy in all.", localhostGoal)
	t.note("node - endpoint, a namespace each; %d turns of %d each way; of direct: throughput, the median of the ratios of each turn. New connection: from connect to the last byte.", localhostTurns, perTurn)
	return t
}

// beside compares it with another one: how many times as fast, in the median of all turns.
func (w *localhost) beside(o *localhost) []string {
	times := func(a, b *timings) string {
		n := a.beside(b)
		return fmt.Sprintf("%.2f %s", n, verdict(n > 1))
	}
	return []string{
		fmt.Sprintf("%s, as many times as fast as %s", w.name, o.name),
		times(&w.first, &o.first), "", times(&w.fresh, &o.fresh), "", times(&w.open, &o.open), "",
	}
}

// peerGiven says whether kube-proxy is at hand without being asked for.
func peerGiven() bool { return os.Getenv("ONERULE_KUBE_PROXY") != "" }
