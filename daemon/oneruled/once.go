package main

import (
	"context"
	"errors"
	"fmt"

	"onerule/bpf"
	"onerule/daemon/fabric"
	"onerule/nft"
	"onerule/nft/guard"
	"onerule/nft/hostport"
	"onerule/nft/takeover"
)

// initialize looks whether the node can be served, and does what takes more privilege
// than the daemon needs afterwards.
func initialize(ctx context.Context, j job) error {
	found, err := nft.Probe(ctx)
	if err != nil {
		return err
	}
	j.without = found.Without
	families, err := j.families()
	if err != nil {
		return err
	}
	if err := newTuning(j.SysctlDir, j.log).once(j.Conntrack); err != nil {
		return err
	}
	if !found.Fib {
		j.log.Info(withoutFib)
	}
	j.log.Info("this node can be served", "kernel", found.Kernel, "nft", found.Nft, "families", fmt.Sprint(families))
	return nil
}

// cleanup removes our tables, the routes between nodes, the counters, and what a kube-proxy
// has left. What is not there is no error.
func cleanup(ctx context.Context, j job) error {
	errs := []error{removeOurs(j.pins())}
	found, err := takeover.Find(ctx)
	errs = append(errs, err)
	if !found.Empty() {
		j.log.Info("removing the rules of kube-proxy", "found", found.String())
		errs = append(errs, takeover.Remove(ctx, found))
	}
	return errors.Join(errs...)
}

// removeOurs removes our tables, the routes between nodes and the counters pinned in a
// directory.
func removeOurs(pins string) error {
	var errs []error
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
		errs = append(errs, nft.DeleteTable(family), removeGuard(family))
	}
	return errors.Join(append(errs, hostport.Remove(), fabric.Remove(), bpf.Remove(pins))...)
}

func removeGuard(family nft.Family) error {
	g, err := guard.Open(family)
	if err != nil {
		return err
	}
	return errors.Join(g.Remove(), g.Close())
}
