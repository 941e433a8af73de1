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
	f.Fib, err = supports(ctx, "fib saddr type local counter")
	return f, err
}

// Found is what Probe found.
type Found struct {
	Kernel, Nft string
	// Fib says that rules can ask which addresses are the node's own: see
	// Config.WithoutFib.
	Fib bool
}

// supports says whether nft and the kernel take a rule. Nothing is committed.
func supports(ctx context.Context, rule string) (bool, error) {
	const table = "onerule-probe"
	nft, err := knftables.New(knftables.IPv4Family, table)
	if err != nil {
		return false, fmt.Errorf("prepare nft: %w", err)
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{Name: "probe"})
	if err := nft.Check(ctx, tx); err != nil {
		return false, fmt.Errorf("try nft: %w", nftError{err})
	}
	tx.Add(&knftables.Rule{Chain: "probe", Rule: rule})
	return nft.Check(ctx, tx) == nil, nil
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
