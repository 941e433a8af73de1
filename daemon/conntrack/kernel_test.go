package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/nft/dump"
	"onerule/nft/flows"
	"onerule/test/netns"
)

// Attributes by which entries are made, beside those of tuples.
const (
	ctNew         = unix.NFNL_SUBSYS_CTNETLINK << 8
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaTimeout    = 7
	ctaNATDst     = 13
	ctaZone       = 18

	seenReply, confirmed = 1 << 1, 1 << 3 // of the status
)

// An entry is a flow as it stands in the kernel.
type entry struct {
	protocol uint8
	src, dst netip.AddrPort
	answers  netip.AddrPort // dst, unless it is translated
	zone     uint16
	silent   bool // nobody has answered
}

// message gives the request that makes the entry.
func (e entry) message() []byte {
	family := uint8(unix.NFPROTO_IPV4)
	least, most := uint16(1), uint16(2) // of CTA_NAT_V4_MINIP and MAXIP
	if e.dst.Addr().Is6() {
		family, least, most = unix.NFPROTO_IPV6, 4, 5
	}
	attrs := slices.Concat(
		attr(ctaTupleOrig|unix.NLA_F_NESTED, encode(e.src, e.dst, e.protocol)...),
		attr(ctaTupleReply|unix.NLA_F_NESTED, encode(e.dst, e.src, e.protocol)...),
		attr(ctaTimeout, binary.BigEndian.AppendUint32(nil, 600)...))
	if !e.silent {
		attrs = append(attrs, attr(ctaStatus, binary.BigEndian.AppendUint32(nil, seenReply|confirmed)...)...)
	}
	if e.zone != 0 {
		attrs = append(attrs, attr(ctaZone, binary.BigEndian.AppendUint16(nil, e.zone)...)...)
	}
	if e.protocol == tcp { // established
		attrs = append(attrs, attr(ctaProtoInfo|unix.NLA_F_NESTED, attr(1|unix.NLA_F_NESTED, attr(1, 3)...)...)...)
	}
	if e.protocol == sctp { // established, with both tags
		attrs = append(attrs, attr(ctaProtoInfo|unix.NLA_F_NESTED, attr(3|unix.NLA_F_NESTED,
			slices.Concat(attr(1, 4), attr(2, 0, 0, 0, 1), attr(3, 0, 0, 0, 2))...)...)...)
	}
	if e.answers != e.dst {
		port := binary.BigEndian.AppendUint16(nil, e.answers.Port())
		a := e.answers.Addr().AsSlice()
		attrs = append(attrs, attr(ctaNATDst|unix.NLA_F_NESTED, slices.Concat(attr(least, a...), attr(most, a...),
			attr(3|unix.NLA_F_NESTED, slices.Concat(attr(1, port...), attr(2, port...))...))...)...)
	}
	body := dump.Request(family, attrs)
	ne := binary.NativeEndian
	b := ne.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = ne.AppendUint16(b, ctNew)
	b = ne.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	return append(ne.AppendUint64(b, 0), body...)
}

// create puts entries into a namespace.
func create(t *testing.T, ns *netns.NS, entries []entry) {
	t.Helper()
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		for part := range slices.Chunk(entries, 200) {
			var b []byte
			for _, e := range part {
				b = append(b, e.message()...)
			}
			if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
				return err
			}
			// The kernel works while it is asked, and answers only what fails.
			answer := make([]byte, 4096)
			n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				continue
			}
			if err != nil || n < 20 {
				return fmt.Errorf("answer of %d bytes: %w", n, err)
			}
			return fmt.Errorf("an entry was refused: %w", unix.Errno(-int32(binary.NativeEndian.Uint32(answer[16:]))))
		}
		return nil
	})
	if err != nil {
		t.Fatal("make conntrack entries:", err)
	}
}

// present counts the entries of a family by protocol and destination.
func present(t *testing.T, ns *netns.NS, family nft.Family) map[string]int {
	t.Helper()
	counts := map[string]int{}
	err := ns.Do(func() error {
		inet := netlink.InetFamily(unix.AF_INET)
		if family == nft.IPv6 {
			inet = unix.AF_INET6
		}
		list, err := netlink.ConntrackTableList(netlink.ConntrackTable, inet)
		for _, f := range list {
			to, _ := netip.AddrFromSlice(f.Forward.DstIP)
			from, _ := netip.AddrFromSlice(f.Reverse.SrcIP)
			counts[fmt.Sprint(f.Forward.Protocol, " ", netip.AddrPortFrom(to.Unmap(), f.Forward.DstPort), " ", netip.AddrPortFrom(from.Unmap(), f.Reverse.SrcPort))]++
		}
		return err
	})
	if err != nil {
		t.Fatal("list conntrack entries:", err)
	}
	return counts
}

func (e entry) String() string { return fmt.Sprint(e.protocol, " ", e.dst, " ", e.answers) }

// host gives a namespace whose flows are tracked and can be translated.
func host(t *testing.T) *netns.NS {
	t.Helper()
	ns := netns.New(t, "node")
	ns.Run(t, "nft", `add table inet nat; add chain inet nat out { type nat hook output priority -100; }`)
	return ns
}

// run runs a cleaner in a namespace to the end of the test, and gives its passes.
func run(t *testing.T, ns *netns.NS, cfg Config) (*Cleaner, <-chan Pass) {
	t.Helper()
	passes := make(chan Pass, 100)
	cfg.Passed, cfg.Log = func(p Pass) { passes <- p }, logr.Discard()
	c := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- ns.Do(func() error {
			c.Run(ctx)
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c, passes
}

// next gives a pass that went well.
func next(t *testing.T, passes <-chan Pass) Pass {
	t.Helper()
	select {
	case p := <-passes:
		if p.Err != nil {
			t.Fatal(p.Err)
		}
		return p
	case <-time.After(30 * time.Second):
		t.Fatal("no pass within 30s")
		return Pass{}
	}
}

func families() map[nft.Family][]netip.Addr {
	parse := netip.MustParseAddr
	return map[nft.Family][]netip.Addr{
		nft.IPv4: {parse("198.51.100.1"), vip, node, elsewhere, endpointA.Addr(), endpointB.Addr()},
		nft.IPv6: {parse("2001:db8::1"), parse("fd00:96::1"), parse("2001:db8:1::1"), parse("2001:db8:1::9"), parse("fd00:10::1"), parse("fd00:10::2")},
	}
}

// Of all flows in the kernel, just those go that are stale, in each zone; and those of the
// other family stay.
func TestStaleFlowsGoFromTheKernel(t *testing.T) {
	for family, at := range families() {
		t.Run(family.String(), func(t *testing.T) {
			client, vip, node, elsewhere, a, b := at[0], at[1], at[2], at[3], at[4], at[5]
			port := netip.AddrPortFrom
			flow := func(protocol uint8, dst, answers netip.AddrPort) entry {
				return entry{protocol: protocol, src: port(client, 40000), dst: dst, answers: answers}
			}
			zoned := flow(udp, port(vip, 53), port(b, 8080))
			zoned.zone, zoned.src = 7, port(client, 40001)
			gone := []entry{
				flow(udp, port(vip, 53), port(b, 8080)), zoned,
				flow(sctp, port(vip, 99), port(b, 8080)),
				flow(udp, port(node, 30053), port(b, 8080)),
				flow(tcp, port(vip, 80), port(vip, 80)),
				flow(udp, port(vip, 54), port(vip, 54)),
				flow(tcp, port(node, 30080), port(node, 30080)),
				flow(udp, port(vip, 55), port(a, 8080)),
			}
			stay := []entry{
				{protocol: tcp, src: port(client, 40003), dst: port(vip, 80), answers: port(b, 8080), silent: true},
				{protocol: udp, src: port(client, 40002), dst: port(vip, 53), answers: port(a, 8080)},
				{protocol: tcp, src: port(client, 40002), dst: port(vip, 80), answers: port(b, 8080)},
				flow(udp, port(vip, 530), port(b, 8080)),
				flow(udp, port(elsewhere, 30053), port(b, 8080)),
				flow(tcp, port(elsewhere, 30080), port(elsewhere, 30080)),
				flow(udp, port(elsewhere, 53), port(elsewhere, 53)),
			}
			ns := host(t)
			create(t, ns, slices.Concat(gone, stay))
			for other := range families() {
				if other != family {
					o := families()[other]
					create(t, ns, []entry{{protocol: udp, src: port(o[0], 40000), dst: port(o[1], 53), answers: port(o[5], 8080)}})
				}
			}
			c, passes := run(t, ns, Config{Family: family})
			c.SetNodePortAddrs([]netip.Addr{node})
			for f, facts := range map[nft.Frontend]Facts{
				{Addr: vip, Protocol: udp, Port: 53}:  {Owned: true, Keep: []netip.AddrPort{port(a, 8080)}},
				{Addr: vip, Protocol: udp, Port: 54}:  {Owned: true, New: true},
				{Addr: vip, Protocol: udp, Port: 55}:  {},
				{Addr: vip, Protocol: sctp, Port: 99}: {Owned: true},
				{Addr: vip, Protocol: tcp, Port: 80}:  {Owned: true, New: true},
				{Protocol: udp, Port: 30053}:          {Owned: true},
				{Protocol: tcp, Port: 30080}:          {Owned: true, New: true},
			} {
				c.Expect(f, facts)
			}
			c.Written()
			first, second := next(t, passes), next(t, passes)
			if first.Untranslated != 3 || first.Stale != 5 || first.Read != 15 || first.Listings != 1 || first.Took <= 0 {
				t.Errorf("first pass: got %+v; want 3 untranslated and 5 stale of 15 read in 1 listing", first)
			}
			if second.Deleted() != 0 || second.Read != len(stay) {
				t.Errorf("second pass: got %+v", second)
			}
			want := map[string]int{}
			for _, e := range stay {
				want[e.String()]++
			}
			if diff := cmp.Diff(want, present(t, ns, family)); diff != "" {
				t.Errorf("entries left (-want +got): %s", diff)
			}
			for other := range families() {
				if other != family && len(present(t, ns, other)) != 1 {
					t.Errorf("%s: got %v, want its one entry", other, present(t, ns, other))
				}
			}
		})
	}
}

// Where only untranslated flows are looked for, the kernel is not asked for others.
func TestTranslatedFlowsAreNotAskedForInVain(t *testing.T) {
	ns := host(t)
	dst := netip.AddrPortFrom(vip, 80)
	client := netip.MustParseAddr("198.51.100.1")
	create(t, ns, []entry{
		{protocol: tcp, src: netip.AddrPortFrom(client, 1), dst: dst, answers: dst},
		{protocol: tcp, src: netip.AddrPortFrom(client, 2), dst: dst, answers: endpointA},
	})
	c, passes := run(t, ns, Config{Family: nft.IPv4})
	c.Expect(nft.Frontend{Addr: vip, Protocol: tcp, Port: 80}, Facts{Owned: true, New: true})
	c.Written()
	p := next(t, passes)
	if p.Untranslated != 1 || p.Stale != 0 || p.Read != 1 {
		t.Errorf("got %+v, want 1 deleted of 1 read (kernels from 5.17 on)", p)
	}
}

// Of TCP flows to an endpoint that has left those go that nobody has answered, and others are
// not read.
func TestUnansweredFlowsGoFromTheKernel(t *testing.T) {
	for family, at := range families() {
		t.Run(family.String(), func(t *testing.T) {
			client, vip, a, b := at[0], at[1], at[4], at[5]
			flow := func(from uint16, to netip.Addr, silent bool) entry {
				return entry{protocol: tcp, src: netip.AddrPortFrom(client, from), dst: netip.AddrPortFrom(vip, 80), answers: netip.AddrPortFrom(to, 8080), silent: silent}
			}
			ns := host(t)
			create(t, ns, []entry{flow(1, a, true), flow(2, a, false), flow(3, b, true), flow(4, b, false)})
			c, passes := run(t, ns, Config{Family: family, Unanswered: true})
			c.Expect(nft.Frontend{Addr: vip, Protocol: tcp, Port: 80}, Facts{Owned: true, Keep: []netip.AddrPort{netip.AddrPortFrom(a, 8080)}})
			c.Written()
			if p := next(t, passes); p.Deleted() != 0 || p.Read != 2 {
				t.Errorf("first pass: got %+v, want 2 read (kernels from 5.17 on)", p)
			}
			if p := next(t, passes); p.Stale != 1 || p.Untranslated != 0 || p.Read != 2 {
				t.Errorf("second pass: got %+v, want 1 deleted of 2 read", p)
			}
			want := map[string]int{flow(0, a, false).String(): 2, flow(0, b, false).String(): 1}
			if diff := cmp.Diff(want, present(t, ns, family)); diff != "" {
				t.Errorf("entries left (-want +got): %s", diff)
			}
		})
	}
}

// An entry that ends between listing and deletion is no error, and one that began since in
// its place stays.
func TestAnEntryThatIsGoneIsNoError(t *testing.T) {
	e := entry{protocol: udp, src: netip.MustParseAddrPort("198.51.100.1:40000"), dst: netip.AddrPortFrom(vip, 53), answers: endpointB}
	for name, c := range map[string]struct {
		meanwhile func(flows.Flow) error
		left      int
	}{
		"it is gone":                  {func(flows.Flow) error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }, 0},
		"another one is in its place": {func(f flows.Flow) error { f.ID[0] ^= 1; return nil }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			ns := host(t)
			create(t, ns, []entry{e})
			var pass Pass
			err := ns.Do(func() (err error) {
				pass, err = sweep(t.Context(), nft.IPv4, flows.All, func(f flows.Flow) (bool, error) { return true, c.meanwhile(f) })
				return err
			})
			if got := present(t, ns, nft.IPv4)[e.String()]; err != nil || pass.Read != 1 || pass.Deleted() != 0 || got != c.left {
				t.Errorf("got %+v (%v) and %d entries left; want 1 read, none deleted, %d left", pass, err, got, c.left)
			}
		})
	}
}

// A pass ends with the daemon, in the midst of a listing.
func TestAPassEndsWithItsContext(t *testing.T) {
	ns := host(t)
	create(t, ns, many(1000))
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	err := ns.Do(func() error {
		_, err := sweep(ctx, nft.IPv4, flows.All, func(flows.Flow) (bool, error) { seen++; cancel(); return false, nil })
		return err
	})
	if seen != 1 || !errors.Is(err, context.Canceled) {
		t.Errorf("saw %d entries, error %v", seen, err)
	}
}

// many gives UDP flows from as many clients to endpoint B, each tenth of them to the VIP.
func many(n int) []entry {
	list := make([]entry, n)
	for i := range list {
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}), uint16(1024+i>>16))
		dst := netip.AddrPortFrom(elsewhere, 53)
		if i%10 == 0 {
			dst = netip.AddrPortFrom(vip, 53)
		}
		list[i] = entry{protocol: udp, src: src, dst: dst, answers: endpointB}
	}
	return list
}

// R20: the table is read once a pass, however many frontends it is for, and never held.
func TestR20ALargeTableIsReadOnceAndNeverHeld(t *testing.T) {
	const frontends, growth = 10_000, 1 << 20
	ns := host(t)
	size := min(120, room(t, ns)*4/5/1000) * 1000
	create(t, ns, many(size))
	var got Pass
	c := New(Config{Family: nft.IPv4, Passed: func(p Pass) { got = p }, Log: logr.Discard()})
	for i := range frontends {
		c.Expect(nft.Frontend{Addr: vip, Protocol: udp, Port: uint16(i)}, Facts{Owned: true, New: true, Keep: []netip.AddrPort{endpointA}})
	}
	c.Written()
	marked := c.take()
	before, most, seen := heap(), uint64(0), 0
	pass := c.pass
	c.pass = func(ctx context.Context, which flows.Which, stale func(flows.Flow) (bool, error)) (Pass, error) {
		return pass(ctx, which, func(f flows.Flow) (bool, error) {
			if seen++; seen%(size/10) == 0 {
				most = max(most, heap())
			}
			return stale(f)
		})
	}
	if err := ns.Do(func() error { c.round(t.Context(), marked, nil); return nil }); err != nil {
		t.Fatal(err)
	}
	if got.Listings != 1 || got.Read != size || got.Stale != size/10 {
		t.Errorf("got %+v; want %d of %d entries deleted in 1 listing", got, size/10, size)
	}
	if most == 0 || most > before+growth {
		t.Errorf("the heap grew from %d to %d bytes while %d entries were read, more than by %d", before, most, size, growth)
	}
	t.Logf("%d entries, %d of them deleted: %v, heap %d to %d bytes", size, got.Stale, got.Took, before, most)
}

// room gives how many entries the kernel allows.
func room(t *testing.T, ns *netns.NS) int {
	t.Helper()
	text := strings.TrimSpace(ns.Run(t, "cat", "/proc/sys/net/netfilter/nf_conntrack_max"))
	n, err := strconv.Atoi(text)
	if err != nil || n < 20_000 {
		t.Fatalf("nf_conntrack_max is %q: too little to measure anything by", text)
	}
	return n
}

// heap gives the live bytes.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
