package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
)

// bindRetry is how often an address that is taken is tried again, as kube-proxy
// does.
const bindRetry = 5 * time.Second

// An endpoint is what a server answers at.
type endpoint struct {
	// address has a port; empty: the server is off.
	address string
	handler http.Handler
	// hardFail makes an address that is taken an error that ends the server.
	hardFail bool
}

// A server answers at one endpoint at a time.
type server struct {
	// name says which one it is, as in "metrics".
	name string
	log  logr.Logger
	// failed, if set, is called for each address that can't be had, when it is tried
	// for the first time.
	failed func(error)
	retry  time.Duration // 0: bindRetry
	// turn is closed once no other daemon writes the tables. Until then, and for a moment
	// afterwards, an address that is taken is no news: it is that daemon's. nil: it is closed.
	turn <-chan struct{}
}

// A predecessor that ends lets its lock and its addresses go one after the other.
const (
	afterTurn = 50 * time.Millisecond
	turnTries = 20
)

// follow answers at the first endpoint, then at each that comes, until ctx ends or an
// address that must be had can't be had. An endpoint whose address stays is changed
// without missing a request for longer than that takes.
func (s server) follow(ctx context.Context, first endpoint, changes <-chan endpoint) error {
	for next := first; ; {
		at := next
		during, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- s.serve(during, at) }() // ends with stop
		select {
		case err := <-ended:
			stop()
			return err
		case next = <-changes:
			stop()
			if err := <-ended; err != nil {
				return err
			}
		}
	}
}

// serve answers on an address until ctx ends. An address that is taken is tried
// again: the tables matter more.
func (s server) serve(ctx context.Context, at endpoint) error {
	if at.address == "" {
		<-ctx.Done()
		return nil
	}
	retry := cmp.Or(s.retry, bindRetry)
	for first := true; ; first = false {
		err := s.answerInTurn(ctx, at, retry)
		if ctx.Err() != nil {
			return nil
		}
		err = fmt.Errorf("%s server: %w", s.name, err)
		if first && s.failed != nil {
			s.failed(err)
		}
		if at.hardFail {
			return err
		}
		s.log.Error(err, "cannot answer, trying again", "address", at.address, "after", retry)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

// answerInTurn answers, and tries an address that is taken again while that is the other
// daemon's, which writes the tables.
func (s server) answerInTurn(ctx context.Context, at endpoint, retry time.Duration) error {
	waited := false
	for tries := turnTries; ; {
		err := answer(ctx, at)
		if s.turn == nil || ctx.Err() != nil {
			return err
		}
		turn, wait := s.turn, retry
		select {
		case <-s.turn:
			if !waited || tries == 0 {
				return err
			}
			turn, wait, tries = nil, afterTurn, tries-1
		default:
			if !waited {
				s.log.V(1).Info("the other oneruled has the address", "server", s.name, "address", at.address)
			}
			waited = true
		}
		select {
		case <-ctx.Done():
		case <-turn:
		case <-time.After(wait):
		}
	}
}

// answer listens and answers until ctx ends or it can't.
func answer(ctx context.Context, at endpoint) error {
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", at.address)
	if err != nil {
		return err
	}
	return serveOn(ctx, l, at.handler)
}

// serveOn answers what comes to a listener until ctx ends or it can't. It closes it.
func serveOn(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		_ = server.Close()
	})
	err := server.Serve(l)
	if !stop() {
		<-closed // the address is free for the next one
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
