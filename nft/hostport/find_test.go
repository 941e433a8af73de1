package hostport_test

import (
	"fmt"
	"net/netip"
	"testing"

	"onerule/nft/hostport"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

// Where a packet is said to be led is where it gets.
func TestWhereAPacketIsLed(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		w, ports := served(t, p)
		node, loopback := p.Node(), loopbackOf(p)
		claim(t, w.Node, ports, "a:eth0", both(p.Pod(0), node)...)
		claim(t, w.Node, ports, "b:eth0", hostport.Claim{Protocol: hostport.TCP, HostIP: loopback, HostPort: hostPort, Pod: netip.AddrPortFrom(p.Pod(1), podPort)})
		anywhere := both(p.Pod(1), netip.Addr{})[0]
		anywhere.HostPort++
		claim(t, w.Node, ports, "c:eth0", anywhere)
		for name, c := range map[string]struct {
			on       *netns.NS
			from, to netip.Addr
			port     uint16
			want     string // pod, owner and map
		}{
			"from outside":                              {w.Outside, p.Outside(), node, hostPort, "0 a:eth0 hostports"},
			"from outside, at all addresses":            {w.Outside, p.Outside(), node, hostPort + 1, "1 c:eth0 hostports-any"},
			"from outside, a port that nobody has":      {w.Outside, p.Outside(), node, hostPort + 2, ""},
			"from another pod":                          {w.Pods[1], p.Pod(1), node, hostPort, "0 a:eth0 hostports"},
			"from the node":                             {w.Node, node, node, hostPort, "0 a:eth0 hostports"},
			"from the node to a loopback address":       {w.Node, node, loopback, hostPort, "1 b:eth0 hostports"},
			"the same, at all addresses":                {w.Node, node, loopback, hostPort + 1, "1 c:eth0 hostports-any"},
			"from a loopback address, where a proxy is": {w.Node, loopback, loopback, hostPort, ""},
		} {
			t.Run(name, func(t *testing.T) {
				packet := hostport.Packet{Protocol: hostport.TCP, From: c.from, To: netip.AddrPortFrom(c.to, c.port), Local: c.on == w.Node}
				lead, there := find(t, w.Node, packet)
				got, answer := "", ""
				if there {
					pod := 0
					if lead.Pod == netip.AddrPortFrom(p.Pod(1), podPort) {
						pod = 1
					}
					got, answer = fmt.Sprintf("%d %s %s", pod, lead.Owner, lead.Map), fmt.Sprintf("pod %d saw %s", pod, c.from)
				}
				if got != c.want || there && (lead.Itself || !lead.Whole) {
					t.Errorf("got %q, %+v, want %q", got, lead, c.want)
				}
				if heard, err := wired.Ask(c.on, "tcp", netip.AddrPortFrom(c.from, 0), packet.To); heard != answer || (err == nil) != there {
					t.Errorf("the packet hears %q, %v, want %q", heard, err, answer)
				}
			})
		}
		t.Run("a pod that asks itself", func(t *testing.T) {
			if lead, _ := find(t, w.Node, hostport.Packet{Protocol: hostport.UDP, From: p.Pod(0), To: netip.AddrPortFrom(node, hostPort)}); !lead.Itself {
				t.Errorf("got %+v", lead)
			}
		})
		packet := hostport.Packet{Protocol: hostport.TCP, From: p.Outside(), To: netip.AddrPortFrom(node, hostPort)}
		family := map[bool]string{true: "ip6", false: "ip"}[node.Is6()]
		t.Run("rules that are not ours", func(t *testing.T) {
			w.Node.Run(t, "nft", "add rule", family, hostport.TableName, "hostports counter")
			if lead, there := find(t, w.Node, packet); !there || lead.Whole {
				t.Errorf("got %+v, %t", lead, there)
			}
		})
		t.Run("an element that is gone", func(t *testing.T) {
			w.Node.Run(t, "nft", "flush map", family, hostport.TableName, "hostports")
			if lead, there := find(t, w.Node, packet); there {
				t.Errorf("got %+v", lead)
			}
		})
		t.Run("no table", func(t *testing.T) {
			w.Node.Run(t, "nft", "delete table", family, hostport.TableName)
			if lead, there := find(t, w.Node, packet); there {
				t.Errorf("got %+v", lead)
			}
		})
	})
}

func find(t *testing.T, on *netns.NS, packet hostport.Packet) (lead hostport.Lead, there bool) {
	t.Helper()
	wired.Do(t, on, func() (err error) {
		lead, there, err = hostport.Find(packet)
		return err
	})
	return lead, there
}
