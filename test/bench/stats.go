package main

import (
	"cmp"
	"slices"
	"time"
)

// quantile gives the smallest value that at least a share q of all does not exceed.
func quantile[T cmp.Ordered](list []T, q float64) T {
	var none T
	if len(list) == 0 {
		return none
	}
	sorted := slices.Sorted(slices.Values(list))
	rank := int(q*float64(len(sorted)) + 0.999999)
	return sorted[min(max(rank, 1), len(sorted))-1]
}

func median[T cmp.Ordered](list []T) T { return quantile(list, 0.5) }

// A spread is what is said of many durations.
type spread struct {
	n             int
	p50, p99, max time.Duration
}

func spreadOf(list []time.Duration) spread {
	return spread{len(list), median(list), quantile(list, 0.99), quantile(list, 1)}
}
