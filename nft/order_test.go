package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/test/netns"
)

// A pod that reaches itself is masqueraded from the first connection on to the last one:
// no transaction leaves a frontend with an endpoint on this node whose hairpin is not
// there, however many transactions it takes and whatever the addresses are.
func TestHairpinsAreThereForAsLongAsTheirFrontends(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		for name, service := range map[string]func(n int) netip.Addr{
			"services sort before pods": func(n int) netip.Addr { return vip(family, n) },
			"services sort behind pods": func(n int) netip.Addr { return endpoint(family, 500_000+n).Addr() },
		} {
			t.Run(name, func(t *testing.T) {
				ns := netns.New(t, "node")
				here, elsewhere := bigWorld(family, service, 0), bigWorld(family, service, 100_000)
				for i := range 100 {
					here.Addrs[nft.Hairpins][endpoint(family, 100*i).Addr()] = true
				}
				keys := nft.NewKeys()
				for f := range here.Routes[nft.ServiceIPs] {
					keys.Frontends[f] = true
				}
				for a := range here.Addrs[nft.Hairpins] {
					keys.Addrs[a] = true
				}
				r := newReplay(t, ns, here)
				p := program(t, ns, config(family))
				load(t, ns, p, copyOf(here))
				r.judge("a first load", 100)
				update(t, ns, p, keys, copyOf(elsewhere))
				r.judge("an update to endpoints elsewhere", 0)
				update(t, ns, p, keys, copyOf(here))
				r.judge("an update to endpoints here", 100)
				load(t, ns, p, copyOf(elsewhere))
				r.judge("a load of endpoints elsewhere", 0)
				load(t, ns, p, copyOf(here))
				r.judge("a load of endpoints here", 100)
			})
		}
	})
}

// An endpoint on this node that comes or goes with its hairpin is one transaction.
func TestOneEndpointHereIsOneTransaction(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		p, want := program(t, ns, config(family)), world(family, 3, 3)
		load(t, ns, p, copyOf(want))
		keys := frontends(web(family, 1))
		was, now := endpoint(family, 3), endpoint(family, 99)
		keys.Addrs[was.Addr()], keys.Addrs[now.Addr()] = true, true
		balance(want, web(family, 1), append(endpoints(family, 4, 2), now))
		want.Addrs[nft.Hairpins][now.Addr()] = true
		if got, want := update(t, ns, p, keys, copyOf(want)), (nft.Operations{Transactions: 1, Added: 2, Deleted: 1}); got != want {
			t.Errorf("one that comes: got %+v, want %+v", got, want)
		}
		balance(want, web(family, 1), append(endpoints(family, 4, 2), was))
		delete(want.Addrs[nft.Hairpins], now.Addr())
		if got, want := update(t, ns, p, keys, copyOf(want)), (nft.Operations{Transactions: 1, Added: 1, Deleted: 2}); got != want {
			t.Errorf("one that goes: got %+v, want %+v", got, want)
		}
	})
}

// bigWorld gives a state of more elements than a transaction takes.
func bigWorld(family nft.Family, service func(n int) netip.Addr, first int) nft.State {
	s := nft.NewState()
	for i := range 1000 {
		f := nft.Frontend{Addr: service(i), Protocol: 6, Port: 80}
		s.Addrs[nft.ClusterIPs][f.Addr] = true
		balance(s, f, endpoints(family, first+10*i, 10))
	}
	return s
}

// A replay follows the transactions of a namespace, as the kernel tells them.
type replay struct {
	t       *testing.T
	fd      int
	here    nft.State                      // says which endpoints are on this node
	leading map[netip.Addr]map[string]bool // to these: the elements, by key
	held    map[string]netip.Addr          // the same by key
	hairpin map[netip.Addr]bool
	commits int // with elements of these
	bad     int
}

func newReplay(t *testing.T, ns *netns.NS, here nft.State) *replay {
	t.Helper()
	r := &replay{t: t, here: here, leading: map[netip.Addr]map[string]bool{}, held: map[string]netip.Addr{}, hairpin: map[netip.Addr]bool{}}
	do(t, ns, func() (err error) {
		if r.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 128<<20),
			unix.Bind(r.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)}))
	})
	t.Cleanup(func() { _ = unix.Close(r.fd) })
	return r
}

// judge reads what there is: a commit tells of itself before it returns.
func (r *replay) judge(what string, hairpins int) {
	r.t.Helper()
	r.commits, r.bad = 0, 0
	b := make([]byte, 1<<20)
	for {
		n, _, err := unix.Recvfrom(r.fd, b, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			r.t.Fatal(err)
		}
		messages, err := syscall.ParseNetlinkMessage(b[:n])
		if err != nil {
			r.t.Fatal(err)
		}
		for _, m := range messages {
			r.message(m)
		}
	}
	if r.bad > 0 {
		r.t.Errorf("%s: after %d of its %d commits a frontend leads to an endpoint whose hairpin is not there", what, r.bad, r.commits)
	}
	if len(r.hairpin) != hairpins || r.commits < 3 {
		r.t.Errorf("%s: got %d hairpins in %d commits, want %d in at least 3", what, len(r.hairpin), r.commits, hairpins)
	}
}

func (r *replay) message(m syscall.NetlinkMessage) {
	switch m.Header.Type &^ (unix.NFNL_SUBSYS_NFTABLES << 8) {
	case unix.NFT_MSG_NEWSETELEM:
		r.element(m.Data[4:], true)
	case unix.NFT_MSG_DELSETELEM:
		r.element(m.Data[4:], false)
	case unix.NFT_MSG_NEWGEN: // the last one of a commit
		r.commits++
		for addr, elements := range r.leading {
			if len(elements) > 0 && !r.hairpin[addr] {
				r.bad++
				return
			}
		}
	}
}

func (r *replay) element(attrs []byte, added bool) {
	set, key, value := parseElement(r.t, attrs)
	switch {
	case set == string(nft.Hairpins):
		r.has(r.hairpin, key[:len(key)/2], added)
	case strings.HasPrefix(set, string(nft.Endpoints)):
		id := fmt.Sprintf("%x", key)
		if addr, ok := r.held[id]; ok && !added {
			delete(r.leading[addr], id)
			delete(r.held, id)
		}
		if !added {
			return
		}
		addr, _ := netip.AddrFromSlice(value[:len(key)-8])
		if r.here.Addrs[nft.Hairpins][addr] {
			if r.leading[addr] == nil {
				r.leading[addr] = map[string]bool{}
			}
			r.leading[addr][id], r.held[id] = true, addr
		}
	}
}

func (r *replay) has(set map[netip.Addr]bool, addr []byte, added bool) {
	a, ok := netip.AddrFromSlice(addr)
	if !ok {
		r.t.Fatalf("%x is no address", addr)
	}
	delete(set, a)
	if added {
		set[a] = true
	}
}

// parseElement reads a message about one element.
func parseElement(t *testing.T, attrs []byte) (set string, key, value []byte) {
	t.Helper()
	inner := func(into *[]byte) func(*netlink.AttributeDecoder) error {
		return func(d *netlink.AttributeDecoder) error {
			for d.Next() {
				if d.Type() == unix.NFTA_DATA_VALUE {
					*into = d.Bytes()
				}
			}
			return nil
		}
	}
	element := func(d *netlink.AttributeDecoder) error {
		for d.Next() {
			switch d.Type() {
			case unix.NFTA_SET_ELEM_KEY:
				d.Nested(inner(&key))
			case unix.NFTA_SET_ELEM_DATA:
				d.Nested(inner(&value))
			}
		}
		return nil
	}
	d, err := netlink.NewAttributeDecoder(attrs)
	for err == nil && d.Next() {
		switch d.Type() {
		case unix.NFTA_SET_ELEM_LIST_SET:
			set = d.String()
		case unix.NFTA_SET_ELEM_LIST_ELEMENTS:
			d.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(element)
				}
				return nil
			})
		}
	}
	if err == nil {
		err = d.Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	return set, key, value
}
