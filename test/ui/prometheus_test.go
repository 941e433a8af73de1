package ui_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const alertsTestFile = "../../install/prometheus-alerts-test.yaml"

// prometheus builds the program that reads files as Prometheus does, and gives what calls it.
func prometheus(t *testing.T) func(rules, tests, dashboard string) (faults string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "prometheus")
	build := exec.Command("go", "-C", "../prometheus", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build test/prometheus: %v\n%s", err, out)
	}
	return func(rules, tests, dashboard string) string {
		t.Helper()
		out, err := exec.Command(program, "-rules", rules, "-tests", tests, "-dashboard", dashboard).CombinedOutput()
		if (err == nil) != (len(out) == 0) {
			t.Fatalf("exit code %v, and it said %q", err, out)
		}
		return string(out)
	}
}

// spoiled gives a copy of a file with something else in it.
func spoiled(t *testing.T, file, old, instead string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), old) != 1 {
		t.Fatalf("%s has %q %d times, want once", file, old, strings.Count(string(text), old))
	}
	to := filepath.Join(t.TempDir(), filepath.Base(file))
	if err := os.WriteFile(to, []byte(strings.Replace(string(text), old, instead, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}

// Prometheus itself takes the rules and expressions, and each alert fires when it should and
// only then.
func TestPrometheusTakesAlertsAndDashboard(t *testing.T) {
	check := prometheus(t)
	if faults := check(alertsFile, alertsTestFile, dashboardFile); faults != "" {
		t.Errorf("what is installed: %s", faults)
	}
	for name, c := range map[string]struct{ file, old, instead, want string }{
		"an expression that is none":        {alertsFile, "onerule_bpf_full > 0", "onerule_bpf_full >", "parse error"},
		"a field that there is not":         {alertsFile, "expr: onerule_bpf_full", "expression: onerule_bpf_full", "field expression not found"},
		"a text that can't be filled in":    {alertsFile, "says {{ $labels.instance }}", "says {{ $label.instance }}", "undefined variable"},
		"a limit that is another one":       {alertsFile, "onerule_api_lost_seconds > 120", "onerule_api_lost_seconds > 30", "OneruleAPILost at 8m: fires"},
		"an alert that fires too late":      {alertsFile, "for: 2m", "for: 20m", "OnerulePodNetworkFailing at 3m: fires\n  nothing"},
		"another reason":                    {alertsFile, `reason="no-local-endpoints"`, `reason="no-endpoints"`, "OneruleDroppedWithoutLocalEndpoints at 20m: fires\n  nothing"},
		"an alert that no test is about":    {alertsTestFile, "{eval_time: 11m, alertname: OneruleNotSynced}", "{eval_time: 11m, alertname: OneruleSynced}", "there is no alert OneruleSynced"},
		"one that is never seen silent":     {alertsTestFile, "  - {eval_time: 4m, alertname: OneruleForwardBarrier}\n", "", "no test has OneruleForwardBarrier silent"},
		"a panel that can't be evaluated":   {dashboardFile, "max(onerule_node_problems{", "max((onerule_node_problems{", "parse error"},
		"a variable that selects nothing":   {dashboardFile, `"definition": "label_values(onerule_service_connections_total, namespace)"`, `"definition": "label_values(onerule_service_connections_total{, namespace)"`, "parse error"},
		"a dashboard that says no JSON":     {dashboardFile, `"templating": {`, `"templating": `, "grafana-dashboard.json"},
		"a series that tests write wrongly": {alertsTestFile, `'2x20'`, `'2xx20'`, "onerule_node_problems"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{alertsFile: alertsFile, alertsTestFile: alertsTestFile, dashboardFile: dashboardFile}
			files[c.file] = spoiled(t, c.file, c.old, c.instead)
			if faults := check(files[alertsFile], files[alertsTestFile], files[dashboardFile]); !strings.Contains(faults, c.want) {
				t.Errorf("no %q in what is said: %q", c.want, faults)
			}
		})
	}
}
