package daemon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"onerule/daemon/config"
	"onerule/daemon/model"
	"onerule/nft"
	"onerule/test/netns"
)

// Where flows go in these tests. All addresses are the node's own, and none answers,
// which leaves flows as well.
const (
	vip, otherVIP        = "10.96.0.1", "10.96.0.2"
	nodeA, nodeB         = "192.0.2.1", "192.0.2.2"
	endpoint1, endpoint2 = "10.0.0.1", "10.0.0.2"
	foreign              = "10.0.0.9"
	servicePort, ports   = 53, 30053
)

// A flowed is a daemon in a namespace, with what it was told last.
type flowed struct {
	*Daemon
	t  *testing.T
	ns *netns.NS
}

// node gives a namespace with all these addresses.
func node(t *testing.T) *netns.NS {
	t.Helper()
	ns := netns.New(t, "node")
	for _, a := range []string{vip, otherVIP, nodeA, nodeB, endpoint1, endpoint2, foreign} {
		ns.Addr(t, "lo", a+"/32")
	}
	return ns
}

// flowing gives a daemon whose node takes NodePorts at these ranges, with a Service.
func flowing(t *testing.T, ns *netns.NS, nodePorts string, s *model.Service, endpoint string) flowed {
	t.Helper()
	f := flowed{newDaemonOf(t, ns, nodePortsAt(nodePorts)), t, ns}
	f.HostAddrs([]netip.Addr{netip.MustParseAddr(nodeA), netip.MustParseAddr(nodeB)})
	f.tell(s, endpoint)
	f.Synced()
	f.sync(true)
	return f
}

func nodePortsAt(ranges string) config.Settings {
	s := testSettings()
	s.ExternalIPs = true
	s.NodePortAddresses.CIDRs = []netip.Prefix{netip.MustParsePrefix(ranges)}
	return s
}

// dns is a Service of UDP with a NodePort.
func dns(name, at string, nodePort uint16) *model.Service {
	return &model.Service{
		Name: model.Name{Namespace: "ns", Name: name}, ClusterIPs: []netip.Addr{netip.MustParseAddr(at)},
		Ports: []model.ServicePort{{Protocol: model.UDP, Port: servicePort, NodePort: nodePort}},
	}
}

// tell puts a Service with one endpoint into the mailbox.
func (f flowed) tell(s *model.Service, endpoint string) {
	f.Changed(model.Change{Key: model.Key{Kind: model.KindService, Name: s.Name}, Service: s})
	f.Changed(model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: s.Name}, EndpointSlice: &model.EndpointSlice{
		Name: s.Name, Service: s.Name.Name, Ports: []model.SlicePort{{Protocol: model.UDP, Port: 8053}},
		Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr(endpoint), Ready: true, Serving: true}},
	}})
}

// forget deletes the Service and leaves its slice.
func (f flowed) forget(s *model.Service) {
	f.Changed(model.Change{Key: model.Key{Kind: model.KindService, Name: s.Name}})
}

func (f flowed) sync(succeeds bool) {
	f.t.Helper()
	if err := f.ns.Do(func() error { return f.Daemon.sync(f.t.Context()) }); succeeds != (err == nil) {
		f.t.Fatalf("sync: %v, want success: %v", err, succeeds)
	}
}

// clean runs the daemon's cleaners to the end of the test.
func (f flowed) clean() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, len(f.cleaners[nft.IPv4]))
	for _, c := range f.cleaners[nft.IPv4] {
		go func() {
			ended <- f.ns.Do(func() error {
				c.Run(ctx)
				return nil
			})
		}()
	}
	f.t.Cleanup(func() {
		cancel()
		for range f.cleaners[nft.IPv4] {
			if err := <-ended; err != nil {
				f.t.Error(err)
			}
		}
	})
}

// send sends a datagram to each place, from a port of its own.
func send(t *testing.T, ns *netns.NS, to ...string) {
	t.Helper()
	err := ns.Do(func() error {
		for _, place := range to {
			c, err := net.Dial("udp", place)
			if err != nil {
				return err
			}
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
			if err := c.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// holds waits until conntrack has just these flows, as where to and who answers.
func holds(t *testing.T, ns *netns.NS, when string, want ...string) {
	t.Helper()
	slices.Sort(want)
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		got := flowsOf(t, ns, unix.IPPROTO_UDP)
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: flows (-want +got): %s", when, cmp.Diff(want, got))
		}
	}
}

// flowsOf lists the flows of a protocol to NodePorts and Services.
func flowsOf(t *testing.T, ns *netns.NS, protocol uint8) []string {
	t.Helper()
	var list []string
	err := ns.Do(func() error {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		for _, f := range flows {
			if f.Forward.Protocol == protocol {
				list = append(list, fmt.Sprintf("%s:%d %s", f.Forward.DstIP, f.Forward.DstPort, f.Reverse.SrcIP))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return list
}

// What can become of a Service, and whether its flows at the ClusterIP and the NodePort
// are over.
type fate struct {
	name      string
	change    func(flowed)
	vip, port bool
}

func fates() []fate {
	return []fate{
		{"the Service is deleted", func(f flowed) { f.forget(dns("dns", vip, ports)) }, true, true},
		{"its endpoint is replaced", func(f flowed) { f.tell(dns("dns", vip, ports), endpoint2) }, true, true},
		{"its NodePort is another one", func(f flowed) { f.tell(dns("dns", vip, ports+1), endpoint1) }, false, true},
		{"its address is another one", func(f flowed) { f.tell(dns("dns", otherVIP, ports), endpoint1) }, true, false},
	}
}

// left are the flows that go on.
func (c fate) left() []string {
	var list []string
	if !c.vip {
		list = append(list, vip+":53 "+endpoint1)
	}
	if !c.port {
		list = append(list, nodeA+":30053 "+endpoint1)
	}
	return list
}

// A write that fails loses no flow that was to be cleaned for it: the next load cleans it.
func TestFlowsOfAWriteThatFailed(t *testing.T) {
	for _, c := range fates() {
		t.Run("R10 "+c.name, func(t *testing.T) {
			t.Parallel()
			ns := node(t)
			synctest.Test(t, func(t *testing.T) {
				f := flowing(t, ns, nodeA+"/32", dns("dns", vip, ports), endpoint1)
				send(t, ns, vip+":53", nodeA+":30053")
				both := []string{vip + ":53 " + endpoint1, nodeA + ":30053 " + endpoint1}
				holds(t, ns, "at first", both...)
				// The kernel refuses to delete what is not there.
				for _, name := range []string{"endpoints-udp", "nodeport-endpoints-udp"} {
					ns.Run(t, "nft", "flush", "map", "ip", "onerule", name)
				}
				f.clean()
				c.change(f)
				f.sync(false)
				<-time.After(time.Minute) // of the bubble: a cleaner that has a pass to make makes it
				synctest.Wait()
				if diff := cmp.Diff(both, flowsOf(t, ns, unix.IPPROTO_UDP), cmpopts.SortSlices(strings.Compare)); diff != "" {
					t.Errorf("after a write that failed: flows (-want +got): %s", diff)
				}
				f.sync(true)
				holds(t, ns, "after one that did not", c.left()...)
			})
		})
	}
}

// What happened while no daemon ran is seen from what the table still holds.
func TestFlowsOfWhatHappenedWithoutADaemon(t *testing.T) {
	for _, c := range fates() {
		t.Run("F8, R19: "+c.name, func(t *testing.T) {
			t.Parallel()
			ns := node(t)
			flowing(t, ns, nodeA+"/32", dns("dns", vip, ports), endpoint1)
			send(t, ns, vip+":53", nodeA+":30053")
			holds(t, ns, "at first", vip+":53 "+endpoint1, nodeA+":30053 "+endpoint1)
			f := flowed{newDaemonOf(t, ns, nodePortsAt(nodeA+"/32")), t, ns}
			f.HostAddrs([]netip.Addr{netip.MustParseAddr(nodeA), netip.MustParseAddr(nodeB)})
			c.change(f)
			f.Synced()
			f.clean()
			f.sync(true)
			holds(t, ns, "after the next one's start", c.left()...)
		})
	}
}

// A flow that began before its destination was a frontend goes, and those past it stay.
func TestFlowsFromBeforeAService(t *testing.T) {
	ns := node(t)
	f := flowing(t, ns, nodeA+"/32", dns("dns", vip, ports), endpoint1)
	send(t, ns, vip+":53", otherVIP+":53", otherVIP+":54", nodeA+":30054")
	untouched := []string{vip + ":53 " + endpoint1, otherVIP + ":54 " + otherVIP}
	holds(t, ns, "at first", append(untouched, otherVIP+":53 "+otherVIP, nodeA+":30054 "+nodeA)...)
	f.clean()
	f.tell(dns("other", otherVIP, ports+1), endpoint1)
	f.sync(true)
	holds(t, ns, "when it came", untouched...)
}

// others translates the same port at another address of the node, before anybody else.
const others = `table ip others { chain output { type nat hook output priority -150; ip daddr ` + nodeB + ` udp dport 30053 dnat to ` + foreign + `:8053; }; }`

// Of the flows to the number of a NodePort just those go that are to an address that takes
// NodePorts, where no other Service has the number.
func TestFlowsToNodePorts(t *testing.T) {
	t.Run("A12.3 at addresses that take them", func(t *testing.T) {
		t.Parallel()
		ns := node(t)
		ns.Run(t, "nft", others)
		f := flowing(t, ns, nodeA+"/32", dns("dns", vip, ports), endpoint1)
		send(t, ns, nodeA+":30053", nodeB+":30053")
		holds(t, ns, "at first", nodeA+":30053 "+endpoint1, nodeB+":30053 "+foreign)
		f.clean()
		f.tell(dns("dns", vip, ports), endpoint2)
		f.sync(true)
		holds(t, ns, "when the endpoint was replaced", nodeB+":30053 "+foreign)
		send(t, ns, nodeA+":30053")
		holds(t, ns, "another flow", nodeA+":30053 "+endpoint2, nodeB+":30053 "+foreign)
		f.Configured(nodePortsAt("203.0.113.0/24"))
		f.sync(true)
		holds(t, ns, "when no address takes NodePorts any more", nodeB+":30053 "+foreign)
	})
	t.Run("A12.3 beside another Service's address", func(t *testing.T) {
		t.Parallel()
		ns := node(t)
		f := flowing(t, ns, "192.0.2.0/24", dns("dns", vip, ports), endpoint1)
		external := dns("external", otherVIP, 0)
		external.ExternalIPs = []netip.Addr{netip.MustParseAddr(nodeB)}
		external.Ports[0].Port = ports
		f.tell(external, foreign)
		f.sync(true)
		f.clean()
		send(t, ns, nodeB+":30053")
		// In the third round no pass is for the other Service any more, whose flows that is.
		from, to := endpoint1, endpoint2
		for range 3 {
			send(t, ns, nodeA+":30053")
			holds(t, ns, "before the endpoint is replaced", nodeA+":30053 "+from, nodeB+":30053 "+foreign)
			f.tell(dns("dns", vip, ports), to)
			f.sync(true)
			holds(t, ns, "when it was", nodeB+":30053 "+foreign)
			from, to = to, from
		}
	})
}

// What a change makes of flows does not depend on how many other Services there are.
func TestACostOfFlowsThatDoesNotDependOnOtherServices(t *testing.T) {
	cost := func(protocol model.Protocol, services int) float64 {
		ns := netns.New(t, "node")
		f := flowed{newDaemonOf(t, ns, nodePortsAt("192.0.2.0/24")), t, ns}
		f.HostAddrs([]netip.Addr{netip.MustParseAddr(nodeA)})
		for i := range services {
			s := dns(fmt.Sprint("s", i), netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String(), uint16(30000+i))
			s.Ports[0].Protocol = protocol
			f.tell(s, endpoint1)
		}
		f.Synced()
		f.sync(true)
		f.cleaners[nft.IPv4].written()
		p := f.programs[nft.IPv4]
		keys := f.ledger.Of(func(n model.Name) bool { return n.Name == "s0" })
		out := f.ledger.Decide(keys)
		return testing.AllocsPerRun(100, func() {
			f.expect(nft.IPv4, keys, out, p.Has)
			f.cleaners[nft.IPv4].written()
		})
	}
	for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
		if few, many := cost(protocol, 10), cost(protocol, 1000); few != many || few == 0 || few > 8 {
			t.Errorf("a change of a %s frontend allocates %v times with 10 Services and %v times with 1,000, want the same, at most 8", protocol, few, many)
		}
	}
}
