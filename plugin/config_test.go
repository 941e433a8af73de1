package plugin

import (
	"errors"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// FuzzConfig feeds stdin to the parsers of all verbs: whatever comes, there is a
// configuration that holds what ADD relies on, or one error with a code. The seeds
// are in testdata/fuzz.
func FuzzConfig(f *testing.F) {
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		wantCoded := func(err error) {
			var e *codedError
			if err != nil && (!errors.As(err, &e) || e.code == types.ErrInternal || err.Error() == "") {
				t.Errorf("got %v, want an error with a code", err)
			}
		}
		_, err := parseGarbageList(stdin, "pods")
		wantCoded(err)
		_, err = requirePrevResult(stdin)
		wantCoded(err)
		_, err = statusFile(stdin)
		wantCoded(err)
		c, err := parseConfig(stdin, args)
		wantCoded(err)
		if err != nil {
			return
		}
		if c.network == "" || c.dataDir[0] != '/' || c.lockTimeout <= 0 || len(c.ranges) == 0 {
			t.Errorf("got %+v", c)
		}
		for i := range c.ranges {
			if c.ranges[i].size().Sign() < 0 || c.ranges[i].spare() < 0 {
				t.Errorf("got %v, with %v addresses", c.ranges[i], c.ranges[i].size())
			}
		}
		if (c.hasIPv6() && c.mtu != 0 && c.mtu < minMTU6) || c.mtu < 0 || c.mtu > maxMTU {
			t.Errorf("got mtu %d", c.mtu)
		}
		for _, m := range c.ports {
			if m.HostPort < 0 || m.HostPort > 65535 || m.HostPort > 0 && m.ContainerPort < 1 {
				t.Errorf("got port %+v", m)
			}
		}
		for _, ip := range c.ips {
			if !ip.IsValid() || ip.Is4In6() || ip.Zone() != "" {
				t.Errorf("got address %v", ip)
			}
		}
	})
}
