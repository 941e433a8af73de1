package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/component-base/logs"

	"onerule/bpf"
	"onerule/daemon"
	"onerule/daemon/config"
	"onerule/daemon/health"
	"onerule/daemon/inspect"
	"onerule/daemon/inspect/page"
	"onerule/daemon/metrics"
	"onerule/daemon/source"
	"onerule/nft"
)

// action is what events say was being done, in kube-proxy's words.
const action = "StartKubeProxy"

// start serves Services until ctx ends. What keeps it from that is also told to who looks
// at the Node.
func start(ctx context.Context, j job) error {
	daemon.SpareMemory()
	if j.Config.ShowHiddenMetricsForVersion != "" {
		metrics.ShowHidden()
	}
	from, err := j.source()
	if err != nil {
		return err
	}
	d, err := j.prepare(ctx, from)
	if err != nil {
		from.lastWords(ctx, err)
		return err
	}
	if j.Manifests != "" { // before anything is changed on this machine
		if _, err := os.ReadDir(j.Manifests); err != nil {
			return fmt.Errorf("--manifests: %w", err)
		}
	}
	if err := config.SetOOMScore(oomScoreFile, j.OOMScoreAdj); err != nil {
		j.log.Info("the kernel may end this process early when memory is short", "err", err)
	}
	from.events.Normal(from.events.Node(), "Starting", action, "oneruled begins to serve")
	s, tuned := j.servers(d, from), newTuning(j.SysctlDir, j.log)
	return together(ctx,
		d.Run,
		func(ctx context.Context) error { return from.feed(ctx, d) },
		func(during context.Context) error { return from.tell(ctx, during) },
		func(ctx context.Context) error { return from.connected(ctx, d) },
		from.reach.tell,
		func(ctx context.Context) error { return source.HostAddrs{Log: j.log}.Run(ctx, d.HostAddrs) },
		func(ctx context.Context) error { return s.run(ctx, j.Settings) },
		func(ctx context.Context) error { return j.serveQuestions(ctx, d) },
		func(ctx context.Context) error { tuned.run(ctx, j.Conntrack); return nil },
		func(ctx context.Context) error {
			return follow(ctx, j, s, func(c config.Settings) {
				d.Configured(c)
				tuned.change(ctx, c.Conntrack)
			})
		},
	)
}

// prepare looks what the machine can do, takes note of it, and makes a daemon.
func (j *job) prepare(ctx context.Context, from origin) (*daemon.Daemon, error) {
	found, err := nft.Probe(ctx)
	if err != nil {
		return nil, err
	}
	j.without = found.Without
	families, err := j.families()
	if err != nil {
		return nil, err
	}
	d, err := daemon.New(daemon.Config{
		Count:      func() (*bpf.Counters, error) { return j.hits(families) },
		Machine:    found,
		Settings:   j.Settings,
		Families:   families,
		WithoutFib: !found.Fib,
		Version:    j.version,
		KnownNode:  from.events != nil,
		Features:   features(j.Gates),
		Event:      from.warn,
		Lost:       from.lost,
		Log:        j.log,
	})
	if err != nil {
		return nil, err
	}
	j.log.Info("oneruled begins", "version", j.version, "node", j.Node, "kernel", found.Kernel, "nft", found.Nft, "families", fmt.Sprint(families))
	if !found.Fib {
		j.log.Info(withoutFib)
	}
	for _, line := range lacking(found) {
		from.events.Warning(from.events.Node(), "KernelLacksNftables", action, line)
	}
	return d, nil
}

// hits begins to count the connections that endpoints are given; nil, and why, if that
// can't be done or is not wanted.
func (j *job) hits(families []nft.Family) (*bpf.Counters, error) {
	if j.BPFDir == config.NoBPF {
		return nil, nil
	}
	o := bpf.Options{Dir: j.pins(), IPv6: slices.Contains(families, nft.IPv6), Log: j.log}
	c, err := bpf.Open(o)
	for tries := 10; errors.Is(err, unix.EBUSY) && tries > 0; tries-- { // of a daemon that is ending
		time.Sleep(50 * time.Millisecond)
		c, err = bpf.Open(o)
	}
	if err != nil {
		j.log.Info("what endpoints are given is not counted", "err", err)
		if log := bpf.VerifierLog(err); log != "" {
			j.log.V(1).Info("the kernel has refused the programs that count", "verifier", log)
		}
		return nil, err
	}
	j.log.V(1).Info("what endpoints are given is counted", "mode", c.Mode(), "pinned", o.Dir)
	return c, nil
}

// pins gives the directory that counters are pinned in, "" for none.
func (j *job) pins() string {
	switch j.BPFDir {
	case config.NoBPF:
		return ""
	case config.AutoBPFDir:
		return bpf.HostDir()
	}
	return j.BPFDir
}

// withoutFib says what it costs that the kernel cannot tell the node's own addresses.
const withoutFib = "the kernel lacks the expression fib of nftables: which addresses are the node's own is said by elements, a moment after they change"

// lacking says what nftables of this machine lack that can be done without.
func lacking(found nft.Found) []string {
	var lines []string
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
		if err := found.Without[family]; err != nil {
			lines = append(lines, fmt.Sprintf("%s is not served: %v", config.Family(family), err))
		}
	}
	if !found.Fib {
		lines = append(lines, withoutFib)
	}
	return lines
}

// servers are what the daemon answers with.
func (j job) servers(d *daemon.Daemon, from origin) *servers {
	began := time.Now()
	s := newServers(j.log, d.HealthHandler(), func(c config.Settings) http.Handler {
		return health.Status{
			Component:    "oneruled",
			Version:      j.version,
			Emulation:    metrics.Emulated(),
			Started:      began,
			Flags:        j.flagz(),
			Metrics:      d.MetricsHandler(),
			UI:           j.ui(d),
			Config:       func() any { return c.Config },
			Statusz:      c.Gates["ComponentStatusz"],
			Profiling:    c.Profiling,
			SetVerbosity: logs.GlogSetter,
		}.Handler()
	})
	s.healthz.turn, s.metrics.turn = d.Writes(), d.Writes()
	s.healthz.failed = from.failed("FailedToStartProxierHealthcheck")
	s.metrics.failed = from.failed("FailedToStartMetricServer")
	return s
}

// ui shows what endpoints are given; nil: who wants no metrics of that wants no page.
func (j job) ui(d inspect.Daemon) http.Handler {
	if metrics.EndpointMetrics(j.EndpointMetrics) == metrics.NoEndpointMetrics {
		return nil
	}
	return page.Handler(d)
}

// flagz gives the flags to who asks for them; nil: nobody is to.
func (j job) flagz() func() map[string]string {
	if !j.Gates["ComponentFlagz"] {
		return nil
	}
	return func() map[string]string { return j.given }
}

// features gives the feature gates for metrics.
func features(gates map[string]bool) []metrics.Feature {
	var list []metrics.Feature
	stages := config.GateStages()
	for name, on := range gates {
		list = append(list, metrics.Feature{Name: name, Stage: stages[name], Enabled: on})
	}
	slices.SortFunc(list, func(a, b metrics.Feature) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// An origin is where objects come from, and where events go; events is nil if there is
// nobody to tell.
type origin struct {
	feed   func(context.Context, source.Sink) error
	events *source.Events
	lost   func() time.Duration
	reach  reach
	// available tells the cluster that pods are connected, once that is so; nil: there is
	// no cluster.
	available func(context.Context, <-chan struct{}) error
}

func (o origin) warn(e daemon.Event) {
	o.events.Warning(e.Object, e.Reason, action, e.Note)
}

// tell sends events until during ends, and then the last ones: unless asked has ended, too.
// Who asked the daemon to end does not wait for an API server that may not answer.
func (o origin) tell(asked, during context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- o.events.Run(during) }() // ends soon after during, or with the process
	select {
	case err := <-ended:
		return err
	case <-asked.Done():
		return nil
	}
}

// connected tells the cluster when pods are connected.
func (o origin) connected(ctx context.Context, d *daemon.Daemon) error {
	if o.available == nil {
		<-ctx.Done()
		return nil
	}
	return o.available(ctx, d.Serving())
}

// lastWords tells why the node is not served.
func (o origin) lastWords(ctx context.Context, why error) {
	o.events.Warning(o.events.Node(), "NodeNotServed", action, why.Error())
	over, end := context.WithCancel(ctx)
	end()
	_ = o.events.Run(over) // sends what there is, and logs what it could not
}

// failed tells of an address that a server can't have.
func (o origin) failed(reason string) func(error) {
	return func(err error) { o.events.Warning(o.events.Node(), reason, action, err.Error()) }
}

// families gives those to serve, the primary one first, and says which one is not.
func (j job) families() ([]nft.Family, error) {
	primary := config.FindNodeIPs(j.BindAddress, nil).Primary
	found, lines, err := config.Families(primary, j.support())
	if err != nil {
		return nil, err
	}
	more, err := j.CheckFamilies(found, nil)
	if err != nil {
		return nil, err
	}
	for _, line := range append(lines, more...) {
		j.log.Info(line)
	}
	families := make([]nft.Family, len(found))
	for i, f := range found {
		families[i] = nft.Family(f)
	}
	return families, nil
}

// support says which families the machine has, and has tables for.
func (j job) support() config.Support {
	s := config.HostSupport("/proc")
	s.IPv4 = cmp.Or(s.IPv4, j.without[nft.IPv4])
	s.IPv6 = cmp.Or(s.IPv6, j.without[nft.IPv6])
	return s
}

// source gives what delivers objects to the daemon.
func (j job) source() (origin, error) {
	if j.Manifests != "" {
		return origin{feed: source.Manifests{Dir: j.Manifests, Node: j.Node, AllNodes: j.PodNetwork.On, Log: j.log}.Run}, nil
	}
	inPod := j.Client.Kubeconfig == "" && j.Client.Master == ""
	client, err := source.Connect(source.Connection{
		Kubeconfig:         j.Client.Kubeconfig,
		Master:             j.Client.Master,
		ContentType:        j.Client.ContentType,
		AcceptContentTypes: j.Client.AcceptContentTypes,
		QPS:                j.Client.QPS,
		Burst:              j.Client.Burst,
		UserAgent:          "oneruled/" + j.version,
	})
	if err != nil {
		return origin{}, noServer(inPod, err)
	}
	contact := &source.Contact{}
	return origin{
		reach:     reach{byService: inPod && askedByService(os.Getenv), lost: contact.Lost, log: j.log},
		feed:      source.API{Client: client, Node: j.Node, AllNodes: j.PodNetwork.On, Log: j.log, Contact: contact}.Run,
		lost:      contact.Lost,
		events:    source.NewEvents(client, j.Node, j.log),
		available: source.Available{Client: client, Node: j.Node, Log: j.log}.Run,
	}, nil
}

// noServer says why there is no way to the API server.
func noServer(nothingGiven bool, err error) error {
	if nothingGiven {
		return fmt.Errorf("neither --manifests nor a way to the API server: %w", err)
	}
	return err
}

// together runs parts until the first one ends, and gives its error.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ends := make(chan error, len(parts))
	for _, part := range parts {
		go func() { ends <- part(ctx) }()
	}
	var errs []error
	for range parts {
		errs = append(errs, <-ends)
		cancel()
	}
	return errors.Join(errs...)
}
