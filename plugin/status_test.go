package plugin_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"onerule/test/netns"
)

// softLimit is how often a soft condition is seen before it is reported.
const softLimit = 3

// softly wants a condition to be passed over until it was seen some times in a row,
// and to be reported then, until it is gone.
func (n *node) softly(t *testing.T, c call, code uint, what string) {
	t.Helper()
	for range softLimit - 1 {
		n.succeed(t, c)
	}
	n.fail(t, c, code, what)
	n.fail(t, c, code, what)
}

func statusOf(n *node, ranges ...string) call {
	var sets [][]object
	for _, r := range ranges {
		sets = append(sets, []object{{"subnet": r}})
	}
	return call{verb: "STATUS", stdin: n.config("1.1.0", object{"ipam": object{"ranges": sets}})}
}

// readOnly starts the plugin where a directory can't be written.
func readOnly(dir string) []string {
	return []string{"unshare", "-m", "sh", "-c", "mount --bind " + dir + " " + dir + " && mount -o remount,bind,ro " + dir + ` && exec "$0"`}
}

func TestStatus(t *testing.T) {
	n := newNode(t)
	c := statusOf(n, podRange4, podRange6)
	t.Run("C46: silent when ADD would work, and makes nothing", func(t *testing.T) {
		n.succeed(t, c)
		if _, err := os.Stat(n.dataDir); !os.IsNotExist(err) {
			t.Errorf("the state directory is there: %v", err)
		}
	})
	t.Run("C47: no ranges", func(t *testing.T) {
		n.fail(t, statusOf(n), 50, "no IP ranges")
		n.succeed(t, call{verb: "STATUS", stdin: n.config("1.1.0", object{"ipam": object{}, "capabilities": object{"ipRanges": true}})})
	})
	pod := add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil))
	n.added(t, pod)
	t.Run("C47: a read-only store", func(t *testing.T) {
		c := c
		c.wrap = readOnly(n.dataDir)
		n.fail(t, c, 50, "read-only")
	})
	t.Run("C46: other verbs work all the same", func(t *testing.T) {
		n.Sysctl(t, "net.ipv4.ip_forward", "0")
		n.softly(t, c, 51, "ip_forward")
		other := add("c2", "eth0", netns.New(t, "other"), pod.stdin)
		n.added(t, other) // which turns forwarding on again
		n.succeed(t, other.as("DEL"))
		n.succeed(t, c)
	})
}

func TestStatusOfSoftConditions(t *testing.T) {
	n := newNode(t)
	c := statusOf(n, podRange4, podRange6)
	r := n.added(t, add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil)))
	host := r.Interfaces[0].Name
	for _, tc := range []struct{ name, spoil, mend, what string }{
		{"C47, D27: IPv4 forwarding is off", "sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv4.ip_forward=1", "ip_forward"},
		{"C47, D27: IPv6 forwarding is off", "sysctl -qw net.ipv6.conf.all.forwarding=0", "sysctl -qw net.ipv6.conf.all.forwarding=1", "all/forwarding"},
		{"C47: a route is gone", "ip route flush proto 111", "ip route add " + firstPod4 + " dev " + host + " scope link proto 111", "no route to " + firstPod4},
		{"C47: a link is down", "ip link set " + host + " down", "ip link set " + host + " up && ip route add " + firstPod4 + " dev " + host + " scope link proto 111 && ip -6 route replace " + firstPod6 + " dev " + host + " proto 111", "no route to"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n.Run(t, "sh", "-c", tc.spoil)
			n.softly(t, c, 51, tc.what)
			n.Run(t, "sh", "-c", tc.mend)
			n.succeed(t, c)
		})
	}
	t.Run("C47: what comes and goes is not reported", func(t *testing.T) {
		for range 2 * softLimit {
			n.Sysctl(t, "net.ipv4.ip_forward", "0")
			n.succeed(t, c)
			n.Sysctl(t, "net.ipv4.ip_forward", "1")
			n.succeed(t, c)
		}
	})
	t.Run("C47: a memory that is torn does no harm", func(t *testing.T) {
		path := filepath.Join(n.dataDir, "pods/status")
		if err := os.WriteFile(path, []byte(`{"forw`), 0o600); err != nil {
			t.Fatal(err)
		}
		n.succeed(t, c)
	})
}

func TestStatusOfThePool(t *testing.T) {
	n := newNode(t)
	const small = "10.2.0.0/29" // five addresses
	c := statusOf(n, small)
	more := object{"quarantine": "0s", "ipam": object{"ranges": [][]object{{{"subnet": small}}}}}
	pod := func(i int) call { return add(fmt.Sprint("c", i), "eth0", netns.New(t, "pod"), n.config("1.1.0", more)) }
	for i := range 3 {
		n.added(t, pod(i))
		n.succeed(t, c)
	}
	t.Run("C47, D1: few addresses are left: told before there are none", func(t *testing.T) {
		n.added(t, pod(3))
		n.softly(t, c, 50, "1 addresses of 10.2.0.1-10.2.0.6 are left")
	})
	t.Run("C11, C47, C57: none is left: told at once, and by ADD with a code of its own", func(t *testing.T) {
		n.added(t, pod(4))
		n.fail(t, c, 50, "all addresses of 10.2.0.1-10.2.0.6 are taken")
		n.fail(t, pod(5), 100, "10.2.0.1-10.2.0.6")
	})
	t.Run("C47: one and two come back: still few; three are enough", func(t *testing.T) {
		n.succeed(t, pod(0).as("DEL"))
		n.fail(t, c, 50, "1 addresses")
		n.succeed(t, pod(1).as("DEL"))
		n.fail(t, c, 50, "2 addresses")
		n.succeed(t, pod(2).as("DEL"))
		n.succeed(t, c)
		n.added(t, pod(6))
		n.succeed(t, c)
	})
	t.Run("D1: addresses of an earlier boot count as free", func(t *testing.T) {
		for i := 7; i < 9; i++ {
			n.added(t, pod(i))
		}
		n.fail(t, c, 50, "are taken")
		n.reboot(t)
		n.succeed(t, c)
	})
}

func TestStatusOfWhatTheDaemonSays(t *testing.T) {
	n := newNode(t)
	c := statusOf(n, podRange4, podRange6)
	says := func(at time.Time, conditions string) {
		t.Helper()
		text := fmt.Sprintf(`{"time":%q,"conditions":%s}`, at.UTC().Format(time.RFC3339Nano), conditions)
		if err := os.WriteFile(n.statusFile(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const barrier = `[{"code":51,"message":"table filter drops what is forwarded"}]`
	for _, when := range []string{"before the first ADD", "with pods"} {
		t.Run("C47: "+when, func(t *testing.T) {
			says(time.Now(), "null")
			n.succeed(t, c)
			says(time.Now(), `[{"code":51,"message":"first"},{"code":50,"message":"no range of pods yet"}]`)
			n.fail(t, c, 50, "no range of pods yet")
			says(time.Now(), barrier)
			if when == "with pods" {
				n.softly(t, c, 51, "table filter drops what is forwarded")
			}
			n.fail(t, c, 51, "table filter drops what is forwarded")
			says(time.Now(), `[{"code":7,"message":"another code"}]`)
			n.fail(t, c, 51, "another code")
			says(time.Now(), "[]")
			n.succeed(t, c)
		})
		n.added(t, add(when[:4], "eth0", netns.New(t, "pod"), n.config("1.1.0", nil)))
	}
	t.Run("C47: what the daemon says once is passed over", func(t *testing.T) {
		for range 2 * softLimit {
			says(time.Now(), barrier)
			n.succeed(t, c)
			says(time.Now(), "[]")
			n.succeed(t, c)
		}
	})
	t.Run("C46, C47: other verbs do not ask the daemon", func(t *testing.T) {
		says(time.Now(), barrier)
		n.added(t, add("c9", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil)))
	})
	t.Run("C47: a daemon that is gone says nothing", func(t *testing.T) {
		for _, age := range []time.Duration{2 * time.Minute, -2 * time.Minute} { // also by a clock that was set back
			says(time.Now().Add(-age), barrier)
			n.succeed(t, c)
		}
	})
	t.Run("C47: neither does a file that is none", func(t *testing.T) {
		for _, text := range []string{"", "{", "[]", `{"conditions":` + barrier + `}`} {
			if err := os.WriteFile(n.statusFile(), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			n.succeed(t, c)
		}
	})
	t.Run("C7: a path that is not absolute", func(t *testing.T) {
		n.fail(t, call{verb: "STATUS", stdin: n.config("1.1.0", object{"statusFile": "x/y"})}, 7, "x/y")
	})
}
