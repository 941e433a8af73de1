package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"onerule/test/cluster"
)

// choices are the flags of run.
type choices struct {
	cluster  cluster.Options
	suite    suite
	skip     string
	all      bool
	short    bool
	running  bool
	baseline string
}

func runCommand(dir *string) *cobra.Command {
	var c choices
	cmd := &cobra.Command{
		Use: "run", Short: "start a cluster, run upstream's tests in it, compare, and take it down",
		Long: "run builds what is missing, starts a cluster of its own, runs upstream's tests in it,\n" +
			"compares with what passes with kube-proxy, and takes the cluster down. The exit code\n" +
			"is 1 if a test fails that is not known to fail with kube-proxy.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.suite.out, c.cluster.Out = cmd.OutOrStdout(), cmd.OutOrStdout()
			c.cluster.Dir = *dir
			if !c.running && *dir == cluster.DefaultDir {
				c.cluster.Dir += "-e2e" // beside the one that make cluster-up starts
			}
			return c.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	clusterFlags(flags, &c.cluster)
	flags.StringVar(&c.suite.focus, "focus", `\[sig-network\]`, "regular expression of the tests to run")
	flags.StringVar(&c.skip, "skip", "", "regular expression of tests to leave out, beside those that are always")
	flags.BoolVar(&c.all, "no-skips", false, "leave out nothing but what --skip says")
	flags.BoolVar(&c.short, "short", false, "run a short list instead, about ten tests")
	flags.IntVar(&c.suite.procs, "procs", 8, "number of tests at a time")
	flags.DurationVar(&c.suite.timeout, "timeout", 90*time.Minute, "how long all tests may take")
	flags.StringVar(&c.suite.dir, "report-dir", "bin/e2e-report", "folder of the reports")
	flags.BoolVar(&c.running, "running", false, "use the cluster that runs already, and let it run")
	flags.StringVar(&c.baseline, "baseline", "", "show: print all tests beside the list of those that pass with kube-proxy;\n"+
		"run: run them with kube-proxy, too, and print both lists")
	return cmd
}

func (c *choices) run(ctx context.Context) error {
	if err := c.complete(); err != nil {
		return err
	}
	cache, err := cluster.DefaultCache(ctx)
	if err != nil {
		return err
	}
	if err := cache.Build(ctx, c.suite.out); err != nil {
		return err
	}
	ours, err := c.once(ctx, c.cluster)
	if err != nil {
		return err
	}
	theirs, err := baseline(c.cluster.Family)
	if err != nil {
		return err
	}
	title := "kube-proxy, on record"
	if len(theirs) == 0 {
		title = "kube-proxy: nothing on record"
	}
	if c.baseline == "run" {
		o := c.cluster
		o.With = cluster.KubeProxy
		reference, err := c.once(ctx, o)
		if err != nil {
			return err
		}
		theirs, title = listOf(reference.results), "kube-proxy, now"
	}
	return conclude(c.suite.out, ours, theirs, title, c.baseline != "")
}

// complete checks the flags and fills in what follows from them.
func (c *choices) complete() (err error) {
	// The tests run elsewhere.
	if c.suite.dir, err = filepath.Abs(c.suite.dir); err != nil {
		return fmt.Errorf("folder of the reports: %w", err)
	}
	if c.baseline != "" && c.baseline != "show" && c.baseline != "run" {
		return fmt.Errorf("no such baseline: %q (show or run)", c.baseline)
	}
	if c.running && c.baseline == "run" {
		return errors.New("--baseline run starts clusters itself: it does not go with --running")
	}
	if c.short {
		c.suite.focus = shortFocus()
	}
	if !c.all {
		c.suite.skips = skips(c.cluster.Family)
	}
	if c.skip != "" {
		c.suite.skips = append(c.suite.skips, skip{c.skip, "named by --skip"})
	}
	for _, expression := range []string{c.suite.focus, c.skip} {
		if _, err := regexp.Compile(expression); err != nil {
			return fmt.Errorf("which tests to run: %w", err)
		}
	}
	if c.suite.procs < 1 {
		return fmt.Errorf("%d tests at a time: at least 1", c.suite.procs)
	}
	return nil
}

// once runs the suite in a cluster, and takes it down.
func (c *choices) once(ctx context.Context, o cluster.Options) (_ outcome, err error) {
	if c.running {
		running, err := cluster.Open(ctx, o.Dir)
		if err != nil {
			return outcome{}, err
		}
		return c.suite.on(ctx, running)
	}
	started, err := cluster.Up(ctx, o)
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, started.Down()) }()
	return c.suite.on(ctx, started)
}

// conclude prints how it ended, and gives an error if it is worse than with kube-proxy.
func conclude(w io.Writer, ours outcome, theirs list, title string, side bool) error {
	mine := listOf(ours.results)
	reasons := map[string]string{}
	for _, r := range ours.results {
		if r.state == "SKIPPED" {
			reasons[r.name] = r.message
		}
	}
	differences := compare(mine, theirs, ours.selected, reasons)
	for _, r := range ours.failed() {
		fmt.Fprintf(w, "\nFAILED %s\n       %s\n", r.name, r.message)
	}
	for _, b := range ours.beside {
		fmt.Fprintf(w, "\nFAILED %s\n", b)
	}
	fmt.Fprintln(w)
	if side {
		for _, name := range ours.selected {
			fmt.Fprintf(w, "%-8s %-8s %s\n", orDash(mine[name]), orDash(theirs[name]), name)
		}
		fmt.Fprintln(w)
	}
	shared := list{}
	for _, name := range ours.selected {
		if theirs[name] != "" {
			shared[name] = theirs[name]
		}
	}
	fmt.Fprintf(w, "%-10s %12s  %s\n", "", ours.with, title)
	for _, s := range states() {
		fmt.Fprintf(w, "%-10s %12d  %d\n", strings.ToLower(s), mine.count(s), shared.count(s))
	}
	worse := len(ours.beside)
	for _, d := range differences {
		fmt.Fprintf(w, "%s, and %s with kube-proxy: %s\n", d.ours, d.theirs, d.name)
		if reason := reasons[d.name]; reason != "" {
			fmt.Fprintf(w, "        %s\n", reason)
		}
		if d.worse {
			worse++
		}
	}
	fmt.Fprintf(w, "%d tests in %s\n", len(ours.selected), ours.took.Round(time.Second))
	if worse > 0 {
		return fmt.Errorf("%d of %d tests are worse than with kube-proxy", worse, len(ours.selected))
	}
	return nil
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
