package plugin

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/google/go-cmp/cmp"
)

// rangesOf reads what is given as ipam, and as the ipRanges of a runtime.
func rangesOf(ipam, asked string) ([]string, error) {
	sets, err := parseRanges(rangesStdin(ipam, asked))
	if err != nil {
		return nil, err
	}
	var texts []string
	for _, set := range sets {
		text := ""
		for _, s := range set {
			text += fmt.Sprintf("%s-%s without %s;", s.first, s.last, s.gateway)
		}
		texts = append(texts, text)
	}
	return texts, nil
}

// hostLocals is the same, by host-local's own parser.
func hostLocals(ipam, asked string) ([]string, error) {
	parsed, _, err := allocator.LoadIPAMConfig(rangesStdin(ipam, asked), "")
	if err != nil {
		return nil, err
	}
	var texts []string
	for _, set := range parsed.Ranges {
		text := ""
		for _, r := range set {
			text += fmt.Sprintf("%s-%s without %s;", addrOf(r.RangeStart), addrOf(r.RangeEnd), addrOf(r.Gateway))
		}
		texts = append(texts, text)
	}
	return texts, nil
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func rangesStdin(ipam, asked string) []byte {
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "pods", "ipam": %s, "runtimeConfig": {"ipRanges": %s}}`, ipam, asked)
}

// C57: every form that host-local takes is taken, as it takes it, and what it refuses is
// refused.
func TestC57RangesAreReadAsHostLocalReadsThem(t *testing.T) {
	for _, ipam := range []string{
		`{"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/112"}]]}`,
		`{"subnet": "10.1.0.0/24"}`,
		`{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "gateway": "10.1.0.254", "ranges": [[{"subnet": "10.2.0.0/24"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/30"}, {"subnet": "10.2.0.0/16"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.9"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.0", "rangeEnd": "10.1.0.255"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.0", "rangeEnd": "10.1.0.20"}, {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.21"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "::ffff:10.1.0.9", "gateway": "::ffff:10.1.0.2"}]]}`,
		`{"ranges": [[{"subnet": "10.0.0.0/13"}], [{"subnet": "fd00:1::/29"}]]}`,
		`{"ranges": [[{"subnet": "0.0.0.0/0"}], [{"subnet": "::/0"}]]}`,
		`{"ranges": [[{"subnet": "fd00:1::/126"}, {"subnet": "fd00:1::10/125", "gateway": ""}]]}`,
		`{"ranges": [[{"subnet": "fd00:1::/64", "rangeStart": "fd00:1::5", "rangeEnd": "fd00:1::ffff", "gateway": "fd00:1::1"}]]}`,
		// What is refused.
		`null`, `{}`, `{"ranges": []}`, `{"ranges": [[]]}`, `{"ranges": [[{}]]}`, `{"ranges": [[{"gateway": "10.1.0.1"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.128/25"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.128/25"}], [{"subnet": "10.1.0.0/24"}]]}`,
		`{"subnet": "10.1.0.0/24", "ranges": [[{"subnet": "10.1.0.0/24"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "10.1.0.0/25"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.20"}, {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.20"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00:1::/112"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.1/24"}]]}`, `{"ranges": [[{"subnet": "fd00:1::1/112"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/31"}]]}`, `{"ranges": [[{"subnet": "10.1.0.0/32"}]]}`, `{"ranges": [[{"subnet": "fd00:1::/127"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0"}]]}`, `{"ranges": [[{"subnet": "10.1.0.0/33"}]]}`, `{"ranges": [[{"subnet": "::ffff:10.1.0.0/120"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.2.0.1"}]]}`, `{"ranges": [[{"subnet": "10.1.0.0/24", "rangeEnd": "10.2.0.1"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.8"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.255"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/24", "gateway": "10.2.0.1"}]]}`, `{"ranges": [[{"subnet": "10.1.0.0/24", "gateway": "fd00:1::1"}]]}`,
		`{"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "ten"}]]}`, `{"ranges": [[{"subnet": "fe80::/64", "rangeStart": "fe80::1%eth0"}]]}`,
		`{"ranges": [[{"subnet": 10}]]}`, `{"ranges": "10.1.0.0/24"}`,
	} {
		for _, asked := range []string{`null`, `[]`, `[[{"subnet": "10.9.0.0/24"}]]`, `[[{"subnet": "fd00:9::/64"}], [{"subnet": "10.1.0.64/26"}]]`} {
			got, err := rangesOf(ipam, asked)
			want, wantErr := hostLocals(ipam, asked)
			if (err == nil) != (wantErr == nil) {
				t.Errorf("%s with %s: got error %v, host-local gives %v", ipam, asked, err, wantErr)
			}
			if d := cmp.Diff(want, got); err == nil && d != "" {
				t.Errorf("%s with %s (-host-local +got):\n%s", ipam, asked, d)
			}
		}
	}
}

// FuzzRanges wants the same of any ipam, but for what only one of two libraries takes for a
// prefix or an address: whatever we take, host-local takes alike.
func FuzzRanges(f *testing.F) {
	f.Add("10.1.0.0/24", "", "10.1.0.200", "10.1.0.7")
	f.Add("fd00:1::/112", "fd00:1::9", "", "")
	f.Add("0.0.0.0/0", "::ffff:1.2.3.4", "255.255.255.255", "0.0.0.0")
	f.Fuzz(func(t *testing.T, subnet, start, end, gateway string) {
		in, err := json.Marshal(map[string]any{"ranges": [][]rangeInput{{{subnet, start, end, gateway}}}})
		if err != nil {
			t.Skip(err)
		}
		got, err := rangesOf(string(in), "null")
		if err != nil {
			return
		}
		want, err := hostLocals(string(in), "null")
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s: error %v (-host-local +got):\n%s", in, err, d)
		}
	})
}
