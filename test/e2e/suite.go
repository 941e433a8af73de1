package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"onerule/test/cluster"
)

// A suite is a choice of upstream's tests, and how to run them.
type suite struct {
	focus   string
	skips   []skip
	procs   int
	timeout time.Duration
	dir     string // of reports
	out     io.Writer
}

// An outcome is what became of the tests.
type outcome struct {
	with     string
	selected []string
	results  []result
	beside   []string
	took     time.Duration
}

// failed are those of the outcome.
func (o outcome) failed() []result {
	var all []result
	for _, r := range o.results {
		if r.state == "FAILED" {
			all = append(all, r)
		}
	}
	return all
}

// on runs the suite in a cluster.
func (s suite) on(ctx context.Context, c *cluster.Cluster) (outcome, error) {
	dir := filepath.Join(s.dir, string(c.Family())+"-"+c.With())
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return outcome{}, fmt.Errorf("folder of the report: %w", err)
	}
	o := outcome{with: c.With()}
	all, err := s.list(ctx, c, dir)
	if err != nil {
		return o, err
	}
	var left []int
	if o.selected, left, err = divide(all, s.skips); err != nil {
		return o, err
	}
	printSkips(s.out, s.skips, left)
	if len(o.selected) == 0 {
		return o, fmt.Errorf("no test matches %q", s.focus)
	}
	begin := time.Now()
	if err := s.run(ctx, c, dir, len(o.selected)); err != nil {
		return o, err
	}
	o.took = time.Since(begin)
	if o.results, o.beside, err = readReport(filepath.Join(dir, "report.json")); err != nil {
		return o, err
	}
	return o, s.keep(dir, o)
}

// list gives the names of all tests in focus, without running them.
func (s suite) list(ctx context.Context, c *cluster.Cluster, dir string) ([]string, error) {
	cmd := c.Control().Command(ctx, append([]string{
		c.Pieces().Program("e2e.test"), "--ginkgo.dry-run", "--ginkgo.focus", s.focus, "--ginkgo.no-color",
		"--ginkgo.silence-skips", "--ginkgo.json-report", filepath.Join(dir, "all.json"),
	}, s.flags(c, dir)...)...)
	cmd.Env = append(cmd.Env, "HOME=/tmp")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("list the tests: %w: %s", err, lastLine(string(out)))
	}
	results, _, err := readReport(filepath.Join(dir, "all.json"))
	names := make([]string, 0, len(results))
	for _, r := range results {
		names = append(names, r.name)
	}
	return names, err
}

// flags are those of the tests.
func (s suite) flags(c *cluster.Cluster, dir string) []string {
	return []string{
		"--kubeconfig=" + c.Kubeconfig(), "--provider=skeleton", "--kubectl-path=" + c.Pieces().Program("kubectl"),
		"--minStartupPods=0", "--num-nodes=" + strconv.Itoa(len(c.Nodes())),
		"--report-dir=" + dir, "--disable-log-dump", "--dump-logs-on-failure=true",
	}
}

// run runs the tests to their end. That some fail is no error.
func (s suite) run(ctx context.Context, c *cluster.Cluster, dir string, total int) error {
	log, err := os.Create(filepath.Join(dir, "out.log"))
	if err != nil {
		return fmt.Errorf("log of the tests: %w", err)
	}
	defer log.Close()
	p := &progress{log: log, out: s.out, begin: time.Now(), total: total}
	fmt.Fprintf(s.out, "%d tests with %s, %d at a time; details: %s\n", total, c.With(), s.procs, dir)
	args := []string{
		c.Pieces().Program("ginkgo"), "run", "--procs", strconv.Itoa(s.procs), "--focus", s.focus, "--skip", expression(s.skips),
		"--no-color", "-v", "--silence-skips", "--timeout", s.timeout.String(), "--output-dir", dir, "--json-report", "report.json",
		c.Pieces().Program("e2e.test"), "--",
	}
	cmd := c.Control().Command(ctx, append(args, s.flags(c, dir)...)...)
	cmd.Stdout, cmd.Stderr = p, p // one writer: os/exec writes from one goroutine
	cmd.Env = append(cmd.Env, "HOME=/tmp")
	err = cmd.Run()
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("run the tests: %w", cause)
	}
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		return fmt.Errorf("run the tests: %w", err)
	}
	return nil
}

// keep writes the list of results beside the report.
func (s suite) keep(dir string, o outcome) error {
	f, err := os.Create(filepath.Join(dir, "list.txt"))
	if err != nil {
		return fmt.Errorf("keep the list: %w", err)
	}
	fmt.Fprintf(f, "# %s, %d tests at a time\n", o.with, s.procs)
	listOf(o.results).write(f)
	if err := f.Close(); err != nil {
		return fmt.Errorf("keep the list: %w", err)
	}
	return nil
}
