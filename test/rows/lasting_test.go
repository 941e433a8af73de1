package rows_test

import (
	"strings"
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/rig"
)

// lastingTests are the rows about connections that are open already.
func lastingTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){"A2.9": testOpenConnections, "A3.7": testNoVerdictOnEstablished}
}

// open opens a connection from each kind of client and of each family.
func (w *world) open(t *testing.T) (alive func(when string)) {
	t.Helper()
	var sessions []*hosts.Session
	for _, p := range addr.Both() {
		for _, client := range hosts.Clients(p) {
			s, err := w.h.Open(at(p.VIP(0), model.TCP, 80).from(client))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			sessions = append(sessions, s)
		}
	}
	return func(when string) {
		t.Helper()
		for _, s := range sessions {
			if err := s.Alive(); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
}

// webBoth writes the Service web of both families with these pods of both.
func (w *world) webBoth(t *testing.T, podNumbers ...int) {
	t.Helper()
	for _, p := range addr.Both() {
		endpoints := ready(p)
		for _, i := range podNumbers {
			endpoints = append(endpoints, ready(p, p.Pod(i))...)
		}
		w.write(familyOf(p)+".yaml", serviceOf(p), slice(p, "web-"+nftFamily(p), "web-"+nftFamily(p), "", []string{webTarget}, endpoints...))
	}
	w.settle(t) // and forgets no flow
}

func serviceOf(p addr.Plan) string {
	return rawService("name: web-"+nftFamily(p), webSpec(p.VIP(0).String(), ""))
}

func testOpenConnections(t *testing.T, w *world) {
	w.webBoth(t, 1)
	alive := w.open(t)
	alive("at first")
	w.webBoth(t, 1, 2)
	alive("beside another endpoint")
	w.webBoth(t, 2)
	alive("when their endpoint left the slice")
	for _, p := range addr.Both() {
		client := hosts.Clients(p)[0]
		w.sees(t, client, at(p.VIP(0), model.TCP, 80), w.arriving(client, ports(8080, p.Pod(2))...))
	}
	w.d.Kill()
	alive("while the daemon is dead")
	w.d.Run()
	w.d.AwaitHealthy()
	alive("when the daemon is back")

	before := w.ruleset(t, addr.IPv4())
	w.d.Stop()
	replaced := rig.New(t, w.h.Node, detectBoth("--masquerade-bit", "3")...)
	w.d, w.flags = replaced, nil // the usual one comes back afterwards
	for name, documents := range w.files {
		w.d.Write(name, documents...)
	}
	w.d.Run()
	w.d.AwaitHealthy()
	if before == w.ruleset(t, addr.IPv4()) {
		t.Error("the rules are the same with another masquerade bit")
	}
	alive("when the rules were replaced")
	w.webBoth(t, 1)
	alive("after a change under the new rules")
	for _, p := range addr.Both() {
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1))...)
	}
	if n := w.d.Metric("onerule_conntrack_untranslated_deleted_total"); n != 0 {
		t.Errorf("%v conntrack entries were deleted, none was untranslated", n)
	}
}

func testNoVerdictOnEstablished(t *testing.T, w *world) {
	w.webBoth(t, 1)
	alive := w.open(t)
	w.webBoth(t)
	for _, p := range addr.Both() {
		w.refused(t, p, at(p.VIP(0), model.TCP, 80))
	}
	alive("when new connections are refused")
	for _, p := range addr.Both() {
		w.d.Remove(familyOf(p) + ".yaml")
		delete(w.files, familyOf(p)+".yaml")
	}
	w.settle(t)
	for _, p := range addr.Both() {
		w.dropped(t, p, at(p.VIP(0), model.TCP, 80))
	}
	alive("when new connections are dropped")
	// I2: packets of an established connection meet no rule.
	for _, p := range addr.Both() {
		for line := range strings.Lines(w.ruleset(t, p)) {
			if strings.Contains(line, " hook ") && !strings.Contains(line, "type nat ") {
				t.Errorf("a base chain is not of type nat: %s", line)
			}
		}
	}
}
