package takeover

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/test/netns"
)

// What the kernel has and what iptables-save prints of it is the same table.
func TestBothReadersOfIptablesLegacyAgree(t *testing.T) {
	const rules = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-EMPTY - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-POSTROUTING - [0:0]
:OTHER - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -p tcp -m multiport --dports 1,2,3 -m comment --comment "say \"-j KUBE-POSTROUTING\" \\ there" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment one -g KUBE-POSTROUTING
-A KUBE-SERVICES -p udp -m udp --dport 53 -j RETURN
-A KUBE-SERVICES -j OTHER
-A OTHER -j KUBE-POSTROUTING
-A OTHER -j KUBE-EMPTY
-A OTHER -j KUBE-FORWARD
COMMIT
`
	for family, program := range map[Family]string{IPv4: "iptables-legacy", IPv6: "ip6tables-legacy"} {
		t.Run(program, func(t *testing.T) {
			ns := netns.New(t, "node")
			var fromKernel, fromText table
			err := ns.Do(func() error {
				if _, err := run(t.Context(), rules, program+"-restore"); err != nil {
					return err
				}
				text, err := run(t.Context(), "", program+"-save", "-t", "nat")
				if err != nil {
					return err
				}
				fromText = parseSaved("nat", text)
				fromKernel, err = legacyTable(family, "nat")
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			for i := range fromText.jumps {
				fromText.jumps[i].spec = nil
			}
			if diff := cmp.Diff(fromText, fromKernel, cmp.AllowUnexported(table{}, chain{}, rule{})); diff != "" {
				t.Errorf("table (-text +kernel): %s", diff)
			}
			want := table{
				chains: map[string]chain{"KUBE-SERVICES": {rules: 2}, "KUBE-POSTROUTING": {}},
				jumps: []rule{
					{chain: "PREROUTING", target: "KUBE-SERVICES", builtIn: true, comment: "kubernetes service portals"},
					{chain: "OUTPUT", target: "KUBE-SERVICES", builtIn: true, comment: `say "-j KUBE-POSTROUTING" \ there`},
					{chain: "POSTROUTING", target: "KUBE-POSTROUTING", builtIn: true, comment: "one"},
					{chain: "OTHER", target: "KUBE-POSTROUTING"},
				},
			}
			if diff := cmp.Diff(want, fromKernel, cmp.AllowUnexported(table{}, chain{}, rule{})); diff != "" {
				t.Errorf("table (-want +kernel): %s", diff)
			}
		})
	}
}

func TestABrokenTableOfIptablesLegacyIsAnError(t *testing.T) {
	for name, entries := range map[string][]byte{
		"cut off":       make([]byte, 50),
		"without sizes": make([]byte, 200),
	} {
		t.Run(name, func(t *testing.T) {
			b := blob{base: 84, header: 112, entries: entries}
			if _, err := b.parse("nat"); err == nil {
				t.Error("no error")
			}
		})
	}
}

// This kernel may have no IPVS: its list is a file here.
func TestVirtualServersAreKubeProxysWhereItsTracesAre(t *testing.T) {
	const list = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:01BB rr
  -> C0000201:192B      Masq    1      0          0
UDP  0A60000A:0035 rr
SCTP [fd00:0096:0000:0000:0000:0000:0000:0001]:0050 rr
FWM  00000001 rr
`
	path := filepath.Join(t.TempDir(), "ip_vs")
	if err := os.WriteFile(path, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		path string
		l    Leftovers
		want int
	}{
		{"a set", path, Leftovers{Sets: []string{"KUBE-CLUSTER-IP"}}, 4},
		{"a chain of IPVS mode", path, Leftovers{Chains: []Chains{{ipvs: true}}}, 4},
		{"a chain of iptables mode", path, Leftovers{Chains: []Chains{{}}}, 0},
		{"no trace", path, Leftovers{}, 0},
		{"no IPVS", path + "-not-there", Leftovers{Sets: []string{"KUBE-CLUSTER-IP"}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := findServers(c.path, &c.l); err != nil || c.l.VirtualServers != c.want {
				t.Errorf("got %d and %v, want %d", c.l.VirtualServers, err, c.want)
			}
		})
	}
}

func TestLeftoversOfEveryModeAreNamed(t *testing.T) {
	for want, l := range map[string]Leftovers{
		"kube-proxy in nftables and iptables mode: table ip kube-proxy (0 chains), 1 chain and 2 jumps to them in table ip nat of iptables-nft": {
			Tables: []Table{{Family: IPv4}}, Chains: []Chains{{Family: IPv4, Table: "nat", Chains: 1, Jumps: 2}}},
		"kube-proxy in ipvs mode: 2 sets of ipset, 7 virtual servers of IPVS, device kube-ipvs0": {
			Sets: []string{"KUBE-CLUSTER-IP", "KUBE-LOOP-BACK"}, VirtualServers: 7, Device: true},
	} {
		t.Run(want, func(t *testing.T) {
			if got := l.String(); got != want {
				t.Errorf("got %s", got)
			}
		})
	}
}

// Names that look alike are others'.
func TestOnlyKubeProxysNamesAreItsOwn(t *testing.T) {
	for _, c := range []struct {
		table, name string
		want        bool
	}{
		{"nat", "KUBE-SERVICES", true}, {"filter", "KUBE-SERVICES", true}, {"mangle", "KUBE-SERVICES", false},
		{"nat", "KUBE-SEP-AAAAAAAAAAAAAAAA", true}, {"filter", "KUBE-SEP-AAAAAAAAAAAAAAAA", false},
		{"nat", "KUBE-XLB-AAAAAAAAAAAAAAAA", true}, {"raw", "KUBE-PROXY-CANARY", true},
		{"nat", "KUBE-NODE-PORT", true}, {"filter", "KUBE-IPVS-FILTER", true},
		{"filter", "KUBE-FIREWALL", false}, {"nat", "KUBE-MARK-DROP", false}, {"mangle", "KUBE-KUBELET-CANARY", false},
		{"mangle", "KUBE-IPTABLES-HINT", false}, {"filter", "KUBE-ROUTER-INPUT", false}, {"filter", "KUBE-POD-FW-AAAA", false},
		{"filter", "KUBE-NWPLCY-AAAA", false}, {"nat", "kube-services", false}, {"nat", "PREROUTING", false},
	} {
		t.Run(fmt.Sprintf("%s in %s", c.name, c.table), func(t *testing.T) {
			if got := isProxyChain(c.table, c.name); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
	sets := []string{"KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", "KUBE-SRC-AAAA", "KUBE-6-", "6-CLUSTER-IP", "KUBE-CLUSTER-IPS"}
	if got := slices.DeleteFunc(sets, func(s string) bool { return !isProxySet(s) }); len(got) != 3 {
		t.Errorf("sets of kube-proxy's: %q, want the first three", got)
	}
}
