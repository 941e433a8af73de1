package nft

import (
	"cmp"
	"fmt"
)

// A Kind is what somebody did.
type Kind uint8

// The kinds. A table that is deleted takes everything with it, which is not told then.
const (
	// Lost says that the kernel could not tell all: anything may have happened, in both
	// families.
	Lost Kind = iota
	TableDeleted
	ChainsDeleted
	RulesDeleted
	RulesAdded
	SetsDeleted
	ElementsDeleted
	ElementsAdded
	// OtherChange is the rest: chains, sets, counters that are new, a policy or a flag of
	// the table that is another one, a counter deleted.
	OtherChange
	numKinds
)

// Kinds lists them.
func Kinds() []Kind {
	list := make([]Kind, numKinds)
	for i := range list {
		list[i] = Kind(i)
	}
	return list
}

// String gives a word for metrics.
func (k Kind) String() string {
	return [...]string{
		Lost: "lost", TableDeleted: "table-deleted", ChainsDeleted: "chains-deleted", RulesDeleted: "rules-deleted",
		RulesAdded: "rules-added", SetsDeleted: "sets-deleted", ElementsDeleted: "elements-deleted", ElementsAdded: "elements-added",
		OtherChange: "other", numKinds: "none",
	}[min(k, numKinds)]
}

// Foreign is what others did to one of our tables.
type Foreign struct {
	Table  string // "" if events were lost
	Family Family // 0 if events were lost
	Kind   Kind
	Count  int    // of objects
	First  string // name of the first chain, set or counter concerned, "" for a table
	By     string // name of the first process that did it, "" if the kernel did
}

// String says it in a sentence for people.
func (f Foreign) String() string {
	if f.Kind == Lost {
		return "events of nftables were lost: anything may have changed"
	}
	s := fmt.Sprintf("%s in table %s %s: %d", f.Kind, f.Family, f.Table, f.Count)
	if f.First != "" {
		s += ", first of " + f.First
	}
	return s + " (by " + cmp.Or(f.By, "the kernel") + ")"
}

// findings are what one transaction, or some, did to one table.
type findings [numKinds]Foreign

func (f *findings) note(k Kind, name []byte) {
	if f[k].Count == 0 {
		f[k].First = string(name)
	}
	f[k].Count++
}

// list gives what is worth telling.
func (f *findings) list(table string, family Family, by string) []Foreign {
	var list []Foreign
	for k := range numKinds {
		found := f[k]
		if found.Count == 0 {
			continue
		}
		found.Table, found.Family, found.Kind, found.By = table, family, k, by
		list = append(list, found)
		if k == TableDeleted {
			break
		}
	}
	return list
}
