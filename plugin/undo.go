package plugin

import (
	"errors"
	"fmt"
)

// An undo is a stack of the steps that take back what was done so far.
type undo []undoStep

type undoStep struct {
	what string
	do   func() error
}

func (u *undo) push(what string, do func() error) { *u = append(*u, undoStep{what, do}) }

// run takes back the last step first and stops at the first that fails: an
// address must not be freed while its link is there. The record stays then, and
// DEL has what it needs.
func (u *undo) run(cause error) error {
	for i := len(*u) - 1; i >= 0; i-- {
		step := (*u)[i]
		if err := step.do(); err != nil {
			return withUndoError(cause, fmt.Errorf("undo %s: %w", step.what, err))
		}
	}
	return cause
}

// withUndoError keeps the code and the message of the cause.
func withUndoError(cause, err error) error {
	var e *codedError
	if !errors.As(cause, &e) {
		return errors.Join(cause, err)
	}
	return &codedError{code: e.code, msg: e.msg, err: errors.Join(e.err, err)}
}
