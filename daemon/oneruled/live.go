package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"onerule/daemon/config"
)

// Servers are the two that the daemon answers with. They follow the settings.
type servers struct {
	healthz, metrics               server
	healthzHandler                 http.Handler
	metricsHandler                 func(config.Settings) http.Handler
	healthzChanged, metricsChanged chan endpoint
}

// newServers takes what the servers answer. That of the metrics depends on settings.
func newServers(log logr.Logger, healthz http.Handler, metrics func(config.Settings) http.Handler) *servers {
	return &servers{
		healthz:        server{name: "healthz", log: log},
		metrics:        server{name: "metrics", log: log},
		healthzHandler: healthz, metricsHandler: metrics,
		healthzChanged: make(chan endpoint), metricsChanged: make(chan endpoint),
	}
}

// run answers until ctx ends or an address that must be had is taken.
func (s *servers) run(ctx context.Context, begin config.Settings) error {
	return together(ctx,
		func(ctx context.Context) error { return s.healthz.follow(ctx, s.healthzAt(begin), s.healthzChanged) },
		func(ctx context.Context) error { return s.metrics.follow(ctx, s.metricsAt(begin), s.metricsChanged) },
	)
}

func (s *servers) healthzAt(c config.Settings) endpoint {
	return endpoint{address: c.Healthz, handler: s.healthzHandler, hardFail: c.BindAddressHardFail}
}

func (s *servers) metricsAt(c config.Settings) endpoint {
	return endpoint{address: c.Metrics, handler: s.metricsHandler(c), hardFail: c.BindAddressHardFail}
}

// change makes the servers answer as new settings say.
func (s *servers) change(ctx context.Context, c config.Settings) {
	send(ctx, s.healthzChanged, s.healthzAt(c))
	send(ctx, s.metricsChanged, s.metricsAt(c))
}

func send(ctx context.Context, to chan<- endpoint, at endpoint) {
	select {
	case <-ctx.Done():
	case to <- at:
	}
}

// follow applies what changes in the configuration file, until ctx ends or something
// has changed that only a restart brings in: who supervises the daemon starts it
// again, and its rules go on meanwhile. What concerns rules is given to configured.
func follow(ctx context.Context, j job, s *servers, configured func(config.Settings)) error {
	during, stop := context.WithCancel(ctx)
	defer stop()
	var failed error
	w := config.Watch{Flags: j.flags, Current: j.Settings, Log: j.log, Changed: func(c config.Settings, changes config.Changes) {
		if failed == nil {
			failed = j.apply(during, s, c, changes, configured)
		}
		if failed != nil {
			stop()
		}
	}}
	w.Run(during)
	return failed
}

// apply brings in what has changed.
func (j job) apply(ctx context.Context, s *servers, c config.Settings, changes config.Changes, configured func(config.Settings)) error {
	warn(j.log, c)
	if len(changes.Restart) > 0 {
		return fmt.Errorf("config file %s: it is changed in what takes a restart: %s", j.flags.ConfigFile, strings.Join(changes.Restart, ", "))
	}
	if slices.Contains(changes.Live, "clusterCIDR") || slices.Contains(changes.Live, "detectLocalMode") {
		changed := j
		changed.Settings = c
		if _, err := changed.families(); err != nil {
			return fmt.Errorf("config file %s: %w", j.flags.ConfigFile, err)
		}
	}
	if slices.Contains(changes.Live, "logging.verbosity") {
		if err := c.ApplyVerbosity(); err != nil {
			return err
		}
	}
	if slices.Contains(changes.Live, "oomScoreAdj") {
		if err := config.SetOOMScore(oomScoreFile, c.OOMScoreAdj); err != nil {
			j.log.Info("the kernel may end this process early when memory is short", "err", err)
		}
	}
	configured(c)
	s.change(ctx, c)
	j.log.Info("the changed config file is applied", "file", j.flags.ConfigFile, "changed", changes.String())
	return nil
}
