package plan

import (
	"net/netip"
	"slices"
)

// Merge gives the same addresses as the fewest prefixes, disjoint and sorted: the
// kernel refuses ranges that overlap, and with them the whole transaction.
func Merge(prefixes []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		sorted[i] = p.Masked()
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	var merged []netip.Prefix
	for _, p := range sorted {
		if n := len(merged); n > 0 && merged[n-1].Overlaps(p) {
			continue // sorted by address, then by length: it lies within the last one
		}
		merged = append(merged, p)
		for n := len(merged); n > 1 && siblings(merged[n-2], merged[n-1]); n-- {
			merged = append(merged[:n-2], netip.PrefixFrom(merged[n-2].Addr(), merged[n-2].Bits()-1))
		}
	}
	return merged
}

// siblings says whether two prefixes, the lower one first, are the halves of one.
func siblings(a, b netip.Prefix) bool {
	if a.Bits() != b.Bits() || a.Bits() == 0 || a.Addr().BitLen() != b.Addr().BitLen() {
		return false
	}
	parent := netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked()
	return parent.Addr() == a.Addr() && parent.Contains(b.Addr())
}
