package inspect

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// Answers that nobody reads keep nobody from asking for long.
func TestWhoReadsNoAnswerLosesTheSeat(t *testing.T) {
	taken := make(chan struct{}, 1)
	endless := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/short" {
			_, _ = io.WriteString(w, "well")
			return
		}
		taken <- struct{}{}
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	server := httptest.NewServer(bounded(endless, 1, 200*time.Millisecond))
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprint(conn, "GET /endless HTTP/1.1\r\nHost: here\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-taken
	deadline := time.Now().Add(20 * time.Second)
	for {
		code := get(t, server.URL+"/short")
		if code == http.StatusOK {
			return
		}
		if code != http.StatusServiceUnavailable || time.Now().After(deadline) {
			t.Fatalf("got %d, want that the daemon is busy, and then an answer", code)
		}
	}
}

func get(t *testing.T, url string) int {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	return r.StatusCode
}

// An answer that breaks off is not taken for a whole one.
func TestAnAnswerThatBreaksOffIsNoAnswer(t *testing.T) {
	server := httptest.NewServer(answerEach(func(r *http.Request, each func(int) error) error {
		for i := range 3 {
			if err := each(i); err != nil {
				return err
			}
		}
		if r.URL.Path == "/broken" {
			return io.ErrUnexpectedEOF
		}
		return nil
	}))
	t.Cleanup(server.Close)
	for path, whole := range map[string]bool{"/whole": true, "/broken": false} {
		r, err := http.Get(server.URL + path)
		if err == nil {
			var text []byte
			text, err = io.ReadAll(bufio.NewReader(r.Body))
			_ = r.Body.Close()
			if whole && string(text) != "0\n1\n2\n" {
				t.Errorf("%s: got %q", path, text)
			}
		}
		if (err == nil) != whole {
			t.Errorf("%s: got %v", path, err)
		}
	}
}
