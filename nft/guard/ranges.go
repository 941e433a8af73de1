package guard

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"

	"onerule/nft"
)

// Ranges is what decides about masquerade, and who may send VXLAN. They may hold prefixes of
// both families, in any order, also such that overlap.
type Ranges struct {
	// Pods are those of this node.
	Pods []netip.Prefix
	// AllPods are those of all nodes. Pods of this node are in it anyway.
	AllPods []netip.Prefix
	// Cluster is what pods reach with their own address beside all pods: what is not to be
	// masqueraded, be it addresses of nodes.
	Cluster []netip.Prefix
}

// contents is what is in the sets of one family, by the sets' names.
type contents map[string][]interval

func (r Ranges) of(f nft.Family) contents {
	return contents{
		podRanges:     merge(f, r.Pods),
		clusterRanges: merge(f, slices.Concat(r.Pods, r.AllPods, r.Cluster)),
		clusterPods:   merge(f, slices.Concat(r.Pods, r.AllPods)),
	}
}

func (c contents) equal(d contents) bool {
	for _, s := range sets() {
		if !slices.Equal(c[s.name], d[s.name]) {
			return false
		}
	}
	return true
}

// An interval is from its first to its last address.
type interval struct{ first, last netip.Addr }

// merge gives the addresses of a family as disjoint intervals that do not touch, sorted.
// The kernel refuses a set with others.
func merge(f nft.Family, prefixes []netip.Prefix) []interval {
	var all []interval
	for _, p := range prefixes {
		if p.IsValid() && p.Addr().Is6() == (f == nft.IPv6) {
			all = append(all, interval{p.Masked().Addr(), nft.LastOf(p)})
		}
	}
	slices.SortFunc(all, func(a, b interval) int { return a.first.Compare(b.first) })
	var list []interval
	for _, i := range all {
		n := len(list)
		if n > 0 && (i.first.Compare(list[n-1].last) <= 0 || i.first == list[n-1].last.Next()) {
			if list[n-1].last.Less(i.last) {
				list[n-1].last = i.last
			}
			continue
		}
		list = append(list, i)
	}
	return list
}

// text gives the commands that fill the sets.
func (c contents) text(f nft.Family) string {
	var b strings.Builder
	for _, s := range sets() {
		if len(c[s.name]) == 0 {
			continue
		}
		var words []string
		for _, i := range c[s.name] {
			words = append(words, i.String())
		}
		fmt.Fprintf(&b, "add element %s %s %s { %s }\n", f, TableName, s.name, strings.Join(words, ", "))
	}
	return b.String()
}

func (i interval) String() string {
	if i.first == i.last {
		return i.first.String()
	}
	return fmt.Sprintf("%s-%s", i.first, i.last)
}

// elements spells intervals as the kernel wants them: one where an interval begins and one
// behind its end, which the last address of all does not have.
func elements(list []interval) []nftables.SetElement {
	var all []nftables.SetElement
	for _, i := range list {
		all = append(all, nftables.SetElement{Key: i.first.AsSlice()})
		if end := i.last.Next(); end.IsValid() {
			all = append(all, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return all
}

// intervals reads what elements writes, and what nft writes, which has an end in front of
// everything. ok is false for what neither writes.
func intervals(all []nftables.SetElement) (list []interval, ok bool) {
	slices.SortFunc(all, func(a, b nftables.SetElement) int { return slices.Compare(a.Key, b.Key) })
	var open netip.Addr
	for i, e := range all {
		at, valid := netip.AddrFromSlice(e.Key)
		switch {
		case !valid || !e.IntervalEnd && open.IsValid():
			return nil, false
		case !e.IntervalEnd:
			open = at
		case open.IsValid():
			list, open = append(list, interval{open, at.Prev()}), netip.Addr{}
		case i > 0:
			return nil, false
		}
	}
	if open.IsValid() {
		list = append(list, interval{open, nft.LastOf(netip.PrefixFrom(open, 0))})
	}
	return list, true
}
