// Command bench measures what onerule costs, in network namespaces of its own, and
// prints the figures: see README.md for what is measured through what.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The parts of a run.
const (
	partScale = "scale"
	partMix   = "mix"
	partPath  = "path"
	partHits  = "hits"
	partLocal = "localhost"
	partCNI   = "cni"
	partPeer  = "peer"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == subjectRole {
		if err := beSubject(os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "bench daemon: %v\n", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Getenv("PEER") == "1", os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// options say what to measure.
type options struct {
	sizes    []int
	changes  int
	connects int
	only     []string
	markdown bool
}

// parse reads the flags. peer says that the peer is measured, too.
func parse(args []string, peer bool, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(out)
	sizes := f.String("sizes", "1000,10000,30000", "numbers of Services, separated by commas")
	only := f.String("only", "", "parts to run, separated by commas: scale (loads, changes and memory with ClusterIPs), mix (the same with Services of mixed kinds), path (what a connection pays), hits (what counting connections costs), localhost (a NodePort on 127.0.0.1), cni (the plugin beside reference plugins), peer (kube-proxy beside oneruled, some minutes); all but peer if empty, and peer with PEER=1")
	withPeer := f.Bool("peer", peer, "measure kube-proxy, too, at up to 10,000 Services")
	f.IntVar(&o.changes, "changes", 1000, "changes of each sort at each size")
	f.IntVar(&o.connects, "connects", 20000, "connections on each path")
	f.BoolVar(&o.markdown, "markdown", false, "print the tables as Markdown")
	f.Usage = func() {
		fmt.Fprintf(out, "bench measures what onerule costs, as root, in network namespaces of its own.\nmake bench BENCHFLAGS='--sizes 1000 --only scale' hands flags over.\n\n")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q is no flag (--help lists them)", f.Arg(0))
	}
	for text := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 20 || n > 100_000 {
			return o, fmt.Errorf("--sizes: %q is no number of Services from 20 to 100000", text)
		}
		o.sizes = append(o.sizes, n)
	}
	if o.changes < 10 || o.changes > 10_000 {
		return o, fmt.Errorf("--changes: %d is not within 10 to 10000", o.changes)
	}
	if o.connects < block || o.connects > 200_000 {
		return o, fmt.Errorf("--connects: %d is not within %d to 200000", o.connects, block)
	}
	return o, o.choose(*only, *withPeer)
}

func (o *options) choose(only string, peer bool) error {
	all := []string{partScale, partMix, partPath, partHits, partLocal, partCNI, partPeer}
	switch {
	case only == "" && peer:
		o.only = all
	case only == "":
		o.only = all[:len(all)-1]
	default:
		for name := range strings.SplitSeq(only, ",") {
			name = strings.TrimSpace(name)
			if !slices.Contains(all, name) {
				return fmt.Errorf("--only: %q is none of %s", name, strings.Join(all, ", "))
			}
			o.only = append(o.only, name)
		}
		if peer && !slices.Contains(o.only, partPeer) {
			o.only = append(o.only, partPeer)
		}
	}
	return nil
}

func run(ctx context.Context, args []string, peer bool, out, progress io.Writer) error {
	o, err := parse(args, peer, progress)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root: network namespaces and nftables")
	}
	m, err := thisMachine(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(progress, "bench: %4.0f s  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(out, "%s\n\n", m)
	for _, part := range o.only {
		tables, err := o.measure(ctx, part, say)
		if err != nil {
			return fmt.Errorf("measure %s: %w", part, err)
		}
		for _, t := range tables {
			t.print(out, o.markdown)
		}
	}
	say("done")
	return nil
}

// measure runs a part.
func (o *options) measure(ctx context.Context, part string, say func(string, ...any)) ([]*table, error) {
	switch part {
	case partPath:
		return measurePaths(ctx, o.connects, say)
	case partHits:
		return measureHits(ctx, say)
	case partLocal:
		return measureLocalhost(ctx, peerGiven() || slices.Contains(o.only, partPeer), say)
	case partCNI:
		return measureCNI(ctx, say)
	case partPeer:
		return measurePeers(ctx, o.sizes, say)
	}
	one := measureScale
	if part == partMix {
		one = measureMix
	}
	var list []*scale
	for _, n := range o.sizes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s, err := one(ctx, n, o.changes, say)
		if err != nil {
			return nil, fmt.Errorf("%d Services: %w", n, err)
		}
		list = append(list, s)
	}
	if part == partMix {
		return mixTables(list), nil
	}
	return []*table{scaleTable(list)}, nil
}
