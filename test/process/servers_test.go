package process_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"onerule/test/netns"
	"onerule/test/rig"
)

// The ports of the daemon's servers.
const (
	healthPort  = 10256
	metricsPort = 10249
)

// loaded is what the daemon says of the table that it loads last.
const loaded = `"table loaded" table="ip6 onerule"`

// take has a port of a namespace taken by somebody else, until what it gives is closed.
func take(t *testing.T, ns *netns.NS, port int) net.Listener {
	t.Helper()
	var l net.Listener
	if err := ns.Do(func() (err error) { l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Ports that are taken are tried again; what the daemon does for Services goes on.
func TestA10_7A11_8PortsThatAreTakenAreTriedAgain(t *testing.T) {
	ns := netns.New(t, "node")
	health, metrics := take(t, ns, healthPort), take(t, ns, metricsPort)
	d := rig.New(t, ns)
	d.Run()
	for _, name := range []string{"healthz", "metrics"} {
		says(t, d, fmt.Sprintf(`"cannot answer, trying again" err="%s server: listen tcp `, name))
	}
	says(t, d, loaded)
	_, _ = health.Close(), metrics.Close()
	d.AwaitHealthy()
	rig.Eventually(t, "the metrics answer", func() error {
		code, body, err := d.Get(metricsPort, "/proxyMode")
		if err == nil && (code != 200 || body != "nftables") {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
}

func TestAPortThatMustBeHadEndsTheProcess(t *testing.T) {
	for name, port := range map[string]int{"A10.7: health": healthPort, "A11.8: metrics": metricsPort} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, "node")
			take(t, ns, port)
			d := rig.New(t, ns, "--bind-address-hard-fail")
			d.Run()
			want := fmt.Sprintf(":%d: bind: address already in use", port)
			if code, last := d.Ended(), d.LastLine(); code != 1 || !strings.HasPrefix(last, "oneruled: ") || !strings.HasSuffix(last, want) {
				t.Errorf("exit code %d, %q, want 1 and a line that ends in %s", code, last, want)
			}
		})
	}
}

func TestA10_7HealthCanBeOff(t *testing.T) {
	ns := netns.New(t, "node")
	d := rig.New(t, ns, "--healthz-port=0")
	d.Run()
	says(t, d, loaded)
	rig.Eventually(t, "the metrics answer", func() error {
		_, _, err := d.Get(metricsPort, "/healthz")
		return err
	})
	_ = take(t, ns, healthPort) // which must be free
}

// The pages of the metrics server, as people and programs know them of kube-proxy.
func TestPagesOfTheMetricsServer(t *testing.T) {
	open := rig.Start(t, netns.New(t, "open"), "--profiling", "--conntrack-min=4711", "-v=1")
	closed := rig.Start(t, netns.New(t, "closed"), "--feature-gates=ComponentFlagz=false,ComponentStatusz=false")
	for _, c := range []struct {
		name   string
		path   string
		want   string // is in the answer
		always bool   // it is there whatever is off
	}{
		{"A11.1: alive", "/healthz", "ok", true},
		{"A11.1: alive, by another name", "/healthz/ping", "ok", true},
		{"A11.2: metrics", "/metrics", "\n# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram\n", true},
		{"A11.3: service level indicators", "/metrics/slis", `kubernetes_healthcheck{name="ping",type="healthz"} 1`, true},
		{"A11.4: the mode", "/proxyMode", "nftables", true},
		{"A11.5: the configuration", "/configz", `"apiVersion":"kubeproxy.config.k8s.io/v1alpha1"`, true},
		{"A11.5: the configuration in force", "/configz", `"min":4711`, false},
		{"A11.6: the flags", "/flagz", "\nconntrack-min: 4711\n", false},
		{"A11.6: the status", "/statusz", "\nBinary version: ", false},
		{"A11.7: profiles", "/debug/pprof/", "goroutine", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if code, body, err := open.Get(metricsPort, c.path); err != nil || code != 200 || !strings.Contains(body, c.want) {
				t.Errorf("%d %v %.500q, want 200 and %q", code, err, body, c.want)
			}
			code, body, err := closed.Get(metricsPort, c.path)
			if there := code == 200 && strings.Contains(body, c.want); err != nil || there != c.always {
				t.Errorf("where all is off that can be: %d %v, there %t, want %t", code, err, there, c.always)
			}
		})
	}
	t.Run("A11.7: the verbosity is put", func(t *testing.T) {
		if code, body, err := open.Put(metricsPort, "/debug/flags/v", "4"); err != nil || code != 200 || !strings.Contains(body, "verbosity to 4") {
			t.Errorf("%d %v %s, want 200 and what was set", code, err, body)
		}
		if code, body, err := closed.Put(metricsPort, "/debug/flags/v", "4"); err != nil || code != 404 {
			t.Errorf("where profiling is off: %d %v %s, want 404", code, err, body)
		}
	})
}
