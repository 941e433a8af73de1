package daemon

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/daemon/model"
	"onerule/nft"
	"onerule/test/netns"
)

// Where nobody is: what is sent there is not answered.
const dead, dead2, deadRange = "203.0.113.1", "203.0.113.2", "203.0.113.254/24"

// deaf puts a Service of TCP and UDP into the mailbox whose endpoint answers nobody.
func (f flowed) deaf(endpoint string) {
	n := model.Name{Namespace: "ns", Name: "deaf"}
	s, slice := &model.Service{Name: n, ClusterIPs: []netip.Addr{netip.MustParseAddr(otherVIP)}}, &model.EndpointSlice{Name: n, Service: n.Name}
	for _, p := range []model.Protocol{model.TCP, model.UDP} {
		s.Ports = append(s.Ports, model.ServicePort{Name: p.String(), Protocol: p, Port: servicePort})
		slice.Ports = append(slice.Ports, model.SlicePort{Name: p.String(), Protocol: p, Port: 8053})
	}
	slice.Endpoints = []model.Endpoint{{Addr: netip.MustParseAddr(endpoint), Ready: true, Serving: true}}
	f.Changed(model.Change{Key: model.Key{Kind: model.KindService, Name: n}, Service: s})
	f.Changed(model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: n}, EndpointSlice: slice})
}

// knock begins a connection, and does not wait for it.
func knock(t *testing.T, ns *netns.NS, to netip.AddrPort) {
	t.Helper()
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != unix.EINPROGRESS {
			t.Errorf("a connect to nobody: %v, want %v", err, unix.EINPROGRESS)
		}
		return unix.Close(fd)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Flows to an endpoint that left go as soon if its write is also that of something else, for
// which a load is due.
func TestFlowsOfAChangeThatJoinsALoad(t *testing.T) {
	for name, join := range map[string]func(flowed){
		"by itself": func(flowed) {},
		"the next try of a write that failed": func(f flowed) {
			f.ns.Run(f.t, "nft", "flush", "map", "ip", "onerule", "endpoints-udp")
			f.tell(dns("dns", vip, ports), endpoint2)
			f.sync(false)
		},
		"a repair": func(f flowed) { f.foreign([]nft.Foreign{{Family: nft.IPv4}}) },
		"other rules": func(f flowed) {
			s := nodePortsAt(nodeA + "/32")
			s.MasqueradeAll = true
			f.Configured(s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := node(t)
			netns.Wire(t, ns, "nowhere", netns.New(t, "nobody"), "eth0")
			ns.Addr(t, "nowhere", deadRange)
			synctest.Test(t, func(t *testing.T) {
				f := flowing(t, ns, nodeA+"/32", dns("dns", vip, ports), endpoint1)
				f.deaf(dead)
				f.sync(true)
				f.clean()
				<-time.After(time.Minute) // nothing else is to be cleaned
				send(t, ns, otherVIP+":53")
				knock(t, ns, netip.MustParseAddrPort(otherVIP+":53"))
				check := func(when string, want ...string) {
					t.Helper()
					synctest.Wait()
					for protocol, of := range map[string]uint8{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP} {
						if diff := cmp.Diff(want, flowsOf(t, ns, of)); diff != "" {
							t.Errorf("%s: flows of %s (-want +got): %s", when, protocol, diff)
						}
					}
				}
				check("at first", otherVIP+":53 "+dead)
				join(f)
				f.deaf(dead2)
				f.sync(true)
				<-time.After(6 * time.Second) // two passes, of those that nobody has answered
				check("6 s after the endpoint left")
			})
		})
	}
}
