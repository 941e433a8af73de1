package source

import (
	"reflect"

	"k8s.io/client-go/tools/cache"

	"onerule/daemon/model"
)

// A store takes the objects of one kind from a reflector, converts them and passes
// them on. It keeps no object, only the keys of those that the sink has, to know
// what is missing from a new list. Only its reflector's goroutine calls it.
type store struct {
	convert converter
	sink    Sink
	held    map[model.Key]struct{}    // delivered and not gone
	noted   map[model.Key]struct{}    // having notes
	nodes   map[model.Key]*model.Node // as last delivered
	listed  func()                    // called after the first complete list
}

func newStore(sink Sink, convert converter, listed func()) *store {
	return &store{
		convert: convert,
		sink:    sink,
		held:    map[model.Key]struct{}{},
		noted:   map[model.Key]struct{}{},
		nodes:   map[model.Key]*model.Node{},
		listed:  listed,
	}
}

var _ cache.TransformingStore = (*store)(nil)

// Transformer lets the reflector convert objects as they stream in. Otherwise it
// collects a first list of API objects, the largest thing in the process.
func (s *store) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		d, err := s.delivery(obj)
		return d, err
	}
}

// delivery converts an object, unless Transformer did.
func (s *store) delivery(obj any) (delivery, error) {
	if d, ok := obj.(delivery); ok {
		return d, nil
	}
	return s.convert.object(obj)
}

// Add passes on an object.
func (s *store) Add(obj any) error { return s.Update(obj) }

// Update passes on an object.
func (s *store) Update(obj any) error {
	d, err := s.delivery(obj)
	if err != nil {
		return err
	}
	s.pass(d)
	return nil
}

// Delete says that an object is gone.
func (s *store) Delete(obj any) error {
	d, err := s.delivery(obj)
	if err != nil {
		return err
	}
	s.pass(delivery{change: model.Change{Key: d.change.Key}})
	return nil
}

// Replace passes on a complete list, and says of everything that is not in it that
// it is gone.
func (s *store) Replace(list []any, _ string) error {
	stated := make(map[model.Key]struct{}, len(list))
	for _, obj := range list {
		d, err := s.delivery(obj)
		if err != nil {
			return err
		}
		stated[d.change.Key] = struct{}{}
		s.pass(d)
	}
	for _, keys := range []map[model.Key]struct{}{s.held, s.noted} {
		for key := range keys {
			if _, ok := stated[key]; !ok {
				s.pass(delivery{change: model.Change{Key: key}})
			}
		}
	}
	if s.listed != nil {
		s.listed()
		s.listed = nil
	}
	return nil
}

// Resync has nothing to do: the sink keeps what it was given.
func (s *store) Resync() error { return nil }

func (s *store) pass(d delivery) {
	key := d.change.Key
	_, held := s.held[key]
	switch {
	case held && d.change.Node != nil && reflect.DeepEqual(d.change.Node, s.nodes[key]):
		// Kubelets write their Nodes every few minutes, and the own Node concerns every
		// Service.
	case d.present():
		if d.change.Node != nil {
			s.nodes[key] = d.change.Node
		}
		s.held[key] = struct{}{}
		s.sink.Changed(d.change)
	case held:
		delete(s.held, key)
		delete(s.nodes, key)
		s.sink.Changed(d.change)
	}
	_, noted := s.noted[key]
	switch {
	case len(d.notes) > 0:
		s.noted[key] = struct{}{}
		s.sink.Noted(key.String(), d.notes)
	case noted:
		delete(s.noted, key)
		s.sink.Noted(key.String(), nil)
	}
}
