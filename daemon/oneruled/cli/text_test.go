package cli

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/inspect"
)

// fixed is when the texts are written.
func fixed() time.Time { return time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC) }

func before(d time.Duration) time.Time { return fixed().Add(-d) }

// golden compares a text with a file. With -update it writes the file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if flag.Lookup("update") != nil && flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got): %s", file, diff)
	}
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the golden files")
	flag.Parse()
	os.Exit(m.Run())
}

func TestTexts(t *testing.T) {
	for name, write := range map[string]func(screen){
		"status":          func(s screen) { writeStatus(s, status(), fixed()) },
		"status-degraded": func(s screen) { writeStatus(s, degraded(), fixed()) },
		"services":        func(s screen) { writeServices(s, services()) },
		"services-one":    func(s screen) { writeEach(s, services()[:1]) },
		"services-none":   func(s screen) { writeServices(s, nil) },
		"explain":         func(s screen) { writeExplanation(s, explanation()) },
		"explain-refused": func(s screen) { writeExplanation(s, refused()) },
		"explain-differs": func(s screen) { writeExplanation(s, differing()) },
		"diff":            func(s screen) { writeDiff(s, difference()) },
		"diff-nothing": func(s screen) {
			writeDiff(s, inspect.Diff{Tables: []inspect.TableDiff{{Table: "ip onerule"}, {Table: "ip6 onerule"}}})
		},
		"top":             func(s screen) { topOptions{sort: "rate"}.writeText(s, someReading("rate")) },
		"top-services":    func(s screen) { topOptions{sort: "name", services: true, limit: 1}.writeText(s, someReading("name")) },
		"top-nothing-yet": func(s screen) { topOptions{sort: "rate"}.writeText(s, inspect.Reading{At: fixed(), Seconds: 2}) },
	} {
		t.Run(name, func(t *testing.T) {
			var plainly, coloured bytes.Buffer
			write(screen{Writer: &plainly})
			golden(t, name, plainly.String())
			for line := range strings.Lines(plainly.String()) {
				if strings.TrimRight(line, " \n")+"\n" != line {
					t.Errorf("something invisible ends the line %q", line)
				}
			}
			write(screen{Writer: &coloured, colours: true})
			if !strings.Contains(coloured.String(), "\x1b[") && name != "services-none" {
				t.Error("no colour on a terminal")
			}
			if diff := cmp.Diff(plainly.String(), withoutColours(coloured.String())); diff != "" {
				t.Errorf("colours change the text (-plain +coloured): %s", diff)
			}
		})
	}
}

// withoutColours takes the ANSI sequences out.
func withoutColours(s string) string {
	var b strings.Builder
	for {
		head, rest, found := strings.Cut(s, "\x1b[")
		b.WriteString(head)
		if !found {
			return b.String()
		}
		_, s, _ = strings.Cut(rest, "m")
	}
}

func TestJSONHasAllThatTheTextHas(t *testing.T) {
	var out bytes.Buffer
	if err := show(&out, output{json: true}, degraded(), nil); err != nil {
		t.Fatal(err)
	}
	var back inspect.Status
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(degraded(), back); diff != "" {
		t.Errorf("(-sent +read): %s", diff)
	}
	if strings.Contains(out.String(), `\u00`) {
		t.Errorf("signs are hidden in %s", out.String())
	}
}

func status() inspect.Status {
	loaded := before(26 * time.Hour)
	return inspect.Status{
		Version: "v1.2.3", PID: 4711, Node: "node-1", Mode: "nftables", Source: "API server of /etc/kubernetes/proxy.conf",
		Kernel: "6.18.1", Nft: "v1.0.6 (Lester Gooch #5)", Started: before(26*time.Hour + 3*time.Second), Loaded: &loaded,
		LastChange: &inspect.Change{At: before(90 * time.Second), Objects: 2, Seconds: 0.00123},
		Services:   3, Frontends: 9, Counting: "netfilter",
		Tables: []inspect.Table{
			{Family: "IPv4", Name: "ip onerule", Known: true, Rules: 171, Elements: 42, Load: &inspect.Load{At: loaded, Seconds: 0.0345},
				Sets: []inspect.Set{{Name: "endpoints-tcp", Elements: 30}, {Name: "service-ips", Elements: 12}}},
			{Family: "IPv6", Name: "ip6 onerule", Known: true, Rules: 159, Elements: 6, Load: &inspect.Load{At: loaded, Seconds: 1.204},
				Sets: []inspect.Set{{Name: "service-ips", Elements: 6}}},
		},
		Degraded: []string{},
	}
}

func degraded() inspect.Status {
	s := status()
	s.Loaded, s.LastChange, s.Counting, s.PendingSeconds = nil, nil, "", 75
	s.Tables = s.Tables[:1]
	s.Tables[0].Known, s.Tables[0].Load = false, nil
	s.Degraded = []string{"no table is loaded yet", "IPv6 is not served: the kernel has no table <ip6>", "connections are not counted: no BTF"}
	return s
}

func services() []inspect.Service {
	return []inspect.Service{
		{
			Namespace: "default", Name: "web", AffinitySeconds: 10800,
			Frontends: []inspect.Frontend{
				{Kind: "NodePort", Family: "IPv4", Port: 30080, Protocol: "TCP", PortName: "http", Policy: "Local", Endpoints: []string{"10.244.1.6:8080", "10.244.2.7:8080"}, Answer: "drop", Reason: "no endpoint on this node, where only those serve: 2 endpoints elsewhere"},
				{Kind: "ClusterIP", Address: "10.96.0.10", Family: "IPv4", Port: 80, Protocol: "TCP", PortName: "http", Policy: "Cluster", Endpoints: []string{"10.244.1.6:8080", "10.244.2.7:8080"}, Answer: "balance", Reason: "2 endpoints of 3: 1 not ready"},
				{Kind: "LoadBalancerIP", Address: "203.0.113.9", Family: "IPv4", Port: 80, Protocol: "TCP", PortName: "http", Policy: "Local", Endpoints: []string{"10.244.1.6:8080", "10.244.2.7:8080"}, LocalEndpoints: []string{}, Guarded: true, Sources: []string{"192.0.2.0/24", "198.51.100.0/24"}, Answer: "drop"},
			},
			Ports: []inspect.Port{{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080, Endpoints: []inspect.Endpoint{
				{Address: "10.244.1.6:8080", Node: "node-2", State: "ready"},
				{Address: "10.244.2.7:8080", State: "ready"},
				{Address: "10.244.0.5:8080", Node: "node-1", Here: true, State: "not ready"},
			}}},
		},
		{
			Namespace: "kube-system", Name: "dns",
			Frontends: []inspect.Frontend{{Kind: "ClusterIP", Address: "fd00:96::10", Family: "IPv6", Port: 53, Protocol: "UDP", Policy: "Cluster", Endpoints: []string{}, Answer: "refuse", Reason: "no ready endpoint: 2 not ready"}},
			Ports:     []inspect.Port{{Protocol: "UDP", Port: 53, Endpoints: []inspect.Endpoint{}}},
			Notes:     []string{"spec.ports[0].port: 10.96.0.10:53 UDP is held by Service default/older"},
		},
	}
}

func explanation() inspect.Explanation {
	return inspect.Explanation{
		From: "10.244.0.5", Origin: "a pod", In: "veth1", To: "10.96.0.10:80", Protocol: "TCP", Table: "ip onerule",
		Stages: []inspect.Stage{
			{Chain: "nat-prerouting", Found: "it comes in by veth1", Then: "jump services"},
			{Chain: "services", Found: "service-ips has 10.96.0.10 . tcp . 80", Then: "goto cluster-ip-tcp"},
			{Chain: "cluster-ip-tcp", Found: "10.244.0.5 is in pod-cidrs (10.244.0.0/16): it keeps its address", Then: "go on"},
		},
		Verdict: "translated", Reason: "2 endpoints of 3: 1 not ready", Service: "default/web", Port: "http", Kind: "ClusterIP",
		Reached: []inspect.Target{
			{Endpoint: inspect.Endpoint{Address: "10.244.0.5:8080", Node: "node-1", Here: true, State: "ready"}, Masqueraded: true},
			{Endpoint: inspect.Endpoint{Address: "10.244.1.6:8080", Node: "node-2", State: "ready"}},
		},
	}
}

func refused() inspect.Explanation {
	e := explanation()
	e.Verdict, e.Reason, e.Reached, e.In, e.Origin = "refused", "no ready endpoint: 2 not ready", nil, "", "this node"
	e.Stages = append(e.Stages, inspect.Stage{Chain: "balance-tcp", Found: "no-endpoints has 10.96.0.10 . tcp . 80", Then: "refuse"})
	return e
}

func differing() inspect.Explanation {
	e := refused()
	e.Wrong = []string{"the chain nat-output is missing"}
	e.Differs = []string{"delete element ip onerule no-endpoints { 10.96.0.10 . tcp . 80 }", "add element ip onerule endpoints-tcp { 10.96.0.10 . 80 . 0 : 10.244.1.6 . 8080 }"}
	e.Wanted = "translated to 10.244.1.6:8080"
	e.Notes = []string{"this daemon has not loaded its tables yet"}
	return e
}

func difference() inspect.Diff {
	return inspect.Diff{
		Against: "what the daemon knows",
		Tables: []inspect.TableDiff{
			{Table: "ip onerule", Rules: []string{"rules for lb-tcp-3"}, Add: 1200, Delete: 1, Changes: []inspect.Line{
				{Sign: "-", Set: "lb-tcp-2", Element: "10.96.0.10 . 80"}, {Sign: "+", Set: "lb-tcp-3", Element: "10.96.0.10 . 80"},
			}},
			{Table: "ip6 onerule"},
		},
		Skipped: []string{"web.yaml: Service default/web spec.ports[0].port: is not within 1 to 65535"},
		Notes:   []string{"table ip onerule changed while it was read: some of this may be in by now"},
	}
}

func someReading(order string) inspect.Reading {
	hit := func(service, endpoint string, n uint64) inspect.Hit {
		return inspect.Hit{Namespace: "default", Service: service, Port: "http", Protocol: "TCP", Endpoint: endpoint, Connections: n}
	}
	old := inspect.Hits{At: before(2 * time.Second), Hits: []inspect.Hit{hit("web", "10.244.0.5:8080", 100), hit("web", "10.244.1.6:8080", 100), hit("api", "10.244.0.9:8080", 5)}}
	now := inspect.Hits{At: fixed(), Hits: []inspect.Hit{hit("web", "10.244.0.5:8080", 130), hit("web", "10.244.1.6:8080", 110), hit("web", "", 7000), hit("api", "10.244.0.9:8080", 5)}}
	return inspect.ReadingOf(old, now, order)
}
