package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"onerule/test/cluster"
)

// A skip is a kind of test that is not run, and why.
type skip struct {
	what   string // regular expression
	reason string
}

// skips are those of a family.
func skips(f cluster.Family) []skip {
	table := []skip{
		{`\[Disruptive\]`, "breaks nodes that other tests use"},
		{`\[sig-windows\]`, "wants nodes with Windows"},
		{`\[Provider:gce\]|\[Feature:(LoadBalancer|Ingress)\]`, "wants a cloud that makes load balancers"},
		{`\[Feature:(Networking-IPv4|Networking-IPv6|Networking-DNS)\]`, "wants the internet"},
		{`\[Feature:SCTPConnectivity\]|SCTP`, "wants SCTP sockets, which not every kernel has (no CONFIG_IP_SCTP here)"},
		{`\[Feature:NetworkPolicy\]`, "onerule has no NetworkPolicy; another agent beside it has"},
		{`\[Feature:KubeProxyNFAcct\]`, "reads counters of iptables"},
		{`\[Feature:[A-Za-z-]*Performance[A-Za-z-]*\]`, "measures a cluster of its own"},
		{`DNS configMap`, "changes the configuration of the cluster's DNS, which has no upstream here"},
	}
	if !f.HasBoth() {
		table = append(table, skip{`\[Feature:IPv6DualStack\]`, "wants both IP families (FAMILY=dual or dual6)"})
	}
	return table
}

// expression is one for ginkgo that leaves out all of a table.
func expression(table []skip) string {
	all := make([]string, 0, len(table))
	for _, s := range table {
		all = append(all, s.what)
	}
	return strings.Join(all, "|")
}

// divide gives the tests that run, and how many each line of the table leaves out.
func divide(names []string, table []skip) (run []string, left []int, err error) {
	left = make([]int, len(table))
	patterns := make([]*regexp.Regexp, len(table))
	for i, s := range table {
		if patterns[i], err = regexp.Compile(s.what); err != nil {
			return nil, nil, fmt.Errorf("tests to skip: %w", err)
		}
	}
names:
	for _, name := range names {
		for i, p := range patterns {
			if p.MatchString(name) {
				left[i]++
				continue names
			}
		}
		run = append(run, name)
	}
	return run, left, nil
}

func printSkips(w io.Writer, table []skip, left []int) {
	for i, s := range table {
		if left[i] > 0 {
			fmt.Fprintf(w, "left out %3d: %s\n", left[i], s.reason)
		}
	}
}
