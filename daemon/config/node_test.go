package config

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func ranges(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// A14.14
func TestNodeIPs(t *testing.T) {
	for name, c := range map[string]struct {
		bind, addrs string
		want        string
		known       bool
	}{
		"unknown":                     {"", "", "IPv4 127.0.0.1 ::1", false},
		"one":                         {"", "192.0.2.1", "IPv4 192.0.2.1 ::1", true},
		"IPv6 first":                  {"", "fd00::1 192.0.2.1", "IPv6 192.0.2.1 fd00::1", true},
		"the first of each family":    {"", "192.0.2.1 192.0.2.2 fd00::1 fd00::2", "IPv4 192.0.2.1 fd00::1", true},
		"bound":                       {"192.0.2.9", "192.0.2.1 fd00::1", "IPv4 192.0.2.9 fd00::1", true},
		"bound to the other family":   {"fd00::9", "192.0.2.1 fd00::1", "IPv6 192.0.2.1 fd00::9", true},
		"bound to all":                {"0.0.0.0", "fd00::1", "IPv6 127.0.0.1 fd00::1", true},
		"bound, and nothing is known": {"fd00::9", "", "IPv6 127.0.0.1 fd00::9", true},
		"bound to loopback":           {"127.0.0.1", "fd00::1", "IPv4 127.0.0.1 fd00::1", false},
	} {
		t.Run(name, func(t *testing.T) {
			var bind netip.Addr
			if c.bind != "" {
				bind = netip.MustParseAddr(c.bind)
			}
			n := FindNodeIPs(bind, addrs(strings.Fields(c.addrs)...))
			if got := fmt.Sprint(n.Primary, " ", n.V4, " ", n.V6); got != c.want || n.Known() != c.known {
				t.Errorf("got %s, known %t, want %s, %t", got, n.Known(), c.want, c.known)
			}
			if n.Of(IPv4) != n.V4 || n.Of(IPv6) != n.V6 {
				t.Errorf("Of gives %s and %s of %+v", n.Of(IPv4), n.Of(IPv6), n)
			}
		})
	}
}

// A14.15, k/k#133694
func TestFamiliesOfTheHost(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		v6    bool
	}{
		"both":                     {map[string]string{"net/if_inet6": "", "sys/net/ipv6/conf/all/disable_ipv6": "0\n"}, true},
		"both, without the sysctl": {map[string]string{"net/if_inet6": ""}, true},
		"IPv6 turned off":          {map[string]string{"net/if_inet6": "", "sys/net/ipv6/conf/all/disable_ipv6": "1\n"}, false},
		"no IPv6":                  {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			for file, text := range c.files {
				if err := os.MkdirAll(filepath.Join(proc, filepath.Dir(file)), 0o755); err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(proc, file), text)
			}
			s := HostSupport(proc)
			if s.IPv4 != nil || (s.IPv6 == nil) != c.v6 {
				t.Fatalf("got %+v", s)
			}
			families, lines, err := Families(IPv4, s)
			want := []Family{IPv4}
			if c.v6 {
				want = []Family{IPv4, IPv6}
			}
			if err != nil || !slices.Equal(families, want) || (len(lines) == 0) != c.v6 {
				t.Errorf("IPv4 first: got %v, %q, %v, want %v", families, lines, err, want)
			}
			families, _, err = Families(IPv6, s)
			if c.v6 && (err != nil || !slices.Equal(families, []Family{IPv6, IPv4})) {
				t.Errorf("IPv6 first: got %v, %v", families, err)
			}
			if !c.v6 && (err == nil || !strings.HasPrefix(err.Error(), "serve IPv6, the primary IP family: ")) {
				t.Errorf("IPv6 first: got error %v, want that it can't be served", err)
			}
		})
	}
}

func TestA13_6RangesOfTheWrongFamily(t *testing.T) {
	single, dual := []Family{IPv4}, []Family{IPv4, IPv6}
	for name, c := range map[string]struct {
		args     []string
		families []Family
		podCIDRs []netip.Prefix
		want     string
	}{
		"fitting":               {[]string{"--cluster-cidr=10.0.0.0/8"}, single, nil, ""},
		"wrong and alone":       {[]string{"--cluster-cidr=fd00::/8"}, single, nil, "error: clusterCIDR has only IPv6 ranges, and the primary IP family is IPv4"},
		"wrong and not alone":   {[]string{"--cluster-cidr=fd00::/8", "--masquerade-all"}, dual, nil, "clusterCIDR has only IPv6 ranges, and the primary IP family is IPv4"},
		"none":                  {nil, single, nil, "no clusterCIDR (--cluster-cidr) of IPv4: nothing that goes to a ClusterIP of it is masqueraded"},
		"none is needed":        {[]string{"--masquerade-all"}, single, nil, ""},
		"of the node":           {[]string{"--detect-local-mode=NodeCIDR"}, dual, ranges("10.0.0.0/24"), ""},
		"wrong of the node":     {[]string{"--detect-local-mode=NodeCIDR"}, dual, ranges("fd00::/64"), "error: spec.podCIDRs of node n has only IPv6 ranges, and the primary IP family is IPv4"},
		"not asked for":         {[]string{"--cluster-cidr=10.0.0.0/8"}, dual, ranges("fd00::/64"), ""},
		"a server of the other": {[]string{"--cluster-cidr=10.0.0.0/8", "--healthz-bind-address=fd00::1", "--metrics-bind-address=::"}, single, nil, "healthzBindAddress is [fd00::1]:10256, and IPv6 is not served"},
	} {
		t.Run(name, func(t *testing.T) {
			lines, err := settings(t, append(c.args, "--hostname-override=n")...).CheckFamilies(c.families, c.podCIDRs)
			got := strings.Join(lines, "; ")
			if err != nil {
				got = "error: " + err.Error()
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// A6.2, A6.3, A6.5, A7.3
func TestA6_1NodePortRanges(t *testing.T) {
	both := FindNodeIPs(netip.Addr{}, addrs("192.0.2.1", "fd00::1"))
	unknown := FindNodeIPs(netip.Addr{}, nil)
	for name, c := range map[string]struct {
		args     []string
		node     NodeIPs
		v4, v6   string
		loopback string
	}{
		"unset":                          {nil, both, "[192.0.2.1/32]", "[fd00::1/128]", ""},
		"unset in another mode":          {[]string{"--proxy-mode=iptables"}, both, "[0.0.0.0/0]", "[::/0]", ""},
		"primary, of one family":         {[]string{"--nodeport-addresses=primary"}, FindNodeIPs(netip.Addr{}, addrs("192.0.2.1")), "[192.0.2.1/32]", "[::/0]", ""},
		"primary, unknown":               {[]string{"--nodeport-addresses=primary"}, unknown, "[0.0.0.0/0]", "[::/0]", ""},
		"all":                            {[]string{"--nodeport-addresses=all"}, both, "[0.0.0.0/0]", "[::/0]", ""},
		"localhost":                      {[]string{"--nodeport-addresses=localhost"}, both, "[127.0.0.0/8]", "[::1/128]", "46"},
		"primary and localhost":          {[]string{"--nodeport-addresses=primary,localhost"}, both, "[192.0.2.1/32 127.0.0.0/8]", "[fd00::1/128 ::1/128]", "46"},
		"all and localhost":              {[]string{"--nodeport-addresses=all,localhost"}, both, "[0.0.0.0/0]", "[::/0]", "46"},
		"a range of one family":          {[]string{"--nodeport-addresses=198.51.100.0/24"}, both, "[198.51.100.0/24]", "[::/0]", ""},
		"ranges and a keyword":           {[]string{"--nodeport-addresses=198.51.100.7/24,fd01::/64,primary"}, both, "[198.51.100.0/24 192.0.2.1/32]", "[fd01::/64 fd00::1/128]", ""},
		"the range of all":               {[]string{"--nodeport-addresses=0.0.0.0/0,192.0.2.0/24"}, both, "[0.0.0.0/0]", "[::/0]", ""},
		"a loopback range of one family": {[]string{"--nodeport-addresses=127.0.0.0/8"}, both, "[127.0.0.0/8]", "[::/0]", "4"},
	} {
		t.Run(name, func(t *testing.T) {
			n := settings(t, c.args...).NodePortAddresses
			if got := fmt.Sprint(n.Ranges(IPv4, c.node), n.Ranges(IPv6, c.node)); got != c.v4+" "+c.v6 {
				t.Errorf("got %s, want %s %s", got, c.v4, c.v6)
			}
			for f, digit := range map[Family]string{IPv4: "4", IPv6: "6"} {
				if n.Loopback(f) != strings.Contains(c.loopback, digit) {
					t.Errorf("%s: got loopback %t, want %q", f, n.Loopback(f), c.loopback)
				}
			}
		})
	}
}

// A6.9
func TestNodePortWarnings(t *testing.T) {
	v4, both := FindNodeIPs(netip.Addr{}, addrs("192.0.2.1")), FindNodeIPs(netip.Addr{}, addrs("192.0.2.1", "fd00::1"))
	dual := "--cluster-cidr=10.0.0.0/8,fd00::/8"
	open := func(f Family) string {
		return fmt.Sprintf("nodePortAddresses has no address of %s: NodePorts are open at all %s addresses of the node", f, f)
	}
	for name, c := range map[string]struct {
		args     []string
		node     NodeIPs
		podCIDRs []netip.Prefix
		want     string
	}{
		"the default":                {nil, both, nil, ""},
		"the default of other modes": {[]string{"--proxy-mode=ipvs"}, both, nil, "nodePortAddresses is not set: NodePorts are open at all addresses of the node; the keyword primary restricts them"},
		"all is what is asked for":   {[]string{"--nodeport-addresses=all"}, both, nil, ""},
		"unknown":                    {nil, FindNodeIPs(netip.Addr{}, nil), nil, open(IPv4)},
		"one family, single-stack":   {nil, v4, nil, ""},
		"one family, dual-stack":     {[]string{dual}, v4, nil, open(IPv6)},
		"one family, by the node":    {nil, v4, ranges("10.0.0.0/24", "fd00::/64"), open(IPv6)},
		"only the other family":      {[]string{"--nodeport-addresses=fd00::/64"}, v4, nil, open(IPv4)},
		"both families, dual-stack":  {[]string{dual, "--nodeport-addresses=192.0.2.0/24,fd00::/64"}, both, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(settings(t, c.args...).NodePortWarnings(c.node, c.podCIDRs), "; ")
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// A14.18
func TestOOMScoreIsWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "oom_score_adj")
	write(t, file, "0\n")
	if err := SetOOMScore(file, -999); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "-999\n" {
		t.Errorf("got %q, %v, want -999", got, err)
	}
	err := SetOOMScore(filepath.Join(t.TempDir(), "none", "file"), 3)
	if err == nil || !strings.HasPrefix(err.Error(), "set the OOM score to 3: ") {
		t.Errorf("got error %v", err)
	}
}
