package plugin_test

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"onerule/test/netns"
)

// A bridged is a node with pods behind the bridge of another plugin, and the
// configuration that adopts them.
type bridged struct {
	*node
	old   []oldPod
	stdin string
	keep  object // adopt and the like
}

func newBridged(t *testing.T, dir string, pods int) *bridged {
	t.Helper()
	n, networks := newNode(t), t.TempDir()
	n.Sysctl(t, "net.ipv6.conf.default.accept_dad", "0")
	b := &bridged{node: n, old: oldPodsOf(t, n, dir, networks, formerPlugins()[3], pods)}
	b.keep = object{"adopt": filepath.Join(networks, "pods"), "quarantine": "0s"}
	b.stdin = n.config("1.1.0", b.keep)
	return b
}

// add wires a new pod, and gives its addresses.
func (b *bridged) add(t *testing.T, name string) (*netns.NS, []netip.Addr) {
	t.Helper()
	pod := netns.New(t, name)
	return pod, addresses(t, b.added(t, add(name, "eth0", pod, b.stdin)))
}

func (b *bridged) del(t *testing.T, name string) {
	t.Helper()
	b.succeed(t, call{verb: "DEL", container: name, ifName: "eth0", stdin: b.stdin})
}

// answers gives the addresses that the node answers for, sorted.
func (b *bridged) answers(t *testing.T) []string {
	t.Helper()
	var list []string
	// It prints those of both families, whichever is asked for.
	for _, line := range strings.Split(b.Run(t, "ip", "neigh", "show", "proxy"), "\n") {
		if f := strings.Fields(line); len(f) > 0 {
			list = append(list, f[0])
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func (b *bridged) wantAnswers(t *testing.T, groups ...[]netip.Addr) {
	t.Helper()
	var want []string
	for _, group := range groups {
		for _, a := range group {
			want = append(want, a.String())
		}
	}
	slices.Sort(want)
	if got := b.answers(t); !slices.Equal(got, want) {
		t.Errorf("got answers for %q, want %q", got, want)
	}
}

func (b *bridged) settings(t *testing.T) string {
	t.Helper()
	return b.Run(t, "sysctl", "net.ipv6.conf.all.proxy_ndp", "net.ipv4.neigh.cni0.proxy_delay", "net.ipv6.neigh.cni0.proxy_delay")
}

// talk wants connections both ways, of both families.
func (b *bridged) talk(t *testing.T, pod *netns.NS, addrs []netip.Addr, old oldPod) {
	t.Helper()
	for i, a := range addrs {
		connect(t, old.ns, pod, a)
		connect(t, pod, old.ns, old.addrs[i])
	}
}

// To an old pod behind a bridge the new ones are on its own link, where they are not: the
// node answers in their place, as long as there is such a pod.
func TestOldPodsBehindABridge(t *testing.T) {
	dir := build(t, mains+"main/bridge", mains+"ipam/host-local")
	t.Run("they reach new pods until the last of them goes", func(t *testing.T) { testOldPods(t, newBridged(t, dir, 2)) })
	t.Run("the kernel's settings come back with a GC", func(t *testing.T) {
		testSettingsComeBack(t, newBridged(t, dir, 1), func(b *bridged) {
			keep := object{"adopt": b.keep["adopt"], "cni.dev/valid-attachments": []object{{"containerID": "new", "ifname": "eth0"}}}
			b.succeed(t, call{verb: "GC", stdin: b.config("1.1.0", keep)})
		})
	})
	t.Run("and when addresses are handed back", func(t *testing.T) {
		testSettingsComeBack(t, newBridged(t, dir, 1), func(b *bridged) {
			if _, stderr, exit := b.handBack(t, b.keep["adopt"].(string)); exit != 0 {
				t.Errorf("exit %d: %s", exit, stderr)
			}
		})
	})
	t.Run("a bridge that somebody deletes keeps no pod from coming and going", func(t *testing.T) {
		b := newBridged(t, dir, 1)
		b.add(t, "new")
		b.Run(t, "ip", "link", "del", "cni0")
		b.add(t, "newer")
		b.swept(t)
		for _, name := range []string{"old0", "new", "newer"} {
			b.del(t, name)
		}
		b.clean(t)
	})
	t.Run("nor is a setting forgotten that a container can't put back", func(t *testing.T) { testContained(t, newBridged(t, dir, 1)) })
	b := newBridged(t, dir, 1)
	for name, stdout := range map[string]*os.File{"an ADD": nil, "an ADD that takes back what it did": full(t)} {
		t.Run("C15, C28: "+name+" that is killed leaves no answers", func(t *testing.T) {
			b.killedAtEach(t, "sendto", "ADD", call{stdin: b.stdin, stdout: stdout}, func() { b.wantAnswers(t) })
		})
	}
	t.Run("C38: nor does a DEL", func(t *testing.T) {
		b.killedAtEach(t, "sendto", "DEL", call{stdin: b.stdin}, func() { b.wantAnswers(t) })
	})
	t.Run("a bridge without IPv6 has answers of IPv4", func(t *testing.T) {
		b := newBridged(t, dir, 1)
		b.Run(t, "ip", "link", "set", "cni0", "mtu", "1000") // with which the kernel ends it
		_, addrs := b.add(t, "new")
		b.wantAnswers(t, addrs[:1])
	})
}

func testOldPods(t *testing.T, b *bridged) {
	b.guarded(t)
	path := filepath.Join(b.dataDir, "pods/bridges")
	first, firstAddrs := b.add(t, "first")
	second, secondAddrs := b.add(t, "second")
	t.Run("the node answers for each new pod", func(t *testing.T) {
		b.wantAnswers(t, firstAddrs, secondAddrs)
		for _, old := range b.old {
			b.talk(t, first, firstAddrs, old)
			b.talk(t, second, secondAddrs, old)
		}
	})
	t.Run("also who asks whether its entry still holds", func(t *testing.T) {
		for _, a := range firstAddrs {
			b.old[0].ns.Run(t, "ip", "neigh", "change", a.String(), "dev", "eth0", "nud", "probe")
			b.old[0].becomes(t, a, "REACHABLE")
		}
	})
	t.Run("C44: CHECK misses an answer, and the sweep brings it back", func(t *testing.T) {
		check := b.checkOf(t, add("first", "eth0", first, b.stdin))
		b.succeed(t, check)
		for _, a := range firstAddrs {
			b.Run(t, "ip", "neigh", "del", "proxy", a.String(), "dev", "cni0")
			b.fail(t, check, 106, a.String()+": no proxy entry")
			b.swept(t)
			b.succeed(t, check)
		}
		b.Sysctl(t, "net.ipv6.conf.all.proxy_ndp", "0")
		b.swept(t)
		b.talk(t, first, firstAddrs, b.old[0])
	})
	t.Run("a file that can't be read is made anew", func(t *testing.T) {
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		b.swept(t)
		b.wantAnswers(t, firstAddrs, secondAddrs)
		if text, err := os.ReadFile(path); !strings.Contains(string(text), `"cni0"`) {
			t.Errorf("got %q, %v", text, err)
		}
	})
	t.Run("C34: DEL of a new pod ends the answers for it", func(t *testing.T) {
		b.del(t, "second")
		b.wantAnswers(t, firstAddrs)
	})
	t.Run("an ADD that fails leaves none", func(t *testing.T) {
		pod := add("third", "eth0", netns.New(t, "third"), b.config("1.1.0", b.keep))
		pod.stdout = full(t)
		if a := b.run(t, pod); a.exit == 0 {
			t.Error("it succeeded without a result")
		}
		b.wantAnswers(t, firstAddrs)
	})
	t.Run("the last old pod takes them along, and the settings", func(t *testing.T) {
		b.del(t, "old0")
		b.wantAnswers(t, firstAddrs)
		b.talk(t, first, firstAddrs, b.old[1])
		b.del(t, "old1")
		b.wantAnswers(t)
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	})
	t.Run("nothing is answered from then on", func(t *testing.T) {
		b.add(t, "fourth")
		b.swept(t)
		b.wantAnswers(t)
	})
}

func testSettingsComeBack(t *testing.T, b *bridged, end func(*bridged)) {
	t.Helper()
	before := b.settings(t)
	_, addrs := b.add(t, "new")
	b.wantAnswers(t, addrs)
	if b.settings(t) == before {
		t.Error("no setting was changed: this shows nothing")
	}
	end(b)
	if after := b.settings(t); after != before {
		t.Errorf("got %s, want %s", after, before)
	}
	b.wantAnswers(t)
}

// testContained is about the pods of the daemon and of uninstall, which see their own /proc/sys
// read-only.
func testContained(t *testing.T, b *bridged) {
	t.Helper()
	before, file, sysctls := b.settings(t), filepath.Join(b.dataDir, "pods/bridges"), t.TempDir()
	told := "ONERULE_SYSCTL_DIR=" + sysctls
	handBack := []string{"hand-back", b.dataDir, b.keep["adopt"].(string)}
	b.add(t, "new")
	known, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, which := range []string{"first", "second"} {
		t.Run("the "+which+" try without it fails and forgets nothing", func(t *testing.T) {
			if stderr, exit := b.contained(t, sysctls, "", handBack...); exit != 1 || !strings.Contains(stderr, "read-only file system") {
				t.Errorf("exit %d: %s", exit, stderr)
			}
			if got, err := os.ReadFile(file); string(got) != string(known) {
				t.Errorf("got %q, %v, want %q", got, err, known)
			}
		})
	}
	for dir, want := range map[string]string{"sys": `"sys" is no absolute path`, t.TempDir(): "net/ipv4: no such file or directory"} {
		t.Run("nor does one that is told "+want, func(t *testing.T) {
			stderr, exit := b.contained(t, sysctls, "ONERULE_SYSCTL_DIR="+dir, handBack...)
			if exit != 1 || !strings.Contains(stderr, "hand-back: ONERULE_SYSCTL_DIR: ") || !strings.Contains(stderr, want) {
				t.Errorf("exit %d: %s", exit, stderr)
			}
		})
	}
	t.Run("a sweep mends them where it is told", func(t *testing.T) {
		b.Sysctl(t, "net.ipv6.conf.all.proxy_ndp", "0")
		if stderr, exit := b.contained(t, sysctls, "", "sweep", b.dataDir); exit != 1 || !strings.Contains(stderr, "read-only file system") {
			t.Errorf("without it: exit %d: %s", exit, stderr)
		}
		if stderr, exit := b.contained(t, sysctls, told, "sweep", b.dataDir); exit != 0 {
			t.Errorf("exit %d: %s", exit, stderr)
		}
		if got := strings.TrimSpace(b.Run(t, "sysctl", "-n", "net.ipv6.conf.all.proxy_ndp")); got != "1" {
			t.Errorf("got %s, want 1", got)
		}
	})
	t.Run("one with it puts all back", func(t *testing.T) {
		if stderr, exit := b.contained(t, sysctls, told, handBack...); exit != 0 {
			t.Errorf("exit %d: %s", exit, stderr)
		}
		if after := b.settings(t); after != before {
			t.Errorf("got %s, want %s", after, before)
		}
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", file, err)
		}
	})
}

// contained runs a command of the plugin's in a container that has the node's /proc/sys at a
// folder.
func (b *bridged) contained(t *testing.T, sysctls, env string, args ...string) (stderr string, exit int) {
	t.Helper()
	const script = `mount --bind /proc/sys "$0" && mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec env -i $ENV "$@"`
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, sysctls, binary()}, args...)...)
	cmd.Env = append(os.Environ(), "ENV="+env)
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := b.Start(cmd); err != nil {
		t.Fatal(err)
	}
	var failed *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return errs.String(), cmd.ProcessState.ExitCode()
}

// becomes waits for the state of a neighbour of the pod.
func (p oldPod) becomes(t *testing.T, a netip.Addr, state string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(10 * time.Second)
	wanted := regexp.MustCompile(" " + state + " *\n")
	for ; ; <-tick.C {
		out := p.ns.Run(t, "ip", "neigh", "show", "to", a.String())
		switch {
		case wanted.MatchString(out):
			return
		case strings.Contains(out, "FAILED") || time.Now().After(deadline):
			t.Errorf("the neighbour %s is %s, want %s", a, out, state)
			return
		}
	}
}
