package docs_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/test/netns"
	"onerule/test/rig"
)

// The node whose output docs/operate.md shows, and a pod there that asks.
const (
	nodeAddress = "192.168.1.11"
	podLink     = "one532791fde20e"
	podAddress  = "10.244.1.4"
)

// A shop is that node, with its four Services.
type shop struct {
	node, pod *netns.NS
	d         *rig.Daemon
	bin       string
	socket    string
	manifests string
	changed   string // the folder of what diff is asked about
}

func newShop(t *testing.T) *shop {
	t.Helper()
	netns.Privileged(t)
	s := &shop{node: netns.New(t, "node"), pod: netns.New(t, "pod"), bin: rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), changed: t.TempDir()}
	outside := netns.New(t, "outside")
	netns.Wire(t, s.node, "eth0", outside, "eth0")
	s.node.Addr(t, "eth0", nodeAddress+"/24")
	outside.Addr(t, "eth0", "192.168.1.9/24")
	s.node.Route(t, "default", "192.168.1.9")
	s.node.Forward(t)
	s.wire(t, s.pod, podLink, podAddress)
	s.wire(t, netns.New(t, "endpoints"), "one000000000000", "10.244.1.2", "10.244.1.3")
	folder, err := os.MkdirTemp("", "s") // a socket's path may not be long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	s.socket = filepath.Join(folder, "sock")
	s.d = rig.New(t, s.node, append(s.flags(), "--socket", s.socket, "--pod-network", "--cni-state", t.TempDir(), "--network-status-file", folder+"/network.json")...)
	s.manifests = s.d.Dir
	s.d.Write("node.yaml", node("n1", "10.244.1.0/24", nodeAddress), node("n2", "10.244.2.0/24", "192.168.1.12"), node("n3", "10.244.3.0/24", "192.168.7.13"),
		rig.ServiceCIDR("kubernetes", netip.MustParsePrefix("10.96.0.0/16")))
	s.d.Write("shop.yaml", services())
	s.d.Run()
	s.d.AwaitHealthy()
	rig.Eventually(t, "pods are served", func() error {
		if got := s.run(t, "oneruled status"); !strings.Contains(got, "pods served\n") {
			return errors.New(got)
		}
		return nil
	})
	return s
}

func node(name, pods, address string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nspec: {podCIDRs: [%s]}\nstatus: {addresses: [{type: InternalIP, address: %s}]}", name, pods, address)
}

// flags are those that the pages name.
func (s *shop) flags() []string {
	return []string{"--hostname-override", "n1", "--cluster-cidr", "10.244.0.0/16", "--nodeport-addresses", "primary,localhost"}
}

// wire connects a namespace as the plugin does a pod.
func (s *shop) wire(t *testing.T, pod *netns.NS, link string, addresses ...string) {
	t.Helper()
	netns.Wire(t, s.node, link, pod, "eth0")
	s.node.Addr(t, link, "169.254.1.1/32")
	for _, a := range addresses {
		pod.Addr(t, "eth0", a+"/32")
		s.node.Run(t, "ip", "route", "add", a, "dev", link, "proto", "111")
	}
	pod.Run(t, "ip", "route", "add", "default", "via", "169.254.1.1", "dev", "eth0", "onlink", "src", addresses[0])
}

// services gives the four: with two endpoints, with session affinity, with the external policy
// Local, without a ready endpoint.
func services() string {
	endpoint := func(address, node string, ready bool) string {
		return fmt.Sprintf("{addresses: [%s], nodeName: %s, conditions: {ready: %t, serving: %t}}", address, node, ready, ready)
	}
	here := endpoint("10.244.1.2", "n1", true) + ", " + endpoint("10.244.1.3", "n1", true)
	var documents []string
	for _, s := range []struct {
		name, ip string
		port     int
		spec     string
		slice    string
	}{
		{"web", "10.96.0.10", 30080, "", here + ", " + endpoint("10.244.2.7", "n2", false)},
		{"cart", "10.96.0.20", 30090, "sessionAffinity: ClientIP, ", here},
		{"mail", "10.96.0.30", 30100, "externalTrafficPolicy: Local, ", endpoint("10.244.2.8", "n2", true)},
		{"search", "10.96.0.40", 30110, "", endpoint("10.244.1.9", "n1", false)},
	} {
		documents = append(documents,
			fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: shop}\nspec: {type: NodePort, clusterIP: %s, clusterIPs: [%s], %sports: [{name: http, port: 80, nodePort: %d}]}",
				s.name, s.ip, s.ip, s.spec, s.port),
			fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-1, namespace: shop, labels: {kubernetes.io/service-name: %s}}\naddressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints: [%s]",
				s.name, s.name, s.slice))
	}
	return strings.Join(documents, "\n---\n")
}

// connect has the pod ask a Service. That nobody listens does not matter.
func (s *shop) connect(t *testing.T, frontend string) {
	t.Helper()
	err := s.pod.Do(func() error {
		c, err := net.DialTimeout("tcp4", frontend, time.Second)
		if err == nil {
			err = c.Close()
		}
		return err
	})
	var refused *net.OpError
	if err != nil && (!errors.As(err, &refused) || refused.Timeout()) {
		t.Fatalf("ask %s: %v", frontend, err)
	}
}

// run answers a command line as a page has it.
func (s *shop) run(t *testing.T, line string) string {
	t.Helper()
	args := strings.Fields(line)[1:]
	if at := slices.Index(args, "--manifests"); at >= 0 {
		args[at+1] = s.changed
	} else {
		args = append(args, "--socket", s.socket)
	}
	if args[0] == "top" {
		args = append(args, "--every", "100ms")
	}
	cmd := exec.Command(s.bin, args...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := s.node.Start(cmd); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // diff ends with 2
	return out.String()
}

// shown gives what a page shows of each command line with a prompt.
func shown(t *testing.T, file, program string) map[string]string {
	t.Helper()
	p := parse(readFile(t, filepath.Join(root, file)), file)
	found := map[string]string{}
	command, piece := "", 0
	for _, l := range p.code {
		switch {
		case strings.HasPrefix(l.text, "$ "):
			command, piece = strings.TrimPrefix(l.text, "$ "), l.piece
		case command != "" && l.piece == piece && strings.HasPrefix(command, program+" "):
			found[command] += l.text + "\n"
		}
	}
	return found
}

// settled takes out what is different each time: times, versions, what was drawn at random.
func settled(text string) []string {
	for _, r := range [][2]string{
		{`oneruled \S+ on node`, "oneruled VERSION on node"},
		{`kernel \S+, nft .*`, "KERNEL"},
		{`process +\d+`, "process PID"},
		{`files in \S+`, "files in DIR"},
		{`less than `, ""},
		{`\d{4}-\d\d-\d\d `, ""},
		{`\d\d:\d\d:\d\d`, "TIME"},
		{`\b[0-9.]+(µs|ms|s|m[0-9.]*s?)\b`, "LONG"},
		{`TIME {2}[0-9.]+ new`, "TIME N new"},
		{`[0-9.]+ +[0-9.]+% +\d+`, "N SHARE N"},
		{`(endpoints?) +[0-9.]+ +\d+`, "$1 N N"},
		{`\d+ objects?, in`, "N objects, in"},
		{` +`, " "},
	} {
		text = regexp.MustCompile(r[0]).ReplaceAllString(text, r[1])
	}
	if strings.Contains(text, "pinned to") {
		text = regexp.MustCompile(`10\.244\.1\.[23]:8080`).ReplaceAllString(text, "ENDPOINT")
	}
	var lines []string
	for l := range strings.Lines(text) {
		lines = append(lines, strings.TrimSpace(l))
	}
	if strings.Contains(text, "new connections per second") {
		slices.Sort(lines[2:]) // by the rate
	}
	return slices.DeleteFunc(lines, func(l string) bool { return l == "" })
}

// What docs/operate.md shows of the commands is what they print.
func TestTheCommandsPrintWhatIsShown(t *testing.T) {
	s := newShop(t)
	s.connect(t, "10.96.0.20:80")
	s.connect(t, "10.96.0.10:80")
	for _, file := range []string{"node.yaml", "shop.yaml"} {
		text := strings.NewReplacer("30080", "30081", "10.244.1.3", "10.244.1.5").Replace(readFile(t, filepath.Join(s.manifests, file)))
		if err := os.WriteFile(filepath.Join(s.changed, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("and what only looks, in the words of others, works", func(t *testing.T) { s.look(t) })
	list := shown(t, "docs/operate.md", "oneruled")
	if len(list) < 8 {
		t.Fatalf("docs/operate.md shows %d commands, want each at least once", len(list))
	}
	for line, want := range list {
		t.Run(line, func(t *testing.T) {
			if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil && regexp.MustCompile(`^oneruled (status|top)`).MatchString(line) {
				t.Skipf("NOT TESTED: nothing is counted without BTF: %v", err)
			}
			if diff := cmp.Diff(settled(want), settled(s.run(t, line))); diff != "" {
				t.Errorf("lines (-shown +printed): %s", diff)
			}
		})
	}
}

// look runs what the pages show of nft, ip and the like that only looks.
func (s *shop) look(t *testing.T) {
	rig.Eventually(t, "the pod network is there", func() error {
		_, err := s.node.Output("ip", "link", "show", "vxlan-onerule")
		return err
	})
	looks := regexp.MustCompile(`^(nft (list|get) |ip (-d )?\w+ show|bridge fdb show|sysctl net)`)
	tried := 0
	for _, p := range pages(t) {
		for _, c := range append(p.commands(), p.spans()...) {
			if !looks.MatchString(c.text) {
				continue
			}
			tried++
			if out, err := s.node.Output("sh", "-c", c.text); err != nil || out == "" {
				t.Errorf("%s:%d: %s: %v: %s", p.path, c.number, c.text, err, out)
			}
		}
	}
	if tried < 10 {
		t.Errorf("only %d commands were tried", tried)
	}
}
