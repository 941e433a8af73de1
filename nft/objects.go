package nft

import "slices"

// objects is what the kernel has of something.
type objects struct {
	counters []Counter
	sets     []Set
	chains   []Chain
}

func (o *objects) add(more objects) {
	o.counters = append(o.counters, more.counters...)
	o.sets = append(o.sets, more.sets...)
	o.chains = append(o.chains, more.chains...)
}

// without gives what is not there already, by name.
func (o objects) without(there objects) objects {
	return objects{
		subtract(o.counters, there.counters, Counter.name),
		subtract(o.sets, there.sets, Set.name),
		subtract(o.chains, there.chains, Chain.name),
	}
}

// distinct gives each object once.
func (o objects) distinct() objects {
	return objects{unique(o.counters, Counter.name), unique(o.sets, Set.name), unique(o.chains, Chain.name)}
}

func (c Counter) name() string { return c.Name }
func (s Set) name() string     { return s.Name }
func (c Chain) name() string   { return c.Name }

func subtract[T any](list, there []T, name func(T) string) []T {
	names := map[string]bool{}
	for _, v := range there {
		names[name(v)] = true
	}
	return slices.DeleteFunc(list, func(v T) bool { return names[name(v)] })
}

func unique[T any](list []T, name func(T) string) []T {
	seen := map[string]bool{}
	return slices.DeleteFunc(list, func(v T) bool {
		again := seen[name(v)]
		seen[name(v)] = true
		return again
	})
}
