package metrics

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// collect gathers a collector alone.
func collect(t *testing.T, c prometheus.Collector) map[string]*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	list, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	families := map[string]*dto.MetricFamily{}
	for _, f := range list {
		families[f.GetName()] = f
	}
	return families
}

func TestCountersOfRulesAreReadWhenAsked(t *testing.T) {
	families := scrape(t, New(config()))
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"onerule_refused_connections_total", []string{"IPv4", "no-endpoints"}, 3},
		{"onerule_refused_connections_total", []string{"IPv6", "no-endpoints"}, 3},
		{"onerule_dropped_connections_total", []string{"IPv4", "source"}, 4},
		{"onerule_pins_full_total", []string{"IPv4"}, 5},
		{"kubeproxy_nftables_localhost_nodeport_rejected_packets_total", []string{"IPv6", "UDP"}, 7},
	} {
		if got := value(families, c.name, c.labels...); got != c.want {
			t.Errorf("%s%v is %v, want %v", c.name, c.labels, got, c.want)
		}
	}
	if n := len(families["onerule_refused_connections_total"].GetMetric()); n != 2 {
		t.Errorf("%d samples of refused connections, want 2: counters of other names are not ours", n)
	}
}

func TestCountersThatCannotBeReadLeaveTheRestIn(t *testing.T) {
	lines := make(chan string, 10)
	cfg := config()
	cfg.Log = logTo(lines)
	read := cfg.Counters
	cfg.Counters = func(ctx context.Context, family string) (Counters, error) {
		if family == "IPv6" {
			return Counters{}, errors.New("no such table")
		}
		return read(ctx, family)
	}
	families := scrape(t, New(cfg))
	if got := value(families, "onerule_dropped_connections_total", "IPv4", "source"); got != 4 {
		t.Errorf("IPv4 dropped %v, want 4", got)
	}
	if got := value(families, "onerule_dropped_connections_total", "IPv6", "source"); got != -1 {
		t.Errorf("IPv6 dropped %v, want no sample", got)
	}
	if got := value(families, "onerule_build_info", "test"); got != 1 {
		t.Errorf("onerule_build_info is %v, want 1", got)
	}
	select {
	case line := <-lines:
		if !strings.Contains(line, "no such table") || !strings.Contains(line, "IPv6") {
			t.Errorf("the log says %q", line)
		}
	default:
		t.Error("the log says nothing")
	}
}

// A kernel that does not answer must not make scrapes pile up.
func TestCountersThatHangHoldNothingUp(t *testing.T) {
	cfg := config()
	cfg.Families = []string{"IPv4"}
	var calls atomic.Int32
	var hangs atomic.Bool
	hangs.Store(true)
	release := make(chan struct{})
	cfg.Counters = func(ctx context.Context, _ string) (Counters, error) {
		calls.Add(1)
		if _, limited := ctx.Deadline(); !limited {
			t.Error("reading has no limit")
		}
		if hangs.Load() {
			<-release // whatever ctx says
		}
		return Counters{Named: map[string]uint64{"refused-no-port": 1}}, nil
	}
	c := newCountersCollector(cfg)
	if c.limit != 2*time.Second {
		t.Errorf("the limit is %v, want 2 s", c.limit)
	}
	c.limit = 20 * time.Millisecond
	for range 3 {
		if families := collect(t, c); len(families) != 0 {
			t.Errorf("%d families of counters, want none", len(families))
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("read %d times, want 1: the first has not ended", n)
	}
	hangs.Store(false)
	close(release)
	c.limit = time.Minute
	if got := value(collect(t, c), "onerule_refused_connections_total", "IPv4", "no-port"); got != 1 {
		t.Errorf("after it ended: %v, want 1", got)
	}
}

// The counter of a service port goes when it has no affinity any more.
func TestFullPinsNeverFall(t *testing.T) {
	cfg := config()
	cfg.Families = []string{"IPv4"}
	var now map[string]uint64
	cfg.Counters = func(context.Context, string) (Counters, error) { return Counters{Named: now}, nil }
	c := newCountersCollector(cfg)
	var got []float64
	for _, now = range []map[string]uint64{
		{},
		{"pins-full-a": 2, "pins-full-b": 10},
		{"pins-full-a": 3, "pins-full-b": 10},
		{"pins-full-a": 3},
		{"pins-full-a": 3, "pins-full-b": 1}, // b is a new one
		{"pins-full-a": 1, "pins-full-b": 1}, // the table began afresh
	} {
		got = append(got, value(collect(t, c), "onerule_pins_full_total", "IPv4"))
	}
	if diff := cmp.Diff([]float64{0, 12, 13, 13, 14, 15}, got); diff != "" {
		t.Errorf("full pins (-want +got): %s", diff)
	}
}

// One scraper is slow to take what it has read, and another one reads more meanwhile.
func TestFullPinsAreExactWithSeveralScrapers(t *testing.T) {
	cfg := config()
	cfg.Families = []string{"IPv4"}
	var now atomic.Uint64
	cfg.Counters = func(context.Context, string) (Counters, error) {
		return Counters{Named: map[string]uint64{"pins-full-a": now.Load(), "refused-no-port": 1}}, nil
	}
	c := newCountersCollector(cfg)
	full := func() float64 { return value(collect(t, c), "onerule_pins_full_total", "IPv4") }
	now.Store(5)
	slow, ended := make(chan prometheus.Metric), make(chan struct{})
	go func() { // ends when all is taken
		defer close(ended)
		c.Collect(slow)
	}()
	<-slow // the others are not taken yet
	now.Store(7)
	got := []float64{full()}
	<-slow
	<-ended
	if diff := cmp.Diff([]float64{7, 7}, append(got, full())); diff != "" {
		t.Errorf("full pins (-want +got): %s", diff)
	}
	t.Run("at once", func(t *testing.T) {
		var scrapers sync.WaitGroup
		for range 8 {
			scrapers.Go(func() {
				for range 50 {
					now.Add(1)
					if got, most := full(), now.Load(); got > float64(most) {
						t.Errorf("full pins are %v of %d", got, most)
					}
				}
			})
		}
		scrapers.Wait()
		if got, want := full(), float64(now.Load()); got != want {
			t.Errorf("full pins are %v in the end, want %v", got, want)
		}
	})
}

func TestWithoutCountersNothingIsRead(t *testing.T) {
	cfg := config()
	cfg.Counters = nil
	if families := collect(t, newCountersCollector(cfg)); len(families) != 0 {
		t.Errorf("%d families, want none", len(families))
	}
}
