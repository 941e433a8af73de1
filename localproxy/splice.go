package localproxy

import (
	"errors"
	"fmt"
	"io"
	"os"
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
	size  int // pipeSize, but in a test
	spare []pipe
}

func (p *pipes) take() (pipe, error) {
	if n := len(p.spare); n > 0 {
		one := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return one, nil
	}
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return pipe{}, fmt.Errorf("make pipe: %w", err)
	}
	// Without privilege it stays as it is, above a limit of the user.
	_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, uintptr(fds[0]), setPipeSize, uintptr(p.size))
	return pipe{fds[0], fds[1]}, nil
}

// put gives an empty pipe back.
func (p *pipes) put(one pipe) {
	if len(p.spare) >= sparePipes {
		one.close()
		return
	}
	p.spare = append(p.spare, one)
}

func (p *pipes) close() {
	for _, one := range p.spare {
		one.close()
	}
	p.spare = nil
}

func (p pipe) close() {
	_ = syscall.Close(p.read)
	_ = syscall.Close(p.write)
}

// A side is the socket of one end of a connection, and what goes from it to the other end.
type side struct {
	fd                 int
	readable, writable bool // as far as anybody knows
	pipe               pipe // with what is held
	held               int64
	over, told         bool // nothing more comes; the other end knows it
}

// carry moves what there is from one end to the other, as long as that takes it, and not
// much more than a pipe holds, so that others have their turn; more says that there is more.
func (p *pipes) carry(to, from *side) (more bool, err error) {
	for moved := int64(0); moved < int64(p.size); {
		if err := p.fill(from); err != nil {
			return false, err
		}
		if from.held == 0 {
			return false, from.tell(to)
		}
		held := from.held
		if err := p.drain(to, from); err != nil || from.held > 0 {
			return false, err
		}
		moved += held
	}
	return true, nil
}

// fill takes what has come from an end, if it holds nothing yet.
func (p *pipes) fill(from *side) (err error) {
	if from.held > 0 || from.over || !from.readable {
		return nil
	}
	if from.pipe, err = p.take(); err != nil {
		return err
	}
	from.held, err = splice(from.fd, from.pipe.write, p.size)
	if from.held == 0 {
		p.put(from.pipe)
	}
	if errors.Is(err, syscall.EAGAIN) {
		from.readable = false
		return nil
	}
	from.over = err == nil && from.held == 0
	return err
}

// drain gives it to the other one.
func (p *pipes) drain(to, from *side) error {
	for from.held > 0 && to.writable {
		moved, err := splice(from.pipe.read, to.fd, int(from.held))
		if errors.Is(err, syscall.EAGAIN) {
			to.writable = false
			return nil
		}
		if err == nil && moved == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		from.held -= moved
	}
	if from.held == 0 {
		p.put(from.pipe)
	}
	return nil
}

// tell says to the other end, once, that nothing more comes.
func (s *side) tell(to *side) error {
	if !s.over || s.told {
		return nil
	}
	s.told = true
	if err := syscall.Shutdown(to.fd, syscall.SHUT_WR); err != nil && !errors.Is(err, syscall.ENOTCONN) { // the other end has gone already
		return os.NewSyscallError("shutdown", err)
	}
	return nil
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
