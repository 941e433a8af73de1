// Package commands_test asks the real daemon by the commands of oneruled, as a person on the
// node does, and compares what they say with packets, the oracle and the kernel.
package commands_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"onerule/daemon/inspect"
	"onerule/daemon/model"
	"onerule/daemon/source"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/netns"
	"onerule/test/oracle"
	"onerule/test/rig"
)

const target = 8080

// A world is a node with a daemon that answers at a socket.
type world struct {
	h      *hosts.Hosts
	d      *rig.Daemon
	bin    string
	socket string
}

// newWorld starts a daemon with the Services of the plan.
func newWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	w := &world{h: hosts.New(t, 2, target), bin: rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), socket: socketPath(t)}
	w.d = rig.New(t, w.h.Node, append(flags, "--cluster-cidr", ranges(), "--socket", w.socket)...)
	w.d.Write("cidrs.yaml", rig.ServiceCIDR("kubernetes", addr.IPv4().ServiceCIDR, addr.IPv6().ServiceCIDR))
	for i, s := range plan() {
		w.d.Write(s.name+".yaml", s.documents(i)...)
	}
	w.d.Run()
	w.d.AwaitHealthy()
	return w
}

// alone starts a daemon without Services on a node that has no neighbours.
func alone(t *testing.T) *world {
	t.Helper()
	w := &world{h: &hosts.Hosts{Node: netns.New(t, "node")}, bin: rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), socket: socketPath(t)}
	w.d = rig.Start(t, w.h.Node, "--socket", w.socket)
	return w
}

func ranges() string { return fmt.Sprintf("%s,%s", addr.IPv4().ClusterCIDR, addr.IPv6().ClusterCIDR) }

// socketPath gives a name that is short enough for a socket, whatever the test is called.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "sock")
}

// A result is what a command printed, and its exit code.
type result struct {
	out, errs string
	code      int
}

// run runs a command on the node, without the socket.
func (w *world) run(t *testing.T, args ...string) result {
	t.Helper()
	cmd := exec.Command(w.bin, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := w.h.Node.Start(cmd); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// ask runs a command that asks the daemon, and wants this exit code.
func (w *world) ask(t *testing.T, code int, args ...string) string {
	t.Helper()
	r := w.run(t, append(args, "--socket", w.socket)...)
	if r.code != code || r.errs != "" {
		t.Errorf("oneruled %s: exit code %d, want %d; it said %q and printed\n%s", strings.Join(args, " "), r.code, code, r.errs, r.out)
	}
	return r.out
}

func (w *world) client() inspect.Client { return inspect.Client{Socket: w.socket} }

// A service is one of the plan: how it differs from a Service with a frontend of each kind
// whose endpoints are a pod here and one elsewhere.
type service struct {
	name, spec string // spec is further fields, each with a comma before it
	// endpoints are lists of NODE CONDITIONS with the index of a pod: see endpoint.
	endpoints []endpoint
}

// An endpoint is a pod of a node. Its conditions are ready, and serving while it terminates.
type endpoint struct {
	here           bool
	pod            int
	ready, leaving bool
}

// plan has a Service for every verdict and every reason.
func plan() []service {
	here, elsewhere := endpoint{true, 1, true, false}, endpoint{false, 0, true, false}
	notReady, leaving := endpoint{false, 1, false, false}, endpoint{false, 1, false, true}
	return []service{
		{"web", "", []endpoint{here, elsewhere, notReady}},
		{"local", ", externalTrafficPolicy: Local", []endpoint{here, elsewhere}},
		{"local-elsewhere", ", externalTrafficPolicy: Local", []endpoint{elsewhere}},
		{"inner-elsewhere", ", internalTrafficPolicy: Local", []endpoint{elsewhere}},
		{"empty", "", []endpoint{notReady, {false, 0, false, false}}},
		{"nothing", "", nil},
		{"guarded", fmt.Sprintf(", loadBalancerSourceRanges: [%q, %q]", addr.IPv4().Uplink, addr.IPv6().Uplink), []endpoint{here}},
		{"itself", "", []endpoint{{true, 0, true, false}, elsewhere}},
		{"sticky", ", sessionAffinity: ClientIP", []endpoint{here, elsewhere}},
		{"leaving", "", []endpoint{leaving, {false, 0, false, false}}},
	}
}

func nodePort(i int) uint16 { return uint16(30080 + i) }

// documents gives the manifests of the ith Service.
func (s service) documents(i int) []string {
	var vips, externals, balancers []string
	var docs []string
	for _, p := range addr.Both() {
		vips = append(vips, fmt.Sprintf("%q", p.VIP(i)))
		externals = append(externals, fmt.Sprintf("%q", p.ExternalIP(i)))
		balancers = append(balancers, fmt.Sprintf("{ip: %q}", p.BalancerIP(i)))
		docs = append(docs, s.slice(p))
	}
	return append(docs, fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec: {type: LoadBalancer, clusterIP: %s, clusterIPs: [%s], ipFamilies: [IPv4, IPv6], externalIPs: [%s]%s,
  ports: [{name: http, protocol: TCP, port: 80, nodePort: %d}, {name: dns, protocol: UDP, port: 53, nodePort: %d}]}
status: {loadBalancer: {ingress: [%s]}}
`, s.name, vips[0], strings.Join(vips, ", "), strings.Join(externals, ", "), s.spec, nodePort(i), nodePort(i), strings.Join(balancers, ", ")))
}

func (s service) slice(p addr.Plan) string {
	family, list := "IPv4", ""
	if p.Node().Is6() {
		family = "IPv6"
	}
	for _, e := range s.endpoints {
		address, node := p.OtherPod(e.pod), addr.OtherNodeName
		if e.here {
			address, node = p.Pod(e.pod), rig.NodeName
		}
		list += fmt.Sprintf("\n- {addresses: [%q], nodeName: %s, conditions: {ready: %t, serving: %t, terminating: %t}}", address, node, e.ready, e.ready || e.leaving, e.leaving)
	}
	if list == "" {
		list = " []"
	}
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%s, namespace: default, labels: {kubernetes.io/service-name: %s}}
addressType: %s
ports: [{name: http, protocol: TCP, port: %d}, {name: dns, protocol: UDP, port: %d}]
endpoints:%s
`, s.name, strings.ToLower(family), s.name, family, target, target, list)
}

// A reader is a sink that keeps the objects for the oracle.
type reader struct {
	oracle.Cluster
	enough func()
}

// Changed takes an object in.
func (r *reader) Changed(c model.Change) {
	switch {
	case c.Service != nil:
		r.Services = append(r.Services, *c.Service)
	case c.EndpointSlice != nil:
		r.Slices = append(r.Slices, *c.EndpointSlice)
	case c.ServiceCIDR != nil:
		r.ServiceCIDRs = append(r.ServiceCIDRs, *c.ServiceCIDR)
	}
}

// Noted is for objects that are wrong: there are none.
func (r *reader) Noted(string, []model.Note) {}

// Synced ends the reading.
func (r *reader) Synced() { r.enough() }

// cluster reads the manifests of the daemon for the oracle.
func (w *world) cluster(t *testing.T) oracle.Cluster {
	t.Helper()
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	r := &reader{enough: enough}
	if err := (source.Manifests{Dir: w.d.Dir, Node: rig.NodeName, Log: logr.Discard()}).Run(ctx, r); err != nil {
		t.Fatal(err)
	}
	return r.Cluster
}

// config is that of a daemon that takes NodePorts on the uplink only.
func (w *world) config() oracle.Config {
	return oracle.Config{
		NodeName: rig.NodeName, NodeAddrs: w.h.NodeAddrs(),
		ClusterCIDRs:   []netip.Prefix{addr.IPv4().ClusterCIDR, addr.IPv6().ClusterCIDR},
		NodePortRanges: []netip.Prefix{addr.IPv4().Uplink, addr.IPv6().Uplink},
	}
}
