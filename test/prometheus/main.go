// Command prometheus reads what install/ has for Prometheus and Grafana with Prometheus' own
// parsers, and runs the tests of the alerts in Prometheus' engine. They are in the format of
// promtool, which takes minutes to build; what is read of it here is what they use. It prints
// what is wrong, a line for each fault.
//
//	prometheus -rules RULES [-tests TESTS] [-dashboard DASHBOARD]
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	rules := flag.String("rules", "", "`file` with rules")
	tests := flag.String("tests", "", "`file` with tests of them")
	dashboard := flag.String("dashboard", "", "`file` of Grafana")
	flag.Parse()
	faults := check(context.Background(), *rules, *tests, *dashboard)
	report(os.Stdout, faults)
	if len(faults) > 0 {
		os.Exit(1)
	}
}

func report(to io.Writer, faults []error) {
	for _, fault := range faults {
		fmt.Fprintln(to, fault)
	}
}

// check gives all that is wrong with the files that are named.
func check(ctx context.Context, rules, tests, dashboard string) []error {
	p := parser.NewParser(parser.Options{})
	alerts, faults := readAlerts(rules, p)
	if tests != "" && len(faults) == 0 {
		faults = append(faults, runTests(ctx, tests, alerts, p)...)
	}
	if dashboard != "" {
		faults = append(faults, checkDashboard(dashboard, p)...)
	}
	return faults
}
