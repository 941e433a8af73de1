package random

import (
	"net/netip"
	"slices"

	"onerule/daemon/model"
	"onerule/test/addr"
)

// endpoints draws those that the cell wants, and others that must not matter.
func (a *aim) endpoints() []model.Endpoint {
	g, here, elsewhere := a.g, a.here(), a.elsewhere()
	var list, more []model.Endpoint
	ready := func(e model.Endpoint) model.Endpoint {
		e.Ready, e.Serving, e.Terminating = true, !g.one(5), g.one(5)
		return e
	}
	leaving := func(e model.Endpoint) model.Endpoint {
		e.Serving, e.Terminating = true, true
		return e
	}
	useless := func(e model.Endpoint) model.Endpoint {
		e.Serving = g.one(2)
		e.Terminating = !e.Serving
		return e
	}
	switch a.cell[DimEndpoints] {
	case ReadyInBoth:
		list = append(each(ready, here[:1+g.rand.IntN(2)]), each(ready, elsewhere[:1+g.rand.IntN(2)])...)
		more = each(leaving, some(g, 3, here[2], elsewhere[2]))
	case ReadyHere:
		list = each(ready, here[:1+g.rand.IntN(2)])
		more = each(leaving, some(g, 3, here[2], elsewhere[2]))
	case ReadyElsewhere:
		list = each(ready, elsewhere[:1+g.rand.IntN(2)])
		more = each(leaving, some(g, 3, elsewhere[2]))
	case OnlyLeaving:
		list = append(each(leaving, here[:1+g.rand.IntN(2)]), each(leaving, elsewhere[:g.rand.IntN(3)])...)
	case NoEndpoints:
		list = each(useless, append(slices.Clone(here[:1+g.rand.IntN(2)]), elsewhere[:g.rand.IntN(3)]...))
	}
	a.hint(list)
	if a.cell[DimEndpoints] != NoEndpoints {
		more = append(more, each(useless, some(g, 3, elsewhere[3]))...)
	}
	for i := range more {
		more[i].Hints = g.hints()()
	}
	return append(list, more...)
}

func each(change func(model.Endpoint) model.Endpoint, list []model.Endpoint) []model.Endpoint {
	var changed []model.Endpoint
	for _, e := range list {
		changed = append(changed, change(e))
	}
	return changed
}

// here gives three endpoints on this node, none of them the spare one.
func (a *aim) here() []model.Endpoint {
	return a.on(addr.NodeName, a.plan.Pod(0), a.plan.Pod(1), a.plan.Node())
}

// elsewhere gives four of other nodes, or of one that nobody knows. A spare one that stays
// comes first.
func (a *aim) elsewhere() []model.Endpoint {
	list := append(a.on(addr.OtherNodeName, a.plan.OtherPod(1), a.plan.OtherPod(2)), a.on("", a.plan.Pod(Pods-1))...)
	a.g.rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	last := a.on(addr.OtherNodeName, a.plan.OtherPod(0))
	if a.spare.Node == addr.OtherNodeName {
		return append(last, list...)
	}
	return append(list, last...)
}

func (a *aim) on(node string, addrs ...netip.Addr) []model.Endpoint {
	var list []model.Endpoint
	for _, one := range addrs {
		list = append(list, model.Endpoint{Addr: one, Node: node})
	}
	if node == addr.NodeName {
		a.g.rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	return list
}

// hint gives endpoints hints that come to what the cell says.
func (a *aim) hint(list []model.Endpoint) {
	g := a.g
	chosen := g.rand.IntN(len(list)) // is meant for this node or zone, or else has none
	otherZone := zoneNames()[0]
	if otherZone == a.zone {
		otherZone = zoneNames()[1]
	}
	for i := range list {
		e, is := &list[i], i == chosen
		switch a.cell[DimHints] {
		case HintsNone:
			e.Hints = pick(g, nil, nil, &model.Hints{})
		case HintsZone:
			e.Hints = &model.Hints{Zones: []string{pick(g, a.zone, otherZone)}}
			if is {
				e.Hints = &model.Hints{Zones: []string{otherZone, a.zone}, Nodes: some(g, 3, addr.OtherNodeName)}
			}
		case HintsNode:
			e.Hints = &model.Hints{Nodes: []string{pick(g, addr.NodeName, addr.OtherNodeName)}, Zones: some(g, 2, zoneNames()...)}
			if is {
				e.Hints.Nodes = []string{addr.OtherNodeName, addr.NodeName}
			}
		case HintsIgnored:
			e.Hints = a.ignored(is && len(list) > 1, otherZone)
		}
	}
}

// ignored gives hints for another zone or node, or none.
func (a *aim) ignored(none bool, otherZone string) *model.Hints {
	if none {
		return nil
	}
	return pick(a.g, &model.Hints{Zones: []string{otherZone}}, &model.Hints{Nodes: []string{addr.OtherNodeName}})
}
