package takeover_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	vishvananda "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft/takeover"
	"onerule/test/netns"
)

// A variant is one of iptables, for one family.
type variant struct {
	family takeover.Family
	legacy bool
}

func variants() []variant {
	return []variant{{takeover.IPv4, false}, {takeover.IPv6, false}, {takeover.IPv4, true}, {takeover.IPv6, true}}
}

func (v variant) String() string { return v.program("") }

// program gives the name of a program of the variant: "-save", "-restore" or "".
func (v variant) program(suffix string) string {
	name := "iptables"
	if v.family == takeover.IPv6 {
		name = "ip6tables"
	}
	if v.legacy {
		return name + "-legacy" + suffix
	}
	return name + "-nft" + suffix
}

// restore loads rules in the language of iptables-restore beside those that are there.
func (v variant) restore(t *testing.T, ns *netns.NS, rules string) {
	t.Helper()
	err := ns.Do(func() error {
		cmd := exec.Command(v.program("-restore"), "--noflush")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", v.program("-restore"), err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// saved gives all rules, without counters and what iptables-save says of itself.
func (v variant) saved(t *testing.T, ns *netns.NS) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(ns.Run(t, v.program("-save"))) {
		if rule, _, _ := strings.Cut(line, " ["); !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSpace(rule))
		}
	}
	return strings.Join(lines, "\n")
}

func find(t *testing.T, ns *netns.NS) takeover.Leftovers {
	t.Helper()
	var l takeover.Leftovers
	if err := ns.Do(func() (err error) { l, err = takeover.Find(t.Context()); return err }); err != nil {
		t.Fatal(err)
	}
	return l
}

func remove(t *testing.T, ns *netns.NS, l takeover.Leftovers) error {
	t.Helper()
	return ns.Do(func() error { return takeover.Remove(t.Context(), l) })
}

// takeOver finds and removes, and checks that nothing is found afterwards.
func takeOver(t *testing.T, ns *netns.NS) takeover.Leftovers {
	t.Helper()
	l := find(t, ns)
	if err := remove(t, ns, l); err != nil {
		t.Fatal(err)
	}
	if after := find(t, ns); !after.Empty() {
		t.Errorf("still there: %s", after)
	}
	return l
}

// generation counts the commits to tables of nftables.
func generation(t *testing.T, ns *netns.NS) (n uint32) {
	t.Helper()
	err := ns.Do(func() error {
		c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		answer, err := c.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
		})
		if err != nil {
			return err
		}
		attrs, err := netlink.UnmarshalAttributes(answer[0].Data[4:])
		if err != nil {
			return err
		}
		n = binary.BigEndian.Uint32(attrs[0].Data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestWhereNothingIsThereNothingIsDone(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, *netns.NS){
		"no tables at all":  func(*testing.T, *netns.NS) {},
		"a table of others": func(t *testing.T, ns *netns.NS) { ns.Run(t, "nft", "add table ip other") },
		"tables of iptables": func(t *testing.T, ns *netns.NS) {
			for _, v := range variants() {
				v.restore(t, ns, foreignRules())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, "node")
			prepare(t, ns)
			before, tables := generation(t, ns), ns.Run(t, "cat", "/proc/self/net/ip_tables_names")
			path := os.Getenv("PATH")
			t.Setenv("PATH", "") // no child can be started
			l := find(t, ns)
			if !l.Empty() || l.String() != "nothing of kube-proxy" {
				t.Errorf("found %s", l)
			}
			if err := remove(t, ns, l); err != nil {
				t.Error(err)
			}
			if after := generation(t, ns); after != before {
				t.Errorf("generation %d after %d", after, before)
			}
			t.Setenv("PATH", path)
			if after := ns.Run(t, "cat", "/proc/self/net/ip_tables_names"); after != tables {
				t.Errorf("tables of iptables-legacy after: %q, before: %q", after, tables)
			}
		})
	}
}

func TestA14_10TablesOfNftablesModeGo(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Run(t, "nft", `
		table ip other { chain kube-proxy { type filter hook input priority 0; counter; }; }
		table inet kube-proxy { chain c { type filter hook input priority 0; }; }`)
	before := ns.Run(t, "nft", "list", "ruleset")
	ns.Run(t, "nft", `
		table ip kube-proxy {
			map m { type ipv4_addr : verdict; elements = { 10.96.0.1 : goto service }; }
			chain service { dnat to 10.244.1.2; }
			chain prerouting { type nat hook prerouting priority -100; ip daddr vmap @m; }
		}
		table ip6 kube-proxy { chain prerouting { type nat hook prerouting priority -100; }; }`)
	l := takeOver(t, ns)
	want := "kube-proxy in nftables mode: table ip kube-proxy (2 chains), table ip6 kube-proxy (1 chain)"
	if l.String() != want {
		t.Errorf("got  %s\nwant %s", l, want)
	}
	if diff := cmp.Diff(before, ns.Run(t, "nft", "list", "ruleset")); diff != "" {
		t.Errorf("tables of others (-before +after): %s", diff)
	}
	if err := remove(t, ns, l); err != nil {
		t.Errorf("removed again: %v", err)
	}
}

// foreignRules are rules of kubelet, of network policies and of people, in the same
// chains as kube-proxy's.
func foreignRules() string {
	return `*nat
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-DROP - [0:0]
:KUBE-SERVICESX - [0:0]
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICESX
-A PREROUTING -p tcp --dport 81 -m comment --comment "a \"quoted\" -j KUBE-SERVICES" -j REDIRECT --to-ports 8081
-A POSTROUTING -o eth9 -j MASQUERADE
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-SVC-NOTINNAT - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment "kube-router netpol" -j KUBE-ROUTER-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j ACCEPT
-A INPUT -m comment --comment "kubernetes forwarding rules" -j ACCEPT
COMMIT
*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A PREROUTING -j MARK --set-xmark 0x1/0x1
COMMIT
`
}

// proxyRules are what iptables mode writes for a Service with two endpoints.
func proxyRules() string {
	return `*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SVC-TCOU7JCQXEZGVUNU - [0:0]
:KUBE-SEP-1AAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-2AAAAAAAAAAAAAAA - [0:0]
:KUBE-EXT-TCOU7JCQXEZGVUNU - [0:0]
:KUBE-FW-TCOU7JCQXEZGVUNU - [0:0]
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -p tcp -m comment --comment "default/web cluster IP" -m tcp --dport 80 -j KUBE-SVC-TCOU7JCQXEZGVUNU
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp --dport 30080 -j KUBE-EXT-TCOU7JCQXEZGVUNU
-A KUBE-EXT-TCOU7JCQXEZGVUNU -j KUBE-MARK-MASQ
-A KUBE-EXT-TCOU7JCQXEZGVUNU -j KUBE-SVC-TCOU7JCQXEZGVUNU
-A KUBE-SVC-TCOU7JCQXEZGVUNU -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-1AAAAAAAAAAAAAAA
-A KUBE-SVC-TCOU7JCQXEZGVUNU -j KUBE-SEP-2AAAAAAAAAAAAAAA
-A KUBE-FW-TCOU7JCQXEZGVUNU -j KUBE-EXT-TCOU7JCQXEZGVUNU
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-PROXY-CANARY - [0:0]
-I INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-I INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-I INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-I FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
COMMIT
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
`
}

// ipvsRules are what IPVS mode has beside: chains of its own.
func ipvsRules() string {
	return `*nat
:KUBE-SERVICES - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-NODE-PORT - [0:0]
-A KUBE-SERVICES -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES -j KUBE-NODE-PORT
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
COMMIT
*filter
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
-A KUBE-PROXY-FIREWALL -j KUBE-SOURCE-RANGES-FIREWALL
-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
COMMIT
`
}

// A14.11, k/k#109286, k/k#119265: as if kube-proxy had never been, and what is not its
// own as before.
func TestA14_10A14_11R109286ChainsOfIptablesGoAndOthersStay(t *testing.T) {
	for _, v := range variants() {
		for mode, rules := range map[string]string{"iptables": proxyRules(), "ipvs": ipvsRules()} {
			t.Run(fmt.Sprintf("%s in %s mode", v, mode), func(t *testing.T) {
				ns := netns.New(t, "node")
				v.restore(t, ns, foreignRules())
				before := v.saved(t, ns)
				v.restore(t, ns, rules)
				l := takeOver(t, ns)
				if got := l.Modes(); !slices.Equal(got, []string{mode}) {
					t.Errorf("modes %v, want %s", got, mode)
				}
				if diff := cmp.Diff(before, v.saved(t, ns)); diff != "" {
					t.Errorf("rules of others (-before +after): %s", diff)
				}
			})
		}
	}
}

func TestWhatIsFoundIsSaidInOneLine(t *testing.T) {
	for _, v := range variants() {
		t.Run(v.String(), func(t *testing.T) {
			ns := netns.New(t, "node")
			v.restore(t, ns, proxyRules())
			tool := "iptables-nft"
			if v.legacy {
				tool = "iptables-legacy"
			}
			want := strings.NewReplacer("FAMILY", string(v.family), "TOOL", tool).Replace("kube-proxy in iptables mode: " +
				"10 chains and 3 jumps to them in table FAMILY nat of TOOL, " +
				"6 chains and 6 jumps to them in table FAMILY filter of TOOL, " +
				"1 chain and 0 jumps to them in table FAMILY mangle of TOOL")
			if got := find(t, ns).String(); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// A rule of others may lead to a chain of kube-proxy's: it goes on to work where it
// marks for masquerading, and nothing is found again and again.
func TestChainsThatOthersUseStay(t *testing.T) {
	const held = `*nat
:CNI-HOSTPORT-SETMARK - [0:0]
-A CNI-HOSTPORT-SETMARK -m comment --comment "kubernetes style" -j KUBE-MARK-MASQ
-A PREROUTING -s 192.0.2.1 -j KUBE-SERVICES
COMMIT
`
	for _, v := range variants() {
		t.Run(v.String(), func(t *testing.T) {
			rules := held
			if v.family == takeover.IPv6 {
				rules = strings.ReplaceAll(held, "192.0.2.1", "2001:db8::1")
			}
			ns, want := netns.New(t, "node"), netns.New(t, "wanted")
			v.restore(t, ns, foreignRules())
			v.restore(t, ns, proxyRules())
			v.restore(t, ns, rules)
			takeOver(t, ns)
			v.restore(t, want, "*nat\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-SERVICES - [0:0]\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n")
			v.restore(t, want, foreignRules())
			v.restore(t, want, rules)
			lines := func(ns *netns.NS) []string { return slices.Sorted(slices.Values(strings.Split(v.saved(t, ns), "\n"))) }
			if diff := cmp.Diff(lines(want), lines(ns)); diff != "" {
				t.Errorf("rules (-want +got): %s", diff)
			}
		})
	}
}

// A later iptables-nft keeps comments as nft does.
func TestCommentsOfNftAreRead(t *testing.T) {
	ns := netns.New(t, "node")
	nft := variant{takeover.IPv4, false}
	nft.restore(t, ns, "*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j ACCEPT\nCOMMIT\n")
	before := "counter packets 0 bytes 0 goto KUBE-SERVICES comment \"other\""
	ns.Run(t, "nft", "add rule ip nat PREROUTING counter jump KUBE-SERVICES comment \"kubernetes service portals\"")
	ns.Run(t, "nft", "add rule ip nat PREROUTING "+before)
	takeOver(t, ns)
	out := ns.Run(t, "nft", "list", "chain", "ip", "nat", "PREROUTING")
	if !strings.Contains(out, before) || strings.Contains(out, "jump") {
		t.Errorf("want only the rule with another comment left:\n%s", out)
	}
}

// One transaction does not do for so many chains.
func TestManyChainsGo(t *testing.T) {
	var b strings.Builder
	b.WriteString("*nat\n:KUBE-SERVICES - [0:0]\n")
	const services = 4_000
	for i := range services {
		fmt.Fprintf(&b, ":KUBE-SVC-%016d - [0:0]\n:KUBE-SEP-%016d - [0:0]\n", i, i)
	}
	for i := range services {
		fmt.Fprintf(&b, "-A KUBE-SERVICES -j KUBE-SVC-%016d\n-A KUBE-SVC-%016d -j KUBE-SEP-%016d\n", i, i, i)
	}
	b.WriteString("-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\nCOMMIT\n")
	for _, v := range []variant{{takeover.IPv4, false}, {takeover.IPv6, true}} {
		t.Run(v.String(), func(t *testing.T) {
			ns := netns.New(t, "node")
			v.restore(t, ns, b.String())
			before := generation(t, ns)
			if l := takeOver(t, ns); l.Chains[0].Chains != 2*services+1 {
				t.Errorf("found %s", l)
			}
			if saved := v.saved(t, ns); strings.Contains(saved, "KUBE") {
				t.Errorf("left:\n%.2000s", saved)
			}
			if n := generation(t, ns) - before; !v.legacy && n < 2 {
				t.Errorf("%d transactions, want more", n)
			}
		})
	}
}

func TestWithoutItsProgramsIptablesLegacyIsNamedAndTheRestGoes(t *testing.T) {
	ns := netns.New(t, "node")
	legacy, nft := variant{takeover.IPv4, true}, variant{takeover.IPv4, false}
	legacy.restore(t, ns, proxyRules())
	nft.restore(t, ns, proxyRules())
	ns.Run(t, "nft", "add table ip kube-proxy")
	l := find(t, ns)
	t.Setenv("PATH", t.TempDir()) // and no iptables in it
	err := remove(t, ns, l)
	if err == nil {
		t.Fatal("no error")
	}
	for _, table := range []string{"nat", "filter", "mangle"} {
		want := fmt.Sprintf("remove chains of kube-proxy from table ip %s of iptables-legacy: no iptables-legacy-save and iptables-legacy-restore in PATH", table)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want in it %q", err, want)
		}
	}
	left := find(t, ns)
	if len(left.Tables) != 0 || len(left.Chains) != 3 || !left.Chains[0].Legacy {
		t.Errorf("left: %s", left)
	}
}

// A canceled context ends the removal between two steps.
func TestCanceledNothingIsRemoved(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Run(t, "nft", "add table ip kube-proxy")
	l := find(t, ns)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ns.Do(func() error { return takeover.Remove(ctx, l) }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was canceled", err)
	}
	if left := find(t, ns); len(left.Tables) != 1 {
		t.Errorf("left: %s", left)
	}
}

// A rule that matches a set holds it.
func TestSetsGoAfterTheRulesThatHoldThem(t *testing.T) {
	for _, v := range []variant{{takeover.IPv4, false}, {takeover.IPv4, true}} {
		t.Run(v.String(), func(t *testing.T) {
			ns := netns.New(t, "node")
			sets := []string{"KUBE-CLUSTER-IP", "KUBE-6-LOAD-BALANCER-SOURCE-CID", "KUBE-SRC-OTHERS", "CLUSTER-IP"}
			if err := ns.Do(func() error {
				var errs []error
				for _, s := range sets {
					errs = append(errs, vishvananda.IpsetCreate(s, "hash:ip,port", vishvananda.IpsetCreateOptions{}))
				}
				return errors.Join(errs...)
			}); err != nil {
				t.Fatal(err)
			}
			v.restore(t, ns, "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\nCOMMIT\n")
			l := takeOver(t, ns)
			if diff := cmp.Diff([]string{"KUBE-6-LOAD-BALANCER-SOURCE-CID", "KUBE-CLUSTER-IP"}, l.Sets); diff != "" {
				t.Errorf("sets found (-want +got): %s", diff)
			}
			if err := ns.Do(func() error {
				left, err := vishvananda.IpsetListAll()
				if len(left) != 2 {
					err = errors.Join(err, fmt.Errorf("%d sets left, want those of others", len(left)))
				}
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// The kernel may have no dummy devices: the name decides.
func TestTheDeviceOfIPVSModeGoes(t *testing.T) {
	ns := netns.New(t, "node")
	if _, err := ns.Output("ip", "link", "add", "kube-ipvs0", "type", "dummy"); err != nil {
		ns.Run(t, "ip", "link", "add", "kube-ipvs0", "type", "veth", "peer", "name", "peer")
	}
	ns.Addr(t, "kube-ipvs0", "10.96.0.1/32")
	l := takeOver(t, ns)
	if want := "kube-proxy in ipvs mode: device kube-ipvs0"; l.String() != want {
		t.Errorf("got %q, want %q", l, want)
	}
	if out := ns.Run(t, "ip", "-o", "addr"); strings.Contains(out, "10.96.0.1") {
		t.Errorf("left: %s", out)
	}
	if err := remove(t, ns, l); err != nil {
		t.Errorf("removed again: %v", err)
	}
}
