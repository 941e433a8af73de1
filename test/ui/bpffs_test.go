package ui_test

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// bpffs gives a directory of a BPF file system of its own.
func bpffs(t *testing.T) string {
	t.Helper()
	netns.Privileged(t)
	at := t.TempDir()
	if err := unix.Mount("bpf", at, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(at, "onerule")
}
