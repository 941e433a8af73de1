package localproxy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
)

const (
	// pipeSize is what a pipe holds: more than the default lets one system call move more.
	pipeSize = 1 << 20
	// sparePipes is how many pipes are kept for the next one who needs one.
	sparePipes = 64

	// Of linux/splice.h and linux/fcntl.h; package syscall lacks them.
	spliceMove, spliceNonblock = 1, 2
	setPipeSize                = 1031
)

// A pipe takes data from one socket to another within the kernel. It belongs to a copy
// only while it holds some: an idle connection has none.
type pipe struct{ read, write int }

// pipes are those that nobody uses.
type pipes struct {
	mu     sync.Mutex
	spare  []pipe
	closed bool
}

func (p *pipes) take() (pipe, error) {
	p.mu.Lock()
	if n := len(p.spare); n > 0 {
		one := p.spare[n-1]
		p.spare = p.spare[:n-1]
		p.mu.Unlock()
		return one, nil
	}
	p.mu.Unlock()
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return pipe{}, fmt.Errorf("make pipe: %w", err)
	}
	// Without privilege it stays as it is, above a limit of the user.
	_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, uintptr(fds[0]), setPipeSize, pipeSize)
	return pipe{fds[0], fds[1]}, nil
}

// put gives an empty pipe back.
func (p *pipes) put(one pipe) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.spare) >= sparePipes {
		one.close()
		return
	}
	p.spare = append(p.spare, one)
}

func (p *pipes) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, one := range p.spare {
		one.close()
	}
	p.spare = nil
}

func (p pipe) close() {
	_ = syscall.Close(p.read)
	_ = syscall.Close(p.write)
}

// both copies in both directions until both have ended, or one has failed: then the other
// end is to see that, too.
func (p *pipes) both(a, b end) {
	var back sync.WaitGroup
	back.Go(func() { p.oneWay(a, b) })
	p.oneWay(b, a)
	back.Wait()
}

// oneWay copies until from has ended, which to is told.
func (p *pipes) oneWay(to, from end) {
	err := p.copy(to, from)
	if err == nil {
		err = to.closeWrite()
	}
	if err == nil || errors.Is(err, syscall.ENOTCONN) { // the other end has gone already
		return
	}
	to.reset()
	from.reset()
}

func (p *pipes) copy(to, from end) error {
	for {
		full, n, err := p.fill(from.raw.Read)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := full.drain(to.raw.Write, n); err != nil {
			full.close() // what it holds is nobody's
			return err
		}
		p.put(full)
	}
}

// fill waits until a socket has something, and moves it to a pipe.
func (p *pipes) fill(wait func(func(fd uintptr) bool) error) (full pipe, n int64, err error) {
	waited := wait(func(fd uintptr) bool {
		if full, err = p.take(); err != nil {
			return true
		}
		n, err = splice(int(fd), full.write, pipeSize)
		if err == nil && n > 0 {
			return true
		}
		p.put(full)
		return !errors.Is(err, syscall.EAGAIN)
	})
	switch {
	case waited != nil:
		return full, 0, waited
	case err == nil && n == 0:
		return full, 0, io.EOF
	}
	return full, n, err
}

// drain moves n bytes from the pipe to a socket.
func (p pipe) drain(wait func(func(fd uintptr) bool) error, n int64) error {
	var err error
	waited := wait(func(fd uintptr) bool {
		for n > 0 {
			var moved int64
			moved, err = splice(p.read, int(fd), int(n))
			if err != nil {
				return !errors.Is(err, syscall.EAGAIN)
			}
			n -= moved
		}
		return true
	})
	return errors.Join(waited, err)
}

// splice moves what there is without waiting.
func splice(from, to, n int) (int64, error) {
	for {
		moved, err := syscall.Splice(from, nil, to, nil, n, spliceNonblock|spliceMove)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return 0, os.NewSyscallError("splice", err)
		}
		return int64(moved), nil // an int on some architectures
	}
}
