// Package takeover finds and removes what kube-proxy, in any of its modes, has left on
// the node or still writes: its nftables tables, its chains among those of iptables and
// the jumps to them, its sets of ipset, its virtual servers of IPVS and their device.
// Connections that it had translated stay open: their translation stands in conntrack.
package takeover

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Leftovers are what of kube-proxy's is there, as much as a person wants to know:
// Remove reads anew what it removes.
type Leftovers struct {
	// Tables are the tables of nftables mode, "ip kube-proxy" before "ip6 kube-proxy".
	Tables []Table
	// Chains are the tables of iptables that hold chains of iptables or IPVS mode.
	Chains []Chains
	// Sets are names of ipset's, sorted.
	Sets []string
	// Device says that kube-ipvs0 is there, which has the addresses of Services in IPVS
	// mode.
	Device bool
	// VirtualServers is how many IPVS has. They are kube-proxy's where its device, a set
	// or a chain of its IPVS mode is there, and left alone otherwise.
	VirtualServers int
}

// A Table is a table of nftables mode.
type Table struct {
	Family Family
	Chains int // how many it has
}

// Chains says how many chains of kube-proxy's a table of iptables holds.
type Chains struct {
	Family Family
	Table  string // nat, filter, mangle or raw
	Legacy bool   // of iptables-legacy, else of iptables-nft
	Chains int
	Jumps  int // from the chains of iptables to these

	ipvs bool // some are only of IPVS mode
}

// A Family is ip or ip6, as nft calls them.
type Family string

// The families.
const (
	IPv4 Family = "ip"
	IPv6 Family = "ip6"
)

func families() []Family { return []Family{IPv4, IPv6} }

// Empty says that nothing is there.
func (l Leftovers) Empty() bool {
	return len(l.Tables) == 0 && len(l.Chains) == 0 && len(l.Sets) == 0 && !l.Device && l.VirtualServers == 0
}

// Modes names the modes of kube-proxy that leave such things: nftables, iptables, ipvs.
func (l Leftovers) Modes() []string {
	var modes []string
	if len(l.Tables) > 0 {
		modes = append(modes, "nftables")
	}
	ipvs := l.Device || len(l.Sets) > 0 || l.VirtualServers > 0
	for _, c := range l.Chains {
		ipvs = ipvs || c.ipvs
	}
	switch {
	case ipvs: // its chains are those of iptables mode, and some more
		modes = append(modes, "ipvs")
	case len(l.Chains) > 0:
		modes = append(modes, "iptables")
	}
	return modes
}

// String describes them in one line, such as "kube-proxy in nftables mode: table ip
// kube-proxy (23 chains)".
func (l Leftovers) String() string {
	if l.Empty() {
		return "nothing of kube-proxy"
	}
	var parts []string
	for _, t := range l.Tables {
		parts = append(parts, fmt.Sprintf("table %s %s (%s)", t.Family, proxyTable, counted(t.Chains, "chain")))
	}
	for _, c := range l.Chains {
		parts = append(parts, fmt.Sprintf("%s and %s to them in %s", counted(c.Chains, "chain"), counted(c.Jumps, "jump"), c.place()))
	}
	if len(l.Sets) > 0 {
		parts = append(parts, fmt.Sprintf("%s of ipset", counted(len(l.Sets), "set")))
	}
	if l.VirtualServers > 0 {
		parts = append(parts, fmt.Sprintf("%s of IPVS", counted(l.VirtualServers, "virtual server")))
	}
	if l.Device {
		parts = append(parts, "device "+ipvsDevice)
	}
	return fmt.Sprintf("kube-proxy in %s mode: %s", strings.Join(l.Modes(), " and "), strings.Join(parts, ", "))
}

// place names the table as its tool does.
func (c Chains) place() string {
	tool := "iptables-nft"
	if c.Legacy {
		tool = "iptables-legacy"
	}
	return fmt.Sprintf("table %s %s of %s", c.Family, c.Table, tool)
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Find looks for what is there, in the network namespace of the calling thread. It
// starts no process and loads no kernel module; what is not there costs a few requests
// to the kernel. With an error what it gives is what it did find.
func Find(ctx context.Context) (Leftovers, error) {
	var l Leftovers
	var errs []error
	for _, look := range []func(context.Context, *Leftovers) error{findByNetlink, findLegacy, findSets, findIPVS} {
		if err := ctx.Err(); err != nil {
			return l, errors.Join(append(errs, err)...)
		}
		if err := look(ctx, &l); err != nil {
			errs = append(errs, fmt.Errorf("look for what kube-proxy left: %w", err))
		}
	}
	return l, errors.Join(errs...)
}

// Remove removes what was found, and goes on after a step that failed: the error names
// each of them. What is gone meanwhile is no error. Frontends must be in the caller's
// own tables before. Connections of IPVS mode end, since IPVS itself translates their
// packets.
func Remove(ctx context.Context, l Leftovers) error {
	var errs []error
	step := func(f func() error) {
		if err := ctx.Err(); err == nil {
			errs = append(errs, f())
		}
	}
	for _, c := range l.Chains {
		step(func() error { return removeChains(ctx, c) })
	}
	if l.VirtualServers > 0 {
		step(flushVirtualServers)
	}
	if l.Device {
		step(removeDevice)
	}
	// Rules that match sets hold them, so they come after the chains.
	for _, name := range l.Sets {
		step(func() error { return destroySet(name) })
	}
	for _, t := range l.Tables {
		step(func() error { return deleteTable(t.Family) })
	}
	return errors.Join(append(errs, ctx.Err())...)
}

func removeChains(ctx context.Context, c Chains) error {
	remove := removeByNetlink
	if c.Legacy {
		remove = removeLegacy
	}
	if err := remove(ctx, c.Family, c.Table); err != nil {
		return fmt.Errorf("remove chains of kube-proxy from %s: %w", c.place(), err)
	}
	return nil
}
