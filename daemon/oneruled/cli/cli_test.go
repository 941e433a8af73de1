package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/inspect"
)

func TestReadingsAreRatesAndShares(t *testing.T) {
	r := someReading("rate")
	web := r.Services[0]
	if web.Service != "web" || web.Rate != 20 || web.Total != 7240 {
		t.Errorf("got %+v, want web with 20 per second and 7240 in all: what is gone is no rate", web)
	}
	if first := web.Endpoints[0]; first.Address != "10.244.0.5:8080" || first.Rate != 15 || first.Share != 0.75 {
		t.Errorf("got %+v, want the endpoint with 15 per second, three quarters", first)
	}
	if api := r.Services[1]; api.Rate != 0 || api.Endpoints[0].Share != 1 {
		t.Errorf("got %+v, want no rate, and the only endpoint's share of all", api)
	}
	t.Run("by name", func(t *testing.T) {
		if first := someReading("name").Services[0].Service; first != "api" {
			t.Errorf("got %s first, want api", first)
		}
	})
	t.Run("counting that began anew is no rate", func(t *testing.T) {
		hits := func(at time.Time, n uint64) inspect.Hits {
			return inspect.Hits{At: at, Hits: []inspect.Hit{{Service: "web", Endpoint: "10.244.0.5:8080", Connections: n}}}
		}
		if got := inspect.ReadingOf(hits(before(time.Second), 10), hits(fixed(), 3), "rate").Services[0].Rate; got != 0 {
			t.Errorf("got %v, want 0", got)
		}
	})
}

func TestExitCodes(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code int
		tell bool
	}{
		"all is well":     {nil, 0, false},
		"a failure":       {errors.New("x"), 1, true},
		"something found": {errFound, 2, false},
		"no daemon":       {fmt.Errorf("%w at /x", inspect.ErrNoDaemon), 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			if code, tell := ExitCode(c.err); code != c.code || tell != c.tell {
				t.Errorf("got %d, %t, want %d, %t", code, tell, c.code, c.tell)
			}
		})
	}
}

func TestQuestions(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want string }{
		"a pod":                  {"10.0.0.1", "10.96.0.1:53/udp", "10.0.0.1 10.96.0.1:53 UDP"},
		"the node":               {"node", "[fd00::1]:443/TCP", "invalid IP [fd00::1]:443 TCP"},
		"an IPv4 address in six": {"::ffff:10.0.0.1", "[::ffff:10.96.0.1]:1/sctp", "10.0.0.1 10.96.0.1:1 SCTP"},
		"nobody":                 {"web", "10.96.0.1:53/udp", `FROM: "web" is neither an IP address nor node`},
		"no protocol":            {"node", "10.96.0.1:53", `TO:PORT/PROTO: "10.96.0.1:53" has no protocol, as in 10.96.0.1:53/tcp`},
		"another protocol":       {"node", "10.96.0.1:53/icmp", `TO:PORT/PROTO: "icmp" is neither tcp, udp nor sctp`},
		"no port":                {"node", "10.96.0.1/tcp", `TO:PORT/PROTO: "10.96.0.1" is no IP address with a port, as in 10.96.0.1:443 or [fd00:96::1]:443`},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := parseQuestion(c.from, c.to)
			got := fmt.Sprint(q.From, " ", q.To, " ", q.Protocol)
			if err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func FuzzQuestion(f *testing.F) {
	f.Add("node", "10.96.0.1:53/udp")
	f.Add("::1", "[::ffff:1.2.3.4%x]:0/tcp")
	f.Fuzz(func(t *testing.T, from, to string) {
		q, err := parseQuestion(from, to)
		if err == nil && (!q.To.IsValid() || q.To.Addr().Is4In6() || q.Protocol == "") {
			t.Errorf("%q to %q gives %+v", from, to, q)
		}
	})
}

func TestTimesForPeople(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Millisecond: "less than 1s", 59 * time.Second: "59s", 61 * time.Second: "1m1s", time.Hour: "1h",
		25*time.Hour + 59*time.Minute: "1d1h", -time.Second: "less than 1s",
	} {
		if got := brief(d); got != want {
			t.Errorf("%s: got %s, want %s", d, got, want)
		}
	}
}

func TestTopIsCheckedBeforeItAsks(t *testing.T) {
	good := topOptions{sort: "rate", every: time.Second}
	for want, spoil := range map[string]func(*topOptions){
		"neither rate":   func(o *topOptions) { o.sort = "size" },
		"100ms at least": func(o *topOptions) { o.every = 0 },
		"not below 0":    func(o *topOptions) { o.readings = -1 },
		"only one":       func(o *topOptions) { o.html, o.out.json = "x.html", true },
	} {
		o := good
		spoil(&o)
		if err := o.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if err := good.check(); err != nil {
		t.Error(err)
	}
}

func TestPagesAreWrittenInOneStep(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "spread.html")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writePage(nil, file, someReading("rate")); err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(body), "<!doctype html>") || !strings.Contains(string(body), "10.244.1.6:8080") {
		t.Errorf("it is %s, %v", body, err)
	}
	link := filepath.Join(dir, "link.html")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	t.Run("where it can't be, that is said", func(t *testing.T) {
		for _, file := range []string{filepath.Join(dir, "none", "x.html"), dir, link} {
			if err := writePage(nil, file, someReading("rate")); err == nil || !strings.HasPrefix(err.Error(), "--html: ") {
				t.Errorf("%s: got %v", file, err)
			}
		}
	})
	t.Run("standard output", func(t *testing.T) {
		var out strings.Builder
		if err := writePage(&out, "-", someReading("rate")); err != nil || out.String() != string(body) {
			t.Errorf("got %s, %v, want what is in a file", out.String(), err)
		}
	})
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// With a policy Local of who asks inside, endpoints elsewhere get nothing from this node.
func TestEndpointsThatGetNoConnectionsAreNotUsed(t *testing.T) {
	frontend := func(kind, policy string) inspect.Frontend {
		return inspect.Frontend{Kind: kind, Policy: policy, PortName: "http", Protocol: "TCP", Endpoints: []string{"here", "there"}, LocalEndpoints: []string{"here"}}
	}
	for name, c := range map[string]struct {
		frontends []inspect.Frontend
		want      map[string]bool
	}{
		"inside, Cluster":         {[]inspect.Frontend{frontend("ClusterIP", "Cluster")}, map[string]bool{"here": true, "there": true}},
		"inside, Local":           {[]inspect.Frontend{frontend("ClusterIP", "Local")}, map[string]bool{"here": true}},
		"from outside, Local":     {[]inspect.Frontend{frontend("NodePort", "Local")}, map[string]bool{"here": true, "there": true}},
		"inside Local and others": {[]inspect.Frontend{frontend("ClusterIP", "Local"), frontend("NodePort", "Cluster")}, map[string]bool{"here": true, "there": true}},
	} {
		got := used(inspect.Service{Frontends: c.frontends}, inspect.Port{Name: "http", Protocol: "TCP"})
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
