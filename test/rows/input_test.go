package rows_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/rig"
)

// inputTests are the rows about bad input.
func inputTests() map[string]func(*testing.T, *world) {
	tests := map[string]func(*testing.T, *world){
		"IN.kind": testUnknownKind, "IN.duplicate": testDuplicateFrontend, "IN.name": testLongName, "IN.half": testHalfWritten,
	}
	for id, f := range faults() {
		tests[id] = func(t *testing.T, w *world) { w.keepsTheLastGood(t, f) }
	}
	return tests
}

// A fault is a way to spoil the file of the Service web.
type fault struct {
	reason string
	named  []string // what its line in the log says beside the reason
	spoil  func(p addr.Plan, service string) string
}

func faults() map[string]fault {
	return map[string]fault{
		"IN.parse": {"parse", []string{`object="web.yaml"`, "line 5"}, func(_ addr.Plan, service string) string {
			return strings.Replace(service, "spec:", "spec: [", 1)
		}},
		"IN.address": {"invalid-address", []string{`object="web.yaml: Service default/web"`, "spec.clusterIPs[0]", "500"}, func(p addr.Plan, service string) string {
			return strings.ReplaceAll(service, p.VIP(0).String(), p.VIP(0).String()+"500000")
		}},
		"IN.port": {"invalid-port", []string{`object="web.yaml: Service default/web"`, "spec.ports[0].port", "70000"}, func(_ addr.Plan, service string) string {
			return strings.Replace(service, "port: 80}", "port: 70000}", 1)
		}},
	}
}

// bystander is a Service in a file of its own, which must answer whatever happens to
// others.
func (w *world) bystander(t *testing.T, p addr.Plan) (check func()) {
	t.Helper()
	w.put(t, "bystander.yaml", rig.Service("bystander", []netip.Addr{p.VIP(3)}, webPort),
		slice(p, "bystander-1", "bystander", "", []string{webTarget}, ready(p, p.OtherPod(0))...))
	return func() {
		t.Helper()
		w.reached(t, p, at(p.VIP(3), model.TCP, 80), ports(8080, p.OtherPod(0))...)
	}
}

// skips gives the metric of what is skipped now for a reason.
func (w *world) skips(reason string) float64 {
	return w.d.Metric("onerule_skipped_objects", "reason", reason)
}

// expectSkipped checks that one thing is skipped for a reason, and that one line of
// the log said so since a count that was taken before.
func (w *world) expectSkipped(t *testing.T, before int, reason string, named ...string) {
	t.Helper()
	if n := w.skips(reason); n != 1 {
		t.Errorf("onerule_skipped_objects{reason=%q} is %v, want 1", reason, n)
	}
	texts := append([]string{`"skipped"`, fmt.Sprintf("reason=%q", reason)}, named...)
	if n := w.said(texts...) - before; n != 1 {
		t.Errorf("%d lines of the log say %q, want 1", n, texts)
	}
}

// mentions counts what was said of a fault so far.
func (w *world) mentions(reason string, named ...string) int {
	return w.said(append([]string{`"skipped"`, fmt.Sprintf("reason=%q", reason)}, named...)...)
}

// keepsTheLastGood spoils the file of a Service: its last good state holds until the
// file is good again, or gone.
func (w *world) keepsTheLastGood(t *testing.T, f fault) {
	each(t, func(t *testing.T, p addr.Plan) {
		bystander := w.bystander(t, p)
		to := at(p.VIP(0), model.TCP, 80)
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1)))
		w.reached(t, p, to, ports(8080, p.Pod(1))...)

		before := w.mentions(f.reason, f.named...)
		w.put(t, "web.yaml", f.spoil(p, web(p)), webSlice(p, p.Pod(1)))
		w.put(t, "third.yaml", rig.Service("third", []netip.Addr{p.VIP(2)}, webPort)) // a sync that has nothing to say of it
		w.expectSkipped(t, before, f.reason, f.named...)
		w.reached(t, p, to, ports(8080, p.Pod(1))...)
		w.refused(t, p, at(p.VIP(2), model.TCP, 80))
		bystander()

		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(2)))
		if n := w.skips(f.reason); n != 0 {
			t.Errorf("%v things are skipped in a good file", n)
		}
		w.reached(t, p, to, ports(8080, p.Pod(2))...)

		w.put(t, "web.yaml", f.spoil(p, web(p)), webSlice(p, p.Pod(2)))
		w.reached(t, p, to, ports(8080, p.Pod(2))...)
		w.remove(t, "web.yaml")
		w.dropped(t, p, to)
		if n := w.skips(f.reason); n != 0 {
			t.Errorf("%v things are skipped in a file that is gone", n)
		}
		bystander()
	})
}

func testUnknownKind(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		bystander := w.bystander(t, p)
		before := w.mentions("unknown-kind")
		deployment := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n"
		w.put(t, "web.yaml", web(p), deployment, webSlice(p, p.Pod(1)))
		w.expectSkipped(t, before, "unknown-kind", `object="web.yaml"`, "Deployment", "apps/v1")
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1))...)
		bystander()
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1)))
		if n := w.skips("unknown-kind"); n != 0 {
			t.Errorf("%v things are skipped in a good file", n)
		}
	})
}

func testDuplicateFrontend(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		bystander := w.bystander(t, p)
		of := func(name, created string, pod netip.Addr) []string {
			meta := fmt.Sprintf("name: %s, creationTimestamp: %q", name, created)
			return []string{rawService(meta, webSpec(p.VIP(0).String(), "")), slice(p, name+"-1", name, "", []string{webTarget, dnsTarget}, ready(p, pod)...)}
		}
		to := at(p.VIP(0), model.TCP, 80)
		w.put(t, "younger.yaml", of("younger", "2024-05-02T00:00:00Z", p.Pod(1))...)
		w.reached(t, p, to, ports(8080, p.Pod(1))...)
		before := w.mentions("duplicate-frontend", "TCP")
		w.put(t, "older.yaml", of("older", "2024-05-01T00:00:00Z", p.Pod(2))...)
		w.reached(t, p, to, ports(8080, p.Pod(2))...)
		bystander()
		if n := w.skips("duplicate-frontend"); n != 2 { // TCP and UDP
			t.Errorf("%v duplicate frontends are skipped, want 2", n)
		}
		named := []string{`object="Service default/younger"`, "TCP is held by Service default/older"}
		if n := w.mentions("duplicate-frontend", named...) - before; n != 1 {
			t.Errorf("%d lines of the log say %q, want 1", n, named)
		}
		w.remove(t, "older.yaml")
		w.reached(t, p, to, ports(8080, p.Pod(1))...)
		if n := w.skips("duplicate-frontend"); n != 0 {
			t.Errorf("%v duplicate frontends are skipped when one is left", n)
		}
	})
}

func testLongName(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		bystander := w.bystander(t, p)
		before := w.mentions("invalid-name")
		good := longestService(p, longest("namespace-"), p.Pod(1))
		w.put(t, "good.yaml", good...)
		w.put(t, "bad.yaml", strings.NewReplacer(longest("web-"), longest("web-")+"x", p.VIP(1).String(), p.VIP(2).String()).Replace(good[0]))
		w.expectSkipped(t, before, "invalid-name", "bad.yaml: Service", longest("web-")+"x", "64 characters")
		w.reached(t, p, at(p.VIP(1), model.TCP, 80), ports(8080, p.Pod(1))...)
		w.dropped(t, p, at(p.VIP(2), model.TCP, 80))
		bystander()
		w.remove(t, "bad.yaml")
		if n := w.skips("invalid-name"); n != 0 {
			t.Errorf("%v names are skipped in a file that is gone", n)
		}
	})
}

// A file that is written in place is seen when half of it is there.
func testHalfWritten(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		bystander := w.bystander(t, p)
		to := at(p.VIP(0), model.TCP, 80)
		whole := func(pod netip.Addr) string { return webSlice(p, pod) + "---\n" + web(p) }
		w.put(t, "web.yaml", whole(p.Pod(1)))
		w.reached(t, p, to, ports(8080, p.Pod(1))...)

		text := whole(p.Pod(2))
		half := strings.Index(text, "clusterIPs: [") + len("clusterIPs: [")
		before := w.mentions("parse")
		file := filepath.Join(w.d.Dir, "web.yaml")
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }() // an error is that of a write, which is checked
		if _, err := f.WriteString(text[:half]); err != nil {
			t.Fatal(err)
		}
		w.settle(t)
		w.h.Forget(t)
		w.expectSkipped(t, before, "parse", `object="web.yaml"`)
		w.reached(t, p, to, ports(8080, p.Pod(1))...)
		bystander()

		if _, err := f.WriteString(text[half:]); err != nil {
			t.Fatal(err)
		}
		w.settle(t)
		w.h.Forget(t)
		if n := w.skips("parse"); n != 0 {
			t.Errorf("%v things are skipped in the whole file", n)
		}
		w.reached(t, p, to, ports(8080, p.Pod(2))...)
	})
}
