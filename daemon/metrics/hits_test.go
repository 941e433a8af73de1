package metrics

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func web(endpoint string, n uint64) Hit {
	return Hit{ServicePort{"ns", "web", "http", "TCP"}, endpoint, n}
}

// A Service's connections are those of its endpoints, also of those that are gone.
func TestConnectionsOfEndpoints(t *testing.T) {
	list := []Hit{web("10.0.0.1:80", 3), web("10.0.0.2:80", 4), web("", 5), {ServicePort{"ns", "dns", "", "UDP"}, "10.0.0.3:53", 9}}
	sums := map[string]float64{"ns web http TCP": 12, "ns dns  UDP": 9}
	each := map[string]float64{"ns web http TCP 10.0.0.1:80": 3, "ns web http TCP 10.0.0.2:80": 4, "ns dns  UDP 10.0.0.3:53": 9}
	for name, test := range map[string]struct {
		level              EndpointMetrics
		mode               string
		services, endpoint map[string]float64
	}{
		"off":             {NoEndpointMetrics, "netfilter", nil, nil},
		"services":        {ServiceMetrics, "netfilter", sums, nil},
		"endpoints":       {EachEndpoint, "fexit", sums, each},
		"nothing to read": {EachEndpoint, "", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config()
			cfg.EndpointMetrics, cfg.HitsMode, cfg.Hits = test.level, func() string { return test.mode }, func() ([]Hit, error) { return list, nil }
			m := New(cfg)
			got := samples(t, m, "onerule_service_connections_total", "namespace", "service", "port", "protocol")
			if diff := cmp.Diff(test.services, got); diff != "" {
				t.Errorf("services (-want +got): %s", diff)
			}
			got = samples(t, m, "onerule_endpoint_connections_total", "namespace", "service", "port", "protocol", "endpoint")
			if diff := cmp.Diff(test.endpoint, got); diff != "" {
				t.Errorf("endpoints (-want +got): %s", diff)
			}
			on := 0.0
			if test.mode != "" {
				on = 1
			}
			if diff := cmp.Diff(map[string]float64{test.mode: on}, samples(t, m, "onerule_bpf_enabled", "mode")); diff != "" {
				t.Errorf("enabled (-want +got): %s", diff)
			}
		})
	}
}

// However many endpoints there are, only so many have a metric, and the same ones each
// time; the sums are of all.
func TestEndpointMetricsAreBounded(t *testing.T) {
	cfg := config()
	cfg.EndpointMetrics, cfg.HitsMode = EachEndpoint, func() string { return "netfilter" }
	cfg.Hits = func() ([]Hit, error) {
		list := make([]Hit, 50_000)
		for i := range list {
			n := (i*7919 + 13) % len(list)
			list[i] = web(fmt.Sprintf("10.0.0.0:%05d", n), 1)
		}
		return list, nil
	}
	m := New(cfg)
	first := samples(t, m, "onerule_endpoint_connections_total", "endpoint")
	if len(first) != maxEndpoints {
		t.Errorf("%d endpoints have a metric, want %d", len(first), maxEndpoints)
	}
	if diff := cmp.Diff(first, samples(t, m, "onerule_endpoint_connections_total", "endpoint")); diff != "" {
		t.Error("the next scrape has others")
	}
	if got := samples(t, m, "onerule_service_connections_total", "service")["web"]; got != 50_000 {
		t.Errorf("the sum is %v", got)
	}
}

func TestHitsThatCannotBeReadLeaveTheRest(t *testing.T) {
	cfg := config()
	cfg.EndpointMetrics, cfg.HitsMode = EachEndpoint, func() string { return "netfilter" }
	cfg.Hits = func() ([]Hit, error) { return nil, errors.New("no") }
	m := New(cfg)
	if got := samples(t, m, "onerule_bpf_enabled", "mode")["netfilter"]; got != 1 {
		t.Errorf("enabled: %v", got)
	}
}

// What a scrape is given is not changed by it: others may read the same list.
func TestScrapesLeaveTheHitsAlone(t *testing.T) {
	cfg := config()
	cfg.EndpointMetrics, cfg.HitsMode = EachEndpoint, func() string { return "netfilter" }
	list := []Hit{web("", 5)}
	for n := range maxEndpoints + 1 { // enough that they are sorted
		list = append(list, web(fmt.Sprintf("10.0.0.0:%05d", maxEndpoints-n), 1))
	}
	cfg.Hits = func() ([]Hit, error) { return list, nil }
	before := slices.Clone(list)
	samples(t, New(cfg), "onerule_endpoint_connections_total", "endpoint")
	if !slices.Equal(before, list) {
		t.Error("the list is another after a scrape")
	}
}

// samples gives the values of a metric by the values of some labels.
func samples(t *testing.T, m *Metrics, name string, labels ...string) map[string]float64 {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		got = map[string]float64{}
		for _, sample := range f.GetMetric() {
			of := map[string]string{}
			for _, l := range sample.GetLabel() {
				of[l.GetName()] = l.GetValue()
			}
			key := ""
			for i, l := range labels {
				if i > 0 {
					key += " "
				}
				key += of[l]
			}
			got[key] = sample.GetCounter().GetValue() + sample.GetGauge().GetValue()
		}
	}
	return got
}

func TestAFullMapOfCountersIsTold(t *testing.T) {
	full := true
	cfg := config()
	cfg.HitsFull = func() bool { return full }
	m := New(cfg)
	for _, want := range []float64{1, 0} {
		if got := samples(t, m, "onerule_bpf_full"); got[""] != want || len(got) != 1 {
			t.Errorf("full %t: got %v, want %v", full, got, want)
		}
		full = false
	}
}
