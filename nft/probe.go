package nft

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// Minima: reject in prerouting and the conntrack interface that we use are in 5.13,
// as upstream demands; nft 1.0.2 refuses numgen in a concatenated key.
func minima() (kernel, nft [3]int) { return [3]int{5, 13, 0}, [3]int{1, 0, 6} }

// Probe says in one line what this machine lacks for our tables, or what is found.
func Probe(ctx context.Context) (Found, error) {
	var f Found
	minKernel, minNft := minima()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return f, fmt.Errorf("ask for the kernel's version: %w", err)
	}
	f.Kernel = unix.ByteSliceToString(name.Release[:])
	if err := atLeast("kernel", f.Kernel, minKernel); err != nil {
		return f, err
	}
	path, err := exec.LookPath("nft")
	if err != nil {
		return f, errors.New("no nft in PATH: install the package nftables, version " + dotted(minNft) + " or later")
	}
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err != nil {
		return f, fmt.Errorf("ask %s for its version: %w: %s", path, err, firstLine(string(out)))
	}
	f.Nft = strings.TrimPrefix(firstLine(string(out)), "nftables ")
	if err := atLeast("nft", f.Nft, minNft); err != nil {
		return f, err
	}
	if err := privileged(); err != nil {
		return f, err
	}
	f.explore(ctx)
	return f, nil
}

// explore tries what our tables are made of.
func (f *Found) explore(ctx context.Context) {
	f.Fib, f.Without = true, map[Family]error{}
	for _, family := range []Family{IPv4, IPv6} {
		t, err := newTrial(family)
		if err == nil {
			err = t.needed(ctx)
		}
		if err != nil {
			f.Without[family] = err
			continue
		}
		f.Fib = f.Fib && t.run(ctx, "fib saddr type local counter") == nil
	}
}

// Found is what Probe found.
type Found struct {
	Kernel, Nft string
	// Fib says that rules can ask which addresses are the node's own: see
	// Config.WithoutFib.
	Fib bool
	// Without are the families whose tables this machine cannot have, and what it lacks
	// for them.
	Without map[Family]error
}

// An expression is what a kernel may be built without, though it has nftables.
type expression struct{ name, rule string }

// expressions are what no table of ours does without.
func expressions(f Family) []expression {
	return []expression{
		{"numgen", "numgen random mod 2 0 counter"},
		{"ct", "ct state new counter"},
		{"dnat", fmt.Sprintf("meta l4proto tcp dnat to %s daddr map { %s : %s }", f, f.probeAddr(), f.probeAddr())},
		{"masquerade", "masquerade fully-random"},
		{"reject", "meta l4proto tcp reject with tcp reset"},
	}
}

func (f Family) probeAddr() string {
	if f == IPv6 {
		return "2001:db8::1"
	}
	return "192.0.2.1"
}

// A trial lets nft and the kernel look at tables of a family. Nothing is committed.
type trial struct {
	family Family
	nft    knftables.Interface
}

// newTrial tries an empty table.
func newTrial(f Family) (trial, error) {
	nft, err := knftables.New(knftables.Family(f.String()), "onerule-probe")
	if err != nil {
		return trial{}, fmt.Errorf("no nftables for %s: %w", f.word(), nftError{err})
	}
	return trial{f, nft}, nil
}

// needed says which part the tables lack. All are tried at once, and one by one only
// where that fails.
func (t trial) needed(ctx context.Context) error {
	var all []string
	for _, e := range expressions(t.family) {
		all = append(all, e.rule)
	}
	failed := t.run(ctx, all...)
	if failed == nil {
		return nil
	}
	if errors.Is(failed, errNotApart) { // of whatever it is asked
		return fmt.Errorf("try nftables for %s: %w", t.family.word(), failed)
	}
	var lacks []string
	for _, e := range expressions(t.family) {
		if t.run(ctx, e.rule) != nil {
			lacks = append(lacks, e.name)
		}
	}
	if len(lacks) == 0 {
		return fmt.Errorf("try nftables for %s: %w", t.family.word(), failed)
	}
	return fmt.Errorf("nftables for %s lack %s: a module of the kernel, or a newer nft, is needed", t.family.word(), strings.Join(lacks, ", "))
}

// run tries a table with rules, each in a chain where it may stand.
func (t trial) run(ctx context.Context, rules ...string) error {
	tx := t.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	for _, rule := range rules {
		chain := hooked(rule)
		tx.Add(&chain)
		tx.Add(&knftables.Rule{Chain: chain.Name, Rule: rule})
	}
	if err := checked(ctx, t.nft, tx); err != nil {
		return nftError{err}
	}
	return nil
}

func (f Family) word() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// hooked gives a chain that a rule may be in.
func hooked(rule string) knftables.Chain {
	c := knftables.Chain{Name: "filter", Type: new(knftables.FilterType), Hook: new(knftables.PreroutingHook), Priority: new(knftables.FilterPriority)}
	switch {
	case strings.HasPrefix(rule, "masquerade"):
		c.Name, c.Type, c.Hook, c.Priority = "source", new(knftables.NATType), new(knftables.PostroutingHook), new(knftables.SNATPriority)
	case strings.Contains(rule, "dnat"):
		c.Name, c.Type, c.Priority = "destination", new(knftables.NATType), new(knftables.DNATPriority)
	}
	return c
}

// privileged tries what needs CAP_NET_ADMIN and changes nothing.
func privileged() error {
	conn := nftables.Conn{}
	if _, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4); err != nil {
		if errors.Is(err, unix.EPERM) {
			return errors.New("not permitted to use nftables: root, or the capability NET_ADMIN, is needed")
		}
		return fmt.Errorf("list tables: %w", err)
	}
	return nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

func atLeast(what, version string, least [3]int) error {
	var v [3]int
	n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d.%d", &v[0], &v[1], &v[2])
	if n < 2 {
		return fmt.Errorf("cannot read the version of %s from %q", what, version)
	}
	for i := range v {
		if v[i] != least[i] {
			if v[i] < least[i] {
				return fmt.Errorf("%s %s is too old: %s or later is needed", what, version, dotted(least))
			}
			return nil
		}
	}
	return nil
}

func dotted(v [3]int) string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }
