package metrics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	promodel "github.com/prometheus/common/model"
	clientmetrics "k8s.io/client-go/tools/metrics"

	"onerule/daemon/model"
)

func config() Config {
	return Config{
		Version: "test", Families: []string{"IPv4", "IPv6"}, LocalhostNodePorts: func() bool { return true },
		ForeignKinds: []string{"flushed", "lost"}, Log: logr.Discard(),
		Features: []Feature{{"Young", "ALPHA", false}, {"Grown", "", true}},
		Pending:  func() (slices, services int) { return 3, 4 },
		Counters: func(context.Context, string) (Counters, error) {
			return Counters{
				Named:             map[string]uint64{"refused-no-endpoints": 3, "dropped-source": 4, "pins-full-a": 5, "elsewhere": 6},
				LocalhostRejected: map[string]uint64{"UDP": 7},
			}, nil
		},
	}
}

// scrape asks a real server and parses what it says.
func scrape(t *testing.T, m *Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	server := httptest.NewServer(m.Handler())
	defer server.Close()
	r, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		t.Fatalf("status %d, want 200", r.StatusCode)
	}
	parser := expfmt.NewTextParser(promodel.LegacyValidation)
	families, err := parser.TextToMetricFamilies(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// A shape is what programs that read a metric rely on.
type shape struct {
	Type   string
	Labels string // names, sorted
}

func shapeOf(f *dto.MetricFamily) shape {
	names := map[string]bool{}
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			names[l.GetName()] = true
		}
	}
	return shape{strings.ToLower(f.GetType().String()), strings.Join(slices.Sorted(maps.Keys(names)), ",")}
}

func shapes(families map[string]*dto.MetricFamily, prefix string) map[string]shape {
	found := map[string]shape{}
	for name, f := range families {
		if strings.HasPrefix(name, prefix) {
			found[name] = shapeOf(f)
		}
	}
	return found
}

// exercise makes every metric have a sample.
func exercise(m *Metrics) {
	m.Queued("IPv4")
	m.Synced("IPv4", time.Second, true, nil)
	m.Synced("IPv4", time.Second, false, nil)
	m.Programmed("IPv4", time.Now().Add(time.Hour))
	m.ConntrackPass("IPv4", time.Second, 1)
	m.LocalhostFailed("IPv4")
	m.Changed(time.Second)
	m.Lacks("fib", true)
	m.Operated("IPv4", map[string]int{"add": 1})
	m.Holds("IPv4", map[string]int{"service-ips": 1}, 2)
}

func TestA11MetricsAreThoseOfKubeProxy(t *testing.T) {
	m := New(config())
	exercise(m)
	want := map[string]shape{
		"kubeproxy_sync_proxy_rules_duration_seconds":                            {"histogram", "ip_family"},
		"kubeproxy_sync_full_proxy_rules_duration_seconds":                       {"histogram", "ip_family"},
		"kubeproxy_sync_partial_proxy_rules_duration_seconds":                    {"histogram", "ip_family"},
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds":                      {"gauge", "ip_family"},
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds":               {"gauge", "ip_family"},
		"kubeproxy_network_programming_duration_seconds":                         {"histogram", "ip_family"},
		"kubeproxy_sync_proxy_rules_endpoint_changes_pending":                    {"gauge", ""},
		"kubeproxy_sync_proxy_rules_endpoint_changes_total":                      {"counter", ""},
		"kubeproxy_sync_proxy_rules_service_changes_pending":                     {"gauge", ""},
		"kubeproxy_sync_proxy_rules_service_changes_total":                       {"counter", ""},
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total":                    {"gauge", "ip_family,traffic_policy"},
		"kubeproxy_sync_proxy_rules_nftables_sync_failures_total":                {"counter", "ip_family"},
		"kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total":             {"counter", "ip_family"},
		"kubeproxy_proxy_healthz_total":                                          {"counter", "code"},
		"kubeproxy_proxy_livez_total":                                            {"counter", "code"},
		"kubeproxy_conntrack_reconciler_sync_duration_seconds":                   {"histogram", "ip_family"},
		"kubeproxy_conntrack_reconciler_deleted_entries_total":                   {"counter", "ip_family"},
		"kubeproxy_nftables_localhost_nodeport_listeners":                        {"gauge", "ip_family"},
		"kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total": {"counter", "ip_family"},
		"kubeproxy_nftables_localhost_nodeport_rejected_packets_total":           {"counter", "ip_family,protocol"},
	}
	if diff := cmp.Diff(want, shapes(scrape(t, m), "kubeproxy_")); diff != "" {
		t.Errorf("metrics (-want +got): %s", diff)
	}
	t.Run("without the gate of localhost NodePorts", func(t *testing.T) {
		cfg := config()
		cfg.LocalhostNodePorts = func() bool { return false }
		m := New(cfg)
		m.LocalhostListeners("IPv4", 1)
		exercise(m)
		for name := range want {
			if strings.Contains(name, "localhost_nodeport") {
				delete(want, name)
			}
		}
		if diff := cmp.Diff(want, shapes(scrape(t, m), "kubeproxy_")); diff != "" {
			t.Errorf("metrics (-want +got): %s", diff)
		}
	})
}

func TestOurOwnMetricsKeepTheirNames(t *testing.T) {
	m := New(config())
	exercise(m)
	want := map[string]shape{
		"onerule_skipped_objects":                      {"gauge", "reason"},
		"onerule_nft_operations_total":                 {"counter", "ip_family,operation"},
		"onerule_elements":                             {"gauge", "ip_family,set"},
		"onerule_rules":                                {"gauge", "ip_family"},
		"onerule_change_duration_seconds":              {"histogram", ""},
		"onerule_conntrack_untranslated_deleted_total": {"counter", "ip_family"},
		"onerule_build_info":                           {"gauge", "version"},
		"onerule_foreign_changes_total":                {"counter", "kind"},
		"onerule_kernel_lacks":                         {"gauge", "expression"},
		"onerule_refused_connections_total":            {"counter", "ip_family,reason"},
		"onerule_dropped_connections_total":            {"counter", "ip_family,reason"},
		"onerule_pins_full_total":                      {"counter", "ip_family"},
		"onerule_pending_change_age_seconds":           {"gauge", ""},
		"onerule_api_lost_seconds":                     {"gauge", ""},
		"onerule_bpf_full":                             {"gauge", ""},
		"onerule_bpf_enabled":                          {"gauge", "mode"},
	}
	if diff := cmp.Diff(want, shapes(scrape(t, m), "onerule_")); diff != "" {
		t.Errorf("metrics (-want +got): %s", diff)
	}
}

func TestA11BucketsAreThoseOfKubeProxy(t *testing.T) {
	m := New(config())
	exercise(m)
	families := scrape(t, m)
	syncs := []float64{0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384}
	programming := []float64{0.25, 0.5}
	for n := 1; n < 60; n++ {
		programming = append(programming, float64(n))
	}
	for n := 60; n < 120; n += 5 {
		programming = append(programming, float64(n))
	}
	for n := 120; n <= 300; n += 30 {
		programming = append(programming, float64(n))
	}
	for name, want := range map[string][]float64{
		"kubeproxy_sync_proxy_rules_duration_seconds":          syncs,
		"kubeproxy_sync_full_proxy_rules_duration_seconds":     syncs,
		"kubeproxy_sync_partial_proxy_rules_duration_seconds":  syncs,
		"kubeproxy_conntrack_reconciler_sync_duration_seconds": syncs,
		"kubeproxy_network_programming_duration_seconds":       programming,
	} {
		var got []float64
		for _, b := range families[name].GetMetric()[0].GetHistogram().GetBucket() {
			got = append(got, b.GetUpperBound())
		}
		got = slices.DeleteFunc(got, func(f float64) bool { return f > 1e9 }) // +Inf
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}

// value gives a sample by its labels' values, in the order of their names: of a
// histogram its number of observations. -1: there is none.
func value(families map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	for _, m := range families[name].GetMetric() {
		var got []string
		for _, l := range m.GetLabel() {
			got = append(got, l.GetValue())
		}
		if !slices.Equal(got, labels) {
			continue
		}
		switch {
		case m.Histogram != nil:
			return float64(m.GetHistogram().GetSampleCount())
		case m.Counter != nil:
			return m.GetCounter().GetValue()
		case m.Gauge != nil:
			return m.GetGauge().GetValue()
		}
	}
	return -1
}

func TestA11MetricsChangeWithWhatTheyMean(t *testing.T) {
	const rules = "kubeproxy_sync_proxy_rules_"
	failed := errors.New("refused")
	for what, c := range map[string]struct {
		do      func(*Metrics)
		name    string
		labels  []string
		before  float64
		after   float64
		recent  bool     // after is not looked at: the value is now, in Unix time
		another []string // labels of a sample that does not change
	}{
		"a sync that ends well takes time":      {func(m *Metrics) { m.Synced("IPv4", 1, false, nil) }, rules + "duration_seconds", []string{"IPv4"}, -1, 1, false, []string{"IPv6"}},
		"a sync that fails takes time":          {func(m *Metrics) { m.Synced("IPv4", 1, true, failed) }, rules + "duration_seconds", []string{"IPv4"}, -1, 1, false, nil},
		"a full one is full":                    {func(m *Metrics) { m.Synced("IPv4", 1, true, nil) }, "kubeproxy_sync_full_proxy_rules_duration_seconds", []string{"IPv4"}, -1, 1, false, nil},
		"a full one is not partial":             {func(m *Metrics) { m.Synced("IPv4", 1, true, nil) }, "kubeproxy_sync_partial_proxy_rules_duration_seconds", []string{"IPv4"}, -1, -1, false, nil},
		"a partial one is partial":              {func(m *Metrics) { m.Synced("IPv6", 1, false, nil) }, "kubeproxy_sync_partial_proxy_rules_duration_seconds", []string{"IPv6"}, -1, 1, false, nil},
		"a partial one is not full":             {func(m *Metrics) { m.Synced("IPv6", 1, false, nil) }, "kubeproxy_sync_full_proxy_rules_duration_seconds", []string{"IPv6"}, -1, -1, false, nil},
		"a sync that ends well is dated":        {func(m *Metrics) { m.Synced("IPv4", 1, true, nil) }, rules + "last_timestamp_seconds", []string{"IPv4"}, -1, 0, true, nil},
		"one that fails is not":                 {func(m *Metrics) { m.Synced("IPv4", 1, true, failed) }, rules + "last_timestamp_seconds", []string{"IPv4"}, -1, -1, false, nil},
		"one that fails is a failure":           {func(m *Metrics) { m.Synced("IPv4", 1, true, failed) }, rules + "nftables_sync_failures_total", []string{"IPv4"}, 0, 1, false, []string{"IPv6"}},
		"one that ends well is none":            {func(m *Metrics) { m.Synced("IPv4", 1, true, nil) }, rules + "nftables_sync_failures_total", []string{"IPv4"}, 0, 0, false, nil},
		"chains that stay are a failure":        {func(m *Metrics) { m.CleanupFailed("IPv4") }, rules + "nftables_cleanup_failures_total", []string{"IPv4"}, 0, 1, false, []string{"IPv6"}},
		"a sync that is asked for is dated":     {func(m *Metrics) { m.Queued("IPv6") }, rules + "last_queued_timestamp_seconds", []string{"IPv6"}, -1, 0, true, nil},
		"changes of slices are counted":         {func(m *Metrics) { m.EndpointsChanged(2) }, rules + "endpoint_changes_total", nil, 0, 2, false, nil},
		"changes of Services are counted":       {func(m *Metrics) { m.ServicesChanged(2) }, rules + "service_changes_total", nil, 0, 2, false, nil},
		"slices wait":                           {func(*Metrics) {}, rules + "endpoint_changes_pending", nil, 3, 3, false, nil},
		"Services wait":                         {func(*Metrics) {}, rules + "service_changes_pending", nil, 4, 4, false, nil},
		"a sync with nothing to write is dated": {func(m *Metrics) { m.UpToDate("IPv6") }, rules + "last_timestamp_seconds", []string{"IPv6"}, -1, 0, true, nil},
		"no local endpoints for internal":       {func(m *Metrics) { m.NoLocal("IPv4", 1, 2) }, rules + "no_local_endpoints_total", []string{"IPv4", "internal"}, 0, 1, false, []string{"IPv6", "internal"}},
		"no local endpoints for external":       {func(m *Metrics) { m.NoLocal("IPv4", 1, 2) }, rules + "no_local_endpoints_total", []string{"IPv4", "external"}, 0, 2, false, nil},
		"/healthz is answered":                  {func(m *Metrics) { m.Answered("healthz", 503) }, "kubeproxy_proxy_healthz_total", []string{"503"}, 0, 1, false, []string{"200"}},
		"/livez is answered":                    {func(m *Metrics) { m.Answered("livez", 200) }, "kubeproxy_proxy_livez_total", []string{"200"}, 0, 1, false, []string{"503"}},
		"a pass over conntrack takes time":      {func(m *Metrics) { m.ConntrackPass("IPv6", 1, 0) }, "kubeproxy_conntrack_reconciler_sync_duration_seconds", []string{"IPv6"}, -1, 1, false, nil},
		"a pass over conntrack deletes":         {func(m *Metrics) { m.ConntrackPass("IPv6", 1, 9) }, "kubeproxy_conntrack_reconciler_deleted_entries_total", []string{"IPv6"}, 0, 9, false, []string{"IPv4"}},
		"localhost has listeners":               {func(m *Metrics) { m.LocalhostListeners("IPv4", 2) }, "kubeproxy_nftables_localhost_nodeport_listeners", []string{"IPv4"}, 0, 2, false, []string{"IPv6"}},
		"localhost lacks a listener":            {func(m *Metrics) { m.LocalhostFailed("IPv4") }, "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total", []string{"IPv4"}, 0, 1, false, []string{"IPv6"}},
		"flows without translation are deleted": {func(m *Metrics) { m.Untranslated("IPv4", 3) }, "onerule_conntrack_untranslated_deleted_total", []string{"IPv4"}, 0, 3, false, []string{"IPv6"}},
		"others change our table":               {func(m *Metrics) { m.ForeignChange("flushed") }, "onerule_foreign_changes_total", []string{"flushed"}, 0, 1, false, []string{"lost"}},
		"the kernel lacks an expression":        {func(m *Metrics) { m.Lacks("fib", true) }, "onerule_kernel_lacks", []string{"fib"}, -1, 1, false, nil},
		"it lacks it no more":                   {func(m *Metrics) { m.Lacks("fib", true); m.Lacks("fib", false) }, "onerule_kernel_lacks", []string{"fib"}, -1, 0, false, nil},
		"a change reaches the kernel":           {func(m *Metrics) { m.Changed(1) }, "onerule_change_duration_seconds", nil, 0, 1, false, nil},
		"operations are counted": {func(m *Metrics) {
			m.Operated("IPv4", map[string]int{"add": 2})
			m.Operated("IPv4", map[string]int{"add": 3})
		}, "onerule_nft_operations_total", []string{"IPv4", "add"}, -1, 5, false, nil},
		"objects are skipped":              {func(m *Metrics) { m.Skipped(notes(2)) }, "onerule_skipped_objects", []string{"parse"}, 0, 2, false, []string{"invalid-port"}},
		"objects are not skipped any more": {func(m *Metrics) { m.Skipped(notes(2)); m.Skipped(nil) }, "onerule_skipped_objects", []string{"parse"}, 0, 0, false, nil},
	} {
		t.Run(what, func(t *testing.T) {
			m := New(config())
			before := scrape(t, m)
			if got := value(before, c.name, c.labels...); got != c.before {
				t.Errorf("before: %s%v is %v, want %v", c.name, c.labels, got, c.before)
			}
			c.do(m)
			after := scrape(t, m)
			got := value(after, c.name, c.labels...)
			if now := float64(time.Now().Unix()); c.recent && (got < now-60 || got > now+1) {
				t.Errorf("after: %s%v is %v, want now, %v", c.name, c.labels, got, now)
			} else if !c.recent && got != c.after {
				t.Errorf("after: %s%v is %v, want %v", c.name, c.labels, got, c.after)
			}
			if c.another == nil {
				return
			}
			if was, is := value(before, c.name, c.another...), value(after, c.name, c.another...); was != is {
				t.Errorf("%s%v went from %v to %v", c.name, c.another, was, is)
			}
		})
	}
}

func notes(n int) map[string][]model.Note {
	found := map[string][]model.Note{}
	for i := range n {
		found[fmt.Sprint("Service a/", i)] = []model.Note{{Reason: model.ReasonParse}}
	}
	return found
}

func TestA11NetworkProgrammingIsOfChangesSinceTheStart(t *testing.T) {
	m := New(config())
	const name = "kubeproxy_network_programming_duration_seconds"
	m.Programmed("IPv4", time.Time{})
	m.Programmed("IPv4", m.started.Add(-time.Second))
	if got := value(scrape(t, m), name, "IPv4"); got != -1 {
		t.Errorf("%v observations of what was before the start, want none", got)
	}
	m.Programmed("IPv4", m.started.Add(time.Nanosecond))
	m.Programmed("IPv4", time.Now().Add(time.Hour))
	families := scrape(t, m)
	if got := value(families, name, "IPv4"); got != 2 {
		t.Errorf("%v observations, want 2", got)
	}
	if sum := families[name].GetMetric()[0].GetHistogram().GetSampleSum(); sum < 0 {
		t.Errorf("a clock that is ahead gives %v s", sum)
	}
}

func TestA11WhatBelongsToTheProcessIsThere(t *testing.T) {
	m := New(config())
	clientmetrics.RequestResult.Increment(t.Context(), "200", "GET", "server.test")
	families := scrape(t, m)
	for _, name := range []string{"go_goroutines", "go_memstats_heap_inuse_bytes", "process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds", "rest_client_requests_total", "hidden_metrics_total"} {
		if len(families[name].GetMetric()) == 0 {
			t.Errorf("no %s", name)
		}
	}
	if got := value(families, "kubernetes_feature_enabled", "Young", "ALPHA"); got != 0 {
		t.Errorf("a gate that is off: %v, want 0", got)
	}
	if got := value(families, "kubernetes_feature_enabled", "Grown", ""); got != 1 {
		t.Errorf("a gate that is on: %v, want 1", got)
	}
	want := shape{"gauge", "build_date,compiler,git_commit,git_tree_state,git_version,go_version,major,minor,platform"}
	if diff := cmp.Diff(want, shapeOf(families["kubernetes_build_info"])); diff != "" {
		t.Errorf("kubernetes_build_info (-want +got): %s", diff)
	}
	labels := map[string]string{}
	for _, l := range families["kubernetes_build_info"].GetMetric()[0].GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	if labels["platform"] != runtime.GOOS+"/"+runtime.GOARCH || labels["git_version"] != KubernetesVersion() {
		t.Errorf("kubernetes_build_info: %v", labels)
	}
}

func TestKubernetesVersionIsThatOfTheLibraries(t *testing.T) {
	client := func(version string, replaced *debug.Module) *debug.BuildInfo {
		return &debug.BuildInfo{Deps: []*debug.Module{{Path: "k8s.io/api", Version: "v0.1.0"}, {Path: "k8s.io/client-go", Version: version, Replace: replaced}}}
	}
	for what, c := range map[string]struct {
		info *debug.BuildInfo
		want string
	}{
		"of a release":   {client("v0.37.2", nil), "v1.37.2"},
		"replaced":       {client("v0.37.2", &debug.Module{Path: "fork", Version: "v0.38.0"}), "v1.38.0"},
		"of no release":  {client("(devel)", nil), ""},
		"without client": {&debug.BuildInfo{}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			if got := ofLibraries(c.info); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if major, minor := majorMinor("v1.37.2"); major != "1" || minor != "37" {
		t.Errorf("got %q and %q, want 1 and 37", major, minor)
	}
}

func TestDaemonsOfOneProcessCountApart(t *testing.T) {
	a, b := New(config()), New(config())
	a.Synced("IPv4", time.Second, true, errors.New("refused"))
	const name = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
	if got := [2]float64{value(scrape(t, a), name, "IPv4"), value(scrape(t, b), name, "IPv4")}; got != [2]float64{1, 0} {
		t.Errorf("got %v, want 1 and 0", got)
	}
}

func TestWhatCannotBeReadIsLoggedAndLeftOut(t *testing.T) {
	lines := make(chan string, 10)
	cfg := config()
	cfg.Log = logTo(lines)
	m := New(cfg)
	m.registry.MustRegister(broken{})
	if got := value(scrape(t, m), "onerule_build_info", "test"); got != 1 {
		t.Errorf("onerule_build_info is %v, want 1", got)
	}
	select {
	case line := <-lines:
		if !strings.Contains(line, "out of order") {
			t.Errorf("the log says %q", line)
		}
	default:
		t.Error("the log says nothing")
	}
}

// broken is a collector that can't read what it should.
type broken struct{}

func (broken) Describe(chan<- *prometheus.Desc) {}

func (broken) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.NewInvalidMetric(prometheus.NewDesc("broken", "", nil, nil), errors.New("out of order"))
}

func TestOneThatWaitsHasAnAge(t *testing.T) {
	cfg := config()
	cfg.PendingAge = func() time.Duration { return 90 * time.Second }
	if got := value(scrape(t, New(cfg)), "onerule_pending_change_age_seconds"); got != 90 {
		t.Errorf("got %v s, want 90", got)
	}
}

func TestElementsAreCountedUnderFewNames(t *testing.T) {
	m := New(config())
	m.Holds("IPv4", map[string]int{"a": 1, "b": 2}, 40)
	m.Holds("IPv6", map[string]int{"a": 7}, 41)
	m.Holds("IPv4", map[string]int{"a": 3}, 42)
	families := scrape(t, m)
	got := []float64{value(families, "onerule_elements", "IPv4", "a"), value(families, "onerule_elements", "IPv4", "b"),
		value(families, "onerule_elements", "IPv6", "a"), value(families, "onerule_rules", "IPv4"), value(families, "onerule_rules", "IPv6")}
	if diff := cmp.Diff([]float64{3, -1, 7, 42, 41}, got); diff != "" {
		t.Errorf("a set that is gone is forgotten (-want +got): %s", diff)
	}
	many := map[string]int{}
	for i := range 1000 {
		many[fmt.Sprintf("set-%04d", i)] = 1
	}
	m.Holds("IPv4", many, 42)
	families = scrape(t, m)
	if n := len(families["onerule_elements"].GetMetric()); n != maxSets+1 { // and that of IPv6
		t.Errorf("%d samples, want %d", n, maxSets+1)
	}
	if got := value(families, "onerule_elements", "IPv4", others); got != 1000-maxSets+1 {
		t.Errorf("%v elements of others, want %d", got, 1000-maxSets+1)
	}
}

// logTo gives a logger that writes lines to a channel with room.
func logTo(lines chan string) logr.Logger {
	return funcr.New(func(_, args string) {
		select {
		case lines <- args:
		default:
		}
	}, funcr.Options{})
}
