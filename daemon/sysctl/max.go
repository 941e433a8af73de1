package sysctl

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mostScaled is the most that the number of CPUs makes of the limit: each entry that is
// allowed for costs memory.
const mostScaled = 1 << 20

// Max gives how many conntrack entries there may be: perCore for each CPU, at most
// 1,048,576, and at least so many. It is 0, which leaves the limit as it is, if perCore is.
func Max(perCore, least, cpus int) int {
	if perCore <= 0 {
		return 0
	}
	if scaled := perCore * cpus; scaled <= mostScaled {
		return max(scaled, least)
	}
	return mostScaled
}

// OnlineCPUs counts the CPUs of the node, whichever of them this process may run on: the
// limit that follows from it is the node's.
func OnlineCPUs(r Roots) (int, error) {
	path := filepath.Join(r.Sys, "devices/system/cpu/online")
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("count online CPUs: %w", err)
	}
	n, err := countCPUs(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("count online CPUs: %s: %w", path, err)
	}
	return n, nil
}

// maxCPU is far above the number of any CPU.
const maxCPU = 1 << 20

// countCPUs counts a list such as "0-3,6".
func countCPUs(list string) (int, error) {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		first, err1 := strconv.Atoi(low)
		last, err2 := strconv.Atoi(high)
		if err1 != nil || err2 != nil || first < 0 || last < first || last > maxCPU {
			return 0, fmt.Errorf("%q is no list of CPUs", list)
		}
		n += last - first + 1
	}
	return n, nil
}
