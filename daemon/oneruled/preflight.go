package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"onerule/bpf"
	"onerule/daemon/oneruled/cli"
	"onerule/install"
	"onerule/nft"
	"onerule/nft/takeover"
)

// look says what this node has and lacks.
func (i *installation) look(ctx context.Context, w io.Writer, asJSON bool) error {
	m := install.Machine{Proc: "/proc", Sysctls: i.sysctlDir, Places: i.places, Plugin: i.plugin, Now: time.Now, Synchronized: install.KernelSynchronized}
	r := slices.Concat(rules(ctx), m.Look(ctx))
	show := r.WriteText
	if asJSON {
		show = r.WriteJSON
	}
	if err := show(w); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if r.Failed() > 0 {
		return cli.SomethingFound()
	}
	return nil
}

// rules says what the kernel has of what the daemon's rules and programs need.
func rules(ctx context.Context) install.Report {
	r := nftables(ctx)
	c, err := bpf.Open(bpf.Options{Size: 1, Log: logr.Discard()})
	switch {
	case errors.Is(err, unix.EBUSY): // two programs can't be at one place
		r = append(r, install.Check{Name: "BPF", Verdict: install.OK, Found: "connections are counted already"})
	case err != nil:
		r = append(r, install.Check{Name: "BPF", Verdict: install.Warn, Found: err.Error(), Remedy: "nothing has to be done: connections of endpoints are not counted then"})
	default:
		r = append(r, install.Check{Name: "BPF", Verdict: install.OK, Found: "connections can be counted, by " + c.Mode()})
		_ = c.Close() // it was only to see whether it can be
	}
	left, err := takeover.Find(ctx)
	switch {
	case err != nil:
		r = append(r, install.Check{Name: "kube-proxy", Verdict: install.Warn, Found: err.Error()})
	case left.Empty():
		r = append(r, install.Check{Name: "kube-proxy", Verdict: install.OK, Found: "it has left nothing"})
	default:
		r = append(r, install.Check{Name: "kube-proxy", Verdict: install.Warn, Found: left.String(), Remedy: "leave it there: oneruled takes over from it when it has loaded its own"})
	}
	return r
}

func nftables(ctx context.Context) install.Report {
	const remedy = "install nftables 1.0.6 or later, and run as root with CAP_NET_ADMIN"
	found, err := nft.Probe(ctx)
	if err != nil {
		return install.Report{{Name: "nft", Verdict: install.Fail, Found: err.Error(), Remedy: remedy}}
	}
	r := install.Report{{Name: "nft", Verdict: install.OK, Found: found.Nft}}
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
		c := install.Check{Name: "tables " + family.String(), Verdict: install.OK, Found: "they can be loaded"}
		if why := found.Without[family]; why != nil {
			c.Verdict, c.Found, c.Remedy = install.Warn, why.Error(), "Services of the other family are served all the same"
			if len(found.Without) == 2 {
				c.Verdict, c.Remedy = install.Fail, "load the kernel's modules of nftables, or take a kernel that has them"
			}
		}
		r = append(r, c)
	}
	if !found.Fib {
		r = append(r, install.Check{Name: "fib", Verdict: install.Warn, Found: withoutFib, Remedy: "the kernel's module nft_fib_inet is better"})
	}
	return r
}
