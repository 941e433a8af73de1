package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// inRoot runs a program of the image with the image as its file system, and gives what it says,
// also when it ends with an error. That takes root; others do not see it run.
func inRoot(t *testing.T, root string, env []string, program string, args ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: chroot")
	}
	path, _ := strings.CutPrefix(env[0], "PATH=")
	for _, dir := range filepath.SplitList(path) {
		if _, err := os.Stat(filepath.Join(root, dir, program)); err == nil && !filepath.IsAbs(program) {
			program = filepath.Join(dir, program)
		}
	}
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Dir, cmd.SysProcAttr = env, "/", &syscall.SysProcAttr{Chroot: root}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Errorf("run %s: %v", program, err)
	}
	return string(out)
}
