package plugin_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Arguments are people's, and the daemon's: what is mistyped is told, and does nothing.
func TestArguments(t *testing.T) {
	n := newNode(t)
	state := n.dataDir
	if err := os.MkdirAll(filepath.Join(state, "pods/attachments"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		args   []string
		exit   int
		stdout string // that it holds; "": none
		stderr string
	}{
		{"help", []string{"--help"}, 0, "onerule sweep STATE", ""},
		{"help in short", []string{"-h"}, 0, "onerule sweep STATE", ""},
		{"an unknown one", []string{"foo"}, 1, "", "foo: no such command"},
		{"its version", []string{"--version"}, 0, "CNI plugin onerule ", ""},
		{"an unknown flag", []string{"--verbose"}, 1, "", "--verbose: no such command"},
		{"a sweep of a folder", []string{"sweep", state}, 0, `"attachments": 0`, ""},
		{"a sweep of nothing", []string{"sweep"}, 1, "", "sweep: got 0 arguments, want 1"},
		{"a sweep of two folders", []string{"sweep", state, state}, 1, "", "sweep: got 2 arguments, want 1"},
		{"a sweep of a folder that may be any", []string{"sweep", "state"}, 1, "", `"state" is no absolute path`},
		{"a hand-back of one folder", []string{"hand-back", state}, 1, "", "hand-back: got 1 arguments, want 2"},
		{"a hand-back to a folder that may be any", []string{"hand-back", state, "networks"}, 1, "", `"networks" is no absolute path`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.Command(binary(), tc.args...)
			cmd.Env, cmd.Dir = []string{}, filepath.Dir(state)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := n.Start(cmd); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != tc.exit {
				t.Errorf("got exit %d, want %d", got, tc.exit)
			}
			for stream, want := range map[*bytes.Buffer]string{&stdout: tc.stdout, &stderr: tc.stderr} {
				if got := stream.String(); !strings.Contains(got, want) || want == "" && got != "" {
					t.Errorf("got %q, want %q", got, want)
				}
			}
			if tc.exit != 0 && !strings.Contains(stderr.String(), "onerule --help") {
				t.Errorf("got %q, want the usage", stderr.String())
			}
		})
	}
}

// A runtime that gives arguments is served all the same.
func TestC1ArgumentsOfARuntimeArePassedOver(t *testing.T) {
	n := newNode(t)
	cmd := n.command(call{verb: "VERSION"})
	cmd.Args = append(cmd.Args, "foo")
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "supportedVersions") {
		t.Errorf("got %s, %v", out, err)
	}
}
