package plugin

import (
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
)

// Error codes of our own; the README lists them for the reader of a log.
const (
	codePoolExhausted      uint = 100
	codeAddressUnavailable uint = 101
	codeInterfaceExists    uint = 102
	codeAttachmentExists   uint = 103
	codeWiring             uint = 104
	codeForwarding         uint = 105
	codeCheckFailed        uint = 106
	codeRemoval            uint = 107
	codeGarbageLeft        uint = 108
	codePortTaken          uint = 109
)

// A codedError is an error as a runtime sees it: what failed, why, and a number.
type codedError struct {
	code uint
	msg  string
	err  error // the cause, may be nil
}

func failure(code uint, cause error, format string, args ...any) error {
	return &codedError{code: code, msg: fmt.Sprintf(format, args...), err: cause}
}

func (e *codedError) Error() string {
	if e.err == nil {
		return e.msg
	}
	return e.msg + ": " + e.err.Error()
}

func (e *codedError) Unwrap() error { return e.err }

// printError writes the error object to stdout, where libcni looks for it. The
// library's own printer leaves cniVersion out.
func (p Process) printError(err error, cniVersion string) {
	out := struct {
		CNIVersion string `json:"cniVersion"`
		Code       uint   `json:"code"`
		Msg        string `json:"msg"`
		Details    string `json:"details,omitempty"`
	}{cniVersion, types.ErrInternal, err.Error(), ""}
	var e *codedError
	if errors.As(err, &e) {
		out.Code = e.code
	}
	if top, ok := err.(*codedError); ok && top.err != nil { //nolint:errorlint // only the outermost splits in two
		out.Msg, out.Details = top.msg, top.err.Error()
	}
	if err := p.print(out); err != nil {
		p.warn("%v; the error was: %s: %s", err, out.Msg, out.Details)
	}
}
