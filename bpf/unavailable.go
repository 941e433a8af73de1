package bpf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// An unavailable error tells in one short line why nothing can be counted: what all ways
// lack, or what each lacks.
type unavailable struct {
	why  string
	errs []error
}

func (u unavailable) Error() string   { return u.why }
func (u unavailable) Unwrap() []error { return u.errs }

// A failure is why a way can't be taken.
type failure struct {
	mode string
	err  error
}

// neither gives the error of all ways.
func neither(failures []failure) error {
	u := unavailable{why: lackOfAll(failures)}
	var each []string
	for _, f := range failures {
		each = append(each, f.mode+": "+f.reason())
		u.errs = append(u.errs, fmt.Errorf("by %s: %w", f.mode, f.err))
	}
	if u.why == "" {
		u.why = strings.Join(each, "; ")
	}
	return u
}

// lackOfAll says what stands in each way, "" if that differs.
func lackOfAll(failures []failure) string {
	denied, unsupported := 0, 0
	for _, f := range failures {
		if errors.Is(f.err, unix.EPERM) || f.hidden() {
			denied++
		}
		if errors.Is(f.err, ebpf.ErrNotSupported) {
			unsupported++
		}
	}
	if unsupported == len(failures) {
		if _, err := btf.LoadKernelSpec(); errors.Is(err, ebpf.ErrNotSupported) {
			return "the kernel has no BTF (/sys/kernel/btf/vmlinux)"
		}
	}
	if denied == len(failures) {
		return denial()
	}
	return ""
}

// hidden says whether functions are not found because they are in a module: the kernel
// shows the BTF of modules to CAP_SYS_ADMIN only.
func (f failure) hidden() bool {
	return f.mode == modeFexit && errors.Is(f.err, ebpf.ErrNotSupported) && len(missing(sysAdmin())) > 0
}

// reason says shortly what a kernel says. The library's hint at a limit for memory that is
// locked is wrong since 5.11.
func (f failure) reason() string {
	var refused *ebpf.VerifierError
	switch {
	case errors.As(f.err, &refused) && len(refused.Log) > 0:
		return refused.Error()
	case errors.Is(f.err, unix.EPERM):
		return unix.EPERM.Error()
	case f.hidden():
		return "functions of modules can't be found without CAP_SYS_ADMIN"
	case f.mode == modeNetfilter && errors.Is(f.err, ebpf.ErrNotSupported):
		return "it takes Linux 6.4"
	}
	return f.err.Error()
}

// denied spells what the kernel does not permit to do.
func denied(err error) error {
	if errors.Is(err, unix.EPERM) {
		return unavailable{denial(), []error{err}}
	}
	return err
}

// denial names the capabilities that are missing.
func denial() string {
	needed := []capability{{"CAP_BPF", unix.CAP_BPF}, {"CAP_PERFMON", unix.CAP_PERFMON}, {"CAP_NET_ADMIN", unix.CAP_NET_ADMIN}}
	if len(missing(sysAdmin())) == 0 {
		needed = needed[2:]
	}
	if names := missing(needed...); len(names) > 0 {
		return fmt.Sprintf("%v without %s", unix.EPERM, strings.Join(names, ", "))
	}
	return fmt.Sprintf("%v, with all capabilities that it takes: a security module, lockdown or a user namespace forbids it", unix.EPERM)
}

// sysAdmin holds CAP_BPF and CAP_PERFMON.
func sysAdmin() capability { return capability{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN} }

// A capability has the kernel's name and number.
type capability struct {
	name   string
	number uint
}

// missing gives the names of those that the calling thread does not have.
func missing(list ...capability) []string {
	head, has := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	_ = unix.Capget(&head, &has[0]) // it fails for wrong arguments only
	var names []string
	for _, c := range list {
		if has[c.number/32].Effective&(1<<(c.number%32)) == 0 {
			names = append(names, c.name)
		}
	}
	return names
}

// VerifierLog gives all that the verifier said of the programs that an error is about, ""
// if that is nothing.
func VerifierLog(err error) string {
	switch e := err.(type) { //nolint:errorlint // of each that it holds
	case *ebpf.VerifierError:
		if len(e.Log) > 0 {
			return fmt.Sprintf("%+v\n", e)
		}
	case interface{ Unwrap() error }:
		return VerifierLog(e.Unwrap())
	case interface{ Unwrap() []error }:
		var all strings.Builder
		for _, one := range e.Unwrap() {
			all.WriteString(VerifierLog(one))
		}
		return all.String()
	}
	return ""
}
