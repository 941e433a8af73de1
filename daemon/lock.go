package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockName is the abstract unix socket that says that a daemon writes the tables of a
// network namespace. Such a name belongs to the network namespace, as the tables do,
// and goes with the process, however that ends.
const lockName = "@onerule/oneruled"

// lockRetry is how often a lock that another daemon holds is tried again: in between changes
// wait when a node gets another version.
const lockRetry = 100 * time.Millisecond

// errForeign says that the lock's name is taken by what cannot be a daemon.
var errForeign = errors.New("its holder is of another user")

// takeLock waits until no other daemon writes the tables of this network namespace, and
// gives what releases the lock. It gives the error of ctx when that ends first.
func (d *Daemon) takeLock(ctx context.Context) (release func(), err error) {
	for said := false; ; said = true {
		l, err := (&net.ListenConfig{}).Listen(ctx, "unix", lockName)
		if err == nil {
			if said {
				d.cfg.Log.Info("the other oneruled ended, taking over")
			}
			go d.answer(l) // ends when the lock is released
			return func() { _ = l.Close() }, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("take the lock of this network namespace: %w", err)
		}
		holder, err := lockHolder()
		if errors.Is(err, errForeign) {
			d.cfg.Log.Error(err, "the lock of this network namespace is no daemon's, going on without it", "socket", lockName, "pid", holder.Pid, "uid", holder.Uid)
			return func() {}, nil
		}
		if !said {
			d.cfg.Log.Info("another oneruled writes the tables of this network namespace, waiting for its end", "pid", holder.Pid)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lockRetry):
		}
	}
}

// answer lets those who ask who holds the lock go at once, and tells giveWay of each that may
// be a daemon, if it listens: who waits asks again, and who has asked before may be gone.
func (d *Daemon) answer(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if isOfOurUser(c) {
			select {
			case d.waited <- struct{}{}:
			default:
			}
		}
		_ = c.Close()
	}
}

// isOfOurUser says whether a daemon may be at the other end. Any process of the network
// namespace can ask.
func isOfOurUser(c net.Conn) bool {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return false
	}
	ours := false
	err = raw.Control(func(fd uintptr) {
		peer, err := peerOf(int(fd))
		ours = err == nil && isOurs(peer)
	})
	return err == nil && ours
}

// peerOf gives who is at the other end of a Unix socket.
func peerOf(fd int) (*unix.Ucred, error) {
	return unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
}

func isOurs(c *unix.Ucred) bool { return int(c.Uid) == os.Geteuid() }

// emptyHanded is how long a daemon that has loaded nothing keeps others from the tables.
const emptyHanded = 10 * time.Second

// giveWay ends a daemon that another one waits for if it has loaded nothing for so long. It may
// never load anything, for want of an API server that the other one can reach, and the other
// one is judged by health checks which this one answers: an update that is the remedy would
// wait for its own effect.
func (d *Daemon) giveWay(ctx context.Context, after time.Duration) {
	select {
	case <-ctx.Done():
		return
	case <-d.loaded:
		return
	case <-time.After(after):
	}
	select {
	case <-ctx.Done():
		return
	case <-d.loaded:
		return
	case <-d.waited:
	}
	select {
	case <-d.loaded: // as well
	default:
		d.end(errors.New("nothing is known here to load, and another oneruled waits: giving way to it"))
	}
}

// lockHolder says who holds the lock, as well as can be told. Any process of the
// network namespace may take the name, and one that is not of our user must not keep
// us from our work.
func lockHolder() (unix.Ucred, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return unix.Ucred{}, fmt.Errorf("ask for the holder of the lock: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: lockName}); err != nil {
		return unix.Ucred{}, fmt.Errorf("ask for the holder of the lock: %w", err)
	}
	holder, err := peerOf(fd)
	switch {
	case err != nil:
		return unix.Ucred{}, fmt.Errorf("ask for the holder of the lock: %w", err)
	case !isOurs(holder):
		return *holder, errForeign
	}
	return *holder, nil
}
