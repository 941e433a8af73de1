package process_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// A metric is what programs that watch kube-proxy read.
type metric struct {
	kind   string
	labels string // names, with a space between
	// moves says that the changes of the test must have moved it in both families.
	moves bool
}

// ofKubeProxy are kube-proxy's metrics in nftables mode, but for those of the gate of
// NodePorts on loopback addresses.
func ofKubeProxy() map[string]metric {
	const rules, family = "kubeproxy_sync_proxy_rules_", "ip_family"
	return map[string]metric{
		rules + "duration_seconds":                             {"HISTOGRAM", family, true},
		"kubeproxy_sync_full_proxy_rules_duration_seconds":     {"HISTOGRAM", family, false},
		"kubeproxy_sync_partial_proxy_rules_duration_seconds":  {"HISTOGRAM", family, true},
		rules + "last_timestamp_seconds":                       {"GAUGE", family, true},
		rules + "last_queued_timestamp_seconds":                {"GAUGE", family, true},
		"kubeproxy_network_programming_duration_seconds":       {"HISTOGRAM", family, true},
		rules + "endpoint_changes_pending":                     {"GAUGE", "", false},
		rules + "endpoint_changes_total":                       {"COUNTER", "", true},
		rules + "service_changes_pending":                      {"GAUGE", "", false},
		rules + "service_changes_total":                        {"COUNTER", "", true},
		rules + "no_local_endpoints_total":                     {"GAUGE", family + " traffic_policy", true},
		rules + "nftables_sync_failures_total":                 {"COUNTER", family, false},
		rules + "nftables_cleanup_failures_total":              {"COUNTER", family, false},
		"kubeproxy_proxy_healthz_total":                        {"COUNTER", "code", false},
		"kubeproxy_proxy_livez_total":                          {"COUNTER", "code", false},
		"kubeproxy_conntrack_reconciler_sync_duration_seconds": {"HISTOGRAM", family, true},
		"kubeproxy_conntrack_reconciler_deleted_entries_total": {"COUNTER", family, true},
		"kubernetes_build_info":                                {"GAUGE", "build_date compiler git_commit git_tree_state git_version go_version major minor platform", false},
		"kubernetes_feature_enabled":                           {"GAUGE", "name stage", false},
		"go_goroutines":                                        {"GAUGE", "", false},
		"process_start_time_seconds":                           {"GAUGE", "", false},
	}
}

// The metrics of a daemon that has worked are those of kube-proxy, and say what it did.
func TestA11_2MetricsSayWhatTheDaemonDid(t *testing.T) {
	w := newWorld(t)
	began := time.Now()
	d := w.daemon(t)
	d.Run()
	d.AwaitHealthy()
	for _, path := range []string{"/livez", "/livez"} {
		if code, _, err := d.Get(healthPort, path); err != nil || code != 200 {
			t.Fatalf("%s: %d %v", path, code, err)
		}
	}
	quiet := d.Metrics()
	w.change(t, d)
	got := d.Metrics()

	for name, want := range ofKubeProxy() {
		family := got[name]
		if family == nil {
			t.Errorf("no %s", name)
			continue
		}
		if kind, labels := family.GetType().String(), labels(family); kind != want.kind || labels != want.labels {
			t.Errorf("%s is a %s with labels %q, want a %s with %q", name, kind, labels, want.kind, want.labels)
		}
		if family.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
		if !want.moves {
			continue
		}
		for _, ip := range []string{"IPv4", "IPv6"} {
			if was, is := of(quiet[name], ip), of(family, ip); is <= was {
				t.Errorf("%s of %s was %v and is %v", name, ip, was, is)
			}
		}
	}
	for name := range got {
		if _, known := ofKubeProxy()[name]; strings.HasPrefix(name, "kubeproxy_") && !known {
			t.Errorf("%s is none of kube-proxy's", name)
		}
	}
	w.figures(t, d, began)
}

// change changes what every metric is about, in both families, and waits until it is done.
func (w *world) change(t *testing.T, d *rig.Daemon) {
	t.Helper()
	for _, p := range addr.Both() {
		w.answered(t, w.question(p))
	}
	d.Write("web.yaml", append(local(), without(web())...)...)
	for _, p := range addr.Both() {
		rig.Eventually(t, "flows to the endpoint that left are deleted", func() error {
			if d.Metric("kubeproxy_conntrack_reconciler_deleted_entries_total", "ip_family", familyName(p)) == 0 {
				return fmt.Errorf("none is")
			}
			return nil
		})
	}
}

// question is a datagram of the client pod to the Service.
func (w *world) question(p addr.Plan) oracle.Packet {
	packet := toVIP(p)
	packet.Protocol, packet.Port = model.UDP, 53
	return packet
}

// without gives manifests whose slices have no endpoints any more.
func without(docs []string) []string {
	var list []string
	for _, doc := range docs {
		if head, _, isSlice := strings.Cut(doc, "endpoints:\n"); isSlice {
			doc = head + "endpoints: []\n"
		}
		list = append(list, doc)
	}
	return list
}

// local is a Service whose policies are Local and whose endpoints are elsewhere, with the
// time at which they changed.
func local() []string {
	var vips []netip.Addr
	var docs []string
	for _, p := range addr.Both() {
		vips = append(vips, p.VIP(1))
		slice := rig.Slice("local-"+family(p), "local", []netip.Addr{p.OtherPod(0)}, "http/TCP/8080")
		slice = strings.ReplaceAll(slice, "nodeName: "+rig.NodeName, "nodeName: "+addr.OtherNodeName)
		changed := fmt.Sprintf("metadata: {annotations: {endpoints.kubernetes.io/last-change-trigger-time: %q}, ", time.Now().Format(time.RFC3339Nano))
		docs = append(docs, strings.Replace(slice, "metadata: {", changed, 1))
	}
	service := strings.Replace(rig.Service("local", vips, "http/TCP/80"), "spec:\n", "spec:\n  type: NodePort\n  externalTrafficPolicy: Local\n  internalTrafficPolicy: Local\n", 1)
	return append(docs, strings.Replace(service, "port: 80}", "port: 80, nodePort: 30081}", 1))
}

// figures compares what can be known exactly.
func (w *world) figures(t *testing.T, d *rig.Daemon, began time.Time) {
	t.Helper()
	const rules = "kubeproxy_sync_proxy_rules_"
	for _, f := range []string{"IPv4", "IPv6"} {
		for _, policy := range []string{"internal", "external"} {
			if n := d.Metric(rules+"no_local_endpoints_total", "ip_family", f, "traffic_policy", policy); n != 1 {
				t.Errorf("%v service ports have no local endpoint for %s traffic of %s, want 1", n, policy, f)
			}
		}
		queued, last := d.Metric(rules+"last_queued_timestamp_seconds", "ip_family", f), d.Metric(rules+"last_timestamp_seconds", "ip_family", f)
		if now := time.Now(); queued < float64(began.Unix()) || last < queued || last > float64(now.Unix()+1) {
			t.Errorf("%s: began at %d, last asked for at %v, last written at %v, and now it is %d", f, began.Unix(), queued, last, now.Unix())
		}
		if n := d.Metric("kubeproxy_sync_full_proxy_rules_duration_seconds", "ip_family", f); n != 1 {
			t.Errorf("%s: %v full syncs, want one", f, n)
		}
		if n := d.Metric("kubeproxy_network_programming_duration_seconds", "ip_family", f); n != 1 {
			t.Errorf("%s: %v changes with a time, want 1", f, n)
		}
	}
	// Two slices of each Service, those of web twice; each Service is of two families.
	for name, want := range map[string]float64{"endpoint_changes_total": 6, "service_changes_total": 4, "endpoint_changes_pending": 0, "service_changes_pending": 0} {
		if got := d.Metric(rules + name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if ok := d.Metric("kubeproxy_proxy_livez_total", "code", "200"); ok != 2 {
		t.Errorf("/livez was %v times well, want 2", ok)
	}
	if ok := d.Metric("kubeproxy_proxy_healthz_total", "code", "200"); ok != 1 {
		t.Errorf("/healthz was %v times well, want once", ok)
	}
}

func familyName(p addr.Plan) string {
	if p.Node().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// labels gives the names of a metric's labels.
func labels(f *dto.MetricFamily) string {
	names := map[string]bool{}
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			names[l.GetName()] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), " ")
}

// of sums the samples of an IP family, and those without.
func of(f *dto.MetricFamily, ip string) float64 {
	sum := 0.0
	for _, m := range f.GetMetric() {
		counts := true
		for _, l := range m.GetLabel() {
			counts = counts && (l.GetName() != "ip_family" || l.GetValue() == ip)
		}
		if counts {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}
