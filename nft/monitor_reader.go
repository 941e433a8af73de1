package nft

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// errDrained says that all events were read that the kernel had before it began to drop
// some.
var errDrained = errors.New("no more events")

// An eventReader reads datagrams of events.
//
// The kernel says once that it drops events, with the first one, and before those that
// it had already; it goes on dropping, and says nothing more, until all these are read.
// So the loss is over only when the socket is empty.
type eventReader struct {
	raw    syscall.RawConn
	buf    []byte
	losing bool
}

// next waits for a datagram. It is valid until the next call. ENOBUFS says that the
// kernel begins to drop events, errDrained that this is over.
func (r *eventReader) next() ([]byte, error) {
	var n, flags int
	var failed error
	err := r.raw.Read(func(fd uintptr) (done bool) {
		n, _, flags, _, failed = unix.Recvmsg(int(fd), r.buf, nil, unix.MSG_DONTWAIT)
		if errors.Is(failed, unix.EAGAIN) && r.losing {
			failed = errDrained
		}
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	})
	if err != nil {
		return nil, err
	}
	if failed == nil && flags&unix.MSG_TRUNC != 0 {
		failed = unix.ENOBUFS
	}
	r.losing = errors.Is(failed, unix.ENOBUFS) || r.losing && !errors.Is(failed, errDrained)
	if failed != nil {
		return nil, failed
	}
	return r.buf[:n], nil
}
