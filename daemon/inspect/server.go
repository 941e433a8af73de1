package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"
)

// A Daemon is who is asked. Its methods may be called from any goroutine.
type Daemon interface {
	Status(context.Context) (Status, error)
	Hits(context.Context) (Hits, error)
	// Services calls each with all Services one by one, or those with a name:
	// NAMESPACE/NAME, or NAME of any namespace. An error of each ends it.
	Services(ctx context.Context, name string, each func(Service) error) error
	Explain(context.Context, Query) (Explanation, error)
	Diff(context.Context) (Diff, error)
}

// Bounds of what is answered: whoever asks more often waits, or is told to.
const (
	atOnce   = 4
	patience = 30 * time.Second
)

// Handler answers for a daemon.
func Handler(d Daemon) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/status", answer(func(r *http.Request) (any, error) { return d.Status(r.Context()) }))
	mux.Handle("GET /v1/hits", answer(func(r *http.Request) (any, error) { return d.Hits(r.Context()) }))
	mux.Handle("GET /v1/services", answerEach(func(r *http.Request, each func(Service) error) error {
		return d.Services(r.Context(), r.URL.Query().Get("name"), each)
	}))
	mux.Handle("GET /v1/explain", answer(func(r *http.Request) (any, error) {
		q, err := parseQuery(r)
		if err != nil {
			return nil, err
		}
		return d.Explain(r.Context(), q)
	}))
	mux.Handle("GET /v1/diff", answer(func(r *http.Request) (any, error) { return d.Diff(r.Context()) }))
	return bounded(mux, atOnce, patience)
}

// bounded lets only some requests in at once, each for a time: also one whose answer nobody
// reads.
func bounded(next http.Handler, atOnce int, patience time.Duration) http.Handler {
	seats := make(chan struct{}, atOnce)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		select {
		case seats <- struct{}{}:
			defer func() { <-seats }()
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patience)) // a connection has one
			next.ServeHTTP(w, r.WithContext(ctx))
		case <-ctx.Done():
			refuse(w, http.StatusServiceUnavailable, errors.New("the daemon is busy with other questions"))
		}
	})
}

// A Refusal is an answer that says why there is none.
type Refusal struct {
	Error string `json:"error"`
}

// A question error is the fault of who asks.
type questionError struct{ error }

// Wrong marks an error as one of the question.
func Wrong(format string, args ...any) error { return questionError{fmt.Errorf(format, args...)} }

func answer(f func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		if err != nil {
			refuse(w, codeOf(err), err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // whoever asked has gone
	})
}

// answerEach answers with values one after the other, as many as there are: only one of them
// is held at a time. What goes wrong behind the first one breaks the answer off.
func answerEach[T any](f func(r *http.Request, each func(T) error) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun, to := false, json.NewEncoder(w)
		err := f(r, func(v T) error {
			if !begun {
				w.Header().Set("Content-Type", "application/json")
				begun = true
			}
			return to.Encode(v)
		})
		switch {
		case err != nil && begun:
			panic(http.ErrAbortHandler) // so that what there is is not taken for all
		case err != nil:
			refuse(w, codeOf(err), err)
		}
	})
}

// codeOf tells faults of who asks from others.
func codeOf(err error) int {
	if _, wrong := errors.AsType[questionError](err); wrong {
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

func refuse(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(Refusal{err.Error()}) // whoever asked has gone
}

func parseQuery(r *http.Request) (q Query, err error) {
	v := r.URL.Query()
	if from := v.Get("from"); from != "" {
		if q.From, err = netip.ParseAddr(from); err != nil {
			return q, Wrong("from: %q is no IP address", from)
		}
		q.From = q.From.Unmap()
	}
	if q.To, err = netip.ParseAddrPort(v.Get("to")); err != nil {
		return q, Wrong("to: %q is no IP address with a port", v.Get("to"))
	}
	q.To = netip.AddrPortFrom(q.To.Addr().Unmap(), q.To.Port())
	q.In, q.Protocol = v.Get("in"), v.Get("protocol")
	if !slices.Contains([]string{"TCP", "UDP", "SCTP"}, q.Protocol) {
		return q, Wrong("protocol: %q is neither TCP, UDP nor SCTP", q.Protocol)
	}
	if q.From.IsValid() && q.From.Is4() != q.To.Addr().Is4() {
		return q, Wrong("%s and %s are of two IP families", q.From, q.To.Addr())
	}
	return q, nil
}
