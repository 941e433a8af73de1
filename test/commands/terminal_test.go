package commands_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/test/addr"
	"onerule/test/rig"
)

// A terminal is the far end of a pty: what a program shows there.
type terminal struct {
	mu   sync.Mutex
	seen bytes.Buffer
}

func (t *terminal) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen.String()
}

// read takes in what is shown until the program has ended.
func (t *terminal) read(from *os.File) {
	b := make([]byte, 4096)
	for {
		n, err := from.Read(b)
		t.mu.Lock()
		t.seen.Write(b[:n])
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// onTerminal starts a command with a terminal of so many rows.
func (w *world) onTerminal(t *testing.T, rows uint16, args ...string) (*exec.Cmd, *terminal) {
	t.Helper()
	far, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	n, err := unix.IoctlGetInt(int(far.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(far.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(far.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: 120}); err != nil {
		t.Fatal(err)
	}
	near, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = near.Close() }()
	cmd := exec.Command(w.bin, append(args, "--socket", w.socket)...)
	cmd.Stdout, cmd.Stderr = near, near
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=")
	if err := w.h.Node.Start(cmd); err != nil {
		t.Fatal(err)
	}
	seen := &terminal{}
	go seen.read(far) // ends when the program, or the test, has
	return cmd, seen
}

// terminal sees top refresh in place, in as many rows as there are, until it is
// interrupted.
func (w *world) terminal(t *testing.T) {
	const rows = 6
	cmd, seen := w.onTerminal(t, rows, "top", "--every", "100ms")
	rig.Eventually(t, "top shows some readings", func() error {
		if n := strings.Count(seen.text(), "\x1b[H"); n < 3 {
			return fmt.Errorf("%d of them: %q", n, seen.text())
		}
		return nil
	})
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v after an interrupt, want success", err)
	}
	shown := strings.Split(seen.text(), "\x1b[H")
	if strings.Count(seen.text(), "\x1b[2J") != 1 || shown[0] != "\x1b[2J" {
		t.Errorf("want the screen wiped once, at the beginning: %q", seen.text())
	}
	for _, reading := range shown[1:3] {
		if lines := strings.Count(reading, "\n"); lines != rows-1 || !strings.HasSuffix(reading, "\x1b[J") {
			t.Errorf("a reading has %d lines, want %d, and what is below wiped: %q", lines, rows-1, reading)
		}
		if !strings.Contains(reading, "\x1b[36mdefault/") {
			t.Errorf("no colours in %q", reading)
		}
	}
}

// strayVIP gives a ClusterIP for an object that is left out.
func strayVIP() []netip.Addr { return []netip.Addr{addr.IPv4().VIP(80)} }

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, string(text))
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
