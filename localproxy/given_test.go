package localproxy_test

import (
	"io"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/localproxy"
)

// Each connection is told once with the endpoint that it is given, before anything of that
// comes back, also if the endpoint refuses it.
func TestWhoIsGivenAConnectionIsTold(t *testing.T) {
	each(t, func(t *testing.T, h host) {
		h.named(t, 1)
		var mu sync.Mutex
		got := map[[2]netip.AddrPort]int{}
		set, _ := h.proxy(t, localproxy.Config{Given: func(at, endpoint netip.AddrPort) {
			mu.Lock()
			defer mu.Unlock()
			got[[2]netip.AddrPort{at, endpoint}]++
		}})
		set(table{
			h.loopback(30001): {Endpoints: []netip.AddrPort{h.endpoint(1)}},
			h.loopback(30002): {Endpoints: []netip.AddrPort{h.endpoint(2)}}, // where nobody listens
		})
		for range 3 {
			h.read(t, h.loopback(30001))
			if conn, err := h.tryDial(h.loopback(30002)); err == nil { // or it is reset already
				_, _ = io.ReadAll(conn)
				_ = conn.Close()
			}
		}
		mu.Lock()
		defer mu.Unlock()
		want := map[[2]netip.AddrPort]int{{h.loopback(30001), h.endpoint(1)}: 3, {h.loopback(30002), h.endpoint(2)}: 3}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("(-want +got): %s", diff)
		}
	})
}
