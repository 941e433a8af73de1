package invariants_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/rig"
)

// During a rolling update two daemons run for a while: the second one writes nothing
// while the first one lives, and takes over after it ended.
func TestASecondDaemonWaitsForTheFirst(t *testing.T) {
	for how, end := range map[string]func(*rig.Daemon){"stopped": (*rig.Daemon).Stop, "killed": (*rig.Daemon).Kill} {
		t.Run("the first is "+how, func(t *testing.T) {
			p := addr.IPv4()
			ns := netns.New(t, "node")
			first, second := rig.New(t, ns), rig.New(t, ns, "--healthz-bind-address", "127.0.0.1:11256", "--metrics-bind-address", "127.0.0.1:11249")
			web := func(n int) {
				first.Write("web.yaml", rig.Service("web", []netip.Addr{p.VIP(0)}, "web/TCP/80"), rig.Slice("web-1", "web", addrs(p, n), "web/TCP/8080"))
			}
			web(2)
			first.Run()
			first.AwaitHealthy()
			before := ns.Run(t, "nft", "-s", "list", "ruleset")

			second.Run()
			awaitWaiting(t, second)
			operated := operations(first)
			web(3)
			awaitWritten(t, first, operated)
			web(2)
			rig.Eventually(t, "the first writes what it is told", func() error {
				return differ(before, ns.Run(t, "nft", "-s", "list", "ruleset"))
			})
			awaitAnswer(t, second, "/healthz", http.StatusServiceUnavailable)

			end(first)
			rig.Eventually(t, "the second, which knows no Service, takes over", func() error {
				out := ns.Run(t, "nft", "list", "map", "ip", "onerule", "service-ips")
				if strings.Contains(out, "elements") {
					return fmt.Errorf("there still is %s", out)
				}
				return nil
			})
			awaitAnswer(t, second, "/healthz", http.StatusOK)
			if n := strings.Count(second.Log(), waits); n != 1 {
				t.Errorf("the second said %d times that it waits, want once: %s", n, second.Log())
			}
		})
	}
}

// waits is what a daemon says that waits for another one.
const waits = "another oneruled writes the tables"

// awaitWaiting waits until a second daemon says that it waits, and answers so.
func awaitWaiting(t *testing.T, d *rig.Daemon) {
	t.Helper()
	rig.Eventually(t, "the second says that it waits", func() error {
		if !strings.Contains(d.Log(), waits) {
			return fmt.Errorf("it says %q", d.Log())
		}
		return nil
	})
	awaitAnswer(t, d, "/livez", http.StatusOK)
	awaitAnswer(t, d, "/healthz", http.StatusServiceUnavailable)
}

// awaitAnswer waits until the second daemon's health server gives a status.
func awaitAnswer(t *testing.T, d *rig.Daemon, path string, want int) {
	t.Helper()
	rig.Eventually(t, "the second answers", func() error {
		got, body, err := d.Get(11256, path)
		if err == nil && got != want {
			err = fmt.Errorf("%s: %d %s, want %d", path, got, body, want)
		}
		return err
	})
}

// differ gives an error if the rules, without those for numbers that go later, differ.
func differ(want, got string) error {
	elements := func(ruleset string) string {
		var lines []string
		for line := range strings.Lines(ruleset) {
			if strings.Contains(line, " : ") && !strings.Contains(line, "typeof") {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
	if diff := cmp.Diff(elements(want), elements(got)); diff != "" {
		return fmt.Errorf("elements (-want +got): %s", diff)
	}
	return nil
}

// What the cluster itself needs to get on is in the kernel before the rules are hooked
// in, and all others after it.
func TestTheClusterItselfIsServedFirst(t *testing.T) {
	p := addr.IPv4()
	ns := netns.New(t, "node")
	d := rig.New(t, ns)
	vips := map[string]netip.Addr{"web": p.VIP(0), "kubernetes": p.VIP(1), "dns": p.VIP(2)}
	for name, vip := range vips {
		doc := rig.Service(name, []netip.Addr{vip}, "web/TCP/80")
		if name == "dns" {
			doc = strings.ReplaceAll(doc, "namespace: default", "namespace: kube-system")
		}
		d.Write(name+".yaml", doc)
	}
	events := monitor(t, ns)
	d.Run()
	d.AwaitHealthy()
	position := func(parts ...string) int {
		at := -1
		rig.Eventually(t, "the kernel says "+strings.Join(parts, " "), func() error {
			i := 0
			for line := range strings.Lines(events.String()) {
				all := true
				for _, part := range parts {
					all = all && strings.Contains(line, part)
				}
				if all {
					at = i
					return nil
				}
				i++
			}
			return fmt.Errorf("not in %s", events)
		})
		return at
	}
	hooked := position("add chain", "ip onerule", "hook prerouting")
	for name, vip := range vips {
		at := position("add element", "ip onerule service-ips", vip.String()+" ")
		if name == "web" != (at > hooked) {
			t.Errorf("%s is the %dth event, and the hook the %dth", name, at, hooked)
		}
	}
}

// monitor notes what nft monitor says of a namespace, which it has begun to do when
// monitor gives it.
func monitor(t *testing.T, ns *netns.NS) *rig.Output {
	t.Helper()
	out := &rig.Output{}
	cmd := exec.Command("nft", "monitor")
	cmd.Stdout, cmd.Stderr = out, out
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	rig.Eventually(t, "nft monitor has begun", func() error {
		ns.Run(t, "nft", "add table ip begun; delete table ip begun")
		if !strings.Contains(out.String(), "begun") {
			return fmt.Errorf("it says %q", out)
		}
		return nil
	})
	return out
}
