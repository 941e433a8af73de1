package nft

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// A journal follows the transactions and tells ours from those of others.
type journal struct {
	tables  []string // that are watched, that of Services first
	gen     uint32   // the last one that ended
	current transaction
	ours    map[uint32]*ownership // by port ID
	windows []*window
	found   map[place]Foreign
	// elsewhere says that others may have changed chains or rules of tables of others.
	elsewhere bool
	// gap says that generations were lost, and that this was told.
	gap bool
}

type place struct {
	table  string
	family Family
	kind   Kind
}

// A target is one of the watched tables.
type target struct {
	table  uint8 // among journal.tables
	family Family
}

// An ownership of a port ID ends with a generation.
type ownership struct {
	ended bool
	last  uint32
}

// A transaction is what one commit did to our tables.
type transaction struct {
	begun  bool
	port   uint32
	others bool // it did something to other tables too
	rules  bool // in those: to chains or rules
	tables map[target]*findings
}

// A window is the time of an nft that we run for a table.
type window struct {
	at         target
	after      uint32 // the generation at its beginning
	closed     bool
	last       uint32 // the generation at its end
	committed  bool
	candidates []candidate
}

// A candidate is a transaction that may be the one that we expect.
type candidate struct {
	others bool
	list   []Foreign
}

func newJournal(gen uint32, more ...string) journal {
	return journal{tables: append([]string{TableName}, more...), gen: gen, ours: map[uint32]*ownership{}, found: map[place]Foreign{}}
}

func (j *journal) take() []Foreign {
	list := slices.SortedFunc(maps.Values(j.found), func(a, b Foreign) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Kind, b.Kind))
	})
	clear(j.found)
	return list
}

func (j *journal) own(port uint32) { j.ours[port] = &ownership{} }

// disown says when a port ceased to be ours. Its events may not have been read yet.
func (j *journal) disown(port, gen uint32) {
	j.ours[port] = &ownership{ended: true, last: gen}
	j.settle()
}

func (j *journal) open(at target, gen uint32) *window {
	w := &window{at: at, after: gen}
	j.windows = append(j.windows, w)
	return w
}

func (j *journal) close(w *window, gen uint32, committed bool) {
	w.closed, w.last, w.committed = true, gen, committed
	j.settle()
}

// lose says that events are missing.
func (j *journal) lose() {
	j.report(Foreign{Kind: Lost, Count: 1})
	j.elsewhere = true
}

// drained says that all is read that came before now, and that some of it is missing.
func (j *journal) drained() {
	j.lose()
	j.current, j.gap = transaction{}, true
	j.judge(func(w *window) bool { return w.closed })
}

func (j *journal) report(f Foreign) {
	at := place{f.Table, f.Family, f.Kind}
	if old, ok := j.found[at]; ok {
		old.Count += f.Count
		f = old
	}
	j.found[at] = f
}

// read takes note of a datagram.
func (j *journal) read(b []byte) {
	if !eachEvent(b, j.note) {
		j.lose()
	}
}

func (j *journal) note(e event) {
	if e.kind == unix.NFT_MSG_NEWGEN {
		j.end(e)
		return
	}
	if e.port == 0 {
		j.byKernel(e)
		return
	}
	if j.current.begun && j.current.port != e.port { // the end of a transaction is missing
		j.lose()
		j.current = transaction{}
	}
	j.current.begun, j.current.port = true, e.port
	j.noteIn(&j.current, e)
}

// byKernel is for what is no part of a transaction, such as a quota that is used up.
func (j *journal) byKernel(e event) {
	var t transaction
	j.noteIn(&t, e)
	for at, f := range t.tables {
		for _, found := range j.list(at, f, "") {
			j.report(found)
		}
	}
}

func (j *journal) list(at target, f *findings, by string) []Foreign {
	return f.list(j.tables[at.table], at.family, by)
}

// noteIn takes note of an event of a transaction.
func (j *journal) noteIn(t *transaction, e event) {
	kind, attr := kindOf(e.kind)
	table, name := e.subject(attr)
	at := target{family: familyOf(e.family)}
	of := slices.IndexFunc(j.tables, func(name string) bool { return string(table) == name })
	if at.family == 0 || of < 0 {
		t.others = true
		t.rules = t.rules || kind != ElementsAdded && kind != ElementsDeleted
		return
	}
	at.table = uint8(of)
	if (kind == ElementsAdded || kind == ElementsDeleted) && bytes.HasPrefix(name, []byte(pinsPrefix)) {
		return
	}
	if t.tables == nil {
		t.tables = map[target]*findings{}
	}
	if t.tables[at] == nil {
		t.tables[at] = &findings{}
	}
	t.tables[at].note(kind, name)
}

// pinsPrefix begins the names of the maps that the packet path writes.
const pinsPrefix = "pins-"

// end ends the transaction that the events before this one belong to.
func (j *journal) end(e event) {
	t := j.current
	j.current = transaction{}
	g, ok := parseGeneration(e.payload)
	if !ok {
		j.lose()
		return
	}
	if !later(g.id, j.gen) {
		return // from before our time, or from a time that is given up
	}
	if g.id != next(j.gen) && !j.gap || t.begun && t.port != e.port {
		j.lose()
	}
	j.gen, j.gap = g.id, false
	if j.ours[e.port] == nil {
		j.elsewhere = j.elsewhere || t.rules
		j.place(t, g)
	}
	j.settle()
}

// place keeps a transaction for the window that it may be expected in, or reports it.
func (j *journal) place(t transaction, g generation) {
	for at, f := range t.tables {
		c := candidate{others: t.others || len(t.tables) > 1, list: j.list(at, f, g.process)}
		if w := j.windowOf(at, g.id); w != nil {
			w.candidates = append(w.candidates, c)
			continue
		}
		j.reportAll(c)
	}
}

func (j *journal) reportAll(c candidate) {
	for _, f := range c.list {
		j.report(f)
	}
}

// windowOf gives the window that a generation falls into: those that ended before are
// judged already.
func (j *journal) windowOf(at target, gen uint32) *window {
	for _, w := range j.windows {
		if w.at == at && later(gen, w.after) {
			return w
		}
	}
	return nil
}

// settle judges the windows, and forgets the ports, of which all events are read.
func (j *journal) settle() {
	j.judge(func(w *window) bool { return w.closed && !later(w.last, j.gen) })
	maps.DeleteFunc(j.ours, func(_ uint32, o *ownership) bool { return o.ended && !later(o.last, j.gen) })
}

// judge reports what others did in the windows that are over, and forgets these.
func (j *journal) judge(over func(*window) bool) {
	j.windows = slices.DeleteFunc(j.windows, func(w *window) bool {
		if !over(w) {
			return false
		}
		for _, c := range w.foreign() {
			j.reportAll(c)
		}
		return true
	})
}

// foreign gives the transactions of a window that are not the expected one. Ours does
// nothing to other tables. If there is more than one that it could be, none is trusted.
func (w *window) foreign() []candidate {
	could := 0
	for _, c := range w.candidates {
		if !c.others {
			could++
		}
	}
	if !w.committed || could != 1 {
		return w.candidates
	}
	return slices.DeleteFunc(w.candidates, func(c candidate) bool { return !c.others })
}

// later compares generations, which are counted round.
func later(a, b uint32) bool { return int32(a-b) > 0 }

// next gives the generation after another one: there is no generation 0.
func next(gen uint32) uint32 { return max(gen+1, 1) }
