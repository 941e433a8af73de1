package plugin_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/test/netns"
)

func TestAddResult(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	r := n.added(t, add("c1", "eth0", pod, n.config("1.1.0", nil)))
	t.Run("C26: both interfaces with MAC, the pod's with its sandbox", func(t *testing.T) {
		if len(r.Interfaces) != 2 {
			t.Fatalf("got interfaces %v, want 2", r.Interfaces)
		}
		host, inner := r.Interfaces[0], r.Interfaces[1]
		if host.Sandbox != "" || inner.Sandbox != pod.Path() || inner.Name != "eth0" || !strings.HasPrefix(host.Name, "one") || len(host.Name) > 15 {
			t.Errorf("got %v and %v", host, inner)
		}
		if out := n.Run(t, "ip", "link", "show", host.Name); !strings.Contains(out, host.Mac) {
			t.Errorf("got %s, want MAC %s", out, host.Mac)
		}
		if out := pod.Run(t, "ip", "link", "show", "eth0"); !strings.Contains(out, inner.Mac) {
			t.Errorf("got %s, want MAC %s", out, inner.Mac)
		}
	})
	t.Run("C26: addresses with the pod's interface and gateway", func(t *testing.T) {
		want := []string{firstPod4 + "/32 169.254.1.1 1", firstPod6 + "/128 fe80::1 1"}
		var got []string
		for _, ip := range r.IPs {
			got = append(got, fmt.Sprintf("%s %s %d", ip.Address.String(), ip.Gateway, *ip.Interface))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
	t.Run("C26: the routes that are in the pod", func(t *testing.T) {
		var got []string
		for _, route := range r.Routes {
			got = append(got, route.Dst.String()+" "+route.GW.String())
		}
		if d := cmp.Diff([]string{"0.0.0.0/0 169.254.1.1", "::/0 fe80::1"}, got); d != "" {
			t.Error(d)
		}
		for f, via := range map[string]string{"-4": "default via 169.254.1.1 dev eth0", "-6": "default via fe80::1 dev eth0"} {
			if out := pod.Run(t, "ip", f, "route"); !strings.Contains(out, via) {
				t.Errorf("got %s, want %s", out, via)
			}
		}
	})
}

func TestAddBesides(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	r := n.added(t, add("c1", "eth0", pod, n.config("1.1.0", object{"dns": object{"nameservers": []string{"10.96.0.10"}, "search": []string{"cluster.local"}}})))
	t.Run("C26: DNS of the configuration", func(t *testing.T) {
		if d := cmp.Diff([]string{"10.96.0.10"}, r.DNS.Nameservers); d != "" {
			t.Error(d)
		}
	})
	t.Run("C33: forwarding is on", func(t *testing.T) {
		for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
			if got := strings.TrimSpace(n.Run(t, "sysctl", "-n", key)); got != "1" {
				t.Errorf("%s: got %s", key, got)
			}
		}
	})
	t.Run("the record and the reservations are private", func(t *testing.T) {
		for _, name := range n.files(t) {
			if out := n.Run(t, "find", n.dataDir, "-name", name, "-printf", "%m"); out != "600" {
				t.Errorf("%s has mode %s, want 600", name, out)
			}
		}
	})
}

func TestAddVersions(t *testing.T) {
	n := newNode(t)
	for i, v := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run("C20: result in version "+v, func(t *testing.T) {
			c := add(fmt.Sprint("c", i), "eth0", netns.New(t, "pod"), n.config(v, nil))
			a := n.succeed(t, c)
			var r struct {
				CNIVersion string
				Interfaces []struct{ Mtu *int }
				IPs        []struct{ Version string }
			}
			if err := json.Unmarshal([]byte(a.stdout), &r); err != nil {
				t.Fatal(err)
			}
			if r.CNIVersion != v || len(r.IPs) != 2 || len(r.Interfaces) != 2 {
				t.Fatalf("got %s", a.stdout)
			}
			if old := v < "1.0.0"; (r.IPs[0].Version == "4") != old || (r.IPs[1].Version == "6") != old {
				t.Errorf("got versions of addresses %v", r.IPs)
			}
			if got, want := r.Interfaces[1].Mtu != nil, v == "1.1.0"; got != want {
				t.Errorf("interface has an mtu: got %v, want %v", got, want)
			}
			n.succeed(t, c.as("DEL"))
		})
	}
	n.clean(t)
}

func TestAddPassesOnPrevResult(t *testing.T) {
	n := newNode(t)
	prev := object{
		"cniVersion": "1.0.0",
		"interfaces": []object{{"name": "other0", "sandbox": "/x"}},
		"ips":        []object{{"address": "198.51.100.9/24", "interface": 0}},
		"routes":     []object{{"dst": "198.51.100.0/24"}},
	}
	t.Run("C25: an earlier plugin's entries stay first", func(t *testing.T) {
		r := n.added(t, add("c1", "eth0", netns.New(t, "pod"), n.config("1.0.0", object{"prevResult": prev})))
		if len(r.Interfaces) != 3 || r.Interfaces[0].Name != "other0" || r.Interfaces[2].Name != "eth0" {
			t.Errorf("got interfaces %v", r.Interfaces)
		}
		if len(r.IPs) != 3 || *r.IPs[0].Interface != 0 || *r.IPs[1].Interface != 2 {
			t.Errorf("got addresses %v", r.IPs)
		}
		if len(r.Routes) != 3 {
			t.Errorf("got routes %v", r.Routes)
		}
	})
}

func TestAddRefuses(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	c := add("c1", "eth0", pod, n.config("1.1.0", nil))
	t.Run("C24: an interface of that name that is another's, which stays", func(t *testing.T) {
		pod.Run(t, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "theirs")
		n.fail(t, c, 102, "eth0 exists already in the pod")
		if out := links(t, pod); !strings.Contains(out, "eth0@theirs") {
			t.Errorf("the interface is not the same any more: %s", out)
		}
		n.clean(t)
		pod.Run(t, "ip", "link", "del", "eth0")
	})
	t.Run("C27: the same attachment twice, without a second address", func(t *testing.T) {
		n.added(t, c)
		before := n.files(t)
		n.fail(t, c, 103, "pods/c1/eth0")
		if d := cmp.Diff(before, n.files(t)); d != "" {
			t.Error(d)
		}
		t.Run("also when the first interface is gone", func(t *testing.T) {
			pod.Run(t, "ip", "link", "del", "eth0")
			n.fail(t, c, 103, "pods/c1/eth0")
			if d := cmp.Diff(before, n.files(t)); d != "" {
				t.Error(d)
			}
		})
		n.succeed(t, c.as("DEL"))
		n.clean(t)
	})
	t.Run("C14: its own namespace", func(t *testing.T) {
		own := add("c1", "eth0", n.NS, c.stdin)
		n.fail(t, own, 8, n.Path())
		n.fail(t, own.as("DEL"), 8, n.Path())
		n.clean(t)
		own.env = []string{"CNI_NETNS_OVERRIDE=1"}
		n.added(t, own)
		n.succeed(t, own.as("DEL"))
		n.clean(t)
	})
	t.Run("C11: a namespace that is none", func(t *testing.T) {
		bad := c
		for _, path := range []string{"/nowhere", "/etc/passwd", "/proc/self/ns/uts"} {
			bad.netns = path
			n.fail(t, bad, 8, path)
		}
		n.clean(t)
	})
	t.Run("C57: more pods than addresses", func(t *testing.T) {
		small := n.config("1.1.0", object{"ipam": object{"ranges": [][]object{{{"subnet": "10.2.0.0/30"}}}}})
		n.added(t, add("c1", "eth0", netns.New(t, "one"), small))
		n.fail(t, add("c2", "eth0", netns.New(t, "two"), small), 100, "10.2.0.1-10.2.0.2")
		n.succeed(t, add("c1", "eth0", pod, small).as("DEL"))
		n.clean(t)
	})
}

func TestAddTakesRequests(t *testing.T) {
	n := newNode(t)
	plain := n.config("1.1.0", nil)
	for name, tc := range map[string]struct{ stdin, args string }{
		"ips capability": {n.config("1.1.0", object{"runtimeConfig": object{"ips": []string{"10.1.0.77", "fd00:1::77"}, "unknown": object{"x": 1}}}), ""},
		"args.cni.ips":   {n.config("1.1.0", object{"args": object{"cni": object{"ips": []string{"10.1.0.77/24", "fd00:1::77/112"}}}}), ""},
		"CNI_ARGS IP":    {plain, "IP=10.1.0.77"},
	} {
		t.Run("C30: "+name, func(t *testing.T) {
			c := add("c1", "eth0", netns.New(t, "pod"), tc.stdin)
			c.args = tc.args
			got := addresses(t, n.added(t, c))
			if got[0].String() != "10.1.0.77" || (tc.args == "" && got[1].String() != "fd00:1::77") {
				t.Errorf("got %v", got)
			}
			other := add("c2", "eth0", netns.New(t, "other"), tc.stdin)
			other.args = tc.args
			n.fail(t, other, 101, "10.1.0.77")
			n.succeed(t, c.as("DEL"))
			n.clean(t)
		})
	}
	for name, ip := range map[string]string{"in no range": "10.9.9.9", "the gateway": "10.1.0.1"} {
		t.Run("C30: an address "+name, func(t *testing.T) {
			c := add("c1", "eth0", netns.New(t, "pod"), plain)
			c.args = "IP=" + ip
			n.fail(t, c, 101, ip)
			n.clean(t)
		})
	}
	t.Run("C34: ipRanges capability", func(t *testing.T) {
		c := add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", object{
			"ipam":          object{"type": "host-local"},
			"runtimeConfig": object{"ipRanges": [][]object{{{"subnet": "10.3.0.0/24"}}}},
		}))
		if got := addresses(t, n.added(t, c)); len(got) != 1 || got[0].String() != "10.3.0.2" {
			t.Errorf("got %v", got)
		}
		n.succeed(t, c.as("DEL"))
	})
}

func TestAddMAC(t *testing.T) {
	n := newNode(t)
	plain := n.config("1.1.0", nil)
	t.Run("C31: a MAC, and a stable one without", func(t *testing.T) {
		c := add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", object{"runtimeConfig": object{"mac": "02:00:00:11:22:33"}}))
		if got := n.added(t, c).Interfaces[1].Mac; got != "02:00:00:11:22:33" {
			t.Errorf("got %s", got)
		}
		n.succeed(t, c.as("DEL"))
		var macs []string
		for range 2 {
			c := add("c1", "eth0", netns.New(t, "pod"), plain)
			r := n.added(t, c)
			macs = append(macs, r.Interfaces[0].Mac+" "+r.Interfaces[1].Mac)
			n.succeed(t, c.as("DEL"))
		}
		if macs[0] != macs[1] {
			t.Errorf("got %q, want the same twice", macs)
		}
	})
}

func TestAddArguments(t *testing.T) {
	n := newNode(t)
	plain := n.config("1.1.0", nil)
	t.Run("C13: keys of CNI_ARGS", func(t *testing.T) {
		c := add("c1", "eth0", netns.New(t, "pod"), plain)
		for args, what := range map[string]string{"BAD": "BAD", "IP=x": "IP=x", "Fancy=1": "Fancy", "IgnoreUnknown=maybe": "IgnoreUnknown"} {
			c.args = args
			n.fail(t, c, 4, what)
		}
		for _, args := range []string{"K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=default;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u", "IgnoreUnknown=1;Fancy=1"} {
			c.args = args
			n.added(t, c)
			n.succeed(t, c.as("DEL"))
		}
		n.clean(t)
	})
}

func TestAddMTU(t *testing.T) {
	n := newNode(t)
	n.Run(t, "ip", "link", "set", "uplink", "mtu", "1450")
	for name, tc := range map[string]struct {
		more object
		want int
	}{
		"that of the uplink": {nil, 1450},
		"configured":         {object{"mtu": 1400}, 1400},
	} {
		t.Run("C33: "+name, func(t *testing.T) {
			pod := netns.New(t, "pod")
			c := add("c1", "eth0", pod, n.config("1.1.0", tc.more))
			r := n.added(t, c)
			if r.Interfaces[0].Mtu != tc.want || r.Interfaces[1].Mtu != tc.want {
				t.Errorf("got %v, want %d", r.Interfaces, tc.want)
			}
			if out := pod.Run(t, "ip", "link", "show", "eth0"); !strings.Contains(out, fmt.Sprintf("mtu %d ", tc.want)) {
				t.Errorf("got %s, want mtu %d", out, tc.want)
			}
			n.succeed(t, c.as("DEL"))
		})
	}
	t.Run("C33: an uplink too narrow for IPv6 is named", func(t *testing.T) {
		n := newNode(t)
		n.Run(t, "ip", "link", "set", "uplink", "mtu", "1000")
		c := add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil))
		n.fail(t, c, 104, "1000")
		c.stdin = n.config("1.1.0", object{"ipam": object{"ranges": [][]object{{{"subnet": podRange4}}}}})
		n.added(t, c)
		n.succeed(t, n.checkOf(t, c))
	})
	t.Run("C33: without a default route", func(t *testing.T) {
		n := newNode(t)
		n.Run(t, "ip", "route", "del", "default")
		n.Run(t, "ip", "-6", "route", "del", "default")
		if got := n.added(t, add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil))).Interfaces[1].Mtu; got != 1500 {
			t.Errorf("got %d", got)
		}
	})
}

func BenchmarkAdd(b *testing.B) {
	n := newNode(b)
	for b.Loop() {
		b.StopTimer()
		c := add("c1", "eth0", netns.New(b, "pod"), n.config("1.1.0", nil))
		b.StartTimer()
		n.succeed(b, c)
		b.StopTimer()
		n.succeed(b, c.as("DEL"))
		b.StartTimer()
	}
}
