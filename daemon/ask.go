package daemon

import (
	"context"
	"errors"
	"fmt"
)

// errWaiting says that another daemon writes the tables.
var errWaiting = errors.New("another oneruled writes the tables of this network: this one waits for its end")

// errBusy says that the loop does not come to a question in time.
var errBusy = errors.New("the daemon is busy writing")

// ask has the loop, which owns what is known and written, call f between two syncs. f does
// not wait, and gives what it found as values that the loop does not change. Of what goes
// wrong in it, only who asked hears: the tables matter more.
func (d *Daemon) ask(ctx context.Context, f func()) error {
	if !d.history.isRunning() {
		return errWaiting
	}
	answered := make(chan error, 1)
	question := func() {
		defer func() {
			if r := recover(); r != nil {
				d.cfg.Log.Error(fmt.Errorf("%v", r), "a question could not be answered")
				answered <- fmt.Errorf("the question could not be answered: %v", r)
				return
			}
			answered <- nil
		}()
		f()
	}
	select {
	case d.asks <- question:
		return <-answered
	case <-ctx.Done():
		return errBusy
	}
}
