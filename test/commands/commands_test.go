package commands_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/daemon/inspect"
	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/netns"
	"onerule/test/oracle"
	"onerule/test/rig"
)

func TestCommandsOfARunningDaemon(t *testing.T) {
	w := newWorld(t)
	t.Run("status", func(t *testing.T) { w.status(t) })
	t.Run("services", func(t *testing.T) { w.services(t) })
	t.Run("top", func(t *testing.T) { w.top(t) })
	t.Run("top on a terminal", func(t *testing.T) { w.terminal(t) })
	t.Run("diff", func(t *testing.T) { w.diff(t) })
	t.Run("what is wrong with a question", func(t *testing.T) { w.wrong(t) })
	t.Run("status of one that is degraded", func(t *testing.T) { w.degraded(t) })
	t.Run("a daemon that was killed", func(t *testing.T) { w.killed(t) })
}

func (w *world) status(t *testing.T) {
	text := w.ask(t, 0, "status")
	for _, want := range []string{
		"oneruled ", " on node node\n", fmt.Sprintf("process      %d, since", w.d.Pid()), "source       files in " + w.d.Dir, "mode         nftables, kernel ", "services     10 Services, 160 frontends",
		"TABLE        RULES  ELEMENTS  LAST LOAD\nip onerule ", "\nip6 onerule ", "\nservice-ips ", "\nall is well\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	var s inspect.Status
	if err := json.Unmarshal([]byte(w.ask(t, 0, "status", "-o", "json")), &s); err != nil {
		t.Fatal(err)
	}
	if s.PID != w.d.Pid() || s.Loaded == nil || s.LastChange == nil || len(s.Tables) != 2 || s.Services != len(plan()) || s.PendingSeconds != 0 {
		t.Errorf("got %+v", s)
	}
	for _, table := range s.Tables {
		if want := w.d.Metric("onerule_rules", "ip_family", table.Family); float64(table.Rules) != want || !table.Known || table.Load == nil {
			t.Errorf("got %+v, want %v rules as the metric says, and a load", table, want)
		}
		for _, set := range table.Sets {
			if want := w.d.Metric("onerule_elements", "ip_family", table.Family, "set", set.Name); float64(set.Elements) != want {
				t.Errorf("%s %s has %d elements, the metric says %v", table.Name, set.Name, set.Elements, want)
			}
		}
	}
}

func (w *world) services(t *testing.T) {
	p := addr.IPv4()
	text := w.ask(t, 0, "services")
	if lines := strings.Count(text, "\n"); lines != 1+16*len(plan()) {
		t.Errorf("%d lines, want a head and 16 for each Service:\n%s", lines, text)
	}
	for i, s := range plan() {
		if want := fmt.Sprintf("0.0.0.0:%d/TCP", nodePort(i)); !strings.Contains(text, "\ndefault/"+s.name+" ") || !strings.Contains(text, want) {
			t.Errorf("no %s with %s in\n%s", s.name, want, text)
		}
	}
	one := w.ask(t, 0, "services", "default/web")
	for _, want := range []string{
		fmt.Sprintf("%s:80/TCP", p.VIP(0)), "balance  2 endpoints of 3: 1 not ready", "endpoints of port http 80/TCP\n",
		fmt.Sprintf("%s:8080", p.OtherPod(1)), "not ready  gets no new connections",
	} {
		if !strings.Contains(one, want) {
			t.Errorf("no %q in\n%s", want, one)
		}
	}
	var list []inspect.Service
	if err := json.Unmarshal([]byte(w.ask(t, 0, "services", "guarded", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || len(list[0].Frontends) != 16 || len(list[0].Ports) != 2 {
		t.Errorf("got %+v, want one Service with 16 frontends of both families and 2 ports", list)
	}
}

// connect opens connections of a pod to web, each to its end.
func (w *world) connect(t *testing.T, n int) {
	t.Helper()
	p := addr.IPv4()
	for range n {
		seen, err := w.h.Probe(oracle.Packet{From: oracle.Pod, Src: p.Pod(0), Dst: p.VIP(0), Protocol: model.TCP, Port: 80}, hosts.Patience)
		if err != nil || seen.Verdict != hosts.Answered {
			t.Fatalf("got %v, %v, want an answer", seen, err)
		}
	}
}

func (w *world) top(t *testing.T) {
	w.connect(t, 40)
	var reading struct {
		Seconds  float64
		Services []struct {
			Service, Port string
			Total         uint64
			Endpoints     []struct {
				Address string
				Total   uint64
				Share   float64
			}
		}
	}
	if err := json.Unmarshal([]byte(w.ask(t, 0, "top", "-o", "json", "--every", "100ms", "--sort", "total")), &reading); err != nil {
		t.Fatal(err)
	}
	first := reading.Services[0]
	if first.Service != "web" || first.Port != "http" || first.Total != 40 || reading.Seconds <= 0 {
		t.Errorf("got %+v, want web first with 40 connections", first)
	}
	sum, shares := uint64(0), 0.0
	for _, e := range first.Endpoints {
		sum, shares = sum+e.Total, shares+e.Share
	}
	if sum != 40 || shares < 0.999 || shares > 1.001 {
		t.Errorf("got %d connections and shares of %v in all, want 40 and 1", sum, shares)
	}
	text := w.ask(t, 0, "top", "-n", "2", "--every", "100ms", "--sort", "total", "--services")
	if strings.Count(text, "SERVICE ") != 2 || strings.Contains(text, "\x1b") || !strings.Contains(text, "default/web ") {
		t.Errorf("want two plain readings, got\n%s", text)
	}
}

func (w *world) diff(t *testing.T) {
	tables := func() string { return w.h.Node.Run(t, "nft", "-s", "list", "ruleset") }
	before := tables()
	if text := w.ask(t, 0, "diff"); text != "table ip onerule: nothing to change\ntable ip6 onerule: nothing to change\n" {
		t.Errorf("got %q, want nothing to change", text)
	}
	dir := t.TempDir()
	dry := []string{"diff", "--manifests", dir, "--hostname-override", rig.NodeName, "--cluster-cidr", ranges()}
	for _, s := range []string{"cidrs"} {
		copyFile(t, filepath.Join(w.d.Dir, s+".yaml"), filepath.Join(dir, s+".yaml"))
	}
	for i, s := range plan() {
		copyFile(t, filepath.Join(w.d.Dir, s.name+".yaml"), filepath.Join(dir, s.name+".yaml"))
		if s.name == "empty" { // it gets an endpoint
			s.endpoints = append(s.endpoints, endpoint{true, 1, true, false})
			write(t, filepath.Join(dir, s.name+".yaml"), strings.Join(s.documents(i), "---\n"))
		}
	}
	write(t, filepath.Join(dir, "bad.yaml"), rig.Service("bad", strayVIP(), "http/TCP/99999"))
	r := w.run(t, dry...)
	i := 4 // of empty
	for _, want := range []string{
		fmt.Sprintf("  + endpoints-tcp { %s . 80 . 0 : %s . 8080 }\n", addr.IPv4().VIP(i), addr.IPv4().Pod(1)),
		fmt.Sprintf("  - no-endpoints { %s . tcp . 80 }\n", addr.IPv4().VIP(i)), "skipped: bad.yaml: Service default/bad ",
	} {
		if r.code != 2 || !strings.Contains(r.out, want) {
			t.Errorf("exit code %d, and no %q in\n%s%s", r.code, want, r.out, r.errs)
		}
	}
	if strings.Contains(r.out, "!") || strings.Contains(r.out, addr.IPv4().VIP(0).String()) || r.errs != "" {
		t.Errorf("want no rules, and nothing of Services that stay the same, got\n%s%s", r.out, r.errs)
	}
	if r := w.run(t, append(dry, "--masquerade-all")...); r.code != 2 || !strings.Contains(r.out, "! all rules, in one transaction: the rules are of another version, or of other settings") {
		t.Errorf("with another setting: exit code %d\n%s%s", r.code, r.out, r.errs)
	}
	if r := w.run(t, append(dry, "--masquerade-bit=15")...); r.code != 2 || !strings.Contains(r.out, "! all rules, in one transaction") {
		t.Errorf("with another bit: exit code %d\n%s%s", r.code, r.out, r.errs)
	}
	var d inspect.Diff
	if r := w.run(t, append(dry, "-o", "json")...); json.Unmarshal([]byte(r.out), &d) != nil || d.Empty() || len(d.Tables) != 2 {
		t.Errorf("as JSON: got %s%s", r.out, r.errs)
	}
	if after := tables(); after != before {
		t.Error("the tables changed")
	}
}

func (w *world) wrong(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a Service that is not there":  {[]string{"services", "none"}, "no Service none is known"},
		"two families":                 {[]string{"explain", "10.0.0.1", "[fd00::1]:80/tcp"}, "two IP families"},
		"no protocol":                  {[]string{"explain", "node", "10.0.0.1:80"}, "has no protocol"},
		"too few arguments":            {[]string{"explain", "node"}, "explain takes FROM and TO:PORT/PROTO"},
		"an interface for the node":    {[]string{"explain", "node", addr.IPv4().VIP(0).String() + ":80/tcp", "--in", "eth0"}, "comes in by no interface"},
		"another format":               {[]string{"status", "-o", "yaml"}, "neither text nor json"},
		"an order that there is not":   {[]string{"top", "--sort", "size"}, "neither rate, total nor name"},
		"a daemon's flag without one":  {[]string{"diff", "--masquerade-all"}, "counts with --manifests only"},
		"a file that is no socket":     {[]string{"status", "--socket", filepath.Join(w.d.Dir, "cidrs.yaml")}, "cidrs.yaml: it is no socket"},
		"manifests that are not there": {[]string{"diff", "--manifests", "/nowhere"}, "no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			args := c.args
			if !slices.Contains(args, "--socket") {
				args = append(args, "--socket", w.socket)
			}
			r := w.run(t, args...)
			if r.code != 1 || r.out != "" || !strings.HasPrefix(r.errs, "oneruled: ") || !strings.Contains(r.errs, c.want) {
				t.Errorf("exit code %d, %q and %q; want 1 and %q", r.code, r.out, r.errs, c.want)
			}
		})
	}
}

func (w *world) degraded(t *testing.T) {
	w.d.Write("bad.yaml", rig.Service("bad", strayVIP(), "http/TCP/99999"))
	rig.Eventually(t, "the status tells of the bad object", func() error {
		r := w.run(t, "status", "--socket", w.socket)
		if r.code != 2 || !strings.Contains(r.out, "degraded:\n  - 1 object, or part of one, is skipped: bad.yaml: Service default/bad ") {
			return fmt.Errorf("exit code %d\n%s%s", r.code, r.out, r.errs)
		}
		return nil
	})
	t.Run("services says why a port is left out", func(t *testing.T) { w.skipped(t) })
	w.d.Remove("bad.yaml")
}

// skipped is about a Service whose only port can't be.
func (w *world) skipped(t *testing.T) {
	const why = "spec.ports[0].port: 99999 is not in 1..65535"
	for _, args := range [][]string{{"services"}, {"services", "bad"}} {
		if text := w.ask(t, 0, args...); !strings.Contains(text, "default/bad: "+why) {
			t.Errorf("%v does not say %q:\n%s", args, why, text)
		}
	}
	text := w.ask(t, 0, "services", "bad", "-o", "json")
	if !strings.Contains(text, `"frontends": [],`) || !strings.Contains(text, `"ports": [],`) || !strings.Contains(text, why) {
		t.Errorf("want empty lists, and %q:\n%s", why, text)
	}
}

// killed sees that a daemon that is killed is told from one that never was, and that the
// next one answers at its socket.
func (w *world) killed(t *testing.T) {
	w.d.Kill()
	for _, args := range [][]string{{"status"}, {"top", "-n", "1"}, {"services"}, {"explain", "node", "10.0.0.1:80/tcp"}, {"diff", "-o", "json"}} {
		if r := w.run(t, append(args, "--socket", w.socket)...); r.code != 3 || r.out != "" || !strings.Contains(r.errs, "no daemon answers at "+w.socket+": the one that made the socket has ended") {
			t.Errorf("%v: exit code %d, %q and %q; want 3 and that it has ended", args, r.code, r.out, r.errs)
		}
	}
	w.d.Run()
	rig.Eventually(t, "the next daemon answers", func() error {
		if r := w.run(t, "status", "--socket", w.socket); r.code != 0 || !strings.Contains(r.out, fmt.Sprintf("process      %d,", w.d.Pid())) {
			return fmt.Errorf("exit code %d: %s%s", r.code, r.out, r.errs)
		}
		return nil
	})
	w.d.Stop()
	if _, err := os.Stat(w.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a daemon that was asked to end left its socket: %v", err)
	}
	if r := w.run(t, "status", "--socket", w.socket); r.code != 3 || !strings.Contains(r.errs, "no such socket") {
		t.Errorf("exit code %d and %q, want 3 and that there is no socket", r.code, r.errs)
	}
}

func TestASocketThatCanNotBeHadStopsNothing(t *testing.T) {
	first := alone(t)
	t.Run("one that another daemon has", func(t *testing.T) {
		d := rig.Start(t, netns.New(t, "other"), "--socket", first.socket)
		rig.Eventually(t, "it says so, once", func() error {
			if n := strings.Count(d.Log(), "the commands of oneruled are answered by another daemon"); n != 1 {
				return fmt.Errorf("said %d times:\n%s", n, d.Log())
			}
			return nil
		})
		if text := first.ask(t, 0, "status"); !strings.Contains(text, fmt.Sprintf("process      %d,", first.d.Pid())) {
			t.Errorf("another one answers:\n%s", text)
		}
		first.d.Stop()
		rig.Eventually(t, "it answers when the other has ended", func() error {
			if r := first.run(t, "status", "--socket", first.socket); !strings.Contains(r.out, fmt.Sprintf("process      %d,", d.Pid())) {
				return fmt.Errorf("exit code %d: %s%s", r.code, r.out, r.errs)
			}
			return nil
		})
		if n := strings.Count(d.Log(), "the commands of oneruled"); n != 1 {
			t.Errorf("it spoke of its socket %d times:\n%s", n, d.Log())
		}
	})
	t.Run("one that somebody removes comes back", func(t *testing.T) {
		at := socketPath(t)
		rig.Start(t, netns.New(t, "other"), "--socket", at)
		rig.Eventually(t, "the socket is there", func() error { _, err := os.Stat(at); return err })
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
		rig.Eventually(t, "it is there again", func() error {
			_, err := inspect.Client{Socket: at}.Status(t.Context())
			return err
		})
	})
	t.Run("a daemon that waits for the end of another one says so", func(t *testing.T) {
		ns, at := netns.New(t, "node"), socketPath(t)
		rig.Start(t, ns)
		second := rig.New(t, ns, "--socket", at)
		second.Run()
		const waits = "another oneruled writes the tables of this network"
		rig.Eventually(t, "it answers", func() error {
			s, err := (inspect.Client{Socket: at}).Status(t.Context())
			if err != nil || len(s.Degraded) == 0 || !strings.Contains(s.Degraded[0], waits) {
				return fmt.Errorf("got %+v, %w, want that it waits", s, err)
			}
			if s.Tables == nil {
				t.Error("as JSON its tables are null, want an empty list")
			}
			return nil
		})
		if _, err := (inspect.Client{Socket: at}).Diff(t.Context()); err == nil || !strings.Contains(err.Error(), waits) {
			t.Errorf("got %v, want that it waits", err)
		}
	})
	t.Run("a directory that can't be", func(t *testing.T) {
		d := rig.Start(t, netns.New(t, "other"), "--socket", "/proc/onerule/sock")
		rig.Eventually(t, "it says so", func() error {
			if !strings.Contains(d.Log(), "the commands of oneruled get no answer") {
				return errors.New(d.Log())
			}
			return nil
		})
	})
	t.Run("none is asked for in a network of its own", func(t *testing.T) {
		before := inode(inspect.DefaultSocket)
		rig.Start(t, netns.New(t, "other"))
		if after := inode(inspect.DefaultSocket); after != before {
			t.Errorf("it made %s", inspect.DefaultSocket)
		}
	})
}

// inode tells files of one name apart; 0: there is none.
func inode(path string) uint64 {
	var stat unix.Stat_t
	if unix.Stat(path, &stat) != nil {
		return 0
	}
	return stat.Ino
}

func TestHelpOfEachCommand(t *testing.T) {
	w := &world{h: &hosts.Hosts{Node: netns.New(t, "node")}, bin: rig.Binary(t, "oneruled", "onerule/daemon/oneruled")}
	root := w.run(t, "--help")
	for _, name := range []string{"status", "top", "services", "explain", "diff", "install", "uninstall", "completion"} {
		if !strings.Contains(root.out, "\n  "+name+" ") {
			t.Errorf("no %s in the help of oneruled:\n%s", name, root.out)
		}
		r := w.run(t, name, "--help")
		code := "it was answered"
		switch name {
		case "install":
			code = "it is done, or the node lacks nothing without which nothing works\n  1  it is not"
		case "uninstall":
			code = "all is gone\n  1  it is not"
		case "completion":
			code = "it is written\n  1  it is not"
		}
		for _, want := range []string{"Examples:\n  ", "oneruled " + name, "--socket path", "Exit codes:\n  0  " + code} {
			if r.code != 0 || !strings.Contains(r.out, want) {
				t.Errorf("%s --help: exit code %d, and no %q in\n%s", name, r.code, want, r.out)
			}
		}
	}
	for _, name := range []string{"status", "top", "services", "explain", "diff", "install", "uninstall"} {
		if r := w.run(t, name, "--help"); !strings.Contains(r.out, "-o, --output format") {
			t.Errorf("%s has no -o:\n%s", name, r.out)
		}
	}
	if r := w.run(t, "diff", "--help"); strings.Contains(r.out, "conntrack") || strings.Contains(r.out, "watched") || !strings.Contains(r.out, "--manifests directory") {
		t.Errorf("of the daemon's flags, diff shows --manifests only:\n%s", r.out)
	}
}
