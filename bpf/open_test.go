package bpf_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/bpf"
	"onerule/test/bpffs"
	"onerule/test/netns"
)

// What is pinned can be read by name without any of our programs.
func TestDumpNamesItsFields(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		if _, err := exec.LookPath("bpftool"); err != nil && os.Getenv("ONERULE_PRIVILEGED") == "" {
			t.Skip("needs bpftool, which make setup installs")
		}
		vip, pod := at(w.vip(1), 80), at(w.podAddr(), 8080)
		serve(t, w.pod, pod)
		dir := bpffs.New(t)
		c := open(t, w.node, bpf.Options{Dir: dir})
		put(t, c, bpf.Key{Frontend: vip, Endpoint: pod, Protocol: tcp})
		connect(t, w.client, vip, 3)
		out, err := exec.Command("bpftool", "--json", "map", "dump", "pinned", filepath.Join(dir, "endpoint_hits")).Output()
		if err != nil {
			t.Fatal(err)
		}
		var dump []struct {
			Formatted struct {
				Key struct {
					Frontend     []byteNumber `json:"frontend_address"`
					Endpoint     []byteNumber `json:"endpoint_address"`
					FrontendPort int          `json:"frontend_port"`
					EndpointPort int          `json:"endpoint_port"`
					Family       int          `json:"family"`
					Protocol     int          `json:"protocol"`
				} `json:"key"`
				Values []struct {
					Value struct {
						Connections int `json:"connections"`
					} `json:"value"`
				} `json:"values"`
			} `json:"formatted"`
		}
		if err := json.Unmarshal(out, &dump); err != nil || len(dump) != 1 {
			t.Fatalf("%v: %s", err, out)
		}
		k, sum := dump[0].Formatted.Key, 0
		for _, v := range dump[0].Formatted.Values {
			sum += v.Value.Connections
		}
		family := 4
		if w.ipv6 {
			family = 6
		}
		got := fmt.Sprint(address(k.Frontend, family), k.FrontendPort, address(k.Endpoint, family), k.EndpointPort, k.Family, k.Protocol, sum)
		want := fmt.Sprint(vip.Addr(), 80, pod.Addr(), 8080, family, tcp, 3)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the dump (-want +got): %s\n%s", diff, out)
		}
	})
}

// A byteNumber is a byte as bpftool spells it: a number, or a character.
type byteNumber byte

func (b *byteNumber) UnmarshalJSON(text []byte) error {
	var n int
	if err := json.Unmarshal(text, &n); err == nil {
		*b = byteNumber(n)
		return nil
	}
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	_, err := fmt.Sscanf(s, "0x%x", (*byte)(b))
	return err
}

func address(list []byteNumber, family int) netip.Addr {
	var b [16]byte
	for i, n := range list {
		b[i] = byte(n)
	}
	if family == 6 {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[:4]))
}

func TestPinsNeedABPFFileSystem(t *testing.T) {
	w := netns.New(t, "node")
	dir := filepath.Join(t.TempDir(), "onerule")
	do(t, w, func() error {
		if _, err := bpf.Open(bpf.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "is in no BPF file system") {
			return fmt.Errorf("in a plain folder: %w", err)
		}
		return nil
	})
}
