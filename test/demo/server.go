package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// podPort is where the pods' servers listen.
const podPort = 8080

// serve answers HTTP in a host's namespace, on all its addresses, with the host's
// name and the address that the request came from. It goes on until stop.
func (h host) serve(port uint16) (stop func(), err error) {
	var l net.Listener
	err = h.ns.Do(func() error {
		var listen net.ListenConfig
		listen.SetMultipathTCP(false)
		l, err = listen.Listen(context.Background(), "tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", h.name, err)
	}
	server := &http.Server{
		ReadHeaderTimeout: patience,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			from, err := netip.ParseAddrPort(r.RemoteAddr)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			fmt.Fprintf(w, "%s %s", h.name, from.Addr().Unmap())
		}),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // ends with stop
	}()
	return func() {
		_ = server.Close() // nobody waits for an answer any more
		<-done
	}, nil
}

// eventually asks until something is so, and gives how long that took from start.
func eventually(ctx context.Context, what string, start time.Time, is func() (bool, error)) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("waited 10 s"))
	defer cancel()
	ticks := time.NewTicker(2 * time.Millisecond)
	defer ticks.Stop()
	for {
		so, err := is()
		if so {
			return time.Since(start), nil
		}
		select {
		case <-ctx.Done():
			cause := context.Cause(ctx)
			if err != nil {
				cause = fmt.Errorf("%w: %w", cause, err)
			}
			return 0, fmt.Errorf("wait until %s: %w", what, cause)
		case <-ticks.C:
		}
	}
}
