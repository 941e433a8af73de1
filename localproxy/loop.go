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
	due    []*conn // those that have something to carry
	done   []*conn // room for the next list of them, of the goroutine alone
	ended  bool
	work   sync.WaitGroup
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
	l.work.Go(l.run)
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
			panic(os.NewSyscallError("epoll_wait", err)) // a fault of ours: nobody would be served any more
		}
		more, ended := l.turn(events[:max(n, 0)])
		if ended {
			return
		}
		patience = -1
		if more {
			patience = 0
		}
	}
}

// turn lets all look at their sockets to whom something happened, and each connection carry
// something once that has to. more says that some have more.
func (l *loop) turn(events []syscall.EpollEvent) (more, ended bool) {
	for _, e := range events {
		l.alone(func() { l.tell(int(e.Fd), e.Events) })
	}
	var due []*conn
	l.alone(func() { due, l.due = l.due, l.done[:0] })
	for _, c := range due {
		l.alone(c.carry)
	}
	clear(due) // of what has ended nothing is to stay
	l.done = due
	l.alone(func() { more, ended = len(l.due) > 0, l.ended })
	return more, ended
}

func (l *loop) tell(fd int, events uint32) {
	if fd == l.wake {
		_, _ = syscall.Read(l.wake, make([]byte, 8)) // it does not block
		return
	}
	if o, ok := l.owners[fd]; ok {
		o.ready(fd, events)
	}
}

// soon has a connection carry something in this turn, or in the next one.
func (l *loop) soon(c *conn) {
	if !c.due {
		c.due = true
		l.due = append(l.due, c)
	}
}

// begin has the loop make a turn.
func (l *loop) begin() {
	one := uint64(1)
	_, _ = syscall.Write(l.wake, unsafe.Slice((*byte)(unsafe.Pointer(&one)), 8))
}

// alone runs f with the lock. Each owner takes it for itself, so that others who wait for
// it do not wait for all.
func (l *loop) alone(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// end ends it. Nobody may hold the lock.
func (l *loop) end() {
	l.mu.Lock()
	l.ended = true
	l.begin()
	l.mu.Unlock()
	l.work.Wait()
	l.close()
}

func (l *loop) close() {
	_ = syscall.Close(l.epoll)
	_ = syscall.Close(l.wake)
}
