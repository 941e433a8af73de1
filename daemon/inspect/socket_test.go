package inspect_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"onerule/daemon/inspect"
)

// path gives a name for a socket: one that is short enough, whatever the test is called.
func path(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "run", "sock")
}

// answering is a daemon with fixed answers.
type answering struct {
	inspect.Daemon
	fail error
	wait chan struct{}
}

func (a answering) Status(ctx context.Context) (inspect.Status, error) {
	if a.wait != nil {
		select {
		case <-a.wait:
		case <-ctx.Done():
		}
	}
	return inspect.Status{Node: "n", Degraded: []string{}}, a.fail
}

func (a answering) Explain(_ context.Context, q inspect.Query) (inspect.Explanation, error) {
	return inspect.Explanation{From: q.From.String(), To: q.To.String(), In: q.In, Protocol: q.Protocol}, nil
}

// serve answers at a socket until the test ends.
func serve(t *testing.T, path string, d inspect.Daemon) net.Listener {
	t.Helper()
	l, err := inspect.Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: inspect.Handler(d), ReadHeaderTimeout: time.Second}
	ended := make(chan struct{})
	go func() { // ends when the server is closed
		defer close(ended)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return l
}

func TestTheSocketIsForItsOwnerOnly(t *testing.T) {
	at := path(t)
	serve(t, at, answering{})
	info, err := os.Stat(at)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("got %v, %v, want a socket of mode 0600", info.Mode(), err)
	}
	if list, err := os.ReadDir(filepath.Dir(at)); err != nil || len(list) != 1 {
		t.Errorf("beside it is %v, %v, want nothing", list, err)
	}
	if s, err := (inspect.Client{Socket: at}).Status(t.Context()); err != nil || s.Node != "n" {
		t.Errorf("got %+v, %v, want the answer", s, err)
	}
}

func TestWhatHasTheNameOfTheSocket(t *testing.T) {
	t.Run("a socket of a dead daemon is replaced", func(t *testing.T) {
		at := path(t)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		left, err := net.ListenUnix("unix", &net.UnixAddr{Name: at})
		if err != nil {
			t.Fatal(err)
		}
		left.SetUnlinkOnClose(false)
		_ = left.Close() // as a process that is killed does
		if _, err := (inspect.Client{Socket: at}).Status(t.Context()); !errors.Is(err, inspect.ErrNoDaemon) || !strings.Contains(err.Error(), "has ended") {
			t.Errorf("before: got %v, want that it has ended", err)
		}
		serve(t, at, answering{})
		if _, err := (inspect.Client{Socket: at}).Status(t.Context()); err != nil {
			t.Errorf("after: %v", err)
		}
	})
	t.Run("one that answers stays", func(t *testing.T) {
		at := path(t)
		serve(t, at, answering{})
		if _, err := inspect.Listen(t.Context(), at); !errors.Is(err, inspect.ErrTaken) {
			t.Errorf("got %v, want that it is taken", err)
		}
		if _, err := (inspect.Client{Socket: at}).Status(t.Context()); err != nil {
			t.Errorf("the first one answers no more: %v", err)
		}
	})
	t.Run("a file stays", func(t *testing.T) {
		at := path(t)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := inspect.Listen(t.Context(), at); err == nil || !strings.Contains(err.Error(), "no socket") {
			t.Errorf("got %v, want that it is no socket", err)
		}
		if text, err := os.ReadFile(at); err != nil || string(text) != "mine" {
			t.Errorf("the file holds %q, %v", text, err)
		}
	})
	t.Run("a path that no socket can have is refused", func(t *testing.T) {
		if _, err := inspect.Listen(t.Context(), path(t)+strings.Repeat("x", 100)); err == nil || !strings.Contains(err.Error(), "longer than") {
			t.Errorf("got %v, want that it is too long", err)
		}
	})
	t.Run("a daemon that ends takes its socket with it", func(t *testing.T) {
		at := path(t)
		l := serve(t, at, answering{})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(at); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v, want that it is gone", err)
		}
		if _, err := (inspect.Client{Socket: at}).Status(t.Context()); !errors.Is(err, inspect.ErrNoDaemon) || !strings.Contains(err.Error(), "no such socket") {
			t.Errorf("got %v, want that there is no daemon", err)
		}
	})
	t.Run("but not that of its successor", func(t *testing.T) {
		at := path(t)
		l := serve(t, at, answering{})
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
		serve(t, at, answering{})
		_ = l.Close()
		if _, err := (inspect.Client{Socket: at}).Status(t.Context()); err != nil {
			t.Errorf("the successor does not answer: %v", err)
		}
	})
}

func TestQuestionsAreChecked(t *testing.T) {
	at := path(t)
	serve(t, at, answering{fail: errors.New("the kernel is silent")})
	client := inspect.Client{Socket: at}
	good := inspect.Query{From: netip.MustParseAddr("::ffff:10.0.0.1"), In: "eth0", To: netip.MustParseAddrPort("10.0.0.2:80"), Protocol: "TCP"}
	t.Run("a good one is answered", func(t *testing.T) {
		e, err := client.Explain(t.Context(), good)
		if err != nil || e.From != "10.0.0.1" || e.To != "10.0.0.2:80" || e.In != "eth0" || e.Protocol != "TCP" {
			t.Errorf("got %+v, %v, want what was asked", e, err)
		}
	})
	for name, c := range map[string]struct {
		spoil func(*inspect.Query)
		want  string
	}{
		"another protocol": {func(q *inspect.Query) { q.Protocol = "ICMP" }, `"ICMP" is neither`},
		"no destination":   {func(q *inspect.Query) { q.To = netip.AddrPort{} }, "no IP address with a port"},
		"two families":     {func(q *inspect.Query) { q.From = netip.IPv6Loopback() }, "two IP families"},
	} {
		t.Run(name, func(t *testing.T) {
			q := good
			c.spoil(&q)
			if _, err := client.Explain(t.Context(), q); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
	t.Run("what fails is said as it is", func(t *testing.T) {
		if _, err := client.Status(t.Context()); err == nil || err.Error() != "the kernel is silent" {
			t.Errorf("got %v, want the daemon's own words", err)
		}
	})
}

func TestMoreQuestionsThanAreAnsweredAtOnceWait(t *testing.T) {
	at, wait := path(t), make(chan struct{})
	serve(t, at, answering{wait: wait})
	answers := make(chan error, 12)
	for range cap(answers) {
		go func() { // ends with its answer
			_, err := (inspect.Client{Socket: at}).Status(context.Background())
			answers <- err
		}()
	}
	select {
	case err := <-answers:
		t.Fatalf("answered before the daemon had: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(wait)
	for n := range cap(answers) {
		if err := <-answers; err != nil {
			t.Errorf("%s: %v", fmt.Sprint("answer ", n), err)
		}
	}
}
