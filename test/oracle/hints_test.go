package oracle_test

import (
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
)

// hints gives the endpoint here and the one elsewhere these hints.
func hints(here, elsewhere *model.Hints) func(*world, addr.Plan) {
	return func(w *world, _ addr.Plan) { w.endpoint(0).Hints, w.endpoint(1).Hints = here, elsewhere }
}

func zones(list ...string) *model.Hints { return &model.Hints{Zones: list} }
func nodes(list ...string) *model.Hints { return &model.Hints{Nodes: list} }

func TestHints(t *testing.T) {
	outside := func(w *world, p addr.Plan) {
		fromOutside(w, p)
		toNodePort(w, p)
	}
	local := func(w *world, _ addr.Plan) { w.service().ExternalLocal = true }
	state := func(i int, ready, serving, terminating bool) func(*world, addr.Plan) {
		return func(w *world, _ addr.Plan) {
			e := w.endpoint(i)
			e.Ready, e.Serving, e.Terminating = ready, serving, terminating
		}
	}
	cells(t, []cell{
		{"A4.6: those for this node", then(outside, hints(nodes("node"), nodes("other-node"))), hereReplaced},
		{"A4.6: wherever they are", then(outside, hints(nodes("other-node"), nodes("x", "node"))), elseReplaced},
		{"A4.6: not if one has no hint for nodes", then(outside, hints(nodes("node"), zones("there"))), bothReplaced},
		{"A4.6: not if none is for this node", then(outside, hints(nodes("x"), nodes("y"))), bothReplaced},
		{"A4.6: before zones", then(outside, hints(&model.Hints{Nodes: []string{"x"}, Zones: []string{"here"}}, &model.Hints{Nodes: []string{"node"}, Zones: []string{"there"}})), elseReplaced},
		{"A4.7: those for this zone", then(outside, hints(zones("here"), zones("there"))), hereReplaced},
		{"A4.7: wherever they are", then(outside, hints(zones("there"), zones("here", "there"))), elseReplaced},
		{"A4.7: also beside hints for nodes that are not for all", then(outside, hints(zones("here"), &model.Hints{Zones: []string{"there"}, Nodes: []string{"node"}})), hereReplaced},
		{"A4.8: not if one has none", then(outside, hints(zones("here"), nil)), bothReplaced},
		{"A4.8: not if one has empty ones", then(outside, hints(zones("here"), &model.Hints{})), bothReplaced},
		{"A4.8: not if none is for this zone", then(outside, hints(zones("there"), zones("there"))), bothReplaced},
		{"A4.8: not if this node's zone is unknown", then(outside, hints(zones("here"), zones("there")), func(w *world, _ addr.Plan) { w.cluster.Node.Zone = "" }), bothReplaced},
		{"A4.8: not even if hints name none", then(outside, hints(zones(""), zones("there")), func(w *world, _ addr.Plan) { w.cluster.Node.Zone = "" }), bothReplaced},
		{"A4.8: not without the Node object", then(outside, hints(zones("here"), zones("there")), func(w *world, _ addr.Plan) { w.cluster.Node = nil }), bothReplaced},
		{"A4.12: as the zone is now", then(outside, hints(zones("here"), zones("there")), func(w *world, _ addr.Plan) { w.cluster.Node.Zone = "there" }), elseReplaced},
		{"A4.9: what is not ready needs none", then(outside, hints(zones("here"), nil), state(1, false, true, false)), hereReplaced},
		{"A4.9: what is not ready brings none", then(outside, hints(zones("here"), zones("there")), state(0, false, true, true)), elseReplaced},
		{"A4.1: what terminates is not narrowed down", then(outside, hints(zones("here"), zones("there")), state(0, false, true, true), state(1, false, true, true)), bothReplaced},
		{"A4.10: hints don't empty the local set", then(outside, local, hints(zones("there"), zones("here"))), hereKept},
		{"A4.10: nor fill it", then(outside, local, hints(zones("here"), zones("there")), func(w *world, _ addr.Plan) { w.endpoint(0).Node = addr.OtherNodeName }), silence},
		{"A4.10: inside they hold for the policy Local, too", then(outside, local, fromPod, hints(zones("there"), zones("here"))), elseKept},
		{"A4.13: they never reach what terminates while something is ready", then(outside, hints(zones("here"), zones("there")), state(0, false, true, true)), elseReplaced},
		{"A4.2: what terminates here, though something is ready elsewhere", then(outside, local, state(0, false, true, true)), hereKept},
		{"A4.2: what terminates elsewhere does not help", then(outside, local, state(0, false, false, true), state(1, false, true, true)), silence},
		{"A4.2: what is ready here hides what terminates here", then(outside, local, func(w *world, p addr.Plan) {
			e := *w.endpoint(0)
			e.Addr, e.Ready, e.Terminating = p.Pod(2), false, true
			w.cluster.Slices[0].Endpoints = append(w.cluster.Slices[0].Endpoints, e)
		}), hereKept},
	})
}
