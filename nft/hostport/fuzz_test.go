package hostport

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// Mappings come from the runtime: whatever they are, a claim that comes out of them is one
// that can be written, and overlaps no other.
func FuzzMappings(f *testing.F) {
	f.Add(`[{"hostPort":80,"containerPort":8080,"protocol":"TCP","hostIP":"192.0.2.1"}]`)
	f.Add(`[{"hostPort":80,"containerPort":8080},{"hostPort":80,"containerPort":1,"hostIP":"::1"}]`)
	f.Add(`[{"hostPort":-1,"protocol":7}]`)
	f.Add(`[{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"fe80::1%eth0"}]`)
	pod := []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2")}
	f.Fuzz(func(t *testing.T, text string) {
		var mappings []Mapping
		if json.Unmarshal([]byte(text), &mappings) != nil {
			return
		}
		claims, err := Claims(mappings, pod)
		if err != nil {
			return
		}
		l := ledger{t.TempDir(), "boot"}
		if err := l.put(record{"boot", "a:eth0", claims}); err != nil {
			t.Fatal(err)
		}
		back, err := l.get("a:eth0")
		if err != nil || len(back.Claims) != len(claims) {
			t.Fatalf("written %v, read %v, %v", claims, back.Claims, err)
		}
		for i, c := range claims {
			if back.Claims[i] != c {
				t.Errorf("written %v, read %v", c, back.Claims[i])
			}
			for _, d := range claims[i+1:] {
				if c.overlaps(d) {
					t.Errorf("%v and %v overlap", c, d)
				}
			}
			for _, fam := range families() {
				for _, e := range elements(fam, "a:eth0", claims) {
					if len(e.key)%4 != 0 || len(e.value)%4 != 0 {
						t.Errorf("element %+v", e)
					}
				}
			}
		}
	})
}

// Records may be what a broken disk left of them.
func FuzzRecord(f *testing.F) {
	f.Add(`{"boot":"boot","owner":"a:eth0","claims":[{"protocol":"tcp","hostPort":80,"pod":"10.1.0.2:80"}]}`)
	f.Add(`{"boot":"boot","owner":"a:eth0","claims":[{"protocol":"tcp","hostIP":"1","hostPort":80}]}`)
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		l := ledger{t.TempDir(), "boot"}
		if err := os.WriteFile(filepath.Join(l.dir, "a:eth0"+suffix), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		records, broken, old, err := l.read()
		if err != nil || len(records)+len(broken)+len(old) != 1 {
			t.Errorf("%v, %v, %v, %v", records, broken, old, err)
		}
	})
}
