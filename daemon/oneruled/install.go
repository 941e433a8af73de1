package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
	dryRun     bool
	sysctlDir  string
	output     string
}

func placesFlags(fs *pflag.FlagSet, p *install.Places) {
	*p = install.Usual()
	fs.StringVar(&p.Binaries, "cni-bin-dir", p.Binaries, "`folder` where the container runtime looks for CNI plugins")
	fs.StringVar(&p.Lists, "cni-conf-dir", p.Lists, "`folder` where the container runtime looks for lists of CNI plugins")
	fs.StringVar(&p.State, "cni-state", p.State, "`folder` of the CNI plugin's state")
	fs.StringVar(&p.Etc, "etc-dir", p.Etc, "`folder` below which NetworkManager and systemd-networkd are told to leave links of pods alone, where they are; empty: they are not told")
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

With --preflight it changes nothing, and says what this node has and lacks. With --dry-run
it changes nothing, and says what it would write.`,
		Example: `  oneruled install --preflight
  oneruled install --preflight -o json
  oneruled install --dry-run
  oneruled install
  oneruled install --pod-cidrs 10.244.1.0/24,fd00:244:0:1::/112`,
		Annotations: cli.Codes("it is done, or the node lacks nothing without which nothing works",
			"it is done, and a list of another plugin is taken before ours; or the node lacks something"),
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return i.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.BoolVar(&i.preflight, "preflight", false, "only look; exit code 2 if something is lacking without which nothing works")
	fs.BoolVar(&i.dryRun, "dry-run", false, "only say what would be written")
	outputFlag(fs, &i.output)
	placesFlags(fs, &i.places)
	fs.StringVar(&i.plugin, "cni-plugin", "", "`file` of the CNI plugin to place; empty: onerule beside this program")
	fs.StringSliceVar(&i.podCIDRs, "pod-cidrs", nil, "`ranges` of this node's pods; without them no list of plugins is published")
	fs.IntVar(&i.mtu, "cni-mtu", 0, "`MTU` of pods; 0: that of the way out")
	fs.StringVar(&i.statusFile, "network-status-file", "/run/onerule/network.json", "`file` in which the daemon says whether pods can be served")
	fs.DurationVar(&i.wait, "wait", time.Minute, "how `long` to wait until they can")
	fs.StringVar(&i.sysctlDir, "sysctl-dir", "/proc/sys", "`folder` below which the daemon writes settings of the kernel, for --preflight")
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
	asJSON, err := isJSON(i.output)
	if err != nil {
		return err
	}
	ranges, err := parseRanges(i.podCIDRs)
	if err != nil {
		return err
	}
	if i.preflight {
		return i.look(ctx, w, asJSON)
	}
	i.places.Dry = i.dryRun
	done := installed{w: w, json: asJSON, DryRun: i.dryRun, Files: []placed{}, Others: []install.Other{}, SetAside: []string{}}
	return errors.Join(i.install(ctx, &done, ranges), done.end())
}

func outputFlag(fs *pflag.FlagSet, output *string) {
	fs.StringVarP(output, "output", "o", "text", "`format`: text, or json for programs")
}

func isJSON(output string) (bool, error) {
	if output != "text" && output != "json" {
		return false, fmt.Errorf("--output: %q is neither text nor json", output)
	}
	return output == "json", nil
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
func (i *installation) install(ctx context.Context, done *installed, ranges []netip.Prefix) error {
	changed, err := i.places.PlaceBinary(ctx, i.plugin)
	if err != nil {
		return err
	}
	done.file(i.places.Binary(), changed)
	told, err := i.places.PlaceUnmanaged()
	if err != nil {
		return err
	}
	for _, path := range told {
		done.file(path, true)
	}
	if len(ranges) == 0 {
		done.unpublished("the daemon does that with --install-cni, or give --pod-cidrs")
		return nil
	}
	if err := i.ready(ctx, done); err != nil {
		return fmt.Errorf("no list of plugins is published: %w", err)
	}
	return i.publish(done, ranges)
}

// ready waits until pods can be served. Who only asks what would be written is told that
// they can't.
func (i *installation) ready(ctx context.Context, done *installed) error {
	if !i.dryRun {
		return i.await(ctx)
	}
	if err := served(i.statusFile, time.Now()); err != nil {
		done.note(fmt.Sprintf("it would wait for %s at most, since %v", i.wait, err))
	}
	return nil
}

func (i *installation) publish(done *installed, ranges []netip.Prefix) error {
	adopt, err := i.places.Adoptable(ranges)
	if err != nil {
		return err
	}
	changed, err := i.places.Publish(install.List{Ranges: ranges, MTU: i.mtu, DataDir: i.places.State, StatusFile: i.statusFile, Adopt: adopt})
	if err != nil {
		return err
	}
	done.file(i.places.List(), changed)
	done.adopted(adopt)
	return i.others(done)
}

// others sets lists of others aside, or says what they do.
func (i *installation) others(done *installed) error {
	if i.exclusive {
		names, err := i.places.SetAside()
		done.aside(names)
		return err
	}
	list, err := i.places.Others()
	if err != nil {
		return err
	}
	if done.others(list) {
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
