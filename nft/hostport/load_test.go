package hostport_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/nft"
	"onerule/nft/hostport"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

var _ hostport.Watcher = (*nft.Monitor)(nil)

func rules(t *testing.T, ns *netns.NS) string {
	t.Helper()
	return ns.Run(t, "nft", "list", "ruleset")
}

func TestANodeWithoutHostPortsHasNoTable(t *testing.T) {
	ns := netns.New(t, "node")
	dir := filepath.Join(t.TempDir(), "hostports")
	ports := open(t, dir)
	n := wired.Commits(t, ns, func() {
		if found := load(t, ns, ports); !found.Nothing() {
			t.Errorf("load found %+v", found)
		}
		release(t, ns, ports, "a:eth0")
		claim(t, ns, ports, "a:eth0")
		wired.Do(t, ns, func() error { return ports.Check("a:eth0", nil) })
	})
	if _, err := os.Stat(dir); n != 0 || rules(t, ns) != "" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%d transactions, folder: %v, rules: %s", n, err, rules(t, ns))
	}
}

func TestAClaimIsOneTransaction(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		ns := netns.New(t, "node")
		ports := open(t, t.TempDir())
		claim(t, ns, ports, "a:eth0", both(p.Pod(0), netip.Addr{})...)
		other := both(p.Pod(1), netip.Addr{})
		for i := range other {
			other[i].HostPort++
		}
		if n := wired.Commits(t, ns, func() { claim(t, ns, ports, "b:eth0", other...) }); n != 1 {
			t.Errorf("claim: %d transactions, want one", n)
		}
		if n := wired.Commits(t, ns, func() { release(t, ns, ports, "b:eth0") }); n != 1 {
			t.Errorf("release: %d transactions, want one", n)
		}
	})
}

func TestARestartWritesNothing(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		ns := netns.New(t, "node")
		dir := t.TempDir()
		claim(t, ns, open(t, dir), "a:eth0", both(p.Pod(0), netip.Addr{})...)
		n := wired.Commits(t, ns, func() {
			if found := load(t, ns, open(t, dir)); !found.Nothing() {
				t.Errorf("load found %+v", found)
			}
		})
		if n != 0 {
			t.Errorf("%d transactions, want none", n)
		}
	})
}

func TestD13_HostPortsComeBack(t *testing.T) {
	for _, c := range []struct {
		name, change string // %s is the table
	}{
		{"the ruleset flushed", "flush ruleset"},
		{"the table deleted", "delete table %s"},
		{"a chain flushed", "flush chain %s hostports"},
		{"a rule added", "insert rule %s prerouting accept"},
		{"the map flushed", "flush map %s hostports-any"},
		{"an element added", "add element %s hostports-any { tcp . 99 : POD . 99 }"},
		{"an element that leads elsewhere", "delete element %[1]s hostports-any { tcp . 8080 }; add element %[1]s hostports-any { tcp . 8080 : POD . 99 }"},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, p addr.Plan) {
				ns := netns.New(t, "node")
				ports := open(t, t.TempDir())
				claims := both(p.Pod(0), netip.Addr{})
				claim(t, ns, ports, "a:eth0", claims...)
				want := rules(t, ns)
				family := "ip"
				if p.Node().Is6() {
					family = "ip6"
				}
				change := strings.NewReplacer("%[1]s", "%s", "POD", p.Pod(3).String()).Replace(c.change)
				ns.Run(t, "nft", strings.ReplaceAll(change, "%s", family+" onerule-hostports"))
				check := func() error { return ns.Do(func() error { return ports.Check("a:eth0", claims) }) }
				wrong := strings.Contains(c.change, "delete") || strings.Contains(c.change, "flush map") || strings.Contains(c.change, "ruleset")
				if err := check(); wrong != (err != nil) {
					t.Errorf("check finds %v", err)
				}
				if found := load(t, ns, ports); found.Nothing() {
					t.Error("load found nothing")
				}
				if diff := cmp.Diff(want, rules(t, ns)); diff != "" {
					t.Errorf("afterwards (-want +got):\n%s", diff)
				}
				if err := check(); err != nil {
					t.Errorf("check afterwards: %v", err)
				}
			})
		})
	}
}

func TestTheNextClaimAndReleasePutRightWhatOthersDid(t *testing.T) {
	ns := netns.New(t, "node")
	ports := open(t, t.TempDir())
	p := addr.IPv4()
	a, b := both(p.Pod(0), p.Node()), both(p.Pod(1), addr.Nth(p.Uplink, 9))
	claim(t, ns, ports, "a:eth0", a...)
	ns.Run(t, "nft", "flush", "ruleset")
	claim(t, ns, ports, "b:eth0", b...)
	wired.Do(t, ns, func() error { return errors.Join(ports.Check("a:eth0", a), ports.Check("b:eth0", b)) })
	ns.Run(t, "nft", "flush map ip onerule-hostports hostports")
	release(t, ns, ports, "b:eth0")
	wired.Do(t, ns, func() error { return ports.Check("a:eth0", a) })
	ns.Run(t, "nft", "flush", "ruleset")
	release(t, ns, ports, "a:eth0")
	if got := rules(t, ns); got != "" {
		t.Errorf("after the last release of a table that was gone: %s", got)
	}
}

func TestD1_PortsOfAnotherBootAreFree(t *testing.T) {
	ns := netns.New(t, "node")
	dir := t.TempDir()
	p := addr.IPv4()
	claim(t, ns, open(t, dir).At("before"), "a:eth0", both(p.Pod(0), netip.Addr{})...)
	ns.Run(t, "nft", "flush", "ruleset") // as a boot does
	ports := open(t, dir)
	claim(t, ns, ports, "b:eth0", both(p.Pod(1), netip.Addr{})...)
	want := rules(t, ns)
	release(t, ns, ports, "a:eth0")
	if diff := cmp.Diff(want, rules(t, ns)); diff != "" {
		t.Errorf("after the release of another boot's (-want +got):\n%s", diff)
	}
	claim(t, ns, open(t, dir).At("before"), "c:eth0", hostport.Claim{Protocol: hostport.TCP, HostPort: 99, Pod: netip.AddrPortFrom(p.Pod(0), 99)})
	load(t, ns, ports)
	if diff := cmp.Diff(want, rules(t, ns)); diff != "" {
		t.Errorf("after a load (-want +got):\n%s", diff)
	}
	if names := files(t, dir); len(names) != 1 || names[0] != "b:eth0.json" {
		t.Errorf("files %v, want one", names)
	}
}

// A record is written before anything is in the kernel, and removed after all is gone from
// it: a process that is killed in between leaves what the next one needs.
func TestD2_AnInterruptedClaimIsClaimedAgainOrReleased(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		elsewhere, ns := netns.New(t, "elsewhere"), netns.New(t, "node")
		ports := open(t, t.TempDir())
		claims := both(p.Pod(0), netip.Addr{})
		check := func() error { return ns.Do(func() error { return ports.Check("a:eth0", claims) }) }
		claim(t, elsewhere, ports, "a:eth0", claims...) // what it writes is not in the node's kernel
		if err := check(); err == nil {
			t.Error("check finds nothing though the kernel has none of it")
		}
		claim(t, ns, ports, "a:eth0", claims...)
		if err := check(); err != nil {
			t.Errorf("check after the second claim: %v", err)
		}
		release(t, ns, ports, "a:eth0")
		claim(t, elsewhere, ports, "b:eth0", claims...)
		release(t, ns, ports, "b:eth0")
		held, err := ports.Claims()
		if err != nil || len(held) != 0 || strings.Contains(rules(t, ns), "tcp . 8080") {
			t.Errorf("after the release: %v, %v\n%s", held, err, rules(t, ns))
		}
	})
}

// Nor is a file left whose writer was killed.
func TestD2_HalfWrittenRecordsGoWithTheirOwner(t *testing.T) {
	ns := netns.New(t, "node")
	dir := t.TempDir()
	ports := open(t, dir)
	longest := strings.Repeat("x", 240)
	for _, owner := range []string{"a:eth0", "b:eth0", longest} {
		if err := os.WriteFile(filepath.Join(dir, ".new-"+owner), []byte(`{"boot":`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	claim(t, ns, ports, longest, both(addr.IPv4().Pod(0), netip.Addr{})...)
	release(t, ns, ports, longest)
	release(t, ns, ports, "a:eth0")
	if diff := cmp.Diff([]string{".new-b:eth0"}, files(t, dir)); diff != "" {
		t.Errorf("after the releases (-want +got):\n%s", diff)
	}
	wired.Do(t, ns, func() error {
		released, err := ports.Keep(within(t), func(string) bool { return false })
		if diff := cmp.Diff([]string{"b:eth0"}, released); diff != "" {
			t.Errorf("released (-want +got):\n%s", diff)
		}
		return err
	})
	if names := files(t, dir); len(names) != 0 {
		t.Errorf("after Keep: %q", names)
	}
}

// Nothing is left of a claim that the kernel refuses.
func TestAClaimThatFailsLeavesNothing(t *testing.T) {
	ns := netns.New(t, "node")
	dir := t.TempDir()
	ports := open(t, dir)
	p, q := addr.IPv4(), addr.IPv6()
	claim(t, ns, ports, "a:eth0", both(q.Pod(0), netip.Addr{})...)
	ns.Run(t, "nft", "flush chain ip6 onerule-hostports hostports; delete map ip6 onerule-hostports hostports-any; "+
		"add map ip6 onerule-hostports hostports-any { type inet_service : verdict; }")
	claims := append(both(p.Pod(1), p.Node()), both(q.Pod(1), netip.Addr{})...)
	for i := range claims {
		claims[i].HostPort = 9999
	}
	err := ns.Do(func() error { return ports.Claim(within(t), "b:eth0", claims) })
	if err == nil {
		t.Fatal("no error")
	}
	if names := files(t, dir); len(names) != 1 || strings.Contains(rules(t, ns), ". 9999") {
		t.Errorf("left: %v\n%s", names, rules(t, ns))
	}
	load(t, ns, ports)
	claim(t, ns, ports, "b:eth0", claims...)
}

// files gives the records in a folder, which goes with the last one.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "lock" {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestD2_RecordsThatCannotBeReadAreNotFatal(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "half": `{"boot":"x","owner":"a:eth0","claims":[{"pro`, "another's": `{"owner":"z","claims":[]}`,
		"of two families": `{"owner":"a:eth0","claims":[{"protocol":"tcp","hostIP":"::1","hostPort":8,"pod":"10.1.0.2:80"}]}`,
		"of no protocol":  `{"owner":"a:eth0","claims":[{"hostPort":8,"pod":"10.1.0.2:80"}]}`} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, "node")
			dir := t.TempDir()
			ports := open(t, dir)
			p := addr.IPv4()
			claim(t, ns, ports, "a:eth0", both(p.Pod(0), netip.Addr{})...)
			if err := os.WriteFile(filepath.Join(dir, "a:eth0.json"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			other := hostport.Claim{Protocol: hostport.TCP, HostPort: 99, Pod: netip.AddrPortFrom(p.Pod(1), 99)}
			claim(t, ns, ports, "b:eth0", other)
			if found := load(t, ns, ports); len(found.Broken) != 1 || found.Broken[0] != "a:eth0" {
				t.Errorf("broken %v", found.Broken)
			}
			release(t, ns, ports, "a:eth0")
			if got := rules(t, ns); strings.Contains(got, p.Pod(0).String()+" ") || !strings.Contains(got, "tcp . 99") {
				t.Errorf("after its release: %s", got)
			}
		})
	}
}

func TestD39_OwnersThatAreNotKeptLoseTheirPorts(t *testing.T) {
	ns := netns.New(t, "node")
	dir := t.TempDir()
	ports := open(t, dir)
	p := addr.IPv4()
	for i, owner := range []string{"a:eth0", "b:eth0", "c:eth0"} {
		claim(t, ns, ports, owner, hostport.Claim{Protocol: hostport.UDP, HostPort: uint16(9000 + i), Pod: netip.AddrPortFrom(p.Pod(i), 53)})
	}
	var released []string
	wired.Do(t, ns, func() (err error) {
		released, err = ports.Keep(within(t), func(owner string) bool { return owner == "b:eth0" })
		return err
	})
	if diff := cmp.Diff([]string{"a:eth0", "c:eth0"}, released); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
	held, err := ports.Claims()
	if err != nil || len(held) != 1 || held[0].Owner != "b:eth0" || held[0].HostPort != 9001 {
		t.Errorf("held %v, %v", held, err)
	}
}

// Runtimes start and stop pods at the same time.
func TestOwnersClaimAndReleaseAtTheSameTime(t *testing.T) {
	ns := netns.New(t, "node")
	dir := t.TempDir()
	p := addr.IPv4()
	const owners = 12
	var wg sync.WaitGroup
	errs := make([]error, owners)
	for i := range owners {
		wg.Go(func() {
			errs[i] = ns.Do(func() error {
				ports, err := hostport.Open(dir)
				if err != nil {
					return err
				}
				owner := fmt.Sprintf("%d:eth0", i)
				c := hostport.Claim{Protocol: hostport.TCP, HostPort: uint16(9000 + i), Pod: netip.AddrPortFrom(p.Pod(i), 80)}
				for range 3 {
					if err := ports.Claim(within(t), owner, []hostport.Claim{c}); err != nil {
						return err
					}
					if err := ports.Check(owner, []hostport.Claim{c}); err != nil {
						return err
					}
					if err := ports.Release(within(t), owner); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if names := files(t, dir); len(names) != 0 || strings.Contains(rules(t, ns), "elements = { tcp . 9") {
		t.Errorf("left: %v\n%s", names, rules(t, ns))
	}
}

func TestClaimsOfMappings(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2")
	for _, c := range []struct{ name, mappings, want string }{
		{"both families", `[{"hostPort":80,"containerPort":8080,"protocol":"TCP"}]`, "tcp 80 10.1.0.2:8080, tcp 80 [fd00:1::2]:8080"},
		{"no protocol is TCP", `[{"hostPort":80,"containerPort":8080}]`, "tcp 80 10.1.0.2:8080, tcp 80 [fd00:1::2]:8080"},
		{"without a port of the host", `[{"containerPort":8080,"protocol":"udp"}]`, ""},
		{"one address", `[{"hostPort":80,"containerPort":8080,"protocol":"udp","hostIP":"192.0.2.1"}]`, "udp 80 at 192.0.2.1 10.1.0.2:8080"},
		{"all of one family", `[{"hostPort":80,"containerPort":8080,"protocol":"sctp","hostIP":"0.0.0.0"}]`, "sctp 80 10.1.0.2:8080"},
		{"a mapped address", `[{"hostPort":80,"containerPort":8080,"hostIP":"::ffff:192.0.2.1"}]`, "tcp 80 at 192.0.2.1 10.1.0.2:8080"},
		{"the same number of two protocols", `[{"hostPort":53,"containerPort":53,"protocol":"tcp","hostIP":"::"},{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"::"}]`, "tcp 53 [fd00:1::2]:53, udp 53 [fd00:1::2]:53"},
		{"the same port twice", `[{"hostPort":53,"containerPort":53},{"hostPort":53,"containerPort":54}]`, "error: twice"},
		{"a port that is too large", `[{"hostPort":65536,"containerPort":53}]`, "error: 65536"},
		{"a negative one", `[{"hostPort":-1,"containerPort":53}]`, "error: -1"},
		{"no port of the container", `[{"hostPort":53}]`, "error: port 0"},
		{"no address", `[{"hostPort":53,"containerPort":53,"hostIP":"node"}]`, `error: "node"`},
		{"a link-local address", `[{"hostPort":53,"containerPort":53,"hostIP":"fe80::1"}]`, "error: fe80::1"},
		{"UDP at loopback", `[{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"127.0.0.1"}]`, "error: only TCP"},
		{"another protocol", `[{"hostPort":53,"containerPort":53,"protocol":"icmp"}]`, `error: "icmp"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mappings []hostport.Mapping
			var claims []hostport.Claim
			err := json.Unmarshal([]byte(c.mappings), &mappings)
			if err == nil {
				claims, err = hostport.Claims(mappings, []netip.Addr{v4, v6})
			}
			var got []string
			for _, c := range claims {
				got = append(got, strings.TrimPrefix(fmt.Sprintf("%s %s", c, c.Pod), "hostPort "))
			}
			if want, fails := strings.CutPrefix(c.want, "error: "); fails {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, %v, want an error with %q", got, err, want)
				}
				return
			}
			if s := strings.Join(got, ", "); err != nil || s != c.want {
				t.Errorf("got %q, %v, want %q", s, err, c.want)
			}
		})
	}
	t.Run("an address of a family that the pod has not", func(t *testing.T) {
		if claims, err := hostport.Claims([]hostport.Mapping{{HostPort: 1, ContainerPort: 1, HostIP: "::1"}}, []netip.Addr{v4}); err == nil {
			t.Errorf("got %v", claims)
		}
	})
}
