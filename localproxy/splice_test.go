package localproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"onerule/localproxy"
	"onerule/test/netns"
)

// proxyEnv has where a process serves and where that leads to: it is one of this binary
// that a test has started.
const proxyEnv = "LOCALPROXY_TEST_CHILD"

// What connections carry does not come to the proxy: all of it is spliced, and what its
// system calls read and write otherwise is next to nothing.
func TestWhatIsCarriedStaysInTheKernel(t *testing.T) {
	if from, to, ok := strings.Cut(os.Getenv(proxyEnv), " "); ok {
		proxyUntilEOF(t, netip.MustParseAddrPort(from), netip.MustParseAddrPort(to))
		return
	}
	netns.Privileged(t)
	if _, err := exec.LookPath("strace"); err != nil && os.Getenv("ONERULE_PRIVILEGED") == "" {
		t.Skip("needs strace, which make setup installs")
	}
	const size = 64 << 20
	each(t, func(t *testing.T, h host) {
		h.serve(t, 1, func(c *net.TCPConn) {
			n, err := io.Copy(io.Discard, c)
			_, _ = fmt.Fprint(c, n, " ", err)
		})
		traced := tracedProxy(t, h)
		conn := h.dial(t, h.loopback(30001))
		block := make([]byte, 1<<20)
		for range size / len(block) {
			if _, err := conn.Write(block); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); err != nil || string(got) != fmt.Sprint(size, " ", nil) {
			t.Fatalf("the endpoint says %q, %v, want %d bytes", got, err, size)
		}
		moved := traced()
		if want := 2 * size; moved["splice"] < want {
			t.Errorf("%d bytes were spliced, want %d from and %d to a socket", moved["splice"], size, size)
		}
		delete(moved, "splice")
		for call, n := range moved {
			if n > size/1000 {
				t.Errorf("%s has moved %d bytes", call, n)
			}
		}
	})
}

// proxyUntilEOF serves as long as there is somebody at the other end of standard input.
func proxyUntilEOF(t *testing.T, from, to netip.AddrPort) {
	p := localproxy.New(localproxy.Config{Failed: func(_ netip.AddrPort, err error, _ bool) { t.Error(err) }})
	defer p.Close()
	p.Put(from, localproxy.Service{Endpoints: []netip.AddrPort{to}})
	fmt.Println("served")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// tracedProxy starts a proxy in a process of its own, which ends with what it gives: that
// says how many bytes were moved by each system call.
func tracedProxy(t *testing.T, h host) (moved func() map[string]int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command("strace", "--follow-forks", "--output", file, "--string-limit", "0",
		"--trace", "splice,read,write,readv,writev,pread64,pwrite64,recvfrom,sendto,recvmsg,sendmsg,recvmmsg,sendmmsg,sendfile,tee,vmsplice",
		self, "-test.run=^TestWhatIsCarriedStaysInTheKernel$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s", proxyEnv, h.loopback(30001), h.endpoint(1)))
	cmd.Stderr = os.Stderr
	in, errIn := cmd.StdinPipe()
	out, errOut := cmd.StdoutPipe()
	if errIn != nil || errOut != nil {
		t.Fatal(errIn, errOut)
	}
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close() })
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "served\n" {
		t.Fatalf("the proxy says %q, %v", line, err)
	}
	return func() map[string]int {
		_ = in.Close()
		rest, _ := io.ReadAll(lines)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %s", err, rest)
		}
		return sums(t, file)
	}
}

// sums adds up what the system calls of a trace give, by their names.
func sums(t *testing.T, file string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	done := regexp.MustCompile(`(?m)^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>).* = (\d+)$`)
	for _, call := range done.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.Atoi(call[2])
		if err != nil {
			t.Fatal(err)
		}
		all[call[1]] += n
	}
	return all
}
