package localproxy

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

const (
	// An edge is told once, until there is nothing more and then something again.
	edge = 1 << 31 // EPOLLET, which package syscall has as a negative number

	wantListener = syscall.EPOLLIN
	wantSide     = syscall.EPOLLIN | syscall.EPOLLOUT | syscall.EPOLLRDHUP | edge

	maxEvents = 128
)

// An owner of a socket is told that it may be worth a look. It is a hint: the socket may be
// another one by now, of the same number.
type owner interface {
	ready(fd int, events uint32)
}

// A loop watches the sockets of a proxy in one goroutine. What it calls holds the lock of
// the proxy, as everything else does that uses a loop.
type loop struct {
	mu     *sync.Mutex
	epoll  int
	wake   int // an eventfd
	owners map[int]owner
	again  []func() // who has not come to an end, so that others have their turn
	ended  bool
	done   sync.WaitGroup
}

// newLoop starts one, which end ends.
func newLoop(mu *sync.Mutex) (*loop, error) {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wake, _, errno := syscall.Syscall(syscall.SYS_EVENTFD2, 0, syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if errno != 0 {
		_ = syscall.Close(epoll)
		return nil, os.NewSyscallError("eventfd2", errno)
	}
	l := &loop{mu: mu, epoll: epoll, wake: int(wake), owners: map[int]owner{}}
	if err := l.watch(l.wake, syscall.EPOLLIN, nil); err != nil {
		l.close()
		return nil, err
	}
	l.done.Go(l.run)
	return l, nil
}

// watch tells an owner of events of a socket, until that is closed.
func (l *loop) watch(fd int, events uint32, o owner) error {
	err := syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: events, Fd: int32(fd)})
	if err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	if o != nil {
		l.owners[fd] = o
	}
	return nil
}

// ignore says that a socket is not watched any more, and lets it be.
func (l *loop) ignore(fd int) {
	delete(l.owners, fd)
	_ = syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_DEL, fd, nil)
}

func (l *loop) run() {
	var events [maxEvents]syscall.EpollEvent
	patience := -1
	for {
		n, err := syscall.EpollWait(l.epoll, events[:], patience)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return // of no other number as long as the arguments are right
		}
		if n < 0 {
			n = 0
		}
		if l.turn(events[:n]) {
			return
		}
		patience = -1
		if len(l.again) > 0 {
			patience = 0
		}
	}
}

// turn lets all look at their sockets to whom something happened, or who have not come to an
// end in the turn before.
func (l *loop) turn(events []syscall.EpollEvent) (ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return true
	}
	again := l.again
	l.again = nil
	for _, e := range events {
		if o, ok := l.owners[int(e.Fd)]; ok {
			o.ready(int(e.Fd), e.Events)
		}
	}
	for _, f := range again {
		f()
	}
	return false
}

// end ends it. Nobody may hold the lock.
func (l *loop) end() {
	l.mu.Lock()
	l.ended = true
	one := uint64(1)
	_, _ = syscall.Write(l.wake, unsafe.Slice((*byte)(unsafe.Pointer(&one)), 8))
	l.mu.Unlock()
	l.done.Wait()
	l.close()
}

func (l *loop) close() {
	_ = syscall.Close(l.epoll)
	_ = syscall.Close(l.wake)
}
