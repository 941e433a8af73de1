package random

import (
	"cmp"
	"maps"
	"slices"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/oracle"
)

// A World is a cluster that changes.
type World struct {
	objects map[model.Key]model.Change
}

// NewWorld gives a world without any object.
func NewWorld() *World { return &World{map[model.Key]model.Change{}} }

// Apply makes the changes, in order.
func (w *World) Apply(changes []model.Change) {
	for _, c := range changes {
		if c.Service == nil && c.EndpointSlice == nil && c.ServiceCIDR == nil && c.Node == nil {
			delete(w.objects, c.Key)
		} else {
			w.objects[c.Key] = c
		}
	}
}

// Cluster gives the objects as they are now, for the oracle: of the nodes, ours.
func (w *World) Cluster() oracle.Cluster {
	var c oracle.Cluster
	for _, o := range w.Objects() {
		switch {
		case o.Service != nil:
			c.Services = append(c.Services, *o.Service)
		case o.EndpointSlice != nil:
			c.Slices = append(c.Slices, *o.EndpointSlice)
		case o.ServiceCIDR != nil:
			c.ServiceCIDRs = append(c.ServiceCIDRs, *o.ServiceCIDR)
		case o.Key.Name.Name == addr.NodeName:
			c.Node = o.Node
		}
	}
	return c
}

// Objects gives the objects as the changes that made them, sorted by key.
func (w *World) Objects() []model.Change {
	return slices.SortedFunc(maps.Values(w.objects), func(a, b model.Change) int {
		return cmp.Or(cmp.Compare(a.Key.Kind, b.Key.Kind), a.Key.Name.Compare(b.Key.Name))
	})
}

// These are changes that bring an object in, and gone one that takes it away.

func serviceObject(s *model.Service) model.Change {
	return model.Change{Key: model.Key{Kind: model.KindService, Name: s.Name}, Service: s}
}

func sliceObject(s *model.EndpointSlice) model.Change {
	return model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: s.Name}, EndpointSlice: s}
}

func cidrObject(s *model.ServiceCIDR) model.Change {
	return model.Change{Key: model.Key{Kind: model.KindServiceCIDR, Name: model.Name{Name: s.Name}}, ServiceCIDR: s}
}

func nodeObject(n *model.Node) model.Change {
	return model.Change{Key: model.Key{Kind: model.KindNode, Name: model.Name{Name: n.Name}}, Node: n}
}

func gone(kind model.Kind, name model.Name) model.Change {
	return model.Change{Key: model.Key{Kind: kind, Name: name}}
}
