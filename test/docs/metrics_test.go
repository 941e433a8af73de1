package docs_test

import (
	"context"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"onerule/daemon/metrics"
	"onerule/nft"
	"onerule/nft/guard"
)

// served gives the labels of all metrics of a daemon that does everything, by name.
func served(t *testing.T) map[string]string {
	t.Helper()
	m := metrics.New(metrics.Config{
		Version: "v1", Families: []string{"IPv4"}, ForeignKinds: []string{"flushed"}, Log: logr.Discard(),
		LocalhostNodePorts: func() bool { return true },
		Counters: func(context.Context, string) (metrics.Counters, error) {
			return metrics.Counters{Named: map[string]uint64{nft.RefusedNoEndpoints: 1, "dropped-source": 1, nft.PinsFullPrefix + "ID": 1}, LocalhostRejected: map[string]uint64{"UDP": 1}}, nil
		},
		HitsMode: func() string { return "netfilter" }, EndpointMetrics: metrics.EachEndpoint,
		Hits: func() ([]metrics.Hit, error) {
			return []metrics.Hit{{Endpoint: "10.1.1.2:80", Connections: 1}}, nil
		},
		Network: func() metrics.Network {
			return metrics.Network{
				Barriers: []metrics.Barrier{{Family: "ip", Table: "filter", Chain: "FORWARD"}}, Operations: map[string]int{"set": 1},
				Dropped: map[string]map[string]uint64{"IPv4": {"spoofed": 1}}, Swept: map[string]int{"link": 1},
				Neighbours: map[string]metrics.NeighbourTable{"ipv4": {Entries: 1, Limit: 1024}},
			}
		},
	})
	m.Queued("IPv4")
	m.Synced("IPv4", time.Second, true, nil)
	m.Synced("IPv4", time.Second, false, nil)
	m.Programmed("IPv4", time.Now().Add(time.Hour))
	m.ConntrackPass("IPv4", time.Second, 1)
	m.LocalhostFailed("IPv4")
	m.LocalhostListeners("IPv4", 1)
	m.NoLocal("IPv4", 1, 1)
	m.Answered("healthz", 200)
	m.Answered("livez", 200)
	m.Lacks("fib", true)
	m.Operated("IPv4", map[string]int{"add": 1})
	m.Holds("IPv4", map[string]int{"service-ips": 1}, 2)
	list, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, f := range list {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		slices.Sort(labels)
		found[f.GetName()] = strings.Join(labels, " ")
	}
	return found
}

// What is registered has a sample above, or its name would be missing here.
func TestEveryMetricIsServed(t *testing.T) {
	found := served(t)
	files, err := filepath.Glob(filepath.Join(root, "daemon", "metrics", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, name := range regexp.MustCompile(`"(onerule_[a-z_]+)"`).FindAllStringSubmatch(readFile(t, file), -1) {
			if _, ok := found[name[1]]; !ok {
				t.Errorf("%s names the metric %s, which this test does not see", file, name[1])
			}
		}
	}
}

// rows gives the cells of the table of a page whose heading begins with a word.
func rows(t *testing.T, file, heading string) [][]string {
	t.Helper()
	_, table, ok := strings.Cut(readFile(t, filepath.Join(root, file)), "\n| "+heading+" |")
	if !ok {
		t.Fatalf("%s has no table with the heading %s", file, heading)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var list [][]string
	for _, l := range strings.Split(table, "\n")[2:] {
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(l, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		list = append(list, cells)
	}
	return list
}

func TestTheTableOfMetricsIsWhatTheDaemonServes(t *testing.T) {
	want, got := map[string]string{}, map[string]string{}
	for name, labels := range served(t) {
		if strings.HasPrefix(name, "onerule_") {
			want[name] = labels
		}
	}
	for _, cells := range rows(t, "docs/operate.md", "metric") {
		labels := strings.FieldsFunc(cells[1], func(r rune) bool { return r == ',' || r == ' ' })
		slices.Sort(labels)
		got[strings.Trim(cells[0], "`")] = strings.Join(labels, " ")
		if cells[2] == "" {
			t.Errorf("%s: it is not said what it means", cells[0])
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics and their labels (-served +docs/operate.md): %s", diff)
	}
}

// Each reason for which packets are refused or dropped is named beside its metric.
func TestTheReasonsOfCountersAreExplained(t *testing.T) {
	reasons := map[string][]string{}
	for _, c := range nft.NewSkeleton(nft.Config{Family: nft.IPv4, RefuseWithoutLocal: true, LocalhostNodePorts: true}).Counters {
		for _, what := range []string{"refused", "dropped"} {
			if reason, ok := strings.CutPrefix(c.Name, what+"-"); ok {
				reasons["onerule_"+what+"_connections_total"] = append(reasons["onerule_"+what+"_connections_total"], reason)
			}
		}
	}
	for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		for _, c := range guard.Counters(f) {
			reasons["onerule_guard_dropped_packets_total"] = append(reasons["onerule_guard_dropped_packets_total"], string(c))
		}
	}
	for _, cells := range rows(t, "docs/operate.md", "metric") {
		name := strings.Trim(cells[0], "`")
		for _, reason := range reasons[name] {
			if !strings.Contains(cells[2], "`"+reason+"`") {
				t.Errorf("%s: the reason %s is not explained", name, reason)
			}
		}
		delete(reasons, name)
	}
	for name := range reasons {
		t.Errorf("%s has no row", name)
	}
}

// alerts gives the severity of each alert that is shipped.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert  string            `json:"alert"`
				Labels map[string]string `json:"labels"`
			} `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.Unmarshal([]byte(readFile(t, filepath.Join(root, "install", "prometheus-alerts.yaml"))), &file); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			found[r.Alert] = r.Labels["severity"]
		}
	}
	return found
}

func TestEveryAlertSaysWhatToDo(t *testing.T) {
	got := map[string]string{}
	for _, cells := range rows(t, "docs/operate.md", "alert") {
		got[strings.Trim(cells[0], "`")] = cells[1]
		if cells[2] == "" || cells[3] == "" {
			t.Errorf("%s lacks what it means or what to do", cells[0])
		}
	}
	want := maps.Clone(alerts(t))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("alerts and their severities (-shipped +docs/operate.md): %s", diff)
	}
}

// What oneruled status gives as reasons is in the words of the table.
func TestTheReasonsOfStatusAreThoseThatItGives(t *testing.T) {
	texts := said(t)
	for _, cells := range rows(t, "docs/operate.md", "it says") {
		found := false
		for text := range texts {
			found = found || strings.Contains(text, cells[0])
		}
		if !found {
			t.Errorf("nothing of ours says %q", cells[0])
		}
	}
}

// Each reason of an event, or of a condition, in the daemon's sources is explained.
func TestEveryEventIsExplained(t *testing.T) {
	page := readFile(t, filepath.Join(root, "docs", "operate.md"))
	event := regexp.MustCompile(`(?:Reason: |(?:event|Warning|Normal|compare)\([^"]*)"([A-Z]\w+)"`)
	reasons := map[string]bool{}
	for _, file := range product(t, ".go") {
		for _, found := range event.FindAllStringSubmatch(readFile(t, file), -1) {
			reasons[found[1]] = true
		}
	}
	if len(reasons) < 14 {
		t.Fatalf("only %d reasons are found in the sources", len(reasons))
	}
	for reason := range reasons {
		if !strings.Contains(page, "`"+reason+"`") {
			t.Errorf("docs/operate.md does not explain %s", reason)
		}
	}
}
