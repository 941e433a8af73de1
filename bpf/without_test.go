package bpf_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/bpf"
	"onerule/test/netns"
)

// childEnv has the name of what a test of this binary lacks that another one has started.
const childEnv = "BPF_TEST_CHILD"

// Where nothing can be counted, one short line says what is missing.
func TestWhatIsMissingIsOneShortLine(t *testing.T) {
	if name := os.Getenv(childEnv); name != "" {
		fmt.Printf("child: %v\n", openWithout(name))
		return
	}
	perfmon := "operation not permitted without CAP_PERFMON"
	if open(t, netns.New(t, "node"), bpf.Options{}).Mode() == "fexit" {
		perfmon = "netfilter: it takes Linux 6.4; fexit: functions of modules can't be found without CAP_SYS_ADMIN"
	}
	for name, c := range map[string]struct {
		attr syscall.SysProcAttr
		want string
	}{
		"no privilege": {
			syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}},
			"operation not permitted without CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN",
		},
		"one capability": {syscall.SysProcAttr{}, perfmon},
		"no BTF": {
			syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS},
			"the kernel has no BTF (/sys/kernel/btf/vmlinux)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := child(t, name, &c.attr); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// openWithout opens counters in a process that lacks something, and gives what is said.
func openWithout(name string) error {
	runtime.LockOSThread() // capabilities are a thread's
	switch name {
	case "no BTF":
		if err := unix.Mount("none", "/sys/kernel/btf", "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("hide the kernel's BTF: %w", err)
		}
	case "one capability":
		head, caps := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		if err := unix.Capget(&head, &caps[0]); err != nil {
			return fmt.Errorf("look up capabilities: %w", err)
		}
		caps[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
		caps[1].Effective &^= 1 << (unix.CAP_PERFMON - 32)
		if err := unix.Capset(&head, &caps[0]); err != nil {
			return fmt.Errorf("drop capabilities: %w", err)
		}
	}
	_, err := bpf.Open(bpf.Options{})
	return err
}

// child runs this test in a process and a network namespace of its own, and gives what it
// says.
func child(t *testing.T, name string, attr *syscall.SysProcAttr) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(self) // nobody may not search the folder that it is in
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	cmd := exec.Command("/proc/self/fd/3", "-test.run=^TestWhatIsMissingIsOneShortLine$")
	cmd.ExtraFiles = []*os.File{open}
	cmd.Env = []string{childEnv + "=" + name}
	cmd.Dir = "/"
	attr.Cloneflags |= syscall.CLONE_NEWNET
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	said, ok := strings.CutPrefix(line, "child: ")
	if !ok {
		t.Fatalf("the child said: %s", out)
	}
	return said
}
