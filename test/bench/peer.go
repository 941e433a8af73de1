package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"onerule/nft"
	"onerule/test/netns"
)

const (
	// peerChanges are made peerPause apart: kube-proxy writes at most once a second,
	// and that pause is none of a change's time.
	peerChanges = 20
	peerPause   = 1500 * time.Millisecond
	// peerMost is the largest size that both are measured at.
	peerMost = 10_000
	// peerPatience is how long a proxy may take to load.
	peerPatience = 4 * time.Minute
)

// A contender is a proxy as an executable, with what it is called with.
type contender struct {
	name    string
	program string
	args    []string
	table   string // of its frontends, in a map service-ips
}

// contenders are oneruled and kube-proxy, which is built where ONERULE_KUBE_PROXY
// does not name it.
func contenders(ctx context.Context, say func(string, ...any)) ([]contender, error) {
	ours, err := ourselves()
	if err != nil {
		return nil, err
	}
	theirs := os.Getenv("ONERULE_KUBE_PROXY")
	if theirs == "" {
		say("peer: building kube-proxy")
		cmd := exec.CommandContext(ctx, "sh", "test/tools.sh", "test/cluster/kubernetes", "k8s.io/kubernetes/cmd/kube-proxy")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("build kube-proxy (this works at the top of the repository): %w", err)
		}
		theirs = strings.TrimSpace(string(out))
	}
	return []contender{
		ours,
		{name: "kube-proxy " + versionOf(theirs), program: theirs, table: "kube-proxy", args: append([]string{
			"--proxy-mode=nftables", "--detect-local-mode=ClusterCIDR", "--bind-address=0.0.0.0",
			"--oom-score-adj=0", // leave everything of the machine as it is
			"--conntrack-max-per-core=0", "--conntrack-min=0",
			"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		}, ours.args...)},
	}, nil
}

// ourselves are oneruled, where make build puts it.
func ourselves() (contender, error) {
	bin := os.Getenv("ONERULE_BIN")
	if bin == "" {
		bin = "bin"
	}
	program, err := filepath.Abs(filepath.Join(bin, "oneruled"))
	if err != nil {
		return contender{}, fmt.Errorf("find oneruled: %w", err)
	}
	if _, err := os.Stat(program); err != nil {
		return contender{}, fmt.Errorf("find oneruled (make build makes it): %w", err)
	}
	common := []string{"--hostname-override=" + nodeName, "--cluster-cidr=" + podRange().String(), "--metrics-bind-address=" + metricsAddress}
	return contender{name: "oneruled", program: program, table: nft.TableName, args: common}, nil
}

// versionOf gives the version of Kubernetes that Go built a program from.
func versionOf(program string) string {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "of unknown version"
	}
	for _, d := range append(info.Deps, &info.Main) {
		if d.Path == "k8s.io/kubernetes" {
			return strings.TrimPrefix(d.Version, "v")
		}
	}
	return "of unknown version"
}

const metricsAddress = "127.0.0.1:10249"

// A bout is what was measured of a contender at one size, all from outside.
type bout struct {
	contender     string
	load, restart outside
	changes       []time.Duration
	settled       int64 // bytes
	peak          int64 // bytes
}

// outside is a load as it looks from outside.
type outside struct {
	began time.Duration // from the start of the process to the rules in the kernel
	sent  time.Duration // from the last object sent by the API server to the same
}

func measurePeers(ctx context.Context, sizes []int, say func(string, ...any)) ([]*table, error) {
	if slices.Min(sizes) > peerMost {
		return nil, fmt.Errorf("no size up to %d is asked for, and kube-proxy is measured at no larger one", peerMost)
	}
	list, err := contenders(ctx, say)
	if err != nil {
		return nil, err
	}
	var tables []*table
	for _, n := range sizes {
		if n > peerMost {
			continue
		}
		for _, sort := range []struct {
			what string
			of   func(int) *cluster
		}{
			{fmt.Sprintf("%s Services", count(n)), newCluster},
			{fmt.Sprintf("%s Services of mixed kinds", count(n)), newMix},
		} {
			var bouts []*bout
			for _, c := range list {
				of := func(format string, args ...any) {
					say("peer: %s with %s: %s", c.name, sort.what, fmt.Sprintf(format, args...))
				}
				b, err := c.measure(ctx, sort.of(n), of)
				if err != nil {
					return nil, fmt.Errorf("%s with %s: %w", c.name, sort.what, err)
				}
				bouts = append(bouts, b)
			}
			tables = append(tables, peerTable(sort.what, bouts[0], bouts[1]))
		}
	}
	return tables, nil
}

// A ring is where a contender is measured.
type ring struct {
	ns     *netns.NS
	url    string
	api    *apiServer
	kernel *kernel
	last   int // the last Service without other frontends than a ClusterIP
}

func (c contender) measure(ctx context.Context, cl *cluster, say func(string, ...any)) (*bout, error) {
	say("load")
	api, err := newAPIServer(cl)
	if err != nil {
		return nil, err
	}
	ns, err := netns.Open(c.name)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	url, stop, err := api.listen(ns)
	if err != nil {
		return nil, err
	}
	defer stop()
	k, err := openKernel(ns)
	if err != nil {
		return nil, err
	}
	defer k.close()
	plain := cl.ofKind(clusterIP)
	r := &ring{ns: ns, url: url, api: api, kernel: k, last: plain[len(plain)-1]}
	b := &bout{contender: c.name}
	p, err := c.start(ctx, r, &b.load)
	if err != nil {
		return nil, err
	}
	say("%d changes, %v apart", peerChanges, peerPause)
	err = b.change(ctx, r, cl, p)
	if err == nil {
		var m memory
		m, err = memoryOf(p.cmd.Process.Pid)
		b.settled, b.peak = m.now, m.peak
	}
	p.kill()
	if err != nil {
		return nil, err
	}
	say("restart over the loaded table")
	p, err = c.start(ctx, r, &b.restart)
	if err != nil {
		return nil, err
	}
	p.kill()
	return b, nil
}

// start starts the contender and waits until it says that its rules are in, and the
// kernel has the last Service.
func (c contender) start(ctx context.Context, r *ring, to *outside) (*process, error) {
	r.api.forget()
	cmd := exec.Command(c.program, append([]string{"--master=" + r.url}, c.args...)...)
	began := time.Now()
	p, err := spawn(r.ns, cmd)
	if err != nil {
		return nil, err
	}
	loaded, err := c.awaitLoad(ctx, r, p)
	if err != nil {
		p.kill()
		return nil, err
	}
	sent, ok := r.api.lastSent()
	if !ok {
		p.kill()
		return nil, errors.New("it loaded without having read everything")
	}
	to.began, to.sent = loaded.Sub(began), loaded.Sub(sent)
	return p, nil
}

func (c contender) awaitLoad(ctx context.Context, r *ring, p *process) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("not loaded: %w; its last words:\n%s", ctx.Err(), p.output)
		case <-p.ended:
			return time.Time{}, p.failed()
		case <-again.C:
		}
		at, ok := r.lastSync(ctx)
		if !ok {
			continue
		}
		if _, in, err := r.kernel.element(c.table, string(nft.ServiceIPs), clusterIPOf(r.last).routeKey()); err != nil || in {
			return at, err
		}
	}
}

// lastSync asks a proxy when its last sync of IPv4 ended well. A proxy that does
// not answer yet has had none.
func (r *ring) lastSync(ctx context.Context) (time.Time, bool) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = r.ns.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAddress+"/metrics", nil)
	if err != nil {
		return time.Time{}, false
	}
	answer, err := client.Do(request)
	if err != nil {
		return time.Time{}, false
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return time.Time{}, false
	}
	for _, s := range samples(string(text), "kubeproxy_sync_proxy_rules_last_timestamp_seconds") {
		if family := s.labels["ip_family"]; s.value > 0 && family != "IPv6" {
			return time.UnixMicro(int64(s.value * 1e6)), true
		}
	}
	return time.Time{}, false
}

// change replaces endpoints one by one and waits for each to be in the kernel.
func (b *bout) change(ctx context.Context, r *ring, c *cluster, p *process) error {
	m, err := openMonitor(r.ns)
	if err != nil {
		return err
	}
	defer m.close()
	for i := range peerChanges {
		select { // nothing to wait for: a pause
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(peerPause):
		}
		service := (i*7919 + 13) % len(c.endpoints)
		fresh := c.replace(service, i%endpointsPerService).As4()
		in := m.expect(fresh[:])
		sent, err := r.api.changed(service)
		if err != nil {
			return err
		}
		select {
		case at := <-in:
			b.changes = append(b.changes, at-sent)
		case <-p.ended:
			return p.failed()
		case <-time.After(patience):
			return fmt.Errorf("change %d is not in the kernel after %v; last words:\n%s", i, patience, p.output)
		}
	}
	return nil
}

func peerTable(services string, ours, theirs *bout) *table {
	t := &table{
		title:  fmt.Sprintf("Beside %s in nftables mode, %s, 10 endpoints each", theirs.contender, services),
		header: []string{"measured from outside", ours.contender, theirs.contender, theirs.contender + " : " + ours.contender},
	}
	times := func(name string, a, b time.Duration) {
		t.row(name, short(a), short(b), fmt.Sprintf("%.3g", float64(b)/float64(a)))
	}
	sizes := func(name string, a, b int64) {
		t.row(name, megabytes(a), megabytes(b), fmt.Sprintf("%.3g", float64(b)/float64(a)))
	}
	times("first full load, from the start of the process", ours.load.began, theirs.load.began)
	times("first full load, from the last object sent", ours.load.sent, theirs.load.sent)
	times("restart over the loaded table, from the start of the process", ours.restart.began, theirs.restart.began)
	us, them := spreadOf(ours.changes), spreadOf(theirs.changes)
	times("one endpoint replaced, event to kernel, p50", us.p50, them.p50)
	times("one endpoint replaced, event to kernel, max", us.max, them.max)
	sizes("RSS after load and changes", ours.settled, theirs.settled)
	sizes("RSS, the highest ever", ours.peak, theirs.peak)
	t.note("Both as executables, with the same API server, flags and namespaces; loaded: kubeproxy_sync_proxy_rules_last_timestamp_seconds of IPv4, and the last Service with a ClusterIP alone in the map service-ips; changed: the kernel's own notification that the new endpoint is in force, over %d changes %v apart.", peerChanges, peerPause)
	return t
}
