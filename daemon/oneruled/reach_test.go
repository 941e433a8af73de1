package main

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
)

func TestAskedByService(t *testing.T) {
	for name, c := range map[string]struct {
		host, service string
		want          bool
	}{
		"what the kubelet says":                {"10.96.0.1", "10.96.0.1", true},
		"what a ConfigMap says":                {"192.0.2.1", "10.96.0.1", false},
		"no pod":                               {"", "", false},
		"a pod whose Service nobody speaks of": {"192.0.2.1", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{"KUBERNETES_SERVICE_HOST": c.host, "KUBERNETES_PORT_443_TCP_ADDR": c.service}
			if got := askedByService(func(name string) string { return env[name] }); got != c.want {
				t.Errorf("got %t, want %t", got, c.want)
			}
		})
	}
}

// Who begins on a node without another proxy and without the server's own address reads what
// to do, in one line.
func TestAServerThatIsNotHeardIsToldOnceEachTime(t *testing.T) {
	for name, c := range map[string]struct {
		byService bool
		want      string
	}{
		"asked at the Service's address": {true, "ConfigMap onerule-apiserver"},
		"asked at another address":       {false, "what is in the kernel goes on"},
	} {
		t.Run(name, func(t *testing.T) {
			lines := make(chan string, 100)
			log := funcr.New(func(_, line string) {
				if strings.Contains(line, "is not heard") {
					lines <- line
				}
			}, funcr.Options{})
			var lost atomic.Int64
			looked := make(chan struct{})
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = reach{byService: c.byService, log: log, every: time.Millisecond, lost: func() time.Duration {
					looked <- struct{}{}
					return time.Duration(lost.Load())
				}}.tell(ctx)
			}()
			look := func(now time.Duration) {
				lost.Store(int64(now))
				for range 3 { // the first may have looked before
					<-looked
				}
			}
			look(silence - 1)
			if len(lines) > 0 {
				t.Errorf("got %q, want nothing yet", <-lines)
			}
			look(silence)
			look(0)
			look(2 * silence)
			stop()
			for done := false; !done; {
				select {
				case <-looked:
				case <-ended:
					done = true
				}
			}
			if len(lines) != 2 {
				t.Fatalf("got %d lines, want 2", len(lines))
			}
			if line := <-lines; !strings.Contains(line, c.want) {
				t.Errorf("got %q, want a line with %q", line, c.want)
			}
		})
	}
}
