package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"onerule/bpf"
	"onerule/daemon"
	"onerule/daemon/config"
	"onerule/daemon/inspect"
	"onerule/daemon/oneruled/cli"
	"onerule/daemon/source"
	"onerule/nft"
)

// What --socket can be instead of a path.
const (
	// autoSocket is the usual place, but for a daemon in a network namespace of its own,
	// whose file system others share.
	autoSocket = "auto"
	noSocket   = "off"
)

// socketFlag adds the flag for where questions are asked and answered.
func socketFlag(to *pflag.FlagSet, socket *string) {
	to.StringVar(socket, "socket", autoSocket, "`path` of the Unix socket at which the daemon answers the commands, for its own user only; auto: "+inspect.DefaultSocket+", or none for a daemon in a network namespace of its own; off: none (onerule's own)")
}

// addCommands adds those that ask the daemon.
func addCommands(root *cobra.Command, socket *string, preview func(context.Context, job) (inspect.Diff, error), version string) {
	o := cli.Options{Socket: socket, Now: time.Now}
	root.AddCommand(cli.Commands(o)...)
	root.AddCommand(diffCommand(o, preview, version))
	root.CompletionOptions.DisableDefaultCmd = true
	for _, cmd := range root.Commands() {
		cmd.PreRun = func(*cobra.Command, []string) {
			if *socket == autoSocket {
				*socket = inspect.DefaultSocket
			}
		}
	}
}

// diffCommand is diff, with the flags of the daemon: with --manifests it is about a daemon
// that does not run.
func diffCommand(o cli.Options, preview func(context.Context, job) (inspect.Diff, error), version string) *cobra.Command {
	flags := config.NewFlags()
	daemons := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.Register(daemons)
	cmd := cli.Diff(o, func(cmd *cobra.Command) (func(context.Context) (inspect.Diff, error), error) {
		if !cmd.Flags().Changed("manifests") {
			return nil, onlyWithManifests(cmd, daemons)
		}
		s, err := flags.Settings()
		if err != nil {
			return nil, err
		}
		if err := s.ApplyLogging(); err != nil {
			return nil, err
		}
		return func(ctx context.Context) (inspect.Diff, error) {
			return preview(ctx, newJob(cmd, flags, s, version))
		}, nil
	})
	daemons.VisitAll(func(f *pflag.Flag) {
		if cmd.Flags().Lookup(f.Name) != nil {
			return
		}
		f.Hidden = f.Name != "manifests" // the help of the daemon has the others
		if !f.Hidden {
			f.Usage = "`directory` of YAML and JSON files that the daemon would read: it need not run, and its flags can be given, too"
		}
		cmd.Flags().AddFlag(f)
	})
	return cmd
}

// onlyWithManifests refuses flags of a daemon for a question to one that runs.
func onlyWithManifests(cmd *cobra.Command, daemons *pflag.FlagSet) error {
	var wrong error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if daemons.Lookup(f.Name) != nil && wrong == nil {
			wrong = fmt.Errorf("--%s: it counts with --manifests only, the daemon that runs has its own", f.Name)
		}
	})
	return wrong
}

// preview says what a daemon with these manifests would change.
func preview(ctx context.Context, j job) (inspect.Diff, error) {
	found, err := nft.Probe(ctx)
	if err != nil {
		return inspect.Diff{}, err
	}
	j.without, j.log = found.Without, logr.Discard() // the answer says what is skipped
	families, err := j.families()
	if err != nil {
		return inspect.Diff{}, err
	}
	cfg := daemon.Config{Settings: j.Settings, Families: families, WithoutFib: !found.Fib, Version: j.version, Log: j.log}
	return daemon.Preview(ctx, cfg, "the files in "+j.Manifests, feedOnce(j), hostAddrsOnce(j))
}

// feedOnce delivers what the files say, once.
func feedOnce(j job) func(context.Context, *daemon.Daemon) error {
	return func(ctx context.Context, d *daemon.Daemon) error {
		ctx, enough := context.WithCancel(ctx)
		defer enough()
		return source.Manifests{Dir: j.Manifests, Node: j.Node, Log: j.log}.Run(ctx, once{d, enough})
	}
}

// once is a sink that has enough when everything has been delivered once.
type once struct {
	*daemon.Daemon
	enough func()
}

// Synced ends the source.
func (o once) Synced() {
	o.Daemon.Synced()
	o.enough()
}

func hostAddrsOnce(j job) func(context.Context, *daemon.Daemon) error {
	return func(ctx context.Context, d *daemon.Daemon) error {
		ctx, enough := context.WithCancel(ctx)
		defer enough()
		return source.HostAddrs{Log: j.log}.Run(ctx, func(list []netip.Addr) {
			d.HostAddrs(list)
			enough()
		})
	}
}

// serveQuestions answers at the socket until ctx ends. Whatever keeps it from that is said
// once, and tried again: the tables matter more.
func (j job) serveQuestions(ctx context.Context, d inspect.Daemon) error {
	path := j.socket
	switch {
	case path == autoSocket && bpf.HostDir() != "":
		path = inspect.DefaultSocket
	case path == autoSocket, path == noSocket:
		<-ctx.Done()
		return nil
	}
	for said := ""; ctx.Err() == nil; {
		l, err := inspect.Listen(ctx, path)
		if err == nil {
			err = serveThere(ctx, l, d)
		}
		if ctx.Err() != nil {
			break
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			what := "the commands of oneruled get no answer, trying again"
			if errors.Is(err, inspect.ErrTaken) {
				what = "the commands of oneruled are answered by another daemon, trying again"
			}
			j.log.Info(what, "err", err, "after", socketRetry)
		}
		select {
		case <-ctx.Done():
		case <-time.After(socketRetry):
		}
	}
	return nil
}

// socketRetry is how often a socket that can't be had is tried again, and one that is had
// looked for.
const socketRetry = time.Second

// serveThere answers at a socket until ctx ends, or somebody has removed it.
func serveThere(ctx context.Context, l net.Listener, d inspect.Daemon) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // ends with ctx
		tick := time.NewTicker(socketRetry)
		defer tick.Stop()
		for !inspect.Vanished(l) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		stop()
	}()
	return serveOn(ctx, l, inspect.Handler(d))
}
