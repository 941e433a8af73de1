package daemon

import (
	"cmp"
	"maps"
	"slices"

	"onerule/daemon/model"
)

// A serviceOf tells which Service a slice has belonged to so far: one that is gone does not
// say it.
type serviceOf func(slice model.Name) (service model.Name, known bool)

// A group is what must not be written in two parts: a Service and its slices. Between a slice
// that is gone and the one in its place, or a Service's ports and those of its slices, nobody
// would serve.
type group struct {
	rank  int       // of the most urgent change
	first model.Key // of its Services, or the object itself
	keys  []model.Key
}

// groupsOf gives the groups in the order in which they are to be written, the same one for
// the same changes.
func groupsOf(changes map[model.Key]model.Change, serviceOf serviceOf) []*group {
	ties := ties{}
	for _, c := range changes {
		ties.join(subjects(c, serviceOf))
	}
	by := map[model.Key]*group{}
	for key, c := range changes {
		subject, _ := subjects(c, serviceOf)
		first := ties.first(subject)
		g := by[first]
		if g == nil {
			g = &group{rank: rank(c), first: first}
			by[first] = g
		}
		g.rank, g.keys = min(g.rank, rank(c)), append(g.keys, key)
	}
	return slices.SortedFunc(maps.Values(by), func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), compareKeys(a.first, b.first))
	})
}

// subjects gives the Services that a change is about, two if a slice goes from one to
// another, or else the object itself.
func subjects(c model.Change, serviceOf serviceOf) (was, is model.Key) {
	if c.Key.Kind != model.KindEndpointSlice {
		return c.Key, c.Key
	}
	before, known := serviceOf(c.Key.Name)
	was = model.Key{Kind: model.KindService, Name: before}
	switch {
	case c.EndpointSlice != nil:
		is = model.Key{Kind: model.KindService, Name: model.Name{Namespace: c.Key.Name.Namespace, Name: c.EndpointSlice.Service}}
	case known:
		is = was
	default:
		is = c.Key
	}
	if !known {
		was = is
	}
	return was, is
}

// ties hold subjects together: each leads to one that comes before it.
type ties map[model.Key]model.Key

func (t ties) first(k model.Key) model.Key {
	for before, tied := t[k]; tied; before, tied = t[k] {
		k = before
	}
	return k
}

func (t ties) join(a, b model.Key) {
	if a == b {
		return // as nearly always
	}
	a, b = t.first(a), t.first(b)
	switch c := compareKeys(a, b); {
	case c < 0:
		t[b] = a
	case c > 0:
		t[a] = b
	}
}

func compareKeys(a, b model.Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Name.Compare(b.Name))
}
