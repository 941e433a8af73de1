package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"onerule/daemon/metrics"
)

// patience is how long a test waits for what is to happen.
const patience = 10 * time.Second

func says(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
}

// free gives an address that nobody listens on.
func free(t *testing.T) string {
	t.Helper()
	l := take(t, "127.0.0.1:0")
	defer l.Close()
	return l.Addr().String()
}

func take(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// get asks until the answer is the wanted one; empty: until there is none.
func get(t *testing.T, address, want string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	got := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		got = ""
		if answer, err := client.Get("http://" + address); err == nil {
			text, _ := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			got = string(text)
		}
		if got == want {
			return
		}
	}
	t.Fatalf("%s answers %q, want %q", address, got, want)
}

// running follows endpoints until the test ends it.
func running(t *testing.T, s server, first endpoint) (changes chan<- endpoint, end func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	to := make(chan endpoint)
	ended := make(chan error, 1)
	go func() { ended <- s.follow(ctx, first, to) }()
	end = func() error {
		stop()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			t.Fatal("the server does not end")
			return nil
		}
	}
	t.Cleanup(stop)
	return to, end
}

func TestServerFollowsItsEndpoint(t *testing.T) {
	one, two := free(t), free(t)
	changes, end := running(t, server{name: "metrics", log: logr.Discard()}, endpoint{address: one, handler: says("first")})
	get(t, one, "first")
	changes <- endpoint{address: one, handler: says("second")}
	get(t, one, "second")
	changes <- endpoint{address: two, handler: says("third")}
	get(t, two, "third")
	get(t, one, "")
	changes <- endpoint{}
	get(t, two, "")
	changes <- endpoint{address: one, handler: says("fifth")}
	get(t, one, "fifth")
	if err := end(); err != nil {
		t.Error(err)
	}
	get(t, one, "")
}

// A10.7, A11 bind failure
func TestServerTriesAnAddressThatIsTakenAgain(t *testing.T) {
	taken := take(t, "127.0.0.1:0")
	failed := make(chan error, 100)
	s := server{name: "healthz", log: logr.Discard(), retry: 10 * time.Millisecond, failed: func(err error) { failed <- err }}
	_, end := running(t, s, endpoint{address: taken.Addr().String(), handler: says("here")})
	select {
	case err := <-failed:
		if !strings.HasPrefix(err.Error(), "healthz server: listen tcp "+taken.Addr().String()) {
			t.Errorf("got failure %v, want one that names server and address", err)
		}
	case <-time.After(patience):
		t.Fatal("nobody is told that the address is taken")
	}
	_ = taken.Close()
	get(t, taken.Addr().String(), "here")
	if err := end(); err != nil || len(failed) > 0 {
		t.Errorf("got error %v and %d more failures, want none", err, len(failed))
	}
}

// While another daemon writes the tables, its addresses are no reason to end, and no news.
func TestServerTakesAnAddressOverWhenItIsItsTurn(t *testing.T) {
	taken := take(t, "127.0.0.1:0")
	address, turn, waits := taken.Addr().String(), make(chan struct{}), make(chan string, 100)
	failed := make(chan error, 100)
	log := funcr.New(func(_, line string) { waits <- line }, funcr.Options{Verbosity: 1})
	s := server{name: "healthz", log: log, failed: func(err error) { failed <- err }, turn: turn}
	_, end := running(t, s, endpoint{address: address, handler: says("here"), hardFail: true})
	select {
	case <-waits:
	case <-time.After(patience):
		t.Fatal("nothing says that it waits")
	}
	close(turn)
	_ = taken.Close()
	get(t, address, "here")
	if err := end(); err != nil || len(failed) > 0 {
		t.Errorf("got error %v and %d failures, want none", err, len(failed))
	}
}

func TestServerThatHasItsTurnTellsOfAnAddressThatIsTaken(t *testing.T) {
	for name, waits := range map[string]bool{"at once": false, "after it waited": true} {
		t.Run(name, func(t *testing.T) {
			taken := take(t, "127.0.0.1:0")
			defer taken.Close()
			turn, told := make(chan struct{}), false
			log := logr.Discard()
			if waits {
				log = funcr.New(func(_, line string) { close(turn) }, funcr.Options{Verbosity: 1})
			} else {
				close(turn)
			}
			s := server{name: "metrics", log: log, failed: func(error) { told = true }, turn: turn, retry: time.Hour}
			err := s.follow(t.Context(), endpoint{address: taken.Addr().String(), hardFail: true}, nil)
			if err == nil || !told {
				t.Errorf("got %v, told %t, want an error that is told", err, told)
			}
		})
	}
}

func TestServerThatMustHaveItsAddressEnds(t *testing.T) {
	taken := take(t, "127.0.0.1:0")
	defer taken.Close()
	told := false
	s := server{name: "metrics", log: logr.Discard(), failed: func(error) { told = true }}
	err := s.follow(t.Context(), endpoint{address: taken.Addr().String(), hardFail: true}, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "metrics server: listen tcp ") || !told {
		t.Errorf("got %v, told %t, want an error that is told", err, told)
	}
}

func TestFeaturesHaveTheStagesOfKubernetes(t *testing.T) {
	want := []metrics.Feature{
		{Name: "AllAlpha", Stage: "ALPHA"}, {Name: "AllBeta", Stage: "BETA"}, {Name: "NFTablesProxyMode", Stage: "", Enabled: true},
	}
	got := features(map[string]bool{"AllBeta": false, "NFTablesProxyMode": true, "AllAlpha": false})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
