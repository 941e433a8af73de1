// Package bpffs gives tests a BPF file system.
package bpffs

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// New gives a directory, which is not there yet, of a BPF file system that goes with the
// test.
func New(t testing.TB) string {
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
