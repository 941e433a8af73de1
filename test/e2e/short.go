package main

import (
	"regexp"
	"strings"
)

// short is a list that CI runs: each test looks at something else, and none takes more
// than a minute.
func short() []string {
	return []string{
		"[sig-network] Services should serve multiport endpoints from pods [Conformance]",
		"[sig-network] Services should be able to create a functioning NodePort service [Conformance]",
		"[sig-network] Services should have session affinity work for NodePort service [LinuxOnly] [Conformance]",
		"[sig-network] Services should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]",
		"[sig-network] Services should allow pods to hairpin back to themselves through services",
		"[sig-network] Services should be rejected when no endpoints exist",
		"[sig-network] Services should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local",
		"[sig-network] Conntrack should be able to preserve UDP traffic when server pod cycles for a NodePort service",
		"[sig-network] HostPort validates that there is no conflict between pods with same hostPort but different hostIP and protocol [LinuxOnly] [Conformance]",
		"[sig-network] DNS should provide DNS for services [Conformance]",
	}
}

// shortFocus is an expression that matches the list and nothing else. What it is held
// against begins with the name of the suite.
func shortFocus() string {
	quoted := make([]string, 0, len(short()))
	for _, name := range short() {
		quoted = append(quoted, regexp.QuoteMeta(name))
	}
	return "(" + strings.Join(quoted, "|") + ")$"
}
