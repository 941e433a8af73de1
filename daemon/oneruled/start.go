package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"onerule/daemon"
	"onerule/daemon/config"
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
	feed, err := j.source()
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
		Log:        j.log,
	})
	if err != nil {
		return err
	}
	j.log.Info("oneruled begins", "version", j.version, "node", j.Node, "kernel", found.Kernel, "nft", found.Nft, "families", fmt.Sprint(families))
	if err := config.SetOOMScore(oomScoreFile, j.OOMScoreAdj); err != nil {
		j.log.Info("the kernel may end this process early when memory is short", "err", err)
	}
	s := newServers(j.log, d.HealthHandler(), func(config.Settings) http.Handler { return d.MetricsHandler() })
	return together(ctx,
		d.Run,
		func(ctx context.Context) error { return feed(ctx, d) },
		func(ctx context.Context) error { return source.HostAddrs{Log: j.log}.Run(ctx, d.HostAddrs) },
		func(ctx context.Context) error { return s.run(ctx, j.Settings) },
		func(ctx context.Context) error { return follow(ctx, j, s, d.Configured) },
	)
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
func (j job) source() (func(context.Context, source.Sink) error, error) {
	if j.Manifests != "" {
		return source.Manifests{Dir: j.Manifests, Node: j.Node, Log: j.log}.Run, nil
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
		return nil, fmt.Errorf("neither --manifests nor a way to the API server: %w", err)
	}
	return source.API{Client: client, Node: j.Node, Log: j.log}.Run, nil
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
