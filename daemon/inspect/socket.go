package inspect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultSocket is where the daemon of the machine's own network answers.
const DefaultSocket = "/run/onerule/oneruled.sock"

// knock is how long a process that has a socket may take to let others in.
const knock = time.Second

// maxPath is how long the name of a socket may be: sun_path without its last zero.
const maxPath = 107

// ErrTaken says that somebody answers at a socket already.
var ErrTaken = errors.New("another process answers there")

// Listen makes a socket that only its owner can use. One that nobody answers at any more is
// replaced; whatever else has the name stays.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	// It is made beside and renamed, so that one that is left over is replaced by one that
	// answers.
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	if len(fresh) > maxPath {
		return nil, fmt.Errorf("socket %s: the path is longer than %d bytes", path, maxPath-len(fresh)+len(path))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the socket: %w", err)
	}
	if err := free(ctx, path); err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	// The mode of the descriptor is that of the name that bind makes.
	_ = os.Remove(fresh) // of a daemon of that number that was killed between the two
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	l, err := private.Listen(ctx, "unix", fresh)
	if err != nil {
		return nil, fmt.Errorf("listen at the socket: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.Rename(fresh, path); err != nil {
		return nil, errors.Join(fmt.Errorf("name the socket: %w", err), l.Close(), os.Remove(fresh))
	}
	made, err := os.Stat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look at the socket: %w", err), l.Close())
	}
	return &listener{Listener: l, path: path, made: made}, nil
}

// free says what keeps a name from being taken: nothing if it is not there, or a socket
// that nobody answers at.
func free(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != os.ModeSocket {
		return errors.New("it is there, and no socket")
	}
	conn, err := (&net.Dialer{Timeout: knock}).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(ErrTaken, conn.Close())
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	return err
}

// Vanished says whether the name of a socket is gone, or another's: whoever has removed it
// did not mean that nobody is answered any more.
func Vanished(l net.Listener) bool {
	ours, ok := l.(*listener)
	if !ok {
		return false
	}
	now, err := os.Lstat(ours.path)
	return err != nil || !os.SameFile(now, ours.made)
}

// A listener takes its socket with it, unless another one has the name by now.
type listener struct {
	net.Listener
	path string
	made os.FileInfo
}

func (l *listener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.made) {
		_ = os.Remove(l.path) // a name that is left over is replaced by the next daemon
	}
	return l.Listener.Close()
}
