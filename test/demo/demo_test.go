package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"onerule/test/netns"
)

// programs are the demo and what it shows.
type programs struct{ demo, plugin, daemon string }

// build makes the demo, and what it shows unless make has built it.
func build(t *testing.T) programs {
	t.Helper()
	netns.Privileged(t)
	dir := t.TempDir()
	p := programs{demo: filepath.Join(dir, "demo")}
	compile(t, p.demo, "onerule/test/demo")
	if bin := os.Getenv("ONERULE_BIN"); bin != "" {
		p.plugin, p.daemon = filepath.Join(bin, "onerule"), filepath.Join(bin, "oneruled")
		return p
	}
	p.plugin, p.daemon = filepath.Join(dir, "onerule"), filepath.Join(dir, "oneruled")
	compile(t, p.plugin, "onerule/plugin/onerule")
	compile(t, p.daemon, "onerule/daemon/oneruled")
	return p
}

func compile(t *testing.T, path, pkg string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
}

// A demo is one that runs, with a folder of its own for what it writes.
type demo struct {
	*exec.Cmd
	tmp    string
	stdout io.ReadCloser
	stderr bytes.Buffer
}

func (p programs) start(t *testing.T) *demo {
	t.Helper()
	d := &demo{Cmd: exec.Command(p.demo, "--onerule", p.plugin, "--oneruled", p.daemon), tmp: t.TempDir()}
	d.Env = append(os.Environ(), "TMPDIR="+d.tmp)
	d.Stderr = &d.stderr
	var err error
	if d.stdout, err = d.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(2*time.Minute, func() { _ = d.Process.Kill() })
	t.Cleanup(func() {
		limit.Stop()
		_ = d.Process.Kill() // it has ended, if the test went well
		for _, pid := range d.processes(t) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return d
}

// readUntil reads what the demo prints until a line has a text.
func (d *demo) readUntil(t *testing.T, text string) {
	t.Helper()
	var read strings.Builder
	for lines := bufio.NewScanner(d.stdout); lines.Scan(); {
		fmt.Fprintln(&read, lines.Text())
		if strings.Contains(lines.Text(), text) {
			return
		}
	}
	_ = d.Wait()
	t.Fatalf("never printed %q:\n%s%s", text, read.String(), d.stderr.String())
}

// exit waits for the end and gives the exit code.
func (d *demo) exit(t *testing.T) int {
	t.Helper()
	err := d.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return d.ProcessState.ExitCode()
}

// processes gives those that have the demo's folder in their command line: it does
// not have it there itself, and its daemon does.
func (d *demo) processes(t *testing.T) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(line, []byte(d.tmp)) {
			continue // it may have ended meanwhile
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, pid)
	}
	return found
}

// leavesNothing fails if a process or a file of the demo's is left.
func (d *demo) leavesNothing(t *testing.T) {
	t.Helper()
	if pids := d.processes(t); len(pids) > 0 {
		t.Errorf("processes %v are left", pids)
	}
	left, err := os.ReadDir(d.tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left in its folder: %v, %v", left, err)
	}
}

func TestEveryClaimHolds(t *testing.T) {
	d := build(t).start(t)
	out, err := io.ReadAll(d.stdout)
	if err != nil {
		t.Fatal(err)
	}
	if code := d.exit(t); code != 0 || !strings.Contains(string(out), "claims held") {
		t.Errorf("exit code %d, want 0 and all claims to hold:\n%s%s", code, out, d.stderr.String())
	}
	for _, scene := range []string{"1  ", "2  ", "3  ", "4  ", "5  ", "6  ", "7  "} {
		if !strings.Contains(string(out), "\n  "+scene) {
			t.Errorf("no scene %s", scene)
		}
	}
	for line := range strings.Lines(string(out)) {
		if utf8.RuneCountInString(line) > 101 || strings.ContainsAny(line, "\x1b\r") {
			t.Errorf("line of more than 100 characters, or with control characters: %q", line)
		}
	}
	d.leavesNothing(t)
}

// TestClaimsCanFail gives the demo a daemon that knows no pods, and so masquerades
// nothing that comes from elsewhere.
func TestClaimsCanFail(t *testing.T) {
	p := build(t)
	half := filepath.Join(t.TempDir(), "oneruled")
	script := fmt.Sprintf("#!/bin/sh\nexec %s \"$1\" \"$2\"\n", p.daemon)
	if err := os.WriteFile(half, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	p.daemon = half
	d := p.start(t)
	out, err := io.ReadAll(d.stdout)
	if err != nil {
		t.Fatal(err)
	}
	if code := d.exit(t); code != exitBroken || !strings.Contains(string(out), "DOES NOT HOLD: a pod keeps its address") {
		t.Errorf("exit code %d, want %d and a broken claim:\n%s%s", code, exitBroken, out, d.stderr.String())
	}
	d.leavesNothing(t)
}

func TestInterruption(t *testing.T) {
	p := build(t)
	for _, c := range []struct {
		name, after string
		signal      syscall.Signal
	}{
		{"Ctrl-C while pods are wired", "1  Three pods", syscall.SIGINT},
		{"Ctrl-C under traffic", "3  Endpoints go and come", syscall.SIGINT},
		{"a polite end under traffic", "3  Endpoints go and come", syscall.SIGTERM},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := p.start(t)
			d.readUntil(t, c.after)
			if strings.HasPrefix(c.after, "3") && len(d.processes(t)) == 0 {
				t.Error("no daemon runs, so the test shows nothing")
			}
			if err := d.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, d.stdout); err != nil {
				t.Fatal(err)
			}
			if code := d.exit(t); code != exitInterrupted {
				t.Errorf("exit code %d, want %d: %s", code, exitInterrupted, d.stderr.String())
			}
			d.leavesNothing(t)
		})
	}
	t.Run("nobody reads on", func(t *testing.T) {
		d := p.start(t)
		d.readUntil(t, "3  Endpoints go and come")
		if err := d.stdout.Close(); err != nil {
			t.Fatal(err)
		}
		if code := d.exit(t); code != exitInterrupted {
			t.Errorf("exit code %d, want %d: %s", code, exitInterrupted, d.stderr.String())
		}
		d.leavesNothing(t)
	})
	t.Run("killed, its daemon ends too", func(t *testing.T) {
		d := p.start(t)
		d.readUntil(t, "3  Endpoints go and come")
		if err := d.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		d.exit(t)
		soon(t, "the daemon has ended", func() bool { return len(d.processes(t)) == 0 })
	})
}

// soon waits until something is so.
func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	_, err := eventually(t.Context(), what, time.Now(), func() (bool, error) { return is(), nil })
	if err != nil {
		t.Error(err)
	}
}

func TestWhatIsMissingIsSaidInOneLine(t *testing.T) {
	p := build(t)
	for _, c := range []struct{ name, plugin, daemon, want string }{
		{"no plugin", "/nowhere/onerule", p.daemon, "no program /nowhere/onerule"},
		{"no daemon", p.plugin, "/nowhere/oneruled", "no program /nowhere/oneruled"},
		{"a plugin that fails", "false", p.daemon, "ADD of pod-a"},
		{"a daemon that ends", p.plugin, "false", "oneruled is healthy: it ended (exit status 1)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := programs{p.demo, c.plugin, c.daemon}.start(t)
			if _, err := io.Copy(io.Discard, d.stdout); err != nil {
				t.Fatal(err)
			}
			code := d.exit(t)
			if got := d.stderr.String(); code != exitBroken || !strings.Contains(got, c.want) || strings.Count(got, "\n") != 1 {
				t.Errorf("exit code %d and %q, want %d and one line with %q", code, got, exitBroken, c.want)
			}
			d.leavesNothing(t)
		})
	}
}

func TestItEndsInAnyCase(t *testing.T) {
	p := build(t)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	d := &demo{tmp: tmp}
	var out bytes.Buffer
	err := show(t.Context(), newScreen(&out, false), options{plugin: p.plugin, daemon: p.daemon, limit: 2 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "not done after 2s") {
		t.Errorf("got %v after:\n%s", err, out.String())
	}
	d.leavesNothing(t)
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want int
		says string
	}{
		{"help", []string{"--help"}, 0, ""},
		{"an unknown flag", []string{"--keep"}, exitUsage, "unknown flag: --keep"},
		{"an argument", []string{"pods"}, exitUsage, `"pods" is no flag`},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
			if err != nil {
				t.Fatal(err)
			}
			defer stdout.Close()
			var stderr bytes.Buffer
			if got := run(c.args, stdout, &stderr); got != c.want || !strings.Contains(stderr.String(), c.says) {
				t.Errorf("got %d and %q, want %d and %q", got, stderr.String(), c.want, c.says)
			}
		})
	}
}

func TestOnlyRootIsReady(t *testing.T) {
	o := options{plugin: "true", daemon: "true"}
	if err := o.ready(1000); err == nil || !strings.Contains(err.Error(), "needs root") {
		t.Errorf("as a user: got %v", err)
	}
}
