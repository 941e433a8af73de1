package plugin

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// The lock file is never written. Its first byte stands for the reservations of
// the network, each byte of the rest for one attachment, chosen by hash: two
// verbs of one attachment exclude each other and hold up nobody else. Locks are
// those of an open file description, so they go with the process that holds
// them, however it ends.

func (s *store) lockAddresses() (unlock func(), err error) { return s.lockByte(0, "reservations") }

func (s *store) lockAttachment(k key) (unlock func(), err error) {
	return s.lockByte(attachmentByte(k.fileName()), k.String())
}

// lockName locks an attachment that is known by the name of its file only.
func (s *store) lockName(name string) (unlock func(), err error) {
	return s.lockByte(attachmentByte(name), name)
}

// tryName gives false for an attachment that a verb is at work on.
func (s *store) tryName(name string) (unlock func(), ok bool) {
	at := attachmentByte(name)
	if fcntlLock(s.lock, unix.F_OFD_SETLK, unix.F_WRLCK, at) != nil {
		return nil, false
	}
	return s.unlocker(at), true
}

func attachmentByte(name string) int64 {
	sum := sha256.Sum256([]byte(name))
	return int64(binary.BigEndian.Uint64(sum[:])>>2 + 1)
}

func (s *store) unlocker(at int64) func() {
	return func() { _ = fcntlLock(s.lock, unix.F_OFD_SETLK, unix.F_UNLCK, at) }
}

// lockByte waits no longer than the lock timeout: the runtime tries again.
func (s *store) lockByte(at int64, what string) (func(), error) {
	if fcntlLock(s.lock, unix.F_OFD_SETLK, unix.F_WRLCK, at) == nil {
		return s.unlocker(at), nil
	}
	got := make(chan error, 1)
	// It ends with the lock or, after a time-out, with the process.
	go func() { got <- fcntlLock(s.lock, unix.F_OFD_SETLKW, unix.F_WRLCK, at) }()
	timer := time.NewTimer(s.base.lockTimeout)
	defer timer.Stop()
	select {
	case err := <-got:
		if err != nil {
			return nil, failure(types.ErrIOFailure, err, "lock %s in %s", what, s.lock.Name())
		}
	case <-timer.C:
		return nil, failure(types.ErrTryAgainLater, nil, "lock %s in %s: still held by another process after %s", what, s.lock.Name(), s.base.lockTimeout)
	}
	return s.unlocker(at), nil
}

func fcntlLock(f *os.File, cmd int, kind int16, at int64) error {
	for {
		l := unix.Flock_t{Type: kind, Start: at, Len: 1}
		err := unix.FcntlFlock(f.Fd(), cmd, &l)
		if !errors.Is(err, unix.EINTR) {
			if err != nil {
				return fmt.Errorf("fcntl: %w", err)
			}
			return nil
		}
	}
}
