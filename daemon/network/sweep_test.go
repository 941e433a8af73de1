package network_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"onerule/test/netns"
	"onerule/test/rig"
)

// A remains is a node on which pods ended in all the ways that leave something.
type remains struct {
	ns    *netns.NS
	state string
}

func (r remains) call(t *testing.T, verb, container string, pod *netns.NS, port int) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(rig.Binary(t, "onerule", "onerule/plugin/onerule"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+container, "CNI_NETNS="+pod.Path(), "CNI_IFNAME=eth0", "CNI_PATH=/nowhere")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "onerule", "dataDir": %q,
		"ipam": {"ranges": [[{"subnet": "10.1.1.0/24"}], [{"subnet": "fd00:1:0:1::/112"}]]},
		"runtimeConfig": {"portMappings": [{"hostPort": %d, "containerPort": 80, "protocol": "tcp"}]}}`, r.state, port))
	return cmd
}

func newRemains(t *testing.T) remains {
	t.Helper()
	r := remains{newNS(t, "node"), filepath.Join(t.TempDir(), "state")}
	netns.Wire(t, r.ns, "eth0", newNS(t, "router"), "eth0")
	r.ns.Addr(t, "eth0", "172.16.1.1/24", "fd00:16:1::1/64")
	r.ns.Route(t, "default", "172.16.1.254")
	return r
}

// newDaemon gives one that does not run yet.
func (r remains) newDaemon(t *testing.T) *rig.Daemon {
	t.Helper()
	d := rig.New(t, r.ns, "--hostname-override", "a", "--pod-network", "--cni-state", r.state, "--network-status-file", filepath.Join(r.state, "network.json"),
		"--cluster-cidr", "10.1.0.0/16,fd00:1::/48", "--cni-plugin", rig.Binary(t, "onerule", "onerule/plugin/onerule"))
	d.Write("services.yaml", rig.ServiceCIDR("kubernetes", netip.MustParsePrefix("10.96.0.0/16")))
	d.Write("node.yaml", node("a", 1, []string{"10.1.1.0/24", "fd00:1:0:1::/112"}, addrs("172.16.1.1", "fd00:16:1::1")...))
	return d
}

// add wires a pod.
func (r remains) add(t *testing.T, container string, port int) *netns.NS {
	t.Helper()
	pod := newNS(t, container)
	cmd := r.call(t, "ADD", container, pod, port)
	if err := errors.Join(r.ns.Start(cmd), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	return pod
}

// addKilled kills an ADD when its link is made, and nothing is done yet at the pod's end.
func (r remains) addKilled(t *testing.T, container string, port int) *netns.NS {
	t.Helper()
	pod := newNS(t, container)
	cmd := r.call(t, "ADD", container, pod, port)
	const first = "/proc/sys/net/ipv6/conf/eth0/accept_ra"
	cmd.Args = append([]string{"strace", "-f", "-qqq", "-o", "/dev/null", "-P", first, "-e", "inject=openat:signal=SIGKILL", cmd.Path}, cmd.Args[1:]...)
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace")
	}
	cmd.Path = strace
	if err := r.ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if cmd.Wait() == nil {
		t.Fatal("it was not killed: this shows nothing")
	}
	return pod
}

// files lists what there is of attachments.
func (r remains) files(t *testing.T) (names []string) {
	t.Helper()
	for _, dir := range []string{"attachments", "addresses", "hostports"} {
		entries, err := os.ReadDir(filepath.Join(r.state, "pods", dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != "lock" {
				names = append(names, e.Name())
			}
		}
	}
	return names
}

func (r remains) record(container string) string {
	return filepath.Join(r.state, "pods/attachments", container+":eth0.json")
}

// ofAnotherBoot makes a pod one of before a reboot, which its link would not survive.
func (r remains) ofAnotherBoot(t *testing.T, container string) {
	t.Helper()
	r.ns.Run(t, "sh", "-c", `cd "`+filepath.Join(r.state, "pods")+`" && sed -i 's/"\(bootID\|boot\)": *"[^"]*"/"\1":"another"/' $(grep -l '"`+container+`\(:eth0\)\?"' attachments/* addresses/* hostports/*)`)
}

// ends deletes a pod's namespace, as when nobody calls DEL.
func (r remains) ends(t *testing.T, pod *netns.NS, container string) {
	t.Helper()
	b, err := os.ReadFile(r.record(container))
	if err != nil {
		t.Fatal(err)
	}
	var rec struct{ HostLink string }
	if err := errors.Join(json.Unmarshal(b, &rec), pod.Close()); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, "the link of "+container+" is gone", func() error {
		if strings.Contains(r.ns.Run(t, "ip", "-o", "link"), rec.HostLink) {
			return errors.New("it is there")
		}
		return nil
	})
}

// A daemon that begins finds what pods left that were killed, or were there before a reboot,
// and has the plugin remove it. What lives stays, and so does an ADD that is at work.
func TestC52TheDaemonSweeps(t *testing.T) {
	r := newRemains(t)
	r.add(t, "lives", 8001)
	dead, killed, busy := r.add(t, "dead", 8002), r.addKilled(t, "killed", 8003), r.add(t, "busy", 8004)
	r.add(t, "rebooted", 8005)
	r.ends(t, dead, "dead")
	r.ends(t, killed, "killed")
	r.ends(t, busy, "busy")
	unlock := rig.LockAttachments(t, filepath.Join(r.state, "pods/lock"))
	d := r.newDaemon(t)
	before := len(r.files(t))
	if err := os.WriteFile(filepath.Join(r.state, "pods/addresses/.10.1.1.99.new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.Run()
	d.AwaitHealthy()
	t.Run("C52 what a verb is at work on stays", func(t *testing.T) {
		rig.Eventually(t, "a sweep has been", func() error { return counted(d, "file", 1) })
		if got := len(r.files(t)); got != before {
			t.Errorf("got %d files, want %d", got, before)
		}
	})
	unlock()
	d.Kill()
	r.ofAnotherBoot(t, "rebooted")
	d.Run()
	d.AwaitHealthy()
	t.Run("C52 what is of pods that are gone goes, and is counted by kind", func(t *testing.T) {
		for kind, want := range map[string]float64{"attachment": 4, "address": 8, "link": 1, "host_port": 4, "file": 0} {
			rig.Eventually(t, kind, func() error { return counted(d, kind, want) })
		}
	})
	t.Run("C52 with links, routes, neighbours, and host ports", func(t *testing.T) {
		got := r.files(t)
		if len(got) != 4 {
			t.Errorf("got files %q, want a record, two reservations and a claim", got)
		}
		for what, count := range map[string]int{"ip -o link | grep -c ': one'": 1, "ip route show proto 111 | grep -c 10.1.1": 1,
			"ip -6 route show proto 111 | grep -c fd00:1:0:1::": 1, "ip neigh show nud permanent | grep -c one": 2,
			"nft list map ip onerule-hostports hostports-any | grep -o 'tcp . 80[0-9]*' | sort -u | grep -c .": 1} {
			if got := strings.TrimSpace(r.ns.Run(t, "sh", "-c", what+" || true")); got != fmt.Sprint(count) {
				t.Errorf("%s: got %s, want %d", what, got, count)
			}
		}
	})
	t.Run("C52 and logged", func(t *testing.T) {
		for _, want := range []string{"what was left of pods that are gone is removed", "attachments=4", "removing pods/dead/eth0", "its link is gone", "it is of an earlier boot"} {
			if !strings.Contains(d.Log(), want) {
				t.Errorf("%q is not in the log", want)
			}
		}
	})
}

// Folders of networks that hold no port now are in nobody's way.
func TestHostPortsArePutRightBesideAnEmptyFolder(t *testing.T) {
	r := newRemains(t)
	r.add(t, "lives", 8001)
	empty := filepath.Join(r.state, "others/hostports")
	if err := errors.Join(os.MkdirAll(empty, 0o700), os.WriteFile(filepath.Join(empty, "lock"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	d := r.newDaemon(t)
	d.Run()
	d.AwaitHealthy()
	r.ns.Run(t, "nft", "flush", "map", "ip", "onerule-hostports", "hostports-any")
	rig.Eventually(t, "the element is back", func() error {
		if out := r.ns.Run(t, "nft", "list", "map", "ip", "onerule-hostports", "hostports-any"); !strings.Contains(out, "tcp . 8001") {
			return errors.New(out)
		}
		return nil
	})
	if strings.Contains(d.Log(), "only where one network has some") {
		t.Error("it took the empty folder for that of a network with host ports")
	}
}

// counted says whether so much was swept.
func counted(d *rig.Daemon, kind string, want float64) error {
	got := d.Metric("onerule_swept_total", "kind", kind)
	if got != want {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	return nil
}
