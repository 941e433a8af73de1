package process_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"onerule/test/addr"
	"onerule/test/oracle"
)

// More clients than session affinity has room for are served without it, counted, and
// told. Between two daemons the test makes the room small: one client.
func TestF6ClientsBeyondTheRoomOfAffinityAreToldOf(t *testing.T) {
	w := newWorld(t)
	d := w.daemon(t)
	d.Write("web.yaml", sticky(web())...)
	d.Run()
	d.AwaitHealthy()
	d.Stop()
	w.shrink(t)
	d.Run()
	d.AwaitHealthy()
	if n := d.Metric("onerule_nft_operations_total", "operation", "transaction"); n != 0 {
		t.Fatalf("%v transactions made the room large again", n)
	}
	full := func(when string, want float64) {
		t.Helper()
		if got := d.Metric("onerule_pins_full_total"); got != want {
			t.Errorf("%s: %v connections found no room, want %v", when, got, want)
		}
	}
	for _, p := range addr.Both() {
		w.answered(t, toVIP(p), toVIP(p))
	}
	full("one client", 0)
	for i, p := range addr.Both() {
		for n := range 3 {
			w.answered(t, fromOutside(p))
			full("a second client of "+familyName(p), float64(3*i+n+1))
		}
		says(t, d, fmt.Sprintf(`"session affinity has no room for more clients, theirs are balanced without it" service="default/web" port="http" protocol="TCP" family="%s" connections=1`, familyName(p)))
	}
	if n := strings.Count(d.Log(), "has no room for more clients"); n != 2 {
		t.Errorf("it is said %d times, want once in a while for each family", n)
	}
}

// fromOutside is a packet of somebody else to the Service.
func fromOutside(p addr.Plan) oracle.Packet {
	packet := toVIP(p)
	packet.From, packet.Src = oracle.Outside, p.Outside()
	return packet
}

// sticky gives manifests whose Services have session affinity.
func sticky(docs []string) []string {
	var list []string
	for _, doc := range docs {
		list = append(list, strings.Replace(doc, "spec:\n", "spec:\n  sessionAffinity: ClientIP\n", 1))
	}
	return list
}

// shrink makes all maps of pins have room for one client, and two in the one that must
// not be full first.
func (w *world) shrink(t *testing.T) {
	t.Helper()
	const ports, addrs = "size 262144", "size 327680"
	for _, family := range []string{"ip", "ip6"} {
		text := w.h.Node.Run(t, "nft", "-s", "list", "table", family, "onerule")
		if !strings.Contains(text, ports) || !strings.Contains(text, addrs) {
			t.Fatalf("no map has the %s and %s in %s", ports, addrs, text)
		}
		text = strings.NewReplacer(ports, "size 1", addrs, "size 2").Replace(text)
		file := filepath.Join(t.TempDir(), "small.nft")
		if err := os.WriteFile(file, []byte("delete table "+family+" onerule\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		w.h.Node.Run(t, "nft", "-f", file)
	}
}
