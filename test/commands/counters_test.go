package commands_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"onerule/daemon/inspect"
	"onerule/test/addr"
	"onerule/test/bpffs"
	"onerule/test/hosts"
	"onerule/test/rig"
)

// What was counted outlives a daemon, and no map that is not ours keeps one from serving.
func TestCountersThatADaemonFinds(t *testing.T) {
	w := &world{h: hosts.New(t, 2, target), bin: rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), socket: socketPath(t)}
	dir := bpffs.New(t)
	w.d = rig.New(t, w.h.Node, "--cluster-cidr", ranges(), "--socket", w.socket, "--bpf-dir", dir, "--endpoint-metrics", "endpoint")
	w.d.Write("web.yaml", plan()[0].documents(0)...)
	w.d.Write("long.yaml", longDocuments()...)
	w.d.Run()
	w.d.AwaitHealthy()
	w.total(t, 0)
	w.connect(t, 10)
	w.total(t, 10)
	t.Run("names as long as they may be", func(t *testing.T) { w.longNames(t) })
	t.Run("a daemon that was killed", func(t *testing.T) {
		w.d.Kill()
		w.connect(t, 5)
		w.d.Run()
		w.d.AwaitHealthy()
		w.total(t, 15)
	})
	t.Run("a map of an older layout", func(t *testing.T) {
		w.d.Stop()
		pin := filepath.Join(dir, "endpoint_hits")
		if err := os.Remove(pin); err != nil {
			t.Fatal(err)
		}
		older, err := ebpf.NewMap(&ebpf.MapSpec{Name: "endpoint_hits", Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: 16})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = older.Close() }()
		if err := older.Pin(pin); err != nil {
			t.Fatal(err)
		}
		w.d.Run()
		w.d.AwaitHealthy()
		w.total(t, 0)
		w.connect(t, 3)
		w.total(t, 3)
		if text := w.ask(t, 0, "status"); !strings.Contains(text, "all is well") {
			t.Errorf("got\n%s", text)
		}
	})
}

// total waits until the commands tell so many connections of web.
func (w *world) total(t *testing.T, want uint64) {
	t.Helper()
	rig.Eventually(t, fmt.Sprintf("web has had %d connections", want), func() error {
		h, err := w.client().Hits(t.Context())
		if err != nil {
			return err
		}
		sum, endpoints := uint64(0), 0
		for _, hit := range h.Hits {
			if hit.Service == "web" && hit.Port == "http" {
				sum, endpoints = sum+hit.Connections, endpoints+1
			}
		}
		if sum != want || endpoints < 2 {
			return fmt.Errorf("%d at %d endpoints, %s", sum, endpoints, h.Off)
		}
		return nil
	})
}

func long(begin string) string { return begin + strings.Repeat("x", 63-len(begin)) }

// longDocuments gives a Service each of whose names is as long as a label may be.
func longDocuments() []string {
	rename := func(text string) string {
		text = strings.ReplaceAll(text, "namespace: default", "namespace: "+long("namespace-"))
		return strings.ReplaceAll(text, `name: "http",`, "name: "+long("port-")+",")
	}
	p, port := addr.IPv4(), fmt.Sprintf("http/TCP/%d", target)
	service := rig.Service(long("service-"), []netip.Addr{p.VIP(40)}, "http/TCP/80")
	return []string{rename(service), rename(rig.Slice(long("slice-"), long("service-"), []netip.Addr{p.Pod(1)}, port))}
}

// longNames sees that nothing cuts them.
func (w *world) longNames(t *testing.T) {
	labels := []string{"namespace", long("namespace-"), "service", long("service-"), "port", long("port-")}
	if got := w.d.Metric("onerule_endpoint_connections_total", labels...); got != 0 {
		t.Errorf("%v connections", got)
	}
	for _, name := range []string{"onerule_endpoint_connections_total", "onerule_service_connections_total"} {
		found := false
		for series := range w.d.Series(name) {
			found = found || strings.Contains(series, long("namespace-")) && strings.Contains(series, long("service-")) && strings.Contains(series, long("port-"))
		}
		if !found {
			t.Errorf("no %s of the Service: %v", name, w.d.Series(name))
		}
	}
	var list []inspect.Service
	if err := json.Unmarshal([]byte(w.ask(t, 0, "services", long("service-"), "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].Namespace != long("namespace-") || list[0].Ports[0].Name != long("port-") {
		t.Errorf("got %+v", list)
	}
	for _, command := range [][]string{{"services"}, {"top", "-n", "1", "--every", "100ms"}, {"explain", "node", addr.IPv4().VIP(40).String() + ":80/tcp"}} {
		if text := w.ask(t, 0, command...); !strings.Contains(text, long("namespace-")+"/"+long("service-")) || !strings.Contains(text, long("port-")) {
			t.Errorf("%v does not name it:\n%s", command, text)
		}
	}
}
