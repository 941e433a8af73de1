package rows_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/bpffs"
	"onerule/test/hosts"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// What the kernel counts for endpoints, as the daemon tells it.
func TestEndpointsCountTheirConnections(t *testing.T) {
	c := counting{world: newWorld(t), dir: bpffs.New(t)}
	flags := detectBoth("--endpoint-metrics", "endpoint", "--bpf-dir", c.dir, "--nodeport-addresses", "127.0.0.0/8,::1/128,0.0.0.0/0,::/0")
	c.begin(t, flags...)
	if got := c.d.Metric("onerule_bpf_enabled"); got != 1 {
		t.Fatalf("onerule_bpf_enabled is %v: %s", got, c.d.Log())
	}
	mode := slices.Collect(maps.Keys(c.d.Series("onerule_bpf_enabled")))[0]
	for _, p := range addr.Both() {
		t.Run(familyOf(p)+", every frontend from everywhere", func(t *testing.T) { c.testEveryFrontend(t, p) })
		t.Run(familyOf(p)+", endpoints that leave keep their Service's sum", func(t *testing.T) { c.testLeaving(t, p) })
		t.Run(familyOf(p)+", and over a restart", func(t *testing.T) { c.testRestarted(t, p) })
		t.Run(familyOf(p)+", a frontend that goes to another Service begins anew", func(t *testing.T) { c.testOtherOwner(t, p) })
		c.clear(t, familyOf(p))
		t.Run(familyOf(p)+", no key is left", c.testNothingLeft)
	}
	t.Run("the longest names", c.testLongestNames)
	for name, how := range map[string]struct {
		flags, by  []string
		said, mode string
	}{
		"switched off": {flags: []string{"--bpf-dir", "off"}},
		"without privilege": {
			by:   []string{"setpriv", "--bounding-set", "-bpf,-perfmon,-sys_admin", "--inh-caps", "-bpf,-perfmon,-sys_admin"},
			said: `"what endpoints are given is not counted" err="operation not permitted without CAP_BPF, CAP_PERFMON"`,
		},
		"refused by the verifier, whose log is told": { // programs of another type are not even looked at
			flags: []string{"-v=1"},
			by:    []string{"setpriv", "--bounding-set", "-perfmon,-sys_admin", "--inh-caps", "-perfmon,-sys_admin"},
			said:  "access is allowed only to CAP_PERFMON", mode: "netfilter",
		},
		"without BTF": {
			by:   []string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs none /sys/kernel/btf && exec "$0" "$@"`},
			said: `"what endpoints are given is not counted" err="the kernel has no BTF (/sys/kernel/btf/vmlinux)"`,
		},
	} {
		t.Run(name+", everything else works", func(t *testing.T) {
			if how.mode != "" && how.mode != mode {
				t.Skipf("only where connections are counted by %s (Linux 6.4): this kernel counts by %s", how.mode, mode)
			}
			c.testNothingCounted(t, detectBoth(how.flags...), how.by, how.said)
		})
	}
}

// A counting is a world whose daemon counts what endpoints are given.
type counting struct {
	*world
	dir string // where it is pinned
}

// given is how many connections were made, by protocol and endpoint.
type given map[string]float64

func (g given) add(protocol model.Protocol, endpoint netip.AddrPort) {
	g[fmt.Sprint(protocol, " ", endpoint)]++
}

// connects visits places of web from everywhere and gives what was seen.
func (c counting) connects(t *testing.T, p addr.Plan, places ...place) given {
	t.Helper()
	made := given{}
	for _, client := range hosts.Clients(p) {
		for _, to := range places {
			for range 3 {
				made.add(to.protocol, c.visit(t, client, to).Endpoint)
			}
		}
	}
	return made
}

// onLoopback visits the NodePort on a loopback address, which the daemon serves itself.
func (c counting) onLoopback(t *testing.T, p addr.Plan, made given) {
	t.Helper()
	for _, client := range []oracle.Packet{onNode(), onLoopback(p)} {
		for range 3 {
			made.add(model.TCP, c.visit(t, client, localhost(p)).Endpoint)
		}
	}
}

func (c counting) everything(p addr.Plan) []place {
	return append(outsidePlaces(p), clusterPlaces(p)...)
}

// tells checks the metrics of endpoints of web.
func (c counting) tells(t *testing.T, when string, want given) {
	t.Helper()
	got := given{}
	if c.d.Metrics()["onerule_endpoint_connections_total"] != nil {
		for labels, n := range c.d.Series("onerule_endpoint_connections_total") {
			f := strings.Fields(labels) // endpoint namespace port protocol service
			if got[f[3]+" "+f[0]] = n; f[1] != "default" || f[4] != "web" {
				t.Errorf("%s: there is a series of %s", when, labels)
			}
		}
	}
	maps.DeleteFunc(got, func(_ string, n float64) bool { return n == 0 })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: connections of endpoints (-want +got): %s", when, diff)
	}
}

// sums gives the metrics of web by protocol.
func (c counting) sums() map[string]float64 {
	all := map[string]float64{}
	for _, protocol := range []string{"TCP", "UDP"} {
		all[protocol] = c.d.Metric("onerule_service_connections_total", "service", "web", "protocol", protocol)
	}
	return all
}

func (g given) sums() map[string]float64 {
	all := map[string]float64{}
	for key, n := range g {
		all[strings.Fields(key)[0]] += n
	}
	return all
}

func (c counting) sumsTo(t *testing.T, when string, want map[string]float64) {
	t.Helper()
	if diff := cmp.Diff(want, c.sums()); diff != "" {
		t.Errorf("%s: connections of the Service (-want +got): %s", when, diff)
	}
}

func (c counting) testEveryFrontend(t *testing.T, p addr.Plan) {
	c.put(t, "web.yaml", outsideService(p, ""), webSlice(p, here(p), there(p)))
	c.tells(t, "at first", given{})
	made := c.connects(t, p, c.everything(p)...)
	c.tells(t, "after connections", made)
	c.sumsTo(t, "after connections", made.sums())
	if sum := made.sums(); sum["TCP"] != 3*4*3 || sum["UDP"] != 3*4*3 {
		t.Errorf("%v connections were made, want 3 by each of 4 frontends from 3 clients", sum)
	}
	for _, client := range hosts.Clients(p) { // what is not by a Service is nobody's
		c.visit(t, client, at(here(p), model.TCP, 8080))
	}
	c.sumsTo(t, "after direct connections", made.sums())
	c.onLoopback(t, p, made)
	c.tells(t, "after connections to the NodePort on a loopback address", made)
	c.sumsTo(t, "after connections to the NodePort on a loopback address", made.sums())
}

func (c counting) testLeaving(t *testing.T, p addr.Plan) {
	before := c.sums()
	c.put(t, "web.yaml", outsideService(p, ""), webSlice(p, p.Pod(2)))
	c.tells(t, "with another endpoint", given{})
	c.sumsTo(t, "with another endpoint", before)
	made := c.connects(t, p, clusterPlaces(p)...)
	c.tells(t, "after connections to it", made)
	c.sumsTo(t, "after connections to it", plus(before, made.sums()))
	c.put(t, "web.yaml", outsideService(p, ""), webSlice(p))
	c.sumsTo(t, "without any endpoint", plus(before, made.sums()))
	c.put(t, "web.yaml", outsideService(p, ""), webSlice(p, here(p), p.Pod(2)))
	c.tells(t, "when some came back", given{})
	c.sumsTo(t, "when some came back", plus(before, made.sums()))
}

func plus(a, b map[string]float64) map[string]float64 {
	sum := maps.Clone(a)
	for key, n := range b {
		sum[key] += n
	}
	return sum
}

// The kernel counts while no daemon runs. What an endpoint has counted that leaves
// meanwhile stays.
func (c counting) testRestarted(t *testing.T, p addr.Plan) {
	before := c.sums()
	made := c.connects(t, p, clusterPlaces(p)...)
	c.onLoopback(t, p, made)
	c.d.Stop()
	later := c.connects(t, p, outsidePlaces(p)...)
	both := given(plus(made, later))
	c.d.Run()
	c.d.AwaitHealthy()
	want := plus(before, both.sums())
	c.awaits(t, "after a restart", want)
	c.tells(t, "after a restart", both)
	c.d.Kill()
	c.write("web.yaml", outsideService(p, ""), webSlice(p, here(p)))
	c.d.Run()
	c.d.AwaitHealthy()
	stayed := maps.Clone(both)
	maps.DeleteFunc(stayed, func(key string, _ float64) bool { return !strings.Contains(key, here(p).String()) })
	c.awaits(t, "after one has left that nobody saw", want)
	rig.Eventually(t, "the endpoint that left has no metric", func() error {
		if n := len(c.d.Series("onerule_endpoint_connections_total")); n != 2 {
			return fmt.Errorf("%d series, want one for each protocol", n)
		}
		return nil
	})
	c.tells(t, "after one has left that nobody saw", stayed)
	c.sumsTo(t, "after one has left that nobody saw", want)
	c.h.Forget(t)
}

// awaits waits for what is brought in beside the loop.
func (c counting) awaits(t *testing.T, when string, want map[string]float64) {
	t.Helper()
	rig.Eventually(t, when+" the sums are there", func() error {
		if c.d.Metrics()["onerule_service_connections_total"] == nil {
			return errors.New("there is no metric yet")
		}
		if diff := cmp.Diff(want, c.sums()); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

func (c counting) testOtherOwner(t *testing.T, p addr.Plan) {
	swap := strings.NewReplacer("name: web}", "name: heir}", "service-name: web", "service-name: heir", "name: web-1", "name: heir-1")
	c.put(t, "web.yaml", swap.Replace(outsideService(p, "")), swap.Replace(webSlice(p, here(p))))
	made := c.connects(t, p, clusterPlaces(p)...)
	for _, protocol := range []string{"TCP", "UDP"} {
		got := c.d.Metric("onerule_service_connections_total", "service", "heir", "protocol", protocol)
		if want := made.sums()[protocol]; got != want {
			t.Errorf("the heir has %v connections of %s, want %v", got, protocol, want)
		}
	}
	if got := c.sums(); got["TCP"] != 0 || got["UDP"] != 0 {
		t.Errorf("the Service that is gone still has %v", got)
	}
}

func (c counting) testNothingLeft(t *testing.T) {
	if keys := c.keys(t); len(keys) > 0 {
		t.Errorf("without any Service the map has keys: %x", keys)
	}
	c.d.Stop()
	c.d.Run()
	c.d.AwaitHealthy()
	if keys := c.keys(t); len(keys) > 0 {
		t.Errorf("after a restart the map has keys: %x", keys)
	}
}

// keys gives those of the pinned map, whoever they are for.
func (c counting) keys(t *testing.T) [][]byte {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(c.dir, "endpoint_hits"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	var list [][]byte
	var key []byte
	for key, err = m.NextKeyBytes(nil); key != nil && err == nil; key, err = m.NextKeyBytes(key) {
		list = append(list, key)
	}
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (c counting) testLongestNames(t *testing.T) {
	p := addr.IPv6()
	name, namespace, port := strings.Repeat("n", 63), strings.Repeat("s", 63), strings.Repeat("p", 15)
	spec := fmt.Sprintf("clusterIP: %q, clusterIPs: [%q], ports: [{name: %s, protocol: TCP, port: 80}]", p.VIP(0), p.VIP(0), port)
	inNamespace := strings.NewReplacer("metadata: {", "metadata: {namespace: "+namespace+", ")
	c.put(t, "web.yaml", inNamespace.Replace(rawService("name: "+name, spec)),
		inNamespace.Replace(slice(p, name, name, "", []string{port + "/TCP/8080"}, ready(p, here(p))...)))
	c.visit(t, hosts.Clients(p)[oracle.Pod], at(p.VIP(0), model.TCP, 80))
	if got := c.d.Metric("onerule_endpoint_connections_total", "namespace", namespace, "service", name, "port", port, "protocol", "TCP", "endpoint",
		netip.AddrPortFrom(here(p), 8080).String()); got != 1 {
		t.Errorf("the endpoint has %v connections, want 1: %v", got, c.d.Series("onerule_endpoint_connections_total"))
	}
	c.clear(t, "the longest names")
}

func (c counting) testNothingCounted(t *testing.T, flags, by []string, said string) {
	c.d.Stop()
	c.d = rig.New(t, c.h.Node, flags...)
	c.d.By(by...)
	for name, documents := range c.files {
		c.d.Write(name, documents...)
	}
	c.d.Run()
	c.d.AwaitHealthy()
	if diff := cmp.Diff(map[string]float64{"": 0}, c.d.Series("onerule_bpf_enabled")); diff != "" {
		t.Errorf("onerule_bpf_enabled by mode (-want +got): %s", diff)
	}
	names := slices.Collect(maps.Keys(c.d.Metrics()))
	for _, name := range []string{"onerule_endpoint_connections_total", "onerule_service_connections_total"} {
		if slices.Contains(names, name) {
			t.Errorf("there is a metric %s", name)
		}
	}
	if said != "" && c.said(said) != 1 {
		t.Errorf("%s is said %d times, want once: %s", said, c.said(said), c.d.Log())
	}
	each(t, func(t *testing.T, p addr.Plan) {
		c.put(t, "web.yaml", outsideService(p, ""), webSlice(p, here(p)))
		c.from(t, p, clusterPlaces(p), [3]oracle.Outcome{reaches(false, here(p)), reaches(true, here(p)), reaches(true, here(p))})
		c.from(t, p, outsidePlaces(p), [3]oracle.Outcome{reaches(true, here(p)), reaches(true, here(p)), reaches(true, here(p))})
	})
}
