package plugin_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"onerule/test/netns"
)

// The addressing plan: pods of the node, and the wire to the outside.
const (
	podRange4, podRange6 = "10.1.0.0/24", "fd00:1::/112"
	nodeAddr4, nodeAddr6 = "192.0.2.1", "2001:db8::1"
	outAddr4, outAddr6   = "192.0.2.2", "2001:db8::2"
	firstPod4, firstPod6 = "10.1.0.2", "fd00:1::2"
)

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

// binary is where the plugin is built; it goes by the environment, so that nothing
// is kept in the package.
func binary() string { return os.Getenv("ONERULE_TEST_BINARY") }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "onerule-plugin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "onerule")
	build := exec.Command("go", "build", "-o", path, "./onerule")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the plugin: %v\n%s", err, out)
		return 1
	}
	if err := os.Setenv("ONERULE_TEST_BINARY", path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// A node is a host that runs the plugin, with a wire to an outside host.
type node struct {
	*netns.NS
	outside *netns.NS
	dataDir string
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{NS: netns.New(t, "node"), outside: netns.New(t, "outside"), dataDir: filepath.Join(t.TempDir(), "state")}
	for _, end := range []*netns.NS{n.NS, n.outside} {
		// The wire outside is ready at once; pods have the kernel's default.
		end.Sysctl(t, "net.ipv6.conf.default.accept_dad", "0")
	}
	netns.Wire(t, n.NS, "uplink", n.outside, "eth0")
	n.Sysctl(t, "net.ipv6.conf.default.accept_dad", "1")
	n.Addr(t, "uplink", nodeAddr4+"/24", nodeAddr6+"/64")
	n.outside.Addr(t, "eth0", outAddr4+"/24", outAddr6+"/64")
	n.Route(t, "default", outAddr4)
	n.Route(t, "default", outAddr6)
	n.outside.Route(t, "10.1.0.0/24", nodeAddr4)
	n.outside.Route(t, "fd00:1::/112", nodeAddr6)
	return n
}

type object = map[string]any

// statusFile is where a daemon would tell what it knows.
func (n *node) statusFile() string { return filepath.Join(filepath.Dir(n.dataDir), "network.json") }

// config gives a configuration of both families; more overrides its keys, and nil
// takes one out.
func (n *node) config(cniVersion string, more object) string {
	c := object{
		"cniVersion": cniVersion, "name": "pods", "type": "onerule", "dataDir": n.dataDir, "statusFile": n.statusFile(),
		"ipam": object{"ranges": [][]object{{{"subnet": podRange4}}, {{"subnet": podRange6}}}},
	}
	maps.Copy(c, more)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // only a test's own literal
	}
	return string(b)
}

// A call is one start of the plugin; empty fields leave their variable unset.
type call struct {
	verb, container, ifName, netns, args string
	env                                  []string
	stdin                                string
	wrap                                 []string // a program and arguments to start the plugin with
	stdout                               *os.File // nil: collected
}

type answer struct {
	stdout, stderr string
	exit           int
}

func (n *node) command(c call) *exec.Cmd {
	argv := append(append([]string{}, c.wrap...), binary())
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "CNI_PATH=/nowhere"}, c.env...)
	for _, v := range [][2]string{{"COMMAND", c.verb}, {"CONTAINERID", c.container}, {"IFNAME", c.ifName}, {"NETNS", c.netns}, {"ARGS", c.args}} {
		if v[1] != "" {
			cmd.Env = append(cmd.Env, "CNI_"+v[0]+"="+v[1])
		}
	}
	cmd.Stdin = strings.NewReader(c.stdin)
	return cmd
}

func (n *node) run(t testing.TB, c call) answer {
	t.Helper()
	cmd := n.command(c)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if c.stdout != nil {
		cmd.Stdout = c.stdout
	}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return answer{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func add(container, ifName string, pod *netns.NS, stdin string) call {
	return call{verb: "ADD", container: container, ifName: ifName, netns: pod.Path(), stdin: stdin}
}

// as gives the same call with another verb.
func (c call) as(verb string) call { c.verb = verb; return c }

// succeed wants exit 0 and, but for ADD, nothing on stdout.
func (n *node) succeed(t testing.TB, c call) answer {
	t.Helper()
	a := n.run(t, c)
	if a.exit != 0 {
		t.Fatalf("%s: exit %d: %s%s", c.verb, a.exit, a.stdout, a.stderr)
	}
	if c.verb != "ADD" && a.stdout != "" {
		t.Errorf("%s: got %q on stdout, want nothing", c.verb, a.stdout)
	}
	return a
}

// added is succeed for an ADD of version 1.0.0 or 1.1.0.
func (n *node) added(t testing.TB, c call) *types100.Result {
	t.Helper()
	a := n.succeed(t, c)
	r := new(types100.Result)
	if err := json.Unmarshal([]byte(a.stdout), r); err != nil {
		t.Fatalf("result %q: %v", a.stdout, err)
	}
	return r
}

type errorObject struct {
	CNIVersion string `json:"cniVersion"`
	Code       uint   `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details"`
}

// fail wants an error object of a code that says what, and a non-zero exit.
func (n *node) fail(t testing.TB, c call, code uint, what string) errorObject {
	t.Helper()
	a := n.run(t, c)
	var e errorObject
	if err := json.Unmarshal([]byte(a.stdout), &e); err != nil {
		t.Fatalf("%s: exit %d, stdout %q is no error object: %v; %s", c.verb, a.exit, a.stdout, err, a.stderr)
	}
	if a.exit == 0 || e.Code != code || e.CNIVersion == "" {
		t.Errorf("%s: got exit %d and %+v, want code %d, a cniVersion and a non-zero exit", c.verb, a.exit, e, code)
	}
	if strings.HasSuffix(e.Msg, ":") {
		t.Errorf("%s: got message %q, which says nothing after its colon", c.verb, e.Msg)
	}
	if text := e.Msg + ": " + e.Details; !strings.Contains(text, what) {
		t.Errorf("%s: got %q, want it to name %q", c.verb, text, what)
	}
	return e
}

// addresses gives the pod addresses of a result.
func addresses(t testing.TB, r *types100.Result) []netip.Addr {
	t.Helper()
	var addrs []netip.Addr
	for _, ip := range r.IPs {
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			t.Fatalf("address %v", ip)
		}
		addrs = append(addrs, a.Unmap())
	}
	return addrs
}

// links lists the names of a namespace's links.
func links(t testing.TB, n *netns.NS) string { t.Helper(); return n.Run(t, "ip", "-o", "link") }

// files lists what the store holds of attachments: records and reservations, also
// half-written ones.
func (n *node) files(t testing.TB) []string {
	t.Helper()
	var names []string
	for _, sub := range []string{"attachments", "addresses"} {
		entries, err := os.ReadDir(filepath.Join(n.dataDir, "pods", sub))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != "lock" && !strings.HasPrefix(e.Name(), "last_reserved_ip.") {
				names = append(names, e.Name())
			}
		}
	}
	return names
}

// clean wants nothing of ours on the node and in the store.
func (n *node) clean(t testing.TB) {
	t.Helper()
	if out := links(t, n.NS); strings.Contains(out, ": one") {
		t.Errorf("links are left: %s", out)
	}
	if got := n.files(t); len(got) > 0 {
		t.Errorf("files are left: %q", got)
	}
	for _, f := range []string{"-4", "-6"} {
		if out := n.Run(t, "ip", f, "route", "show", "proto", "111"); out != "" {
			t.Errorf("routes are left: %s", out)
		}
		if out := n.Run(t, "ip", f, "neigh", "show", "nud", "permanent"); out != "" {
			t.Errorf("neighbours are left: %s", out)
		}
	}
	if out := n.hostPortRules(t); strings.Contains(out, "elements") {
		t.Errorf("host ports are left: %s", out)
	}
	if got := n.hostPortFiles(t); len(got) > 0 {
		t.Errorf("files are left of host ports: %q", got)
	}
}

// reboot makes all state that of an earlier boot, some time ago.
func (n *node) reboot(t testing.TB) {
	t.Helper()
	n.Run(t, "sh", "-c", `sed -i 's/"bootID": *"[^"]*"/"bootID":"an-earlier-one"/; s/"created": *"[^"]*"/"created":"2020-01-01T00:00:00Z"/' `+filepath.Join(n.dataDir, "pods")+`/a*/*`)
}
