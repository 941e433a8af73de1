package invariants_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"onerule/test/rig"
)

// refusedSocket names the socket of a refuser, for an executable that is to become
// another one.
const refusedSocket = "ONERULE_REFUSED_SOCKET"

func TestMain(m *testing.M) {
	if socket := os.Getenv(refusedSocket); socket != "" {
		fmt.Fprintln(os.Stderr, "run with refusals:", becomeRefusable(socket, os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A refuser decides which transactions of the daemon, and of each nft that it runs, fail
// for want of buffers: the kernel asks it about each sendmsg (seccomp, 5.0). Nothing of
// the daemon knows of it.
type refuser struct {
	mu           sync.Mutex
	random       *rand.Rand
	percent      int
	seen, failed int
	err          error // why it cannot tell any more
}

// newRefuser makes a daemon that is not started yet be asked about.
func newRefuser(t *testing.T, d *rig.Daemon, seed uint64) *refuser {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "socket")
	d.By(self)
	d.Env(refusedSocket + "=" + socket)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // which ends the goroutine
	r := &refuser{random: rand.New(rand.NewPCG(seed, seed))}
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			err = r.attend(conn)
			r.mu.Lock()
			r.err = errors.Join(r.err, err)
			r.mu.Unlock()
		}
	}()
	return r
}

// refuse sets how many transactions of a hundred fail from now on.
func (r *refuser) refuse(percent int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.percent = percent
}

// counts says how many transactions there were, and how many failed.
func (r *refuser) counts(t *testing.T) (seen, failed int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		t.Fatalf("decide upon transactions: %v", r.err)
	}
	return r.seen, r.failed
}

// becomeRefusable lets the test decide upon the sendmsg calls of this thread, and makes
// it run a command. It returns only if that fails.
func becomeRefusable(socket string, command []string) error {
	runtime.LockOSThread()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	// Load the number of the call; if it is sendmsg, ask.
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SENDMSG, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	if _, err := conn.Write([]byte{byte(fd)}); err != nil {
		return err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil { // it is attended to
		return err
	}
	return syscall.Exec(command[0], command, os.Environ())
}

// attend takes over the listener of a process that is to be refused, and answers in its
// name until it has ended.
func (r *refuser) attend(conn *net.UnixConn) error {
	defer func() { _ = conn.Close() }()
	number := make([]byte, 1)
	if _, err := conn.Read(number); err != nil {
		return err
	}
	pid, err := peer(conn)
	if err != nil {
		return err
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer func() { _ = unix.Close(process) }()
	listener, err := unix.PidfdGetfd(process, int(number[0]), 0)
	if err != nil {
		return os.NewSyscallError("pidfd_getfd", err)
	}
	go r.answer(listener) // ends with the process and its children
	_, err = conn.Write([]byte{0})
	return err
}

func peer(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid, errors.Join(err, controlErr)
}

// A question is the kernel's: struct seccomp_notif.
type question struct {
	id         uint64
	pid, flags uint32
	number     int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

// A reply is ours: struct seccomp_notif_resp.
type reply struct {
	id    uint64
	value int64
	error int32
	flags uint32
}

// goOn lets a call be made as if nobody had asked (SECCOMP_USER_NOTIF_FLAG_CONTINUE).
const goOn = 1

func (r *refuser) answer(listener int) {
	defer func() { _ = unix.Close(listener) }()
	for {
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, int(time.Second/time.Millisecond)); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		switch {
		case poll[0].Revents&unix.POLLIN != 0:
		case poll[0].Revents&unix.POLLHUP != 0:
			return // nobody is left to ask about
		default:
			continue
		}
		var q question
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&q))); errno != 0 {
			continue // who asked was killed meanwhile
		}
		a := reply{id: q.id, flags: goOn}
		if isTransaction(int(q.pid), uintptr(q.args[1])) && r.decide() {
			a = reply{id: q.id, error: -int32(unix.ENOBUFS)}
		}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
	}
}

// decide says whether a transaction fails.
func (r *refuser) decide() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen++
	if r.random.IntN(100) >= r.percent {
		return false
	}
	r.failed++
	return true
}

// isTransaction says whether a message to be sent begins a batch of nfnetlink. Of all
// that the daemon and nft send, nothing else is of this type.
func isTransaction(pid int, message uintptr) bool {
	var header struct {
		name       uint64
		nameSize   uint64
		iov, nIovs uint64
	}
	var iov struct{ base, size uint64 }
	var netlink unix.NlMsghdr
	return peek(pid, message, unsafe.Pointer(&header), unsafe.Sizeof(header)) &&
		peek(pid, uintptr(header.iov), unsafe.Pointer(&iov), unsafe.Sizeof(iov)) &&
		peek(pid, uintptr(iov.base), unsafe.Pointer(&netlink), unsafe.Sizeof(netlink)) &&
		netlink.Type == unix.NFNL_MSG_BATCH_BEGIN
}

// peek reads the memory of another process.
func peek(pid int, from uintptr, to unsafe.Pointer, size uintptr) bool {
	local := []unix.Iovec{{Base: (*byte)(to), Len: uint64(size)}}
	n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: from, Len: int(size)}}, 0)
	return err == nil && n == int(size)
}
