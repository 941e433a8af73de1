package rig

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// LockAttachments takes the locks of all attachments in a file of the CNI plugin's, as verbs
// that are at work, until unlock.
func LockAttachments(t testing.TB, path string) (unlock func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l); err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}
