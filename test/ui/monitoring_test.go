package ui_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/yaml"

	"onerule/daemon/metrics"
	"onerule/test/bpffs"
	"onerule/test/netns"
	"onerule/test/rig"
)

// What operators load into Prometheus and Grafana.
const (
	alertsFile    = "../../install/prometheus-alerts.yaml"
	dashboardFile = "../../install/grafana-dashboard.json"
)

// serving gives what a daemon serves that keeps the pod network, counts connections, skips
// an object, and finds a chain of others in its way.
func serving(t *testing.T) served {
	t.Helper()
	ns := netns.New(t, "node")
	netns.Wire(t, ns, "eth0", netns.New(t, "neighbour"), "eth0")
	ns.Addr(t, "eth0", "172.16.1.1/24")
	ns.Run(t, "nft", "add table ip others; add chain ip others barrier { type filter hook forward priority 0; policy drop; }")
	state := t.TempDir()
	d := rig.New(t, ns, "--pod-network", "--cni-state", state, "--network-status-file", state+"/network.json",
		"--cluster-cidr", "10.1.0.0/16", "--endpoint-metrics", "endpoint", "--bpf-dir", bpffs.New(t))
	d.Write("node.yaml", fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nspec: {podCIDRs: [10.1.1.0/24]}\n"+
		"status: {addresses: [{type: InternalIP, address: 172.16.1.1}]}\n", rig.NodeName))
	broken := strings.Replace(rig.Service("broken", []netip.Addr{netip.MustParseAddr("10.96.0.2")}, "http/TCP/80"), "port: 80", "port: 80000", 1)
	d.Write("web.yaml", rig.ServiceCIDR("kubernetes", netip.MustParsePrefix("10.96.0.0/16")), broken,
		rig.Service("web", []netip.Addr{netip.MustParseAddr("10.96.0.1")}, "http/TCP/80"),
		rig.Slice("web", "web", []netip.Addr{netip.MustParseAddr("10.1.1.2")}, "http/TCP/8080"))
	d.Run()
	d.AwaitHealthy()
	// Only a change that comes after the first load tells how long the cluster took.
	later := rig.Slice("web-later", "web", []netip.Addr{netip.MustParseAddr("10.1.1.3")}, "http/TCP/8080")
	at := fmt.Sprintf("metadata: {annotations: {endpoints.kubernetes.io/last-change-trigger-time: %q}, ", time.Now().Format(time.RFC3339Nano))
	d.Write("later.yaml", strings.Replace(later, "metadata: {", at, 1))
	rig.Eventually(t, "the daemon tells of the chain of others, the endpoint and the change", func() error {
		got := d.Metrics()
		for _, name := range []string{"onerule_forward_barriers", "onerule_endpoint_connections_total", "onerule_guard_dropped_packets_total", "kubeproxy_network_programming_duration_seconds"} {
			if got[name] == nil {
				return fmt.Errorf("no %s", name)
			}
		}
		return nil
	})
	all := d.Metrics()
	maps.Copy(all, neighbours(t))
	return servedBy(all)
}

// neighbours gives what a daemon serves of the machine's neighbours besides, for which it has
// to be in the machine's first network namespace.
func neighbours(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	m := metrics.New(metrics.Config{
		Families: []string{"IPv4"}, Log: logr.Discard(),
		Network: func() metrics.Network {
			return metrics.Network{Neighbours: map[string]metrics.NeighbourTable{"IPv4": {Entries: 1, Limit: 1024}}}
		},
	})
	list, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*dto.MetricFamily{}
	for _, f := range list {
		if strings.HasPrefix(f.GetName(), "onerule_neighbours") {
			found[f.GetName()] = f
		}
	}
	return found
}

func TestMonitoringNamesWhatTheDaemonServes(t *testing.T) {
	netns.Privileged(t)
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		t.Skipf("NOT TESTED: nothing is counted without BTF: %v", err)
	}
	s := serving(t)
	t.Run("alerts", func(t *testing.T) { testAlerts(t, s) })
	t.Run("dashboard", func(t *testing.T) { testDashboard(t, s) })
}

// Rules are those of Prometheus' rule files.
type rules struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func testAlerts(t *testing.T, s served) {
	var file rules
	text, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	about := map[string]bool{}
	label := regexp.MustCompile(`\$labels\.(\w+)`)
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			var shown []string
			for _, found := range label.FindAllStringSubmatch(r.Annotations["summary"]+r.Annotations["description"], -1) {
				shown = append(shown, found[1])
			}
			for _, wrong := range s.wrong(r.Expr, shown...) {
				t.Errorf("%s: %s: %s", r.Alert, r.Expr, wrong)
			}
			if about[r.Alert] || r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %q has its name twice, or lacks severity, summary or description", r.Alert)
			}
			about[r.Alert] = true
		}
	}
	for _, name := range []string{"OneruleNotSynced", "OneruleAPILost", "OneruleForeignChanges", "OnerulePinsFull",
		"OneruleRefusedWithoutEndpoints", "OneruleHitsMapFull", "OnerulePodNetworkFailing"} {
		if !about[name] {
			t.Errorf("there is no alert %s", name)
		}
	}
}

// A dashboard is what Grafana imports, as far as it names metrics.
type dashboard struct {
	Title      string `json:"title"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
	Panels []struct {
		ID      int    `json:"id"`
		Type    string `json:"type"`
		Title   string `json:"title"`
		Targets []struct {
			Expr         string `json:"expr"`
			LegendFormat string `json:"legendFormat"`
		} `json:"targets"`
	} `json:"panels"`
}

func testDashboard(t *testing.T, s served) {
	var d dashboard
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	variables := map[string]bool{"__rate_interval": true}
	values := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		if v.Definition == "" {
			continue // the data source
		}
		found := values.FindStringSubmatch(v.Definition)
		if found == nil {
			t.Errorf("variable %s: %s can't be read", v.Name, v.Definition)
			continue
		}
		for _, wrong := range s.wrong(found[1], found[2]) {
			t.Errorf("variable %s: %s", v.Name, wrong)
		}
	}
	label := regexp.MustCompile(`\{\{(\w+)\}\}`)
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("panel %d %q has its number twice, or lacks a title or a target", p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			var shown []string
			for _, found := range label.FindAllStringSubmatch(target.LegendFormat, -1) {
				shown = append(shown, found[1])
			}
			for _, wrong := range s.wrong(target.Expr, shown...) {
				t.Errorf("panel %q: %s: %s", p.Title, target.Expr, wrong)
			}
			for _, found := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if !variables[found[1]] {
					t.Errorf("panel %q: %s: there is no variable %s", p.Title, target.Expr, found[1])
				}
			}
		}
	}
}
