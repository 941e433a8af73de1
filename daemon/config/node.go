package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// NodeIPs are the addresses that a node is known by, one of each family.
type NodeIPs struct {
	Primary Family
	// V4 and V6 are loopback addresses where no other is known.
	V4, V6 netip.Addr
}

// Of gives the address of a family.
func (n NodeIPs) Of(f Family) netip.Addr {
	if f == IPv6 {
		return n.V6
	}
	return n.V4
}

// Known says whether the primary address is more than a guess.
func (n NodeIPs) Known() bool { return !n.Of(n.Primary).IsLoopback() }

// FindNodeIPs takes the first address of each family from those of the Node object:
// InternalIPs before ExternalIPs. The family of the first one is the primary one. A
// bind address that names one host comes before them; the zero value names none.
func FindNodeIPs(bind netip.Addr, addrs []netip.Addr) NodeIPs {
	n := NodeIPs{Primary: IPv4, V4: netip.AddrFrom4([4]byte{127, 0, 0, 1}), V6: netip.IPv6Loopback()}
	for _, a := range slices.Backward(addrs) {
		n.primary(a)
	}
	if bind.IsValid() && !bind.IsUnspecified() {
		n.primary(bind)
	}
	return n
}

func (n *NodeIPs) primary(a netip.Addr) {
	a = a.Unmap()
	if n.Primary = familyOf(a); n.Primary == IPv4 {
		n.V4 = a
		return
	}
	n.V6 = a
}

// Support says of each family why it can't be served; nil: it can.
type Support struct{ IPv4, IPv6 error }

// HostSupport looks in /proc, given as its path, for families that the host does not
// speak.
func HostSupport(proc string) Support {
	var s Support
	if _, err := os.Stat(filepath.Join(proc, "net/if_inet6")); errors.Is(err, fs.ErrNotExist) {
		s.IPv6 = errors.New("the kernel does not speak it")
		return s
	}
	disabled, err := os.ReadFile(filepath.Join(proc, "sys/net/ipv6/conf/all/disable_ipv6"))
	if err == nil && strings.TrimSpace(string(disabled)) == "1" {
		s.IPv6 = errors.New("net.ipv6.conf.all.disable_ipv6 is 1")
	}
	return s
}

func (s Support) of(f Family) error {
	if f == IPv6 {
		return s.IPv6
	}
	return s.IPv4
}

// Families gives the families to serve, the primary one first. Without the other
// one the daemon goes on: the lines say why it is left out.
func Families(primary Family, s Support) (families []Family, lines []string, err error) {
	if err := s.of(primary); err != nil {
		return nil, nil, fmt.Errorf("serve %s, the primary IP family: %w", primary, err)
	}
	if err := s.of(primary.other()); err != nil {
		return []Family{primary}, []string{fmt.Sprintf("%s is not served: %v", primary.other(), err)}, nil
	}
	return []Family{primary, primary.other()}, nil, nil
}

// CheckFamilies compares ranges and addresses with the families that are served, the
// primary one first. podCIDRs are those of the Node object. What can't be meant is an
// error, the rest are lines to be logged.
func (s Settings) CheckFamilies(families []Family, podCIDRs []netip.Prefix) (lines []string, err error) {
	primary, single := families[0], len(families) == 1
	wrong := primary.other()
	if only(wrong, s.ClusterCIDRs) {
		line := fmt.Sprintf("clusterCIDR has only %s ranges, and the primary IP family is %s", wrong, primary)
		if single {
			return nil, errors.New(line)
		}
		lines = append(lines, line)
	}
	if s.Detector.Mode == NodeCIDR && only(wrong, podCIDRs) {
		return nil, fmt.Errorf("spec.podCIDRs of node %s has only %s ranges, and the primary IP family is %s", s.Node, wrong, primary)
	}
	if s.Detector.Mode == ClusterCIDR && len(ofFamily(primary, s.ClusterCIDRs)) == 0 && !s.MasqueradeAll {
		lines = append(lines, fmt.Sprintf("no clusterCIDR (--cluster-cidr) of %s: nothing that goes to a ClusterIP of it is masqueraded", primary))
	}
	if single {
		lines = append(lines, wrongServers(wrong, map[string]string{"healthzBindAddress": s.Healthz, "metricsBindAddress": s.Metrics})...)
	}
	return lines, nil
}

func only(f Family, ranges []netip.Prefix) bool {
	return len(ranges) > 0 && len(ofFamily(f, ranges)) == len(ranges)
}

func wrongServers(wrong Family, servers map[string]string) []string {
	var lines []string
	for _, field := range []string{"healthzBindAddress", "metricsBindAddress"} {
		a, err := netip.ParseAddrPort(servers[field])
		if err == nil && familyOf(a.Addr()) == wrong && !a.Addr().IsUnspecified() {
			lines = append(lines, fmt.Sprintf("%s is %s, and %s is not served", field, a, wrong))
		}
	}
	return lines
}

// SetOOMScore tells the kernel how gladly to end this process when memory is short;
// file is /proc/self/oom_score_adj.
func SetOOMScore(file string, score int) error {
	if err := os.WriteFile(file, fmt.Appendln(nil, score), 0o644); err != nil {
		return fmt.Errorf("set the OOM score to %d: %w", score, err)
	}
	return nil
}
