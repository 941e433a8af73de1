package hostport_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/nft/guard"
	"onerule/nft/hostport"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

// The ports of the node, and of the pods behind them.
const (
	hostPort = 8080
	podPort  = 80
)

func each(t *testing.T, f func(*testing.T, addr.Plan)) {
	t.Helper()
	for _, p := range addr.Both() {
		name := "ip"
		if p.Node().Is6() {
			name = "ip6"
		}
		t.Run(name, func(t *testing.T) { f(t, p) })
	}
}

func open(t *testing.T, dir string) *hostport.Ports {
	t.Helper()
	p, err := hostport.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// within gives a context for what may wait for a lock.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func claim(t *testing.T, ns *netns.NS, p *hostport.Ports, owner string, claims ...hostport.Claim) {
	t.Helper()
	wired.Do(t, ns, func() error { return p.Claim(within(t), owner, claims) })
}

func release(t *testing.T, ns *netns.NS, p *hostport.Ports, owner string) {
	t.Helper()
	wired.Do(t, ns, func() error { return p.Release(within(t), owner) })
}

func load(t *testing.T, ns *netns.NS, p *hostport.Ports) (found hostport.Repair) {
	t.Helper()
	wired.Do(t, ns, func() (err error) {
		found, err = p.Load(within(t))
		return err
	})
	return found
}

// both gives the claims of a port for TCP and UDP; at may be the zero address.
func both(pod, at netip.Addr) []hostport.Claim {
	c := hostport.Claim{HostIP: at, HostPort: hostPort, Pod: netip.AddrPortFrom(pod, podPort)}
	tcp, udp := c, c
	tcp.Protocol, udp.Protocol = hostport.TCP, hostport.UDP
	return []hostport.Claim{tcp, udp}
}

// served makes a world with two pods that answer.
func served(t *testing.T, p addr.Plan) (*wired.World, *hostport.Ports) {
	t.Helper()
	w := wired.New(t, 2)
	for i, pod := range w.Pods {
		wired.Serve(t, pod, fmt.Sprintf("pod %d", i), netip.AddrPortFrom(p.Pod(i), podPort))
	}
	return w, open(t, filepath.Join(t.TempDir(), "hostports"))
}

// saw asks the node's port, over UDP and TCP, and wants to hear who answered and whom it
// saw. Without want it wants no answer.
func saw(t *testing.T, from *netns.NS, at netip.Addr, want string) {
	t.Helper()
	sawFrom(t, from, netip.Addr{}, at, want)
}

// sawFrom is saw with an address to send from, if it is one.
func sawFrom(t *testing.T, from *netns.NS, source, at netip.Addr, want string) {
	t.Helper()
	for _, network := range []string{"udp", "tcp"} {
		got, err := wired.Ask(from, network, netip.AddrPortFrom(source, 0), netip.AddrPortFrom(at, hostPort))
		if want == "" && err == nil || want != "" && (err != nil || got != want) {
			t.Errorf("%s from %s to %s: %q, %v, want %q", network, from.Name(), at, got, err, want)
		}
	}
}

func TestHostPortsLeadToTheirPod(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		w, ports := served(t, p)
		// The guard must let all of it pass.
		var g *guard.Program
		family := nft.IPv4
		if p.Node().Is6() {
			family = nft.IPv6
		}
		wired.Do(t, w.Node, func() (err error) {
			if g, err = guard.Open(family); err == nil {
				_, err = g.Load(within(t), guard.Ranges{Pods: []netip.Prefix{p.NodePods}, Cluster: []netip.Prefix{p.ClusterCIDR}})
			}
			return err
		})
		t.Cleanup(func() { _ = g.Close() })
		claim(t, w.Node, ports, "a:eth0", both(p.Pod(0), netip.Addr{})...)

		t.Run("from outside as themselves", func(t *testing.T) { saw(t, w.Outside, p.Node(), "pod 0 saw "+p.Outside().String()) })
		t.Run("from another pod as itself", func(t *testing.T) { saw(t, w.Pods[1], p.Node(), "pod 0 saw "+p.Pod(1).String()) })
		t.Run("from the node as itself", func(t *testing.T) { saw(t, w.Node, p.Node(), "pod 0 saw "+p.Node().String()) })
		t.Run("D34 from the pod itself as the node", func(t *testing.T) { saw(t, w.Pods[0], p.Node(), "pod 0 saw "+p.Node().String()) })
		t.Run("from the node's address to a loopback one", func(t *testing.T) {
			sawFrom(t, w.Node, p.Node(), loopbackOf(p), "pod 0 saw "+p.Node().String())
		})
		t.Run("but not from loopback addresses", func(t *testing.T) {
			wired.Serve(t, w.Node, "node", netip.AddrPortFrom(loopbackOf(p), hostPort))
			saw(t, w.Node, loopbackOf(p), "node saw "+loopbackOf(p).String())
		})
		if p.Node().Is6() { // the node's end of a pod's link has no IPv4 address
			t.Run("nor at link-local ones", func(t *testing.T) {
				gateway := netip.MustParseAddr("fe80::1")
				wired.Serve(t, w.Node, "node", netip.AddrPortFrom(gateway.WithZone(wired.Link(1)), hostPort))
				saw(t, w.Pods[1], gateway.WithZone("eth0"), "node saw fe80::a:2%"+wired.Link(1))
			})
		}
		t.Run("nor at addresses of others", func(t *testing.T) {
			wired.Serve(t, w.Outside, "outside", netip.AddrPortFrom(p.Outside(), hostPort))
			saw(t, w.Pods[1], p.Outside(), "outside saw "+p.Node().String())
		})
		t.Run("D3 nor when they are released", func(t *testing.T) {
			release(t, w.Node, ports, "a:eth0")
			saw(t, w.Outside, p.Node(), "")
		})
		n, err := g.Dropped()
		if err == nil && n[guard.Spoofed] != 0 {
			t.Errorf("the guard dropped %v", n)
		}
	})
}

func TestAHostIPIsOneAddressOnly(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		w, ports := served(t, p)
		w.Node.Addr(t, "eth0", netip.PrefixFrom(addr.Nth(p.Uplink, 9), p.Uplink.Bits()).String())
		claim(t, w.Node, ports, "a:eth0", both(p.Pod(0), p.Node())...)
		claim(t, w.Node, ports, "b:eth0", both(p.Pod(1), addr.Nth(p.Uplink, 9))...)
		wired.Serve(t, w.Pods[0], "pod 0", netip.AddrPortFrom(p.Pod(0), 81))
		if p.Node().Is4() {
			w.Outside.Run(t, "ip", "neigh", "replace", addr.Nth(p.Uplink, 9).String(), "lladdr", wired.MAC(t, w.Node, "eth0").String(), "dev", "eth0")
		}
		saw(t, w.Outside, p.Node(), "pod 0 saw "+p.Outside().String())
		saw(t, w.Pods[0], addr.Nth(p.Uplink, 9), "pod 1 saw "+p.Pod(0).String())
		release(t, w.Node, ports, "a:eth0")
		saw(t, w.Outside, p.Node(), "")
		saw(t, w.Pods[0], addr.Nth(p.Uplink, 9), "pod 1 saw "+p.Pod(0).String())
	})
}

func TestServicesKeepTheirTraffic(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		w, ports := served(t, p)
		claim(t, w.Node, ports, "a:eth0", both(p.Pod(0), netip.Addr{})...)
		family := nft.IPv4
		if p.Node().Is6() {
			family = nft.IPv6
		}
		var services *nft.Program
		wired.Do(t, w.Node, func() (err error) {
			services, err = nft.Open(nft.Config{Family: family, MasqueradeBit: 14})
			return err
		})
		t.Cleanup(func() { _ = services.Close() })
		serve := func(t *testing.T, f nft.Frontend) {
			t.Helper()
			want := nft.NewState()
			want.Addrs[nft.NodePortIPs] = map[netip.Addr]bool{p.Node(): true}
			for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
				f.Protocol = protocol
				want.Set(f, nft.Route{Entry: nft.Entry{NodePort: !f.Addr.IsValid()}, Endpoints: []netip.AddrPort{netip.AddrPortFrom(p.Pod(1), podPort)}})
			}
			wired.Do(t, w.Node, func() error { return services.Load(within(t), want, nft.NewKeys()) })
		}
		t.Run("a NodePort that came later", func(t *testing.T) {
			serve(t, nft.Frontend{Port: hostPort})
			saw(t, w.Pods[0], p.Node(), "pod 1 saw "+p.Node().String()) // masqueraded, as NodePorts are
		})
		t.Run("an external IP that is the node's", func(t *testing.T) {
			serve(t, nft.Frontend{Addr: p.Node(), Port: hostPort})
			saw(t, w.Pods[0], p.Node(), "pod 1 saw "+p.Pod(0).String())
		})
		release(t, w.Node, ports, "a:eth0")
		for _, c := range []struct {
			name string
			at   netip.Addr
			f    nft.Frontend
		}{
			{"D24 a NodePort is not claimed", netip.Addr{}, nft.Frontend{Port: hostPort}},
			{"D24 nor at one address", p.Node(), nft.Frontend{Port: hostPort}},
			{"D24 nor an external IP that is the node's", p.Node(), nft.Frontend{Addr: p.Node(), Port: hostPort}},
		} {
			t.Run(c.name, func(t *testing.T) {
				serve(t, c.f)
				err := w.Node.Do(func() error { return ports.Claim(within(t), "a:eth0", both(p.Pod(0), c.at)) })
				wantTaken(t, err, "a Service")
			})
		}
	})
}

func wantTaken(t *testing.T, err error, by string) {
	t.Helper()
	var taken *hostport.TakenError
	if !errors.As(err, &taken) || taken.By != by || !strings.Contains(err.Error(), fmt.Sprintf("tcp %d", hostPort)) {
		t.Errorf("claim: %v, want one that is taken by %s", err, by)
	}
}

func TestD24_APortIsClaimedOnce(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		w, ports := served(t, p)
		try := func(owner string, at netip.Addr) error {
			return w.Node.Do(func() error { return ports.Claim(within(t), owner, both(p.Pod(1), at)) })
		}
		t.Run("not where a process listens", func(t *testing.T) {
			for _, at := range []netip.Addr{p.Node(), {}} {
				var l net.Listener
				wired.Do(t, w.Node, func() (err error) {
					if at.IsValid() {
						l, err = net.Listen("tcp", netip.AddrPortFrom(at, hostPort).String())
					} else {
						l, err = net.Listen("tcp", fmt.Sprintf(":%d", hostPort))
					}
					return err
				})
				wantTaken(t, try("b:eth0", netip.Addr{}), fmt.Sprintf("process hostport.test (%d)", os.Getpid()))
				wantTaken(t, try("b:eth0", p.Node()), fmt.Sprintf("process hostport.test (%d)", os.Getpid()))
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
		claim(t, w.Node, ports, "a:eth0", both(p.Pod(0), netip.Addr{})...)
		t.Run("not where a pod has it", func(t *testing.T) {
			wantTaken(t, try("b:eth0", netip.Addr{}), "a:eth0")
			wantTaken(t, try("b:eth0", p.Node()), "a:eth0")
		})
		t.Run("and the pod that has it keeps it", func(t *testing.T) {
			release(t, w.Node, ports, "b:eth0")
			saw(t, w.Outside, p.Node(), "pod 0 saw "+p.Outside().String())
		})
		t.Run("by its owner again and again", func(t *testing.T) {
			claim(t, w.Node, ports, "a:eth0", both(p.Pod(0), netip.Addr{})...)
			saw(t, w.Outside, p.Node(), "pod 0 saw "+p.Outside().String())
		})
		t.Run("by another one after its release", func(t *testing.T) {
			release(t, w.Node, ports, "a:eth0")
			claim(t, w.Node, ports, "b:eth0", both(p.Pod(1), netip.Addr{})...)
			saw(t, w.Outside, p.Node(), "pod 1 saw "+p.Outside().String())
		})
	})
}

// A client that keeps its port, as a syslog sender does, is led anew at each change.
func TestD25_UDPClientsFollowThePort(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		w, ports := served(t, p)
		// Connection tracking has to be on before any claim.
		w.Node.Run(t, "nft", "table inet other { chain c { type filter hook prerouting priority 0; ct state new counter; }; }")
		var c *net.UDPConn
		wired.Do(t, w.Outside, func() (err error) {
			c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Node(), hostPort)))
			return err
		})
		t.Cleanup(func() { _ = c.Close() })
		ask := func() string {
			buf := make([]byte, 100)
			if err := c.SetDeadline(time.Now().Add(wired.Lost)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write([]byte("?")); err != nil {
				return ""
			}
			n, _ := c.Read(buf) // refused, or lost
			return string(buf[:n])
		}
		want := func(when, want string) {
			t.Helper()
			if got := ask(); got != want {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		seen := " saw " + p.Outside().String()
		want("before", "")
		claim(t, w.Node, ports, "a:eth0", both(p.Pod(0), netip.Addr{})...)
		want("claimed", "pod 0"+seen)
		release(t, w.Node, ports, "a:eth0")
		want("released", "")
		claim(t, w.Node, ports, "b:eth0", both(p.Pod(1), p.Node())...)
		want("claimed by another one", "pod 1"+seen)
	})
}

func TestTheTableIsWhatIsWritten(t *testing.T) {
	ns := netns.New(t, "node")
	ports := open(t, t.TempDir())
	claim(t, ns, ports, "a:eth0", hostport.Claim{Protocol: hostport.TCP, HostPort: 80, Pod: netip.MustParseAddrPort("10.1.0.2:8080")},
		hostport.Claim{Protocol: hostport.SCTP, HostIP: netip.MustParseAddr("2001:db8::1"), HostPort: 81, Pod: netip.MustParseAddrPort("[fd00:1::2]:8081")})
	list := func() string { return ns.Run(t, "nft", "list", "ruleset") }
	saved := list()
	if diff := cmp.Diff(golden(t), withoutSeals(saved)); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
	t.Run("and nft takes back what it lists", func(t *testing.T) {
		ns.Run(t, "nft", "flush", "ruleset")
		ns.Run(t, "nft", saved)
		if diff := cmp.Diff(saved, list()); diff != "" {
			t.Errorf("loaded again (-want +got):\n%s", diff)
		}
	})
	t.Run("with the names of the table of Services", func(t *testing.T) {
		want := []string{nft.TableName, string(nft.ServiceIPs), string(nft.ServiceNodePorts)}
		if diff := cmp.Diff(want, hostport.ServiceNames()); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
	})
}
