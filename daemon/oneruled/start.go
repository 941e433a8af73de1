package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/component-base/logs"

	"onerule/daemon"
	"onerule/daemon/config"
	"onerule/daemon/health"
	"onerule/daemon/metrics"
	"onerule/daemon/source"
	"onerule/nft"
)

// start serves Services until ctx ends.
func start(ctx context.Context, j job) error {
	found, err := nft.Probe(ctx)
	if err != nil {
		return err
	}
	daemon.SpareMemory()
	from, err := j.source()
	if err != nil {
		return err
	}
	families, err := j.families()
	if err != nil {
		return err
	}
	d, err := daemon.New(daemon.Config{
		Settings:   j.Settings,
		Families:   families,
		WithoutFib: !found.Fib,
		Version:    j.version,
		KnownNode:  from.events != nil,
		Features:   features(j.Gates),
		Event:      from.warn,
		Log:        j.log,
	})
	if err != nil {
		return err
	}
	j.log.Info("oneruled begins", "version", j.version, "node", j.Node, "kernel", found.Kernel, "nft", found.Nft, "families", fmt.Sprint(families))
	if err := config.SetOOMScore(oomScoreFile, j.OOMScoreAdj); err != nil {
		j.log.Info("the kernel may end this process early when memory is short", "err", err)
	}
	from.events.Normal(from.events.Node(), "Starting", "StartKubeProxy", "oneruled begins to serve")
	s := j.servers(d, from)
	return together(ctx,
		d.Run,
		func(ctx context.Context) error { return from.feed(ctx, d) },
		from.events.Run,
		func(ctx context.Context) error { return source.HostAddrs{Log: j.log}.Run(ctx, d.HostAddrs) },
		func(ctx context.Context) error { return s.run(ctx, j.Settings) },
		func(ctx context.Context) error { return follow(ctx, j, s, d.Configured) },
	)
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
			Metrics:      d.MetricsHandler(),
			Config:       func() any { return c.Config },
			Statusz:      c.Gates["ComponentStatusz"],
			Profiling:    c.Profiling,
			SetVerbosity: logs.GlogSetter,
		}.Handler()
	})
	s.healthz.failed = from.failed("FailedToStartProxierHealthcheck")
	s.metrics.failed = from.failed("FailedToStartMetricServer")
	return s
}

// features gives the feature gates for metrics.
func features(gates map[string]bool) []metrics.Feature {
	var list []metrics.Feature
	for name, on := range gates {
		list = append(list, metrics.Feature{Name: name, Enabled: on})
	}
	slices.SortFunc(list, func(a, b metrics.Feature) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// An origin is where objects come from, and where events go; events is nil if there is
// nobody to tell.
type origin struct {
	feed   func(context.Context, source.Sink) error
	events *source.Events
}

func (o origin) warn(e daemon.Event) {
	o.events.Warning(e.Object, e.Reason, "StartKubeProxy", e.Note)
}

// failed tells of an address that a server can't have.
func (o origin) failed(reason string) func(error) {
	return func(err error) { o.events.Warning(o.events.Node(), reason, "StartKubeProxy", err.Error()) }
}

// families gives those to serve, the primary one first, and says which one is not.
func (j job) families() ([]nft.Family, error) {
	primary := config.FindNodeIPs(j.BindAddress, nil).Primary
	found, lines, err := config.Families(primary, config.HostSupport("/proc"))
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

// source gives what delivers objects to the daemon.
func (j job) source() (origin, error) {
	if j.Manifests != "" {
		return origin{feed: source.Manifests{Dir: j.Manifests, Node: j.Node, Log: j.log}.Run}, nil
	}
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
		return origin{}, fmt.Errorf("neither --manifests nor a way to the API server: %w", err)
	}
	return origin{
		feed:   source.API{Client: client, Node: j.Node, Log: j.log}.Run,
		events: source.NewEvents(client, j.Node, j.log),
	}, nil
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
