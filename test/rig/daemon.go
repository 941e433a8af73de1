// Package rig runs the real daemon in a namespace, for tests: with manifests that the
// test writes, and its health and metrics at hand.
package rig

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// NodeName is what the daemon calls its node.
const NodeName = "node"

// A Daemon is a running oneruled.
type Daemon struct {
	// Dir is where its manifests are.
	Dir string

	t    testing.TB
	ns   *netns.NS
	bin  string
	args []string
	env  []string // beside that of the test
	by   []string // what runs it, if anything
	cmd  *exec.Cmd
	out  *Output
}

// Start runs oneruled on manifests in an empty directory, with further flags, and
// waits until it is healthy. It ends with the test.
func Start(t testing.TB, ns *netns.NS, args ...string) *Daemon {
	t.Helper()
	d := New(t, ns, args...)
	d.Run()
	d.AwaitHealthy()
	return d
}

// New is Start without running it: manifests can be written first.
func New(t testing.TB, ns *netns.NS, args ...string) *Daemon {
	t.Helper()
	d := &Daemon{Dir: t.TempDir(), t: t, ns: ns, out: &Output{}}
	d.bin = Binary(t, "oneruled", "onerule/daemon/oneruled")
	d.args = append([]string{"--manifests", d.Dir, "--hostname-override", NodeName}, args...)
	t.Cleanup(func() {
		d.Kill()
		if t.Failed() {
			t.Logf("oneruled said:\n%s", d.out)
		}
	})
	return d
}

// Binary gives the path of a built binary: from ONERULE_BIN, which make test sets, or
// built for this test.
func Binary(t testing.TB, name, pkg string) string {
	t.Helper()
	if dir := os.Getenv("ONERULE_BIN"); dir != "" {
		return filepath.Join(dir, name)
	}
	path := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("go", "build", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", name, err, out)
	}
	return path
}

// Run starts the daemon, again after Stop or Kill.
func (d *Daemon) Run() {
	d.t.Helper()
	line := slices.Concat(d.by, []string{d.bin}, d.args)
	d.cmd = exec.Command(line[0], line[1:]...)
	d.cmd.Env = append(os.Environ(), d.env...)
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	if err := d.ns.Start(d.cmd); err != nil {
		d.t.Fatalf("start oneruled: %v", err)
	}
}

// Kill ends the daemon at once.
func (d *Daemon) Kill() { d.end(unix.SIGKILL) }

// Stop asks the daemon to end and waits for it.
func (d *Daemon) Stop() { d.end(unix.SIGTERM) }

func (d *Daemon) end(signal unix.Signal) {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(signal) // it may have ended by itself
	_ = d.cmd.Wait()
	d.cmd = nil
}

// Log gives what the daemon has said so far.
func (d *Daemon) Log() string { return d.out.String() }

// Write makes a manifest file hold these documents, in one step.
func (d *Daemon) Write(file string, documents ...string) {
	d.t.Helper()
	temp := filepath.Join(d.Dir, "."+file+".new")
	if err := os.WriteFile(temp, []byte(strings.Join(documents, "\n---\n")), 0o600); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Rename(temp, filepath.Join(d.Dir, file)); err != nil {
		d.t.Fatal(err)
	}
}

// Remove deletes a manifest file.
func (d *Daemon) Remove(file string) {
	d.t.Helper()
	if err := os.Remove(filepath.Join(d.Dir, file)); err != nil {
		d.t.Fatal(err)
	}
}

// Get asks the daemon's health server (port 10256) or metrics server (10249).
func (d *Daemon) Get(port int, path string) (code int, body string, err error) {
	return d.ask(http.MethodGet, port, path, "")
}

// Put is Get with another method and what it sends.
func (d *Daemon) Put(port int, path, send string) (code int, body string, err error) {
	return d.ask(http.MethodPut, port, path, send)
}

func (d *Daemon) ask(method string, port int, path, send string) (code int, body string, err error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
			err = d.ns.Do(func() error {
				c, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return c, err
		},
	}}
	req, err := http.NewRequest(method, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), strings.NewReader(send))
	if err != nil {
		return 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// AwaitHealthy waits until /healthz is 200.
func (d *Daemon) AwaitHealthy() {
	d.t.Helper()
	Eventually(d.t, "oneruled is healthy", func() error {
		code, body, err := d.Get(10256, "/healthz")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("/healthz: %d %s", code, body)
		}
		return err
	})
}

// Metric gives the sum of the samples of a metric whose labels have these values,
// given in pairs.
func (d *Daemon) Metric(name string, labels ...string) float64 {
	d.t.Helper()
	sum := 0.0
	for _, m := range d.samples(name) {
		if matches(m, labels) {
			sum += value(m)
		}
	}
	return sum
}

// Series gives all samples of a metric by the values of their labels, which stand in
// the order of the labels' names with a space between.
func (d *Daemon) Series(name string) map[string]float64 {
	d.t.Helper()
	series := map[string]float64{}
	for _, m := range d.samples(name) {
		var values []string
		for _, l := range m.GetLabel() { // sorted by name
			values = append(values, l.GetValue())
		}
		series[strings.Join(values, " ")] = value(m)
	}
	return series
}

func (d *Daemon) samples(name string) []*dto.Metric {
	d.t.Helper()
	families := d.Metrics()
	family := families[name]
	if family == nil {
		d.t.Fatalf("no metric %s among %d", name, len(families))
	}
	return family.GetMetric()
}

// Metrics gives all there is, by name.
func (d *Daemon) Metrics() map[string]*dto.MetricFamily {
	d.t.Helper()
	_, body, err := d.Get(10249, "/metrics")
	if err != nil {
		d.t.Fatalf("ask for metrics: %v", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		d.t.Fatalf("read metrics: %v", err)
	}
	return families
}

// value gives what a sample says: a histogram how often something was observed.
func value(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
}

func matches(m *dto.Metric, labels []string) bool {
	for i := 0; i < len(labels); i += 2 {
		found := false
		for _, l := range m.GetLabel() {
			found = found || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
		}
		if !found {
			return false
		}
	}
	return true
}

// Eventually tries until f gives no error, for 20 s at the most.
func Eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s: %v", what, err)
		}
		<-tick.C
	}
}

// Output is what a process says, readable while it runs.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write takes in what the process says.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// String gives what it has said so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
