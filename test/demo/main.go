// Command demo shows the main job on one machine, in network namespaces of its own:
// a node whose pods the CNI plugin wires and whose Services the daemon translates.
// Nothing else on the machine is touched, and nothing stays. Whatever it says it has
// measured; it fails if something that it claims does not hold.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// Exit codes.
const (
	exitBroken      = 1
	exitUsage       = 2
	exitInterrupted = 130 // as a shell reports SIGINT
)

// limit is how long the scenes may take, on a machine that is busy too. Otherwise it
// is a few seconds.
const limit = 55 * time.Second

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options are the flags.
type options struct {
	plugin, daemon string
	limit          time.Duration // for all scenes together
}

// run is main, with what it depends on. It gives the exit code.
func run(args []string, stdout *os.File, stderr io.Writer) int {
	o, err := parse(args, stdout)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return exitUsage
	}
	if err := o.ready(os.Geteuid()); err != nil {
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return exitBroken
	}
	// Someone must listen for SIGPIPE all the time, or the next line printed after nobody
	// reads on would end it at once.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// A second Ctrl-C ends it at once.
	defer context.AfterFunc(ctx, stop)()
	ctx, unread := context.WithCancel(ctx)
	defer unread()
	s := newScreen(&reader{stdout, unread}, colourful(stdout))
	switch err := show(ctx, s, o); {
	case err != nil:
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return exitBroken
	case ctx.Err() != nil:
		s.progress(1, 1)
		fmt.Fprintln(stderr, "demo: interrupted; everything is cleaned up")
		return exitInterrupted
	case !s.end():
		return exitBroken
	}
	return 0
}

// A reader is who reads what is printed. When nobody does any more, the demo ends as by
// Ctrl-C: cleaned up.
type reader struct {
	out  io.Writer
	gone func()
}

// Write prints.
func (r *reader) Write(text []byte) (int, error) {
	n, err := r.out.Write(text)
	if err != nil {
		r.gone()
	}
	return n, err
}

func parse(args []string, out io.Writer) (options, error) {
	bin := os.Getenv("ONERULE_BIN")
	if bin == "" {
		bin = "bin"
	}
	o := options{limit: limit}
	f := pflag.NewFlagSet("demo", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&o.plugin, "onerule", filepath.Join(bin, "onerule"), "the CNI plugin, as make build leaves it")
	f.StringVar(&o.daemon, "oneruled", filepath.Join(bin, "oneruled"), "the node daemon, as make build leaves it")
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprint(out, "demo shows pods and Services on this machine, in network namespaces of its own.\n"+
			"It needs root, changes nothing else, and exits with 1 if a claim does not hold.\n"+
			"Colour only on a terminal, and not with NO_COLOR set.\n\n")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q is no flag (--help lists them)", f.Arg(0))
	}
	return o, nil
}

// ready says in one line what is missing, before anything is made.
func (o *options) ready(uid int) error {
	if uid != 0 {
		return errors.New("needs root, for network namespaces and nftables: sudo it, or run make demo")
	}
	for _, path := range []*string{&o.plugin, &o.daemon} {
		found, err := exec.LookPath(*path)
		if err == nil {
			found, err = filepath.Abs(found)
		}
		if err != nil {
			return fmt.Errorf("no program %s (make build makes it): %w", *path, err)
		}
		*path = found
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return fmt.Errorf("no program nft (make setup installs it): %w", err)
	}
	return nil
}
