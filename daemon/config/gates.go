package config

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// What kube-proxy 1.37 knows: name, default, maturity, and whether it is locked. All
// components of Kubernetes know each other's gates, so that clusters give all of them
// the same list.
//
//go:embed gates.txt
var gatesTable string

// gateExternalIPs has an effect here. KubeProxyNFTablesLocalhostNodePorts has none: NodePorts
// are served on loopback addresses where NodePortAddresses name them.
const gateExternalIPs = "AllowServiceExternalIPs"

// A gate is what is known of a feature gate.
type gate struct {
	on       bool // unless it is set
	maturity string
	locked   bool
}

func knownGates() map[string]gate {
	known := map[string]gate{}
	for line := range strings.Lines(gatesTable) {
		if f := strings.Fields(line); len(f) >= 3 {
			known[f[0]] = gate{on: f[1] == "on", maturity: f[2], locked: slices.Contains(f, "locked")}
		}
	}
	return known
}

// GateStages gives the stage of each known gate as Kubernetes' metrics have it: ALPHA, BETA,
// DEPRECATED, or nothing for one that is generally available.
func GateStages() map[string]string {
	stages := map[string]string{}
	for name, g := range knownGates() {
		if stages[name] = strings.ToUpper(g.maturity); stages[name] == "GA" {
			stages[name] = ""
		}
	}
	return stages
}

// gates gives the value of each known gate, and what is wrong with those that are
// set.
func gates(set map[string]bool) (map[string]bool, []error) {
	known, values := knownGates(), map[string]bool{}
	for name, g := range known {
		values[name] = g.on
		for group, maturity := range map[string]string{"AllAlpha": "alpha", "AllBeta": "beta"} {
			if v, given := set[group]; given && g.maturity == maturity {
				values[name] = v
			}
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(set)) {
		g, ok := known[name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("unknown feature gate %q", name))
		case g.locked && set[name] != g.on:
			errs = append(errs, fmt.Errorf("feature gate %s can't be set to %t: it is locked to %t", name, set[name], g.on))
		default:
			values[name] = set[name]
		}
	}
	return values, errs
}

// loggingGates gives the gates of the logging library.
func loggingGates(values map[string]bool) (featuregate.FeatureGate, error) {
	of := featuregate.NewFeatureGate()
	if err := logsapi.AddFeatureGates(of); err != nil {
		return nil, fmt.Errorf("add feature gates of logging: %w", err)
	}
	set := map[string]bool{}
	for _, name := range []featuregate.Feature{logsapi.ContextualLogging, logsapi.LoggingAlphaOptions, logsapi.LoggingBetaOptions} {
		set[string(name)] = values[string(name)]
	}
	if err := of.SetFromMap(set); err != nil {
		return nil, fmt.Errorf("set feature gates of logging: %w", err)
	}
	return of, nil
}

// gatesValue is a flag of pairs of gate and value, which may be given several times.
type gatesValue map[string]bool

// Set takes pairs like A=true,B=false.
func (g gatesValue) Set(text string) error {
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return fmt.Errorf("%q has no value, like %s=true", pair, strings.TrimSpace(pair))
		}
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("value of %s is %q, neither true nor false", strings.TrimSpace(name), value)
		}
		g[strings.TrimSpace(name)] = on
	}
	return nil
}

// String gives the pairs, sorted.
func (g gatesValue) String() string {
	pairs := make([]string, 0, len(g))
	for _, name := range slices.Sorted(maps.Keys(g)) {
		pairs = append(pairs, fmt.Sprintf("%s=%t", name, g[name]))
	}
	return strings.Join(pairs, ",")
}

// Type is shown by the help.
func (g gatesValue) Type() string { return "pairs" }
