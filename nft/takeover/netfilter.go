package takeover

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

const (
	// messagesPerTransaction bounds a transaction: the kernel holds a lock for all of
	// it. Nothing leads to kube-proxy's chains when more than one is needed.
	messagesPerTransaction = 5_000
	// socketBuffer is what that many messages and their acknowledgements need.
	socketBuffer = 32 << 20
	// tries bounds how often something is done again that another program came between.
	tries = 5
)

func (f Family) number() nftables.TableFamily {
	if f == IPv6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// findByNetlink finds kube-proxy's own tables, and its chains in those of iptables-nft.
func findByNetlink(_ context.Context, l *Leftovers) error {
	c, err := openReader()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	for _, family := range families() {
		if err := findFamily(c, family, l); err != nil {
			return fmt.Errorf("family %s: %w", family, err)
		}
	}
	return nil
}

func findFamily(c reader, family Family, l *Leftovers) error {
	tables, err := c.tables(family)
	if err != nil {
		return err
	}
	known := append(iptablesTables(), proxyTable)
	if !slices.ContainsFunc(tables, func(t string) bool { return slices.Contains(known, t) }) {
		return nil
	}
	chains, err := c.chains(family)
	if err != nil {
		return err
	}
	if slices.Contains(tables, proxyTable) {
		l.Tables = append(l.Tables, Table{Family: family, Chains: len(chains[proxyTable])})
	}
	for _, name := range iptablesTables() {
		t, err := c.table(family, name, chains[name])
		if err != nil {
			return err
		}
		if r := t.removal(); !r.empty() {
			l.Chains = append(l.Chains, r.found(family, name, false))
		}
	}
	return nil
}

// deleteTable deletes a table of nftables mode.
func deleteTable(family Family) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open netlink socket for nftables: %w", err)
	}
	conn.DelTable(&nftables.Table{Name: proxyTable, Family: family.number()})
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete table %s %s: %w", family, proxyTable, dump.First(err))
	}
	return nil
}

// removeByNetlink removes kube-proxy's chains from a table of iptables-nft. A program
// that writes the table meanwhile makes a transaction fail, which is tried again with
// what is there then.
func removeByNetlink(ctx context.Context, family Family, name string) error {
	c, err := openReader()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	var last error
	for range tries {
		chains, err := c.chains(family)
		if err != nil {
			return err
		}
		t, err := c.table(family, name, chains[name])
		if err != nil {
			return err
		}
		r := t.removal()
		if r.empty() {
			return nil
		}
		if last = write(ctx, family, name, r); last == nil {
			return nil
		}
	}
	return last
}

// write does a removal: jumps and rules first, then the chains that they held. Small
// ones are one transaction.
func write(ctx context.Context, family Family, name string, r removal) error {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(socketBuffer), c.SetReadBuffer(socketBuffer))
	}))
	if err != nil {
		return fmt.Errorf("open netlink socket for nftables: %w", err)
	}
	defer func() { _ = conn.CloseLasting() }()
	kernel := &nftables.Table{Name: name, Family: family.number()}
	for _, j := range r.jumps {
		if err := conn.DelRule(&nftables.Rule{Table: kernel, Chain: &nftables.Chain{Name: j.chain, Table: kernel}, Handle: j.handle}); err != nil {
			return fmt.Errorf("encode jump to %s: %w", j.target, err)
		}
	}
	written := len(r.jumps)
	each := func(names []string, do func(*nftables.Chain)) error {
		for _, chain := range names {
			if written++; written%messagesPerTransaction == 0 {
				if err := errors.Join(ctx.Err(), dump.First(conn.Flush())); err != nil {
					return err
				}
			}
			do(&nftables.Chain{Name: chain, Table: kernel})
		}
		return nil
	}
	if err := each(slices.Concat(r.flush, r.delete), conn.FlushChain); err != nil {
		return err
	}
	if err := each(r.delete, conn.DelChain); err != nil {
		return err
	}
	return dump.First(conn.Flush())
}
