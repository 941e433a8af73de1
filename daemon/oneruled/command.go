package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"onerule/daemon"
	"onerule/daemon/plan"
	"onerule/daemon/source"
	"onerule/nft"
)

// bindRetry is how often an address that is taken is tried again, as kube-proxy
// does.
const bindRetry = 5 * time.Second

// seeHelp ends what is said of a command line that is wrong.
const seeHelp = "(oneruled --help lists the flags)"

func command(version string) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "oneruled",
		Short: "answer for Services on this node, with constant nftables rules",
		Long: `oneruled translates the addresses of Services to those of their endpoints, in
nftables. Its rules are constant: every change is an element of a map.

It reads Services and EndpointSlices from an API server (--kubeconfig, or the
service account of the pod it runs in), or from files (--manifests). Stopping it
changes nothing: connections and translation go on.`,
		Example: `  oneruled --manifests /etc/onerule --cluster-cidr 10.244.0.0/16
  oneruled --kubeconfig /etc/kubernetes/proxy.conf --hostname-override node-1`,
		Version:       version,
		Args:          noArguments,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), version)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return fmt.Errorf("%w %s", err, seeHelp)
	})
	o.register(cmd.Flags())
	logging := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(logging)
	for _, name := range []string{"v", "vmodule"} {
		cmd.Flags().AddGoFlag(logging.Lookup(name))
	}
	return cmd
}

// noArguments refuses arguments: what is asked for is said by flags.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q %s", args[0], seeHelp)
	}
	return nil
}

// run does what the flags ask for until ctx ends.
func (o *options) run(ctx context.Context, version string) error {
	s, err := o.settle()
	if err != nil {
		return err
	}
	found, err := nft.Probe(ctx)
	if err != nil {
		return err
	}
	daemon.SpareMemory()
	log := klog.Background()
	feed, err := o.source(s, version, log)
	if err != nil {
		return err
	}
	d, err := daemon.New(daemon.Config{
		Plan:          plan.Config{NodeName: s.node, ClusterCIDRs: s.clusterCIDRs},
		Families:      s.families,
		MasqueradeBit: o.masqueradeBit,
		MasqueradeAll: o.masqueradeAll,
		Version:       version,
		Log:           log,
	})
	if err != nil {
		return err
	}
	log.Info("oneruled begins", "version", version, "node", s.node, "kernel", found.Kernel, "nft", found.Nft, "families", fmt.Sprint(s.families))
	if len(s.clusterCIDRs) == 0 && !o.masqueradeAll {
		log.Info("no --cluster-cidr: nothing that goes to a ClusterIP is masqueraded")
	}
	return together(ctx,
		d.Run,
		func(ctx context.Context) error { return feed(ctx, d) },
		func(ctx context.Context) error { return serve(ctx, log, s.healthz, d.HealthHandler()) },
		func(ctx context.Context) error { return serve(ctx, log, s.metrics, d.MetricsHandler()) },
	)
}

// source gives what delivers objects to the daemon.
func (o *options) source(s settled, version string, log logr.Logger) (func(context.Context, source.Sink) error, error) {
	if o.manifests != "" {
		return source.Manifests{Dir: o.manifests, Node: s.node, Log: log}.Run, nil
	}
	client, err := source.Connect(source.Connection{
		Kubeconfig:  o.kubeconfig,
		Master:      o.master,
		ContentType: o.contentType,
		QPS:         o.qps,
		Burst:       o.burst,
		UserAgent:   "oneruled/" + version,
	})
	if err != nil {
		return nil, fmt.Errorf("neither --manifests nor a way to the API server: %w", err)
	}
	return source.API{Client: client, Node: s.node, Log: log}.Run, nil
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

// serve answers on an address until ctx ends. An address that is taken is tried
// again: the tables matter more.
func serve(ctx context.Context, log logr.Logger, address string, h http.Handler) error {
	if address == "" {
		<-ctx.Done()
		return nil
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	for {
		var listen net.ListenConfig
		l, err := listen.Listen(ctx, "tcp", address)
		if err == nil {
			err = server.Serve(l)
		}
		if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		log.Error(err, "cannot answer, trying again", "address", address, "after", bindRetry)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(bindRetry):
		}
	}
}
