// Package process_test runs the real daemon as operators do: how it starts, what it says,
// what it tells monitoring, and how it ends.
package process_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/oracle"
	"onerule/test/rig"
)

const (
	pods     = 2 // of the node; pod 0 is the client
	target   = 8080
	nodePort = 30080
)

// A world is a node with pods, and hosts around it.
type world struct{ h *hosts.Hosts }

func newWorld(t *testing.T) *world { return &world{hosts.New(t, pods, target)} }

// daemon makes an oneruled on the node that is to serve web. It is not started yet, and
// leaves no table behind.
func (w *world) daemon(t *testing.T, args ...string) *rig.Daemon {
	t.Helper()
	t.Cleanup(func() { w.clear(t) })
	d := rig.New(t, w.h.Node, append([]string{"--cluster-cidr", ranges()}, args...)...)
	d.Write("web.yaml", web()...)
	return d
}

func ranges() string { return fmt.Sprintf("%s,%s", addr.IPv4().ClusterCIDR, addr.IPv6().ClusterCIDR) }

// clear leaves no rule and no flow on the node.
func (w *world) clear(t *testing.T) {
	t.Helper()
	w.h.Node.Run(t, "nft", "flush", "ruleset")
	w.h.Forget(t)
}

// web is a Service of both families with a NodePort, and its endpoint on the node.
func web() []string {
	var vips []netip.Addr
	var docs []string
	for _, p := range addr.Both() {
		vips = append(vips, p.VIP(0))
		docs = append(docs, rig.Slice("web-"+family(p), "web", []netip.Addr{p.Pod(1)}, "http/TCP/8080", "dns/UDP/8080"))
	}
	service := rig.Service("web", vips, "http/TCP/80", "dns/UDP/53")
	service = strings.Replace(service, "port: 80}", fmt.Sprintf("port: 80, nodePort: %d}", nodePort), 1)
	return append(docs, strings.Replace(service, "spec:\n", "spec:\n  type: NodePort\n", 1))
}

func family(p addr.Plan) string {
	if p.Node().Is4() {
		return "ipv4"
	}
	return "ipv6"
}

// toVIP and toNode are packets of the client pod to the Service.
func toVIP(p addr.Plan) oracle.Packet {
	return oracle.Packet{From: oracle.Pod, Src: p.Pod(0), Dst: p.VIP(0), Protocol: model.TCP, Port: 80}
}

func toNode(p addr.Plan, node netip.Addr) oracle.Packet {
	return oracle.Packet{From: oracle.Outside, Src: p.Outside(), Dst: node, Protocol: model.TCP, Port: nodePort}
}

// answered waits until packets reach the endpoint of web.
func (w *world) answered(t *testing.T, packets ...oracle.Packet) {
	t.Helper()
	for _, packet := range packets {
		rig.Eventually(t, fmt.Sprintf("web answers at %s", packet.Dst), func() error { return w.reaches(packet) })
	}
}

// reaches says why a packet does not reach the endpoint of web.
func (w *world) reaches(packet oracle.Packet) error {
	seen, err := w.h.Probe(packet, hosts.Patience)
	if err != nil {
		return err
	}
	if seen.Verdict != hosts.Answered {
		return fmt.Errorf("from %s to %s: %s", packet.Src, packet.Dst, seen)
	}
	return nil
}

// says waits until the daemon has said something.
func says(t *testing.T, d *rig.Daemon, text string) {
	t.Helper()
	rig.Eventually(t, "oneruled says "+text, func() error {
		if !strings.Contains(d.Log(), text) {
			return fmt.Errorf("it has not said it")
		}
		return nil
	})
}

// aroundNft has the daemon find a shell script in place of nft: it has nft's arguments,
// and may pass them on to "$NFT".
func aroundNft(t *testing.T, d *rig.Daemon, script string) {
	t.Helper()
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nft"), []byte("#!/bin/sh\nNFT="+nft+"\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	d.Env("PATH=" + dir + ":" + os.Getenv("PATH"))
}

// kernelWithout is a script for aroundNft: rules with a word are refused.
func kernelWithout(word string) string {
	return `case "$*" in --version) exec "$NFT" "$@";; esac
input=$(mktemp)
cat >"$input"
if grep -q -e "` + word + `" "$input"; then
	rm "$input"
	echo "/dev/stdin:2:3-4: Error: Could not process rule: No such file or directory" >&2
	exit 1
fi
"$NFT" "$@" <"$input"
code=$?
rm "$input"
exit $code
`
}
