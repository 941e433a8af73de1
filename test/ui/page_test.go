// Package ui_test looks at what people are shown of a running daemon: its page in a real
// browser, and the dashboard and alerts that stand on its metrics.
package ui_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"onerule/daemon/inspect"
	"onerule/daemon/inspect/page"
	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/bpffs"
	"onerule/test/hosts"
	"onerule/test/netns"
	"onerule/test/oracle"
	"onerule/test/rig"
)

const (
	target = 8080
	// connections are made to each Service: enough to tell chance from a fault.
	connections = 90
)

// evenKey and pinnedKey are those of the two Services on the page: one is spread, one
// has every connection of its only client at one endpoint.
const (
	evenKey   = "default/even http/TCP"
	pinnedKey = "default/pinned http/TCP"
)

// counting is a node whose daemon has counted connections.
func counting(t *testing.T) (h *hosts.Hosts, d *rig.Daemon, socket string) {
	t.Helper()
	h = hosts.New(t, 4, target)
	// A name that is short enough for a socket, whatever the test is called.
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "sock")
	p := addr.IPv4()
	endpoints := []netip.Addr{p.Pod(1), p.Pod(2), p.Pod(3)}
	d = rig.New(t, h.Node, "--cluster-cidr", p.ClusterCIDR.String(), "--endpoint-metrics", "endpoint", "--bpf-dir", bpffs.New(t), "--socket", socket)
	for i, name := range []string{"even", "pinned"} {
		service := rig.Service(name, []netip.Addr{p.VIP(i)}, "http/TCP/80")
		if name == "pinned" {
			service = strings.Replace(service, "spec:\n", "spec:\n  sessionAffinity: ClientIP\n", 1)
		}
		d.Write(name+".yaml", service, rig.Slice(name, name, endpoints, "http/TCP/8080"))
	}
	d.Run()
	d.AwaitHealthy()
	for i := range 2 {
		for range connections {
			seen, err := h.Probe(oracle.Packet{From: oracle.Pod, Src: p.Pod(0), Dst: p.VIP(i), Protocol: model.TCP, Port: 80}, hosts.Patience)
			if err != nil || seen.Verdict != hosts.Answered {
				t.Fatalf("no answer from Service %d: %v %v", i, seen, err)
			}
		}
	}
	return h, d, socket
}

// counted is what the metrics say of the endpoints of a Service.
func counted(d *rig.Daemon, service string) map[string]float64 {
	got := map[string]float64{}
	for labels, n := range d.Series("onerule_endpoint_connections_total") {
		if f := strings.Fields(labels); f[4] == service { // endpoint namespace port protocol service
			got[f[0]] = n
		}
	}
	return got
}

// proportional checks that widths are those of counters: the largest one is the longest.
func proportional(t *testing.T, what string, widths, counters map[string]float64, tolerance float64) {
	t.Helper()
	longest, most := 0.0, 0.0
	for endpoint, n := range counters {
		longest, most = max(longest, widths[endpoint]), max(most, n)
	}
	if len(widths) != len(counters) || longest == 0 || most == 0 {
		t.Fatalf("%s: the bars %v are not those of %v", what, widths, counters)
	}
	for endpoint, n := range counters {
		if width := widths[endpoint]; math.Abs(width/longest-n/most) > tolerance {
			t.Errorf("%s: the bar of %s has %.4f of the longest one, and %.4f of its connections", what, endpoint, width/longest, n/most)
		}
	}
}

func TestBarsHaveTheProportionOfTheCounters(t *testing.T) {
	netns.Privileged(t)
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		t.Skipf("NOT TESTED: nothing is counted without BTF: %v", err)
	}
	h, d, socket := counting(t)
	b := newBrowser(t, h.Node)
	want := map[string]map[string]float64{evenKey: counted(d, "even"), pinnedKey: counted(d, "pinned")}

	t.Run("oneruled top --html", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "spread.html")
		h.Node.Run(t, rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), "top", "--html", file, "--every", "100ms", "--socket", socket)
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, measuring(body), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, l := range map[string]look{
			"on a wide screen":               {width: 1200, height: 900, picture: "ui-wide.png"},
			"on a narrow screen in the dark": {width: 500, height: 900, dark: true, picture: "ui-narrow-dark.png"},
		} {
			t.Run(name, func(t *testing.T) { looks(t, b, file, l, want) })
		}
	})
	t.Run("/ui beside /metrics", func(t *testing.T) {
		doc := b.open(t, "http://127.0.0.1:10249/ui", look{width: 1200, height: 900, picture: "ui-live.png"})
		drawn(t, "ui-live.png")
		for key, widths := range bars(t, doc, styled) {
			proportional(t, key, widths, want[key], 0.001)
		}
		if n := len(all(doc, "service")); n != len(want) {
			t.Errorf("%d Services are shown, want %d", n, len(want))
		}
	})
}

// looks checks a page in the layout that a screen gives it.
func looks(t *testing.T, b browser, file string, l look, want map[string]map[string]float64) {
	t.Helper()
	doc := b.open(t, "file://"+file, l)
	drawn(t, l.picture)
	got := bars(t, doc, pixels)
	for key := range want {
		proportional(t, key, got[key], want[key], 0.005)
	}
	for _, s := range all(doc, "service") {
		key := attribute(s, "data-key")
		if uneven := len(all(s, "em")) > 0; uneven != (key == pinnedKey) {
			t.Errorf("%s is called uneven: %t, with %v", key, uneven, want[key])
		}
	}
	body := all(doc, "body")[0]
	if beyond := attribute(body, "data-beyond"); beyond != "0" {
		t.Errorf("the page is %q pixels wider than the screen", beyond)
	}
	paper := map[bool]string{false: "rgb(255, 255, 255)", true: "rgb(20, 23, 27)"}[l.dark]
	if got := attribute(body, "data-paper"); got != paper {
		t.Errorf("the background is %s, want %s", got, paper)
	}
}

// many is a reading of a number of Services, the first one with the fewest connections.
func many(services int) inspect.Reading {
	now := inspect.Hits{At: time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)}
	for i := range services {
		for e := range 3 {
			now.Hits = append(now.Hits, inspect.Hit{
				Namespace: "default", Service: fmt.Sprintf("web-%04d", i), Port: "http", Protocol: "TCP",
				Endpoint: fmt.Sprintf("10.%d.%d.%d:8080", i/200, i%200, e+1), Connections: uint64(1000 * (i + 1)),
			})
		}
	}
	return inspect.ReadingOf(now, now, "name")
}

func TestAThousandServicesAreFolded(t *testing.T) {
	netns.Privileged(t)
	b := newBrowser(t, netns.New(t, "browser"))
	file := filepath.Join(t.TempDir(), "many.html")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := (page.Page{Reading: many(1000)}).Write(f); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	doc := b.open(t, "file://"+file, look{width: 500, height: 1400, picture: "ui-thousand.png"})
	drawn(t, "ui-thousand.png")
	services := all(doc, "service")
	if len(services) != 1000 || attribute(services[0], "data-key") != "default/web-0999 http/TCP" {
		t.Fatalf("%d Services, want 1000, the one with the most connections first", len(services))
	}
	open := 0
	for _, s := range services {
		if has(s, "open") {
			open++
		}
	}
	if fold := all(doc, "fold"); open != 3 || len(fold) != 1 || has(fold[0], "open") || len(all(fold[0], "service")) != 950 {
		t.Errorf("%d Services are open, want 3; and one fold with the last 950, closed", open)
	}
}

// rising is a source whose counters rise with each reading.
type rising struct{ readings atomic.Uint64 }

func (r *rising) Hits(context.Context) (inspect.Hits, error) {
	n := r.readings.Add(1)
	return inspect.Hits{At: time.Now(), Hits: []inspect.Hit{{Namespace: "default", Service: "web", Port: "http", Protocol: "TCP", Endpoint: "10.0.0.1:80", Connections: 100 + n}}}, nil
}

// The page reads itself again, and nothing else.
func TestALivePageGoesOn(t *testing.T) {
	netns.Privileged(t)
	ns := netns.New(t, "browser")
	b := newBrowser(t, ns)
	var l net.Listener
	if err := ns.Do(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err }); err != nil {
		t.Fatal(err)
	}
	counters := &rising{}
	var others atomic.Uint64
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ui" {
			others.Add(1)
		}
		answer := httptest.NewRecorder()
		page.Handler(counters).ServeHTTP(answer, r) // a new one each time: none is kept for a second
		maps.Copy(w.Header(), answer.Header())
		body := answer.Body.Bytes()
		if counters.readings.Load() == 1 {
			// The reader closes what is open at the beginning.
			body = bytes.Replace(body, []byte("</body>"), []byte(`<script>document.querySelector("details").open = false</script></body>`), 1)
		}
		_, _ = w.Write(body)
	})}
	go func() { _ = server.Serve(l) }() // ends with the server
	t.Cleanup(func() { _ = server.Close() })
	doc := b.open(t, fmt.Sprintf("http://%s/ui", l.Addr()), look{width: 800, height: 600, after: 9 * time.Second})
	if n := counters.readings.Load(); n < 3 {
		t.Errorf("it was read %d times in 9 s of the page, want one every 2 s", n)
	}
	total := text(all(all(doc, "li")[0], "b")[0])
	if total < "103" || len(total) != 3 {
		t.Errorf("the page shows %s connections, want what was read last", total)
	}
	if has(all(doc, "service")[0], "open") {
		t.Error("what the reader has closed is open again")
	}
	if n := others.Load(); n != 0 {
		t.Errorf("the page asked %d times for something else", n)
	}
}
