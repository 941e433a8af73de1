package plugin_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/test/netns"
)

func TestWithoutCommand(t *testing.T) {
	n := newNode(t)
	t.Run("C12: about on stderr, exit 0", func(t *testing.T) {
		a := n.run(t, call{})
		if a.exit != 0 || a.stdout != "" || !strings.Contains(a.stderr, "onerule") || !strings.Contains(a.stderr, "1.1.0") {
			t.Errorf("got %+v", a)
		}
	})
}

func TestVersion(t *testing.T) {
	n := newNode(t)
	for stdin, want := range map[string]string{"": "1.1.0", `{"cniVersion":"0.4.0"}`: "0.4.0"} {
		t.Run("C18: VERSION of "+stdin, func(t *testing.T) {
			a := n.run(t, call{verb: "VERSION", stdin: stdin})
			var got struct {
				CNIVersion        string
				SupportedVersions []string
			}
			if err := json.Unmarshal([]byte(a.stdout), &got); err != nil || a.exit != 0 {
				t.Fatalf("got %+v: %v", a, err)
			}
			if got.CNIVersion != want {
				t.Errorf("got %s, want %s", got.CNIVersion, want)
			}
			if d := cmp.Diff([]string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}, got.SupportedVersions); d != "" {
				t.Error(d)
			}
		})
	}
}

// VERSION says what is built in: it reads no state, asks no kernel and no daemon.
func TestVersionTouchesNothing(t *testing.T) {
	n := newNode(t)
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace")
	}
	seen := filepath.Join(t.TempDir(), "seen")
	traced := []string{strace, "-f", "-qqq", "-o", seen, "-e", "trace=%file,%network"}
	touched := func(c call) (lines []string) {
		c.wrap = traced
		n.run(t, c)
		b, err := os.ReadFile(seen)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, filepath.Dir(n.dataDir)) || strings.Contains(line, "socket(") || strings.Contains(line, "/run/") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	t.Run("C18: neither disk, nor kernel, nor daemon", func(t *testing.T) {
		c := call{verb: "VERSION", stdin: n.config("1.1.0", nil)}
		if lines := touched(c); len(lines) > 0 {
			t.Errorf("it does %q", lines)
		}
		if lines := touched(c.as("STATUS")); len(lines) == 0 {
			t.Error("STATUS does nothing of it either: this shows nothing")
		}
	})
}

func TestBadEnvironment(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	good := add("c1", "eth0", pod, n.config("1.1.0", nil))
	with := func(f func(*call)) call { c := good; f(&c); return c }
	for name, tc := range map[string]struct {
		call call
		what string
	}{
		"C1: an unknown verb":           {good.as("FROB"), `unknown CNI_COMMAND "FROB"`},
		"C1: a verb in lower case":      {good.as("add"), `"add": it is ADD`},
		"C2: a container with /":        {with(func(c *call) { c.container = "../c1" }), "../c1"},
		"C2: a container with _":        {with(func(c *call) { c.container = "_c1" }), "_c1"},
		"C3: an interface too long":     {with(func(c *call) { c.ifName = "sixteen-bytes-xx" }), "sixteen-bytes-xx"},
		"C3: an interface ..":           {with(func(c *call) { c.ifName = ".." }), ".."},
		"C3: an interface with :":       {with(func(c *call) { c.ifName = "a:b" }), "a:b"},
		"C3: an interface with a space": {with(func(c *call) { c.ifName = "a b" }), "a b"},
		"C3: an interface named all":    {with(func(c *call) { c.ifName = "all" }), "all"},
		"C4: no namespace":              {with(func(c *call) { c.netns = "" }), "CNI_NETNS"},
		"C6: nothing at all":            {call{verb: "ADD", stdin: good.stdin}, "CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME"},
	} {
		t.Run(name, func(t *testing.T) {
			n.fail(t, tc.call, 4, tc.what)
			if _, err := os.Stat(n.dataDir); !os.IsNotExist(err) {
				t.Errorf("the state directory is there: %v", err)
			}
		})
	}
	for _, name := range []string{"lo", "...", "x", "fifteen-bytes-x"} {
		t.Run("C3: exactly the name "+name, func(t *testing.T) {
			if name == "lo" {
				n.fail(t, with(func(c *call) { c.ifName = name }), 102, "lo")
				return
			}
			c := with(func(c *call) { c.ifName = name })
			n.added(t, c)
			if out := links(t, pod); !strings.Contains(out, " "+name+"@") {
				t.Errorf("got %s", out)
			}
			n.succeed(t, c.as("DEL"))
		})
	}
	t.Run("C16: extra environment", func(t *testing.T) {
		c := with(func(c *call) { c.env = []string{"TRACEPARENT=00-aa-bb-01", "CNI_OTHER=x"} })
		n.added(t, c)
		n.succeed(t, c.as("DEL"))
	})
	t.Run("C2: a very long container name", func(t *testing.T) {
		c := with(func(c *call) { c.container = strings.Repeat("c", 3000) })
		n.added(t, c)
		n.succeed(t, c.as("DEL"))
		n.clean(t)
	})
}

func TestBadConfiguration(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	for name, tc := range map[string]struct {
		stdin string
		code  uint
		what  string
	}{
		"C7, C9: no JSON":             {"{", 6, "decode"},
		"C7: empty":                   {"", 6, "decode"},
		"C7: a wrong type":            {n.config("1.1.0", object{"mtu": "big"}), 6, "mtu"},
		"C7: no name":                 {n.config("1.1.0", object{"name": nil}), 7, "name"},
		"C7: an illegal name":         {n.config("1.1.0", object{"name": "../x"}), 7, "../x"},
		"C9, C19: an unknown version": {n.config("9.9.9", nil), 1, "9.9.9"},
		"C19: no version":             {n.config("", object{"cniVersion": nil}), 1, "0.1.0"},
		"no addresses":                {n.config("1.1.0", object{"ipam": nil}), 7, "ipam"},
		"no ranges":                   {n.config("1.1.0", object{"ipam": object{}}), 7, "no IP ranges"},
		"ranges that overlap":         {n.config("1.1.0", object{"ipam": object{"ranges": [][]object{{{"subnet": "10.1.0.0/24"}}, {{"subnet": "10.1.0.128/25"}}}}}), 7, "overlap"},
		"a bad subnet":                {n.config("1.1.0", object{"ipam": object{"ranges": [][]object{{{"subnet": "10.0.0.0/33"}}}}}), 7, "10.0.0.0/33"},
		"another IPAM":                {n.config("1.1.0", object{"ipam": object{"type": "dhcp"}}), 2, "dhcp"},
		"resolvConf":                  {n.config("1.1.0", object{"ipam": object{"resolvConf": "/etc/r"}}), 2, "/etc/r"},
		"a route elsewhere":           {n.config("1.1.0", object{"ipam": object{"routes": []object{{"dst": "10.9.0.0/16", "gw": "10.1.0.1"}}}}), 2, "10.9.0.0/16"},
		"an MTU too small for IPv6":   {n.config("1.1.0", object{"mtu": 1279}), 7, "1279"},
		"an MTU too large":            {n.config("1.1.0", object{"mtu": 65536}), 7, "65536"},
		"a relative directory":        {n.config("1.1.0", object{"dataDir": "x/y"}), 7, "x/y"},
		"a lock time-out":             {n.config("1.1.0", object{"lockTimeout": "soon"}), 7, "soon"},
		"a multicast MAC":             {n.config("1.1.0", object{"runtimeConfig": object{"mac": "01:00:5e:00:00:01"}}), 7, "01:00:5e:00:00:01"},
		"an address null":             {n.config("1.1.0", object{"runtimeConfig": object{"ips": []any{nil}}}), 7, "runtimeConfig.ips[0]"},
		"a bad prevResult":            {n.config("1.1.0", object{"prevResult": object{"ips": "x"}}), 7, "prevResult"},
	} {
		t.Run(name, func(t *testing.T) {
			e := n.fail(t, add("c1", "eth0", pod, tc.stdin), tc.code, tc.what)
			if want := "1.1.0"; tc.code != 1 && e.CNIVersion != want {
				t.Errorf("cniVersion: got %s, want %s", e.CNIVersion, want)
			}
			if _, err := os.Stat(n.dataDir); !os.IsNotExist(err) {
				t.Errorf("the state directory is there: %v", err)
			}
		})
	}
	t.Run("C21: verbs that the version does not have", func(t *testing.T) {
		for verb, v := range map[string]string{"CHECK": "0.3.1", "GC": "1.0.0", "STATUS": "1.0.0"} {
			n.fail(t, add("c1", "eth0", pod, n.config(v, nil)).as(verb), 1, verb)
		}
	})
	t.Run("C5: CNI_PATH is asked for by GC only", func(t *testing.T) {
		c := add("c1", "eth0", pod, n.config("1.1.0", nil))
		c.env = []string{"CNI_PATH="}
		n.added(t, c)
		n.succeed(t, n.checkOf(t, c))
		n.succeed(t, c.as("STATUS"))
		n.fail(t, c.as("GC"), 4, "CNI_PATH")
		n.succeed(t, c.as("DEL"))
	})
}

// full gives a file to which nothing can be written: a result that is printed to it makes
// an ADD take back all that it did.
func full(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestOutcomeOfABrokenStdout(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	c := add("c1", "eth0", pod, n.withPorts(nil, bothProtocols(hostPort)...))
	c.stdout = full(t)
	t.Run("C28, C58: a result that can't be printed undoes it all, host ports too", func(t *testing.T) {
		a := n.run(t, c)
		if a.exit == 0 || !strings.Contains(a.stderr, "write the result") {
			t.Errorf("got %+v", a)
		}
		n.clean(t)
		if out := links(t, pod); strings.Contains(out, "eth0") {
			t.Errorf("got %s", out)
		}
	})
}

func TestUndo(t *testing.T) {
	n := newNode(t)
	probe := add("c1", "eth0", netns.New(t, "probe"), n.config("1.1.0", nil))
	hostLink := n.added(t, probe).Interfaces[0].Name
	n.succeed(t, probe.as("DEL"))
	// mounted starts the plugin where a file reads 0 and can't be written.
	mounted := func(path string) []string {
		return []string{"unshare", "-m", "sh", "-c", `f=$(mktemp); echo 0 >$f; mount --bind $f ` + path + ` && rm $f && mount -o remount,bind,ro ` + path + ` && exec "$0"`}
	}
	for _, tc := range []struct {
		name  string
		wrap  []string
		spoil func(t *testing.T)
		mend  func(t *testing.T)
		code  uint
		what  string
	}{
		{name: "the node's link name is taken", code: 102, what: hostLink,
			spoil: func(t *testing.T) { n.Run(t, "ip", "link", "add", hostLink, "type", "veth", "peer", "name", "theirs") },
			mend:  func(t *testing.T) { n.Run(t, "ip", "link", "del", hostLink) }},
		{name: "IPv4 forwarding can't be turned on", code: 105, what: "ip_forward", wrap: mounted("/proc/sys/net/ipv4/ip_forward")},
		{name: "IPv6 forwarding can't be turned on", code: 105, what: "ipv6/conf/all/forwarding", wrap: mounted("/proc/sys/net/ipv6/conf/all/forwarding")},
		{name: "another's route to the pod is there", code: 104, what: "fd00:1::",
			spoil: func(t *testing.T) {
				for i := 2; i < 60; i++ { // whichever address comes next
					n.Run(t, "ip", "-6", "route", "add", "fd00:1::"+hex(i), "dev", "uplink")
				}
			},
			mend: func(t *testing.T) { n.Run(t, "ip", "-6", "route", "flush", "root", "fd00:1::/112") }},
		{name: "the store is read-only", code: 5, what: "read-only",
			wrap: []string{"unshare", "-m", "sh", "-c", "mount --bind " + n.dataDir + " " + n.dataDir + " && mount -o remount,bind,ro " + n.dataDir + ` && exec "$0"`}},
	} {
		t.Run("C28: "+tc.name, func(t *testing.T) {
			pod := netns.New(t, "pod")
			c := add("c1", "eth0", pod, n.config("1.1.0", nil))
			c.wrap = tc.wrap
			if tc.spoil != nil {
				tc.spoil(t)
			}
			n.fail(t, c, tc.code, tc.what)
			if got := n.files(t); len(got) > 0 {
				t.Errorf("files are left: %q", got)
			}
			if out := links(t, pod); strings.Contains(out, "eth0") {
				t.Errorf("the pod has a link: %s", out)
			}
			if tc.mend != nil {
				tc.mend(t)
			}
			n.clean(t)
			c.wrap = nil
			n.added(t, c)
			n.succeed(t, c.as("DEL"))
		})
	}
}

func TestUndoOfASecondInterface(t *testing.T) {
	n := newNode(t)
	t.Run("C28: also its rules", func(t *testing.T) {
		pod := netns.New(t, "pod")
		n.added(t, add("c1", "eth0", pod, n.config("1.1.0", nil)))
		for i := 2; i < 60; i++ {
			_, _ = n.Output("ip", "route", "add", "10.1.0."+dec(i), "dev", "uplink") // but where ours is
		}
		n.fail(t, add("c1", "net1", pod, n.config("1.1.0", nil)), 104, "10.1.0.")
		if out := pod.Run(t, "ip", "rule"); strings.Contains(out, "from 10.1.") {
			t.Errorf("rules are left: %s", out)
		}
		if got := n.files(t); !slices.Contains(got, "c1:eth0.json") || len(got) != 3 {
			t.Errorf("got files %q, want those of eth0", got)
		}
	})
}

func hex(i int) string { return strconv.FormatInt(int64(i), 16) }

func dec(i int) string { return strconv.Itoa(i) }
