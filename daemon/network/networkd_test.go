package network_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/test/netns"
	"onerule/test/rig"
)

const networkd = "/lib/systemd/systemd-networkd"

// device makes what a machine has that a namespace lacks: links of which udev has told.
const device = `set -e
mount -t tmpfs tmpfs /run
mount -t sysfs sysfs /sys
mkdir -p /run/udev/data
for i in /sys/class/net/*/ifindex; do echo I:1 > /run/udev/data/n$(cat $i); done
`

// startNetworkd runs systemd-networkd in a namespace, with files of its own, until the test
// or what is returned ends it.
func startNetworkd(t *testing.T, ns *netns.NS, files map[string]string) (stop func()) {
	t.Helper()
	return startApart(t, ns, files, device+`mkdir -p /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/netif/lldp /run/systemd/network /run/systemd/networkd.conf.d
cp FILES/*.network /run/systemd/network
cp FILES/*.conf /run/systemd/networkd.conf.d || true # there may be none
chown -R systemd-network /run/systemd
exec `+networkd)
}

// startNetworkManager runs NetworkManager with a system bus of its own.
func startNetworkManager(t *testing.T, ns *netns.NS, files map[string]string) (stop func()) {
	t.Helper()
	return startApart(t, ns, files, device+`mkdir -p /run/dbus /run/NetworkManager /run/own
dbus-daemon --config-file=FILES/bus.xml --nofork & bus=$!
NetworkManager --no-daemon --config=FILES/nm.first --config-dir=FILES --system-config-dir=/run/own/s --state-file=/run/own/state --intern-config=/run/own/intern & manager=$!
trap 'kill $manager || true' TERM
wait $manager || true
wait $manager || true # the first one ended with the signal
kill $bus`)
}

// startApart runs a script in a namespace and with mounts of its own, until the test or what
// is returned ends it. FILES is a folder with files.
func startApart(t *testing.T, ns *netns.NS, files map[string]string, script string) (stop func()) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", strings.ReplaceAll(script, "FILES", dir))
	out := &rig.Output{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 10 * time.Second // for what it has begun
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // ends with the process, and that by the signal
		_ = cmd.Wait()
		close(ended)
	}()
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		<-ended
	})
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("it said:\n%s", out)
		}
	})
	return stop
}

// The real program that takes from links what it has not put there. Its files say that it
// is to manage the uplink and, since somebody wrote them for all links, ours as well.
func TestD12_SystemdNetworkdTakesOurLinks(t *testing.T) {
	if _, err := os.Stat(networkd); err != nil {
		t.Skipf("systemd-networkd is not installed: %v", err)
	}
	a := single(t)
	k := newKept(t, a)
	files := map[string]string{
		"10-eth0.network": "[Match]\nName=eth0\n[Network]\nLinkLocalAddressing=ipv6\nIPv6AcceptRA=no\n" +
			"Address=fd00:16:1::1/64\nGateway=172.16.1.254\nGateway=fd00:16:1::fe\n" +
			// With it networkd finds the address as it has made it. Otherwise each start makes it
			// anew, and the kernel drops the IPv4 routes by it: seldom for so long that we see it.
			"[Address]\nAddress=172.16.1.1/24\nBroadcast=172.16.1.255\n",
		"20-all.network": "[Match]\nName=*\n[Network]\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n",
	}
	k.witness(t)
	a.ns.Run(t, "ip", "-6", "route", "add", foreignRoute, "dev", "eth0", "proto", "199")
	var stop func()
	t.Run("when it starts", func(sub *testing.T) {
		k.takes(sub, "address", func() { stop = startNetworkd(t, a.ns, files) })
		a.has(sub, "ip -6 route show proto 199", foreignRoute, false)
	})
	t.Run("when the pod's link was down", func(t *testing.T) { k.takes(t, "route", func() { k.again(t, k.dev) }) })
	t.Run("when the uplink was down", func(t *testing.T) { k.again(t, "eth0"); k.healed(t) })
	t.Run("when it starts again", func(t *testing.T) {
		stop()
		k.takes(t, "address", func() { stop = startNetworkd(t, a.ns, files) })
	})
	stop()
	k.healed(t)
	for placed, name := range map[string]string{"networkd.network": "00-onerule.network", "networkd.conf": "90-onerule.conf"} {
		text, err := os.ReadFile("../../install/" + placed)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	t.Run("D11 with the files that install places nothing is taken", func(t *testing.T) { k.leavesAlone(t, files) })
}

// foreignRoute is one by the uplink which neither networkd nor we have made. It is one of IPv6:
// those of IPv4 go with the uplink's address, which networkd makes anew.
const foreignRoute = "fd00:99::/64"

// leavesAlone wants that networkd takes nothing that is ours, while it manages other links.
func (k *kept) leavesAlone(t *testing.T, files map[string]string) {
	t.Helper()
	k.witness(t)
	k.ns.Run(t, "ip", "-6", "route", "add", foreignRoute, "dev", "eth0", "proto", "199")
	k.ns.Run(t, "ip", "rule", "add", "fwmark", "0x777", "lookup", "777", "protocol", "199")
	before := k.taken(t)
	startNetworkd(t, k.ns, files)
	k.has(t, "ip addr show dev witness", witnessed, false)
	k.has(t, "ip addr show dev eth0", "172.16.1.1/24", true)
	k.healed(t)
	if diff := cmp.Diff(before, k.taken(t)); diff != "" {
		t.Errorf("changes by others (-before +now):\n%s", diff)
	}
	k.has(t, "ip -6 route show proto 199", foreignRoute, true)
	k.has(t, "ip rule show", "0x777", true)
}

// witnessed is an address of a link that nobody asks to be left alone.
const witnessed = "192.0.2.5/32"

// witness makes the link, or gives it its address again.
func (k *kept) witness(t *testing.T) {
	t.Helper()
	k.ns.Run(t, "sh", "-ec", `ip link show dev witness >/dev/null 2>&1 || ip link add witness type veth peer name other
ip addr replace `+witnessed+` dev witness
ip link set other up; ip link set witness up`)
}

// taken gives how often others have changed what is ours, by kind.
func (k *kept) taken(t *testing.T) map[string]float64 {
	t.Helper()
	counted := map[string]float64{}
	for _, m := range k.daemon.Metrics()["onerule_foreign_changes_total"].GetMetric() {
		for _, l := range m.GetLabel() {
			counted[l.GetValue()] += m.GetCounter().GetValue()
		}
	}
	return counted
}

// NetworkManager takes every link for its own, unless it is told by the file that install
// places to leave ours alone. It is no package that tests install: where it is, it takes the
// machine's links.
func TestD12_NetworkManagerTakesOurLinks(t *testing.T) {
	if _, err := exec.LookPath("NetworkManager"); err != nil {
		t.Skipf("NetworkManager is not installed: %v", err)
	}
	snippet, err := os.ReadFile("../../install/networkmanager.conf")
	if err != nil {
		t.Fatal(err)
	}
	a := single(t)
	k := newKept(t, a)
	files := map[string]string{
		"bus.xml": `<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`,
		"nm.first": "[main]\nplugins=keyfile\n[keyfile]\npath=/run/own/connections\nunmanaged-devices=interface-name:eth0\n",
	}
	var stop func()
	t.Run("without the file", func(sub *testing.T) { k.takes(sub, "address", func() { stop = startNetworkManager(t, a.ns, files) }) })
	t.Run("when the pod's link was down", func(t *testing.T) { k.takes(t, "route", func() { k.again(t, k.dev) }) })
	stop()
	k.healed(t)
	t.Run("with the file that install places", func(t *testing.T) {
		files["90-onerule.conf"] = string(snippet)
		before := a.foreign(t, "address")
		a.ns.Run(t, "ip", "link", "add", "witness", "type", "veth", "peer", "name", "other") // which nobody asks it to leave alone
		a.ns.Run(t, "ip", "addr", "add", "fe80::5/64", "dev", "witness", "nodad")
		a.ns.Run(t, "ip", "link", "set", "other", "up")
		a.ns.Run(t, "ip", "link", "set", "witness", "up")
		startNetworkManager(t, a.ns, files)
		a.has(t, "ip addr show dev witness", "fe80::5/64", false)
		k.healed(t)
		if now := a.foreign(t, "address"); now != before {
			t.Errorf("addresses were taken %v times", now-before)
		}
	})
}

// Kept is what a node holds before somebody takes it.
type kept struct {
	*host
	dev, pod, between string
}

func newKept(t *testing.T, a *host) *kept {
	t.Helper()
	k := &kept{host: a, dev: a.podLink(t)}
	k.pod, k.between = withoutOthers(a.link(t, k.dev)), k.routes(t)
	return k
}

// withoutOthers leaves out link-local addresses that others have added: they do no harm.
func withoutOthers(link string) string {
	words := strings.Split(link, " ")
	return strings.Join(slices.DeleteFunc(words, func(w string) bool {
		return strings.HasPrefix(w, "fe80::") && w != "fe80::1/64"
	}), " ")
}

func (k *kept) routes(t *testing.T) string {
	t.Helper()
	return k.ns.Run(t, "ip", "route", "show", "proto", "112") + k.ns.Run(t, "ip", "-6", "route", "show", "proto", "112") +
		k.ns.Run(t, "ip", "-br", "addr", "show", "dev", "vxlan-onerule")
}

// healed waits until all is as it was.
func (k *kept) healed(t *testing.T) {
	t.Helper()
	rig.Eventually(t, "all is as it was", func() error {
		if now := withoutOthers(k.link(t, k.dev)); now != k.pod {
			return fmt.Errorf("the link of the pod:\n%s\nwas\n%s", now, k.pod)
		}
		if now := k.routes(t); now != k.between {
			return fmt.Errorf("between nodes:\n%s\nwas\n%s", now, k.between)
		}
		return nil
	})
	k.reaches(t)
	k.awaitStatus(t)
}

// takes wants that something is taken from us, and comes back.
func (k *kept) takes(t *testing.T, kind string, take func()) {
	t.Helper()
	before := k.foreign(t, kind)
	take()
	rig.Eventually(t, "it takes what is ours, which is counted as "+kind, func() error {
		if k.foreign(t, kind) == before {
			return fmt.Errorf("it does not")
		}
		return nil
	})
	k.healed(t)
}

func (k *kept) again(t *testing.T, link string) {
	t.Helper()
	k.ns.Run(t, "ip", "link", "set", link, "down")
	k.ns.Run(t, "ip", "link", "set", link, "up")
}
