package hostport_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/nft/hostport"
)

// A network with several sets of ranges of one family gives a pod an address from each.
func TestAPortLeadsToTheFirstAddressOfEachFamily(t *testing.T) {
	pod := []netip.Addr{
		netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.2.0.2"), netip.MustParseAddr("fd00:1::2"), netip.MustParseAddr("fd00:2::2"),
	}
	for name, c := range map[string]struct {
		hostIP string
		pod    []netip.Addr
		want   []string
	}{
		"all addresses":     {"", pod, []string{"10.1.0.2:80", "[fd00:1::2]:80"}},
		"those of IPv4":     {"192.0.2.1", pod, []string{"10.1.0.2:80"}},
		"those of IPv6":     {"2001:db8::1", pod, []string{"[fd00:1::2]:80"}},
		"IPv6 comes first":  {"", []netip.Addr{pod[3], pod[1], pod[2], pod[0]}, []string{"[fd00:2::2]:80", "10.2.0.2:80"}},
		"a pod of IPv4":     {"0.0.0.0", pod[:2], []string{"10.1.0.2:80"}},
		"a pod of IPv6":     {"", pod[2:], []string{"[fd00:1::2]:80"}},
		"one address alone": {"", pod[1:2], []string{"10.2.0.2:80"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := hostport.Mapping{HostPort: hostPort, ContainerPort: podPort, HostIP: c.hostIP}
			claims, err := hostport.Claims([]hostport.Mapping{m}, c.pod)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, c := range claims {
				got = append(got, c.Pod.String())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("led to (-want +got):\n%s", diff)
			}
		})
	}
}
