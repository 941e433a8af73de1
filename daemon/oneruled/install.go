package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"onerule/daemon/inspect"
	"onerule/daemon/network"
	"onerule/daemon/oneruled/cli"
	"onerule/install"
)

const (
	// fresh is how old what a daemon that lives has said can be.
	fresh = 90 * time.Second
	// askEvery is how often a node is looked at that can't be served yet.
	askEvery = 200 * time.Millisecond
)

// An installation is what install is asked for.
type installation struct {
	places     install.Places
	plugin     string
	statusFile string
	podCIDRs   []string
	mtu        int
	exclusive  bool
	wait       time.Duration
	preflight  bool
	output     string
}

func placesFlags(fs *pflag.FlagSet, p *install.Places) {
	*p = install.Usual()
	fs.StringVar(&p.Binaries, "cni-bin-dir", p.Binaries, "`folder` where the container runtime looks for CNI plugins")
	fs.StringVar(&p.Lists, "cni-conf-dir", p.Lists, "`folder` where the container runtime looks for lists of CNI plugins")
	fs.StringVar(&p.State, "cni-state", p.State, "`folder` of the CNI plugin's state")
	fs.StringVar(&p.NetworkManager, "network-manager-dir", p.NetworkManager, "`folder` where NetworkManager is told to leave links of pods alone, if it is there")
}

func installCommand() *cobra.Command {
	var i installation
	cmd := &cobra.Command{
		Use:   "install [flags]",
		Short: "place the CNI plugin on this node, or say what the node lacks for it",
		Long: `install places the CNI plugin where the container runtime looks for it, in one step also
over one that runs. With --pod-cidrs it then publishes the list of plugins, as soon as the
daemon on this node says that pods can be served. A daemon with --pod-network --install-cni
does all of this by itself, and keeps it so.

With --preflight it changes nothing, and says what this node has and lacks.`,
		Example: `  oneruled install --preflight
  oneruled install --preflight -o json
  oneruled install
  oneruled install --pod-cidrs 10.244.1.0/24,fd00:244:0:1::/112`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return i.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.BoolVar(&i.preflight, "preflight", false, "only look; exit code 2 if something is lacking without which nothing works")
	fs.StringVarP(&i.output, "output", "o", "text", "`format` of what --preflight says: text, or json for programs")
	placesFlags(fs, &i.places)
	fs.StringVar(&i.plugin, "cni-plugin", "", "`file` of the CNI plugin to place; empty: onerule beside this program")
	fs.StringSliceVar(&i.podCIDRs, "pod-cidrs", nil, "`ranges` of this node's pods; without them no list of plugins is published")
	fs.IntVar(&i.mtu, "cni-mtu", 0, "`MTU` of pods; 0: that of the way out")
	fs.StringVar(&i.statusFile, "network-status-file", "/run/onerule/network.json", "`file` in which the daemon says whether pods can be served")
	fs.DurationVar(&i.wait, "wait", time.Minute, "how `long` to wait until they can")
	fs.BoolVar(&i.exclusive, "cni-exclusive", false, "set lists of other CNI plugins aside, until oneruled uninstall brings them back")
	return cmd
}

func (i *installation) run(ctx context.Context, w io.Writer) error {
	if i.plugin == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("look for the plugin beside this program: %w", err)
		}
		i.plugin = filepath.Join(filepath.Dir(self), install.BinaryName)
	}
	if i.output != "text" && i.output != "json" {
		return fmt.Errorf("-o: %q is neither text nor json", i.output)
	}
	ranges, err := parseRanges(i.podCIDRs)
	if err != nil {
		return err
	}
	if i.preflight {
		return i.look(ctx, w)
	}
	return i.install(ctx, w, ranges)
}

func parseRanges(texts []string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--pod-cidrs: %q is no range of addresses, like 10.244.1.0/24", text)
		}
		list = append(list, p)
	}
	return list, nil
}

// install goes in the order that lets runtimes call nothing which is not there.
func (i *installation) install(ctx context.Context, w io.Writer, ranges []netip.Prefix) error {
	changed, err := i.places.PlaceBinary(ctx, i.plugin)
	if err != nil {
		return err
	}
	said(w, i.places.Binary(), changed)
	if _, err := i.places.PlaceUnmanaged(); err != nil {
		return err
	}
	if len(ranges) == 0 {
		fmt.Fprintln(w, "no list of plugins is published: the daemon does that with --install-cni, or give --pod-cidrs")
		return nil
	}
	if err := i.await(ctx); err != nil {
		return fmt.Errorf("no list of plugins is published: %w", err)
	}
	adopt, err := i.places.Adoptable(ranges)
	if err != nil {
		return err
	}
	changed, err = i.places.Publish(install.List{Ranges: ranges, MTU: i.mtu, DataDir: i.places.State, StatusFile: i.statusFile, Adopt: adopt})
	if err != nil {
		return err
	}
	said(w, i.places.List(), changed)
	if adopt != "" {
		fmt.Fprintf(w, "reservations of host-local are taken over from %s\n", adopt)
	}
	return i.others(w)
}

func said(w io.Writer, path string, changed bool) {
	if changed {
		fmt.Fprintf(w, "%s written\n", path)
		return
	}
	fmt.Fprintf(w, "%s is as it should be\n", path)
}

// others sets lists of others aside, or says what they do.
func (i *installation) others(w io.Writer) error {
	if i.exclusive {
		done, err := i.places.SetAside()
		for _, name := range done {
			fmt.Fprintf(w, "%s set aside\n", name)
		}
		return err
	}
	list, err := i.places.Others()
	if err != nil {
		return err
	}
	shadowed := false
	for _, o := range list {
		fmt.Fprintln(w, o)
		shadowed = shadowed || o.First
	}
	if shadowed {
		return cli.SomethingFound()
	}
	return nil
}

// await waits until the daemon says that pods can be served.
func (i *installation) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, i.wait)
	defer cancel()
	every := time.NewTicker(askEvery)
	defer every.Stop()
	for {
		err := served(i.statusFile, time.Now())
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-every.C:
		}
	}
}

// served says why pods can't be served, by what the daemon wrote.
func served(statusFile string, now time.Time) error {
	b, err := os.ReadFile(statusFile)
	if err != nil {
		return fmt.Errorf("the daemon has not said that pods can be served: %w", err)
	}
	var s network.Status
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("read %s: %w", statusFile, err)
	}
	if now.Sub(s.Time).Abs() > fresh {
		return fmt.Errorf("what the daemon says in %s is of %s", statusFile, s.Time.Format(time.DateTime))
	}
	var errs []error
	if !s.Served {
		errs = append(errs, errors.New("the daemon has not loaded everything yet"))
	}
	for _, c := range s.Conditions {
		errs = append(errs, errors.New(c.Message))
	}
	return errors.Join(errs...)
}

func uninstallCommand(socket *string) *cobra.Command {
	var p install.Places
	cmd := &cobra.Command{
		Use:   "uninstall [flags]",
		Short: "take the CNI plugin off this node: its list, our rules and routes, and itself",
		Long: `uninstall removes the list of plugins first, so that no pod begins with ours any more, and
brings back lists of others that were set aside. As long as pods are attached the rest
stays, since they need it, also to end: run it again when they are gone (exit code 2). Then
it removes our tables and the routes between nodes, and the plugin last. The state of the
plugin stays. Stop the daemon first: it would put everything back.`,
		Example: `  oneruled uninstall`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return uninstall(cmd.Context(), cmd.OutOrStdout(), p, *socket)
		},
	}
	placesFlags(cmd.Flags(), &p)
	return cmd
}

func uninstall(ctx context.Context, w io.Writer, p install.Places, socket string) error {
	if socket == autoSocket {
		socket = inspect.DefaultSocket
	}
	var d net.Dialer
	if c, err := d.DialContext(ctx, "unix", socket); err == nil {
		return errors.Join(fmt.Errorf("the daemon runs, it answers at %s: stop it first, since it would put everything back", socket), c.Close())
	}
	r, err := p.Uninstall(removeOurs)
	for _, name := range r.Restored {
		fmt.Fprintf(w, "%s is back\n", name)
	}
	if err != nil {
		return err
	}
	if r.Attached > 0 {
		fmt.Fprintf(w, "the list of plugins is gone; %d interfaces of pods are attached, so the rest stays: run it again when they are gone\n", r.Attached)
		return cli.SomethingFound()
	}
	fmt.Fprintln(w, "the list of plugins, our tables and routes, and the plugin are gone")
	return nil
}
