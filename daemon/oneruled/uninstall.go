package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"onerule/bpf"
	"onerule/daemon/inspect"
	"onerule/daemon/oneruled/cli"
	"onerule/install"
)

func uninstallCommand(socket *string) *cobra.Command {
	var p install.Places
	stay, output := false, ""
	var before gone
	cmd := &cobra.Command{
		Use:   "uninstall [flags]",
		Short: "take the CNI plugin off this node: its list, our rules and routes, and itself",
		Long: `uninstall removes the list of plugins first, so that no pod begins with ours any more, and
brings back lists of others that were set aside. As long as pods are attached the rest
stays, since they need it, also to end: run it again when they are gone (exit code 2). So
does the list, if there is no other one: a runtime without any can't take pods down. Then
it removes our tables and the routes between nodes, and the plugin last. The state of the
plugin stays. Stop the daemon first: it would put everything back.

With --stay it goes on trying until all is done, and then waits to be ended: as a pod on
each node, install/uninstall.yaml.`,
		Example: `  oneruled uninstall
  oneruled uninstall -o json`,
		Annotations: cli.Codes("all is gone", "some of it stays, since pods are attached"),
		Args:        noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := isJSON(output)
			if err != nil {
				return err
			}
			try := func(w io.Writer) error {
				done := uninstalled{w: w, json: asJSON, Restored: []string{}, gone: &before}
				return errors.Join(uninstall(cmd.Context(), &done, p, *socket), done.end())
			}
			if stay {
				untilDone(cmd.Context(), cmd.OutOrStdout(), stayEvery, try)
				return nil
			}
			return try(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&stay, "stay", false, "try again until no pods are attached any more, and then wait to be ended")
	outputFlag(cmd.Flags(), &output)
	placesFlags(cmd.Flags(), &p)
	cmd.Flags().StringVar(&p.Sysctls, "sysctl-dir", "/proc/sys", "`folder` below which settings of the kernel are put back")
	return cmd
}

// stayEvery is how often it is looked whether the last pod is gone.
const stayEvery = 5 * time.Second

// untilDone tries until that succeeds, tells what is new, and then waits until ctx ends: a
// pod of a DaemonSet that ends is started again.
func untilDone(ctx context.Context, w io.Writer, every time.Duration, try func(io.Writer) error) {
	for told := ""; ; {
		var said strings.Builder
		err := try(&said)
		if err != nil && said.Len() == 0 {
			fmt.Fprintln(&said, err)
		}
		if said.String() != told {
			told = said.String()
			fmt.Fprint(w, told)
		}
		if err == nil {
			<-ctx.Done()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

func uninstall(ctx context.Context, done *uninstalled, p install.Places, socket string) error {
	if socket == autoSocket {
		socket = inspect.DefaultSocket
	}
	var d net.Dialer
	if c, err := d.DialContext(ctx, "unix", socket); err == nil {
		return errors.Join(fmt.Errorf("the daemon runs, it answers at %s: stop it first, since it would put everything back", socket), c.Close())
	}
	if attached, err := p.Needed(); err != nil {
		return err
	} else if attached > 0 {
		return done.stays(attached, "%s attached, and there is no other list of plugins, without which the container runtime can't take pods down, so all stays: move the pods away, or install another CNI plugin, and run it again")
	}
	if err := handBack(ctx, done, p); err != nil {
		return err
	}
	r, err := p.Uninstall(func() error { return removeOurs(bpf.HostDir()) })
	done.restored(r.Restored)
	done.went(r)
	if err != nil {
		return err
	}
	if r.Attached > 0 {
		// Once more: a pod may have begun until the list went.
		if err := handBack(ctx, done, p); err != nil {
			return err
		}
		return done.stays(r.Attached, "the list of plugins is gone; %s attached, so the rest stays: run it again when they are gone")
	}
	done.all(p)
	return nil
}

// handBack lets host-local know of the addresses that pods have.
func handBack(ctx context.Context, done *uninstalled, p install.Places) error {
	n, err := p.HandBack(ctx)
	done.handedBack(n)
	return err
}

// Uninstalled is what uninstall has done. It is told as what install does is.
type uninstalled struct {
	w    io.Writer
	json bool

	Done bool `json:"done"`
	// Attached are interfaces of pods that keep some of it here, and Why says so.
	Attached int      `json:"attached"`
	Why      string   `json:"why,omitempty"`
	Restored []string `json:"restored"`
	// HandedBack are addresses that host-local has again.
	HandedBack int `json:"handedBack"`
	// Missing are the list and the plugin, where they are looked for and were not.
	Missing []string `json:"missing,omitempty"`

	gone *gone
}

// A gone is what went in this try or an earlier one of the same process.
type gone struct{ list, plugin bool }

func (d *uninstalled) say(format string, args ...any) {
	if !d.json {
		fmt.Fprintf(d.w, format+"\n", args...)
	}
}

// stays takes in that pods are attached, and gives the error for that.
func (d *uninstalled) stays(attached int, format string) error {
	interfaces := "1 interface of a pod is"
	if attached != 1 {
		interfaces = fmt.Sprintf("%d interfaces of pods are", attached)
	}
	d.Attached, d.Why = attached, fmt.Sprintf(format, interfaces)
	d.say("%s", d.Why)
	return cli.SomethingFound()
}

func (d *uninstalled) restored(names []string) {
	d.Restored = append(d.Restored, names...)
	for _, name := range names {
		d.say("%s is back", name)
	}
}

func (d *uninstalled) handedBack(n int) {
	if n == 0 {
		return
	}
	d.HandedBack += n
	if n == 1 {
		d.say("1 address of a pod is handed back to host-local")
		return
	}
	d.say("%d addresses of pods are handed back to host-local", n)
}

func (d *uninstalled) went(r install.Removed) {
	d.gone.list, d.gone.plugin = d.gone.list || r.List, d.gone.plugin || r.Plugin
}

// all says what is gone, and what never was where it was looked for: it may be elsewhere.
func (d *uninstalled) all(p install.Places) {
	d.Done = true
	list, plugin := "there was no list of plugins at "+p.List(), "no plugin at "+p.Binary()
	switch {
	case d.gone.list && d.gone.plugin:
		d.say("the list of plugins, our tables and routes, and the plugin are gone")
	case d.gone.plugin:
		d.Missing = []string{p.List()}
		d.say("our tables and routes, and the plugin are gone; %s", list)
	case d.gone.list:
		d.Missing = []string{p.Binary()}
		d.say("the list of plugins, and our tables and routes are gone; there was %s", plugin)
	default:
		d.Missing = []string{p.List(), p.Binary()}
		d.say("our tables and routes are gone; %s, and %s", list, plugin)
	}
}

// end tells it to programs.
func (d *uninstalled) end() error {
	if !d.json {
		return nil
	}
	return writeJSON(d.w, d)
}
