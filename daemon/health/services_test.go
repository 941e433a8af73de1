package health

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/test/netns"
)

// port is a healthCheckNodePort; the namespace is the test's own.
const port = 30080

func addrs(list ...string) []netip.Addr {
	var found []netip.Addr
	for _, s := range list {
		found = append(found, netip.MustParseAddr(s))
	}
	return found
}

// A node is a namespace in which the checks of Services are answered.
type node struct {
	*netns.NS
	*Services
	healthy atomic.Bool
	stop    func() // ends Run and waits for it

	mu     sync.Mutex
	failed []string
}

const (
	four, otherFour = "192.0.2.1", "192.0.2.2"
	six             = "2001:db8::1"
)

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{NS: netns.New(t, "node")}
	n.Addr(t, "lo", four+"/32", otherFour+"/32", six+"/128")
	n.reach(t, six)
	n.healthy.Store(true)
	n.Services = NewServices(ServicesConfig{
		Healthy: n.healthy.Load, Log: logr.Discard(), Retry: 20 * time.Millisecond,
		Failed: func(service model.Name, port uint16, err error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.failed = append(n.failed, fmt.Sprintf("%s %d: %v", service, port, errors.Is(err, syscall.EADDRINUSE)))
		},
	})
	return n
}

// reach waits until an address of the namespace has a route, which takes IPv6 a moment.
func (n *node) reach(t *testing.T, addr string) {
	t.Helper()
	if !until(func() bool {
		_, err := n.ask(t.Context(), http.MethodGet, addr, port, "/")
		return !errors.Is(err, syscall.ENETUNREACH)
	}) {
		t.Fatalf("no route to %s", addr)
	}
}

// run answers in the namespace until the test ends.
func (n *node) run(t *testing.T) *node {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Do(func() error { n.Services.Run(ctx); return nil }) }() // ends with ctx
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(n.stop)
	return n
}

func (n *node) told() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.failed)
}

// client sends from the namespace.
func (n *node) client() *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
			err = n.Do(func() (err error) {
				var d net.Dialer
				c, err = d.DialContext(ctx, network, address)
				return err
			})
			return c, err
		},
	}}
}

// at spells an address with a port.
func at(addr string, port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port).String()
}

// ask sends a request to an address and a port.
func (n *node) ask(ctx context.Context, method, addr string, port uint16, path string) (reply, error) {
	url := "http://" + at(addr, port) + path
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return reply{}, err
	}
	client := n.client()
	defer client.CloseIdleConnections()
	r, err := client.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	return reply{r.StatusCode, r.Header, string(body)}, err
}

// code gives the status code of an answer, 0 if nobody answers.
func (n *node) code(t *testing.T, addr string, port uint16) int {
	t.Helper()
	r, err := n.ask(t.Context(), http.MethodGet, addr, port, "/")
	if errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err) // says nothing of who listens
	}
	return r.code
}

// codes waits until the addresses answer with codes.
func (n *node) codes(t *testing.T, when string, port uint16, want map[string]int) {
	t.Helper()
	var got map[string]int
	if !until(func() bool {
		got = map[string]int{}
		for addr := range want {
			got[addr] = n.code(t, addr, port)
		}
		return cmp.Equal(want, got)
	}) {
		t.Fatalf("%s: port %d (-want +got): %s", when, port, cmp.Diff(want, got))
	}
}

// until waits for something, 10 s at most.
func until(f func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); <-tick.C {
		if f() {
			return true
		}
	}
	return f()
}

func everywhere(code int) map[string]int {
	return map[string]int{four: code, otherFour: code, six: code, "127.0.0.1": code, "::1": code}
}

func web(endpoints int) map[uint16]Check {
	return map[uint16]Check{port: {model.Name{Namespace: "shop", Name: "web"}, endpoints}}
}

// listening gives the listening sockets of the namespace on a port.
func (n *node) listening(t *testing.T, port uint16) []string {
	t.Helper()
	var list []string
	err := n.Do(func() error {
		for _, file := range []string{"tcp", "tcp6"} {
			f, err := os.Open("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			lines := bufio.NewScanner(f)
			for lines.Scan() {
				if fields := strings.Fields(lines.Text()); fields[3] == "0A" && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
					list = append(list, file)
				}
			}
			_ = f.Close()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestA9_2A9_3A9_4AnyRequestIsAnsweredAsKubeProxyDoes(t *testing.T) {
	n := newNode(t).run(t)
	for _, c := range []struct {
		endpoints int
		healthy   bool
		code      int
		body      string
	}{
		{3, true, 200, "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 3,\n\t\"serviceProxyHealthy\": true\n}"},
		{0, true, 503, "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 0,\n\t\"serviceProxyHealthy\": true\n}"},
		{3, false, 503, "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 3,\n\t\"serviceProxyHealthy\": false\n}"},
	} {
		n.healthy.Store(c.healthy)
		n.Sync(web(c.endpoints))
		n.codes(t, "to begin with", port, everywhere(c.code))
		for _, addr := range []string{four, six} {
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"} {
				got, err := n.ask(t.Context(), method, addr, port, "/any/path?x=y")
				if err != nil {
					t.Fatal(err)
				}
				want := c.body
				if method == "HEAD" {
					want = ""
				}
				h := [3]string{got.header.Get("Content-Type"), got.header.Get("X-Content-Type-Options"), got.header.Get("X-Load-Balancing-Endpoint-Weight")}
				if got.code != c.code || got.body != want || h != [3]string{"application/json", "nosniff", fmt.Sprint(c.endpoints)} {
					t.Errorf("%s %s: %d %q %q, want %d %q", method, addr, got.code, h, got.body, c.code, want)
				}
			}
		}
	}
}

func TestA9_2OptionsOfTheServerAreAnsweredToo(t *testing.T) {
	n := newNode(t).run(t)
	n.Sync(web(1))
	n.codes(t, "to begin with", port, map[string]int{four: 200})
	var line string
	err := n.Do(func() error {
		c, err := net.Dial("tcp", at(four, port))
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if _, err := io.WriteString(c, "OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
			return err
		}
		all, err := io.ReadAll(c)
		line = string(all)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(line, `"localEndpoints": 1`) {
		t.Errorf("OPTIONS *: %q", line)
	}
}

func TestA4_5ALoadBalancerHearsOfReadyEndpointsOnly(t *testing.T) {
	n := newNode(t).run(t)
	for _, step := range []struct{ ready, code int }{{1, 200}, {0, 503}, {2, 200}} {
		n.Sync(web(step.ready))
		n.codes(t, fmt.Sprint(step.ready, " ready"), port, map[string]int{four: step.code, six: step.code})
	}
}

func TestA9_6R39ANodeThatLeavesGoesOnBeingChecked(t *testing.T) {
	p := loaded(ProxyConfig{})
	n := newNode(t)
	n.cfg.Healthy = p.Healthy
	n.run(t).Sync(web(1))
	n.codes(t, "while it stays", port, map[string]int{four: 200})
	p.SetEligible(false)
	if got := codes(t, p); got != [2]int{503, 200} {
		t.Fatalf("/healthz and /livez: %v", got)
	}
	if got := n.code(t, four, port); got != 200 {
		t.Errorf("while it leaves: %d, want 200", got)
	}
	p.Failed("IPv4", time.Now().Add(-time.Hour))
	if got := n.code(t, four, port); got != 503 {
		t.Errorf("while the proxy fails: %d, want 503", got)
	}
}

func TestA9_7ChecksAreAnsweredAtTheAddressesOfNodePorts(t *testing.T) {
	n := newNode(t).run(t)
	n.Sync(web(1))
	n.codes(t, "unless restricted", port, everywhere(200))
	for _, step := range []struct {
		when string
		list []netip.Addr
		want map[string]int
	}{
		{"one of IPv4", addrs(four), map[string]int{four: 200, otherFour: 0, six: 0, "127.0.0.1": 0, "::1": 0}},
		{"one of each", addrs(four, six), map[string]int{four: 200, otherFour: 0, six: 200, "127.0.0.1": 0, "::1": 0}},
		{"another", addrs(otherFour, six), map[string]int{four: 0, otherFour: 200, six: 200, "127.0.0.1": 0, "::1": 0}},
		{"all of IPv6", addrs(otherFour, "::"), map[string]int{four: 0, otherFour: 200, six: 200, "127.0.0.1": 0, "::1": 200}},
		{"all of IPv4", addrs(otherFour, "0.0.0.0"), map[string]int{four: 200, otherFour: 200, six: 0, "127.0.0.1": 200, "::1": 0}},
		{"none", nil, everywhere(0)},
		{"all", addrs("0.0.0.0", "::"), everywhere(200)},
	} {
		n.Listen(step.list)
		n.codes(t, step.when, port, step.want)
	}
	if told := n.told(); len(told) != 0 {
		t.Errorf("failures: %v", told)
	}
}

func TestA9_7AnAddressThatComesLaterIsListenedOn(t *testing.T) {
	const late, link = "2001:db8::99", "fe80::1"
	n := newNode(t).run(t)
	n.Listen(addrs(late, link))
	n.Sync(web(1))
	if !until(func() bool { return len(n.listening(t, port)) == 1 }) {
		t.Fatalf("%v listen, want one: link-local addresses mean nothing without a link", n.listening(t, port))
	}
	n.Addr(t, "lo", late+"/128")
	n.reach(t, late)
	n.codes(t, "when it is there", port, map[string]int{late: 200})
	if told := n.told(); len(told) != 0 {
		t.Errorf("failures: %v", told)
	}
}

func TestA9_8R36F14AClashIsReportedOnceAndTriedAgain(t *testing.T) {
	n := newNode(t).run(t)
	var taken net.Listener
	take := func() {
		t.Helper()
		if err := n.Do(func() (err error) { taken, err = net.Listen("tcp4", at(otherFour, port)); return err }); err != nil {
			t.Fatal(err)
		}
	}
	give := func() {
		t.Helper()
		if err := taken.Close(); err != nil {
			t.Fatal(err)
		}
	}
	const other = port + 1
	both := web(1)
	both[other] = Check{model.Name{Namespace: "shop", Name: "other"}, 1}
	tells := func(when string, want ...string) {
		t.Helper()
		if !until(func() bool { return len(n.told()) >= len(want) }) || !cmp.Equal(want, n.told()) {
			t.Fatalf("%s: told %q, want %q", when, n.told(), want)
		}
	}
	clash := fmt.Sprintf("shop/web %d: true", port)

	take()
	n.Sync(both)
	n.codes(t, "beside a clash", other, everywhere(200))
	tells("the port is taken", clash)
	tick := time.NewTicker(n.cfg.Retry)
	defer tick.Stop()
	for range 10 { // neither another try nor another sync is news
		<-tick.C
		n.Sync(both)
		n.codes(t, "beside a clash", other, map[string]int{four: 200})
	}
	tells("the port stays taken", clash)
	give()
	n.codes(t, "the port is free", port, everywhere(200))
	n.Sync(nil)
	n.codes(t, "no check", port, everywhere(0))
	take()
	n.Sync(both)
	tells("the port is taken again", clash, clash)
	n.Sync(map[uint16]Check{port: both[other]})
	tells("another Service wants it", clash, clash, fmt.Sprintf("shop/other %d: true", port))
	n.Sync(nil)
	give()
	n.codes(t, "nobody wants it", port, everywhere(0))
}

func TestA9_8OneAddressThatFailsLeavesTheOthers(t *testing.T) {
	n := newNode(t).run(t)
	if err := n.Do(func() error {
		l, err := net.Listen("tcp4", at(otherFour, port))
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	n.Listen(addrs(four, otherFour, six))
	n.Sync(web(1))
	n.codes(t, "beside a clash", port, map[string]int{four: 200, six: 200})
}

// A port that can't be had must not be tried for every change of the cluster.
func TestA9_8TriesHaveATimerOfTheirOwn(t *testing.T) {
	n := newNode(t)
	n.cfg.Retry = time.Hour
	var taken net.Listener
	if err := n.Do(func() (err error) { taken, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err }); err != nil {
		t.Fatal(err)
	}
	n.run(t).Sync(web(1))
	if !until(func() bool { return len(n.told()) == 1 }) {
		t.Fatal("the clash is not told")
	}
	_ = taken.Close()
	both := web(1)
	both[port+1] = both[port]
	n.Sync(both)
	n.codes(t, "a new one", port+1, map[string]int{four: 200})
	if got := n.code(t, four, port); got != 0 {
		t.Errorf("the port is tried before it is due: %d", got)
	}
}

func TestA9_9APortThatIsChangedClosesTheOldOne(t *testing.T) {
	n := newNode(t).run(t)
	n.Sync(web(1))
	n.codes(t, "to begin with", port, everywhere(200))
	n.Sync(map[uint16]Check{port + 1: web(1)[port]})
	n.codes(t, "the new port", port+1, everywhere(200))
	n.codes(t, "the old port", port, everywhere(0))
	n.Sync(nil)
	n.codes(t, "no check any more", port+1, everywhere(0))
	if left := n.listening(t, port+1); len(left) != 0 {
		t.Errorf("%v listen", left)
	}
}

// Load balancers keep connections open.
func TestA9_9ConnectionsOfAnOldPortAreClosed(t *testing.T) {
	n := newNode(t).run(t)
	n.Sync(web(1))
	n.codes(t, "to begin with", port, map[string]int{four: 200})
	var c net.Conn
	if err := n.Do(func() (err error) { c, err = net.Dial("tcp", at(four, port)); return err }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	answers := bufio.NewReader(c)
	request := func() (*http.Response, error) {
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return nil, err
		}
		r, err := http.ReadResponse(answers, nil)
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
		}
		return r, err
	}
	if r, err := request(); err != nil || r.StatusCode != 200 {
		t.Fatalf("%v %v", r, err)
	}
	n.Sync(web(0))
	if r, err := request(); err != nil || r.StatusCode != 503 {
		t.Fatalf("the same connection: %v %v, want 503", r, err)
	}
	n.Sync(nil)
	if _, err := answers.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection goes on: %v", err)
	}
}

func TestA9_10R36OneSocketAnswersBothFamilies(t *testing.T) {
	n := newNode(t).run(t)
	n.Sync(web(1)) // whichever family the endpoint is of
	n.codes(t, "one endpoint", port, everywhere(200))
	if got := n.listening(t, port); !slices.Equal(got, []string{"tcp6"}) {
		t.Errorf("listening sockets %v, want one", got)
	}
}

func TestAPortThatPassesToAnotherServiceStaysOpen(t *testing.T) {
	n := newNode(t).run(t)
	n.Sync(web(1))
	n.codes(t, "to begin with", port, map[string]int{four: 200})
	n.Sync(map[uint16]Check{port: {model.Name{Namespace: "shop", Name: "next"}, 2}})
	got, err := n.ask(t.Context(), http.MethodGet, four, port, "/")
	if err != nil {
		t.Fatal(err)
	}
	if got.code != 200 || !strings.Contains(got.body, `"name": "next"`) {
		t.Errorf("%d %s", got.code, got.body)
	}
}

func TestASocketThatFailsIsOpenedAgain(t *testing.T) {
	n := newNode(t)
	var l net.Listener
	if err := n.Do(func() (err error) { l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err }); err != nil {
		t.Fatal(err)
	}
	n.serve(socket{port: port}, l)
	n.run(t).Sync(web(1))
	n.codes(t, "to begin with", port, map[string]int{four: 200})
	_ = l.Close() // as a socket does that the kernel took away
	n.codes(t, "afterwards", port, everywhere(200))
}

func TestNothingIsLeftWhenItEnds(t *testing.T) {
	n := newNode(t).run(t)
	checks := map[uint16]Check{}
	for i := range uint16(20) {
		checks[port+i] = web(1)[port]
	}
	n.Listen(addrs(four, otherFour, six))
	n.Sync(checks)
	for i := range uint16(20) {
		n.codes(t, "to begin with", port+i, map[string]int{four: 200, six: 200})
	}
	n.stop()
	for i := range uint16(20) {
		if left := n.listening(t, port+i); len(left) != 0 {
			t.Errorf("port %d: %v listen", port+i, left)
		}
	}
	if !until(func() bool { return len(ours()) == 0 }) {
		t.Errorf("goroutines are left: %s", strings.Join(ours(), "\n\n"))
	}
}

// ours gives the goroutines that answer checks.
func ours() []string {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	var list []string
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(stack, "health.(*Services)") || strings.Contains(stack, "net/http.(*conn).serve") {
			list = append(list, stack)
		}
	}
	return list
}
