package source

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"onerule/daemon/model"
)

// holdings is what the files of a directory say together: for every object the file
// that holds it, and what the sink was told. It reads no file.
type holdings struct {
	sink  Sink
	files map[string]*file
	// holders has the names of the files that state an object, sorted.
	holders   map[model.Key][]string
	delivered map[model.Key]model.Change
	noted     map[string][]model.Note
}

// A file is what one file says now and what stays of what it said before.
type file struct {
	objects map[model.Key]holding
	notes   []model.Note
	parsed  map[sum]statement
}

// parsed gives what was parsed of a file already.
func (h *holdings) parsed(name string) map[sum]statement {
	if f := h.files[name]; f != nil {
		return f.parsed
	}
	return nil
}

// A holding is an object of a file.
type holding struct {
	change model.Change
	notes  []model.Note
	// valid says that the file holds the object: in change, which may be an object
	// that is not for us.
	valid bool
	// whole says that change has no fault.
	whole bool
}

func newHoldings(sink Sink) *holdings {
	return &holdings{
		sink:      sink,
		files:     map[string]*file{},
		holders:   map[model.Key][]string{},
		delivered: map[model.Key]model.Change{},
		noted:     map[string][]model.Note{},
	}
}

// set takes what some files say now, nil for those that are gone, and tells the
// sink what differs. All files of one call change together: an object that goes
// from one to another is never gone.
func (h *holdings) set(contents map[string]*content) {
	touched := map[model.Key]struct{}{}
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		old := h.files[name]
		now := (*file)(nil)
		if c := contents[name]; c != nil {
			now = old.next(c)
		}
		h.replace(name, old, now, touched)
	}
	keys := slices.SortedFunc(maps.Keys(touched), func(a, b model.Key) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Name.Compare(b.Name))
	})
	for _, key := range keys {
		h.settle(key)
	}
}

// replace exchanges a file, and collects the keys of the objects that it states or
// stated.
func (h *holdings) replace(name string, old, now *file, touched map[model.Key]struct{}) {
	if old != nil {
		for key := range old.objects {
			touched[key] = struct{}{}
			if now == nil || !now.states(key) {
				h.release(name, key)
			}
		}
	}
	if now == nil {
		delete(h.files, name)
		h.note(name, nil)
		return
	}
	h.files[name] = now
	h.note(name, now.notes)
	for key := range now.objects {
		touched[key] = struct{}{}
		names := h.holders[key]
		if i, found := slices.BinarySearch(names, name); !found {
			h.holders[key] = slices.Insert(names, i, name)
		}
	}
}

func (f *file) states(key model.Key) bool {
	_, ok := f.objects[key]
	return ok
}

func (h *holdings) release(name string, key model.Key) {
	names := h.holders[key]
	if i, found := slices.BinarySearch(names, name); found {
		names = slices.Delete(names, i, i+1)
	}
	h.holders[key] = names
	if len(names) == 0 {
		delete(h.holders, key)
	}
	h.note(objectIn(name, key), nil)
}

// settle finds the file that holds an object, and tells the sink.
func (h *holdings) settle(key model.Key) {
	now, holder := model.Change{Key: key}, ""
	for _, name := range h.holders[key] {
		o := h.files[name].objects[key]
		notes := o.notes
		switch {
		case !o.valid:
		case holder == "":
			now, holder = o.change, name
		default:
			notes = append(slices.Clone(notes), model.Note{
				Reason: model.ReasonDuplicateObject,
				Detail: "is held by " + holder + " already",
			})
		}
		h.note(objectIn(name, key), notes)
	}
	before, had := h.delivered[key]
	switch {
	case (delivery{change: now}).present():
		if !had || !reflect.DeepEqual(before, now) {
			h.delivered[key] = now
			h.sink.Changed(now)
		}
	case had:
		delete(h.delivered, key)
		h.sink.Changed(now)
	}
}

// note tells the sink the notes of an object or a file if they differ.
func (h *holdings) note(object string, notes []model.Note) {
	if slices.Equal(h.noted[object], notes) {
		return
	}
	if len(notes) == 0 {
		delete(h.noted, object)
	} else {
		h.noted[object] = notes
	}
	h.sink.Noted(object, notes)
}

func objectIn(name string, key model.Key) string { return name + ": " + key.String() }

// next merges what a file says now with what it held. While anything in it is at
// fault, nothing goes away that it does not state well: half of a file may be
// missing, and a misspelt object is not a deleted one.
func (f *file) next(c *content) *file {
	now := &file{objects: make(map[model.Key]holding, len(c.objects)), notes: c.notes, parsed: c.parsed}
	faulty := c.broken || len(c.notes) > 0
	for _, s := range c.objects {
		key := s.change.Key
		faulty = faulty || s.fault
		if first, twice := now.objects[key]; twice {
			faulty = true
			first.notes = append(slices.Clone(first.notes), model.Note{
				Reason: model.ReasonDuplicateObject,
				Detail: "stands in this file twice, the first holds",
			})
			now.objects[key] = first
			continue
		}
		now.objects[key] = f.keep(s, c.broken)
	}
	if !faulty || f == nil {
		return now
	}
	for key, held := range f.objects {
		if !now.states(key) && held.valid {
			if !c.broken {
				held.notes = nil
			}
			now.objects[key] = held
		}
	}
	return now
}

// keep chooses between what a file says of an object and what it held of it.
func (f *file) keep(s statement, broken bool) holding {
	now := holding{
		change: s.change,
		notes:  s.notes,
		valid:  s.present() || !s.fault,
		whole:  !s.fault,
	}
	if f == nil {
		return now
	}
	held, ok := f.objects[s.change.Key]
	if ok && held.valid && (broken || s.fault && (held.whole || !s.present())) {
		held.notes = s.notes
		return held
	}
	return now
}
