package rows_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"onerule/test/addr"
	"onerule/test/rig"
)

// The Service of most rows, and its places: port 80 is 8080 at the endpoints.
const (
	webPort   = "web/TCP/80"
	dnsPort   = "dns/UDP/80"
	webTarget = "web/TCP/8080"
	dnsTarget = "dns/UDP/8080"
)

// web is a Service of one family at its first ClusterIP, with TCP and UDP.
func web(p addr.Plan) string {
	return rig.Service("web", []netip.Addr{p.VIP(0)}, webPort, dnsPort)
}

// webSlice is a slice of it with ready endpoints.
func webSlice(p addr.Plan, addrs ...netip.Addr) string {
	return slice(p, "web-1", "web", "", []string{webTarget, dnsTarget}, ready(p, addrs...)...)
}

// ready gives endpoints that are ready, each on its node.
func ready(p addr.Plan, addrs ...netip.Addr) []string {
	var list []string
	for _, a := range addrs {
		list = append(list, endpoint(a, nodeOf(p, a), "conditions: {ready: true, serving: true, terminating: false}"))
	}
	return list
}

// endpoint gives one with a condition or anything else, in YAML.
func endpoint(a netip.Addr, node string, more ...string) string {
	fields := append([]string{fmt.Sprintf("addresses: [%q]", a)}, more...)
	if node != "" {
		fields = append(fields, "nodeName: "+node)
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

func nodeOf(p addr.Plan, a netip.Addr) string {
	if p.OtherPods.Contains(a) {
		return addr.OtherNodeName
	}
	return addr.NodeName
}

// slice gives a slice with endpoints in YAML, of the plan's family, with more labels
// in YAML. Ports are given as NAME/PROTOCOL/PORT.
func slice(p addr.Plan, name, service, labels string, ports []string, endpoints ...string) string {
	if service != "" {
		labels = strings.TrimPrefix(labels+", kubernetes.io/service-name: "+service, ", ")
	}
	var list []string
	for _, port := range ports {
		f := strings.Split(port, "/")
		list = append(list, fmt.Sprintf("{name: %q, protocol: %s, port: %s}", f[0], f[1], f[2]))
	}
	return rawSlice(name, labels, familyOf(p), strings.Join(list, ", "), endpoints...)
}

// rawSlice gives a slice with everything in YAML.
func rawSlice(name, labels, addressType, ports string, endpoints ...string) string {
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, labels: {%s}}
addressType: %s
ports: [%s]
endpoints: [%s]
`, name, labels, addressType, ports, strings.Join(endpoints, ", "))
}

// rawService gives a Service with its metadata and spec in YAML.
func rawService(meta, spec string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {%s}\nspec: {%s}\n", meta, spec)
}

// webSpec is the spec of web with more fields.
func webSpec(vip string, more string) string {
	return fmt.Sprintf("clusterIP: %q, clusterIPs: [%q], ports: [{name: web, protocol: TCP, port: 80}, {name: dns, protocol: UDP, port: 80}]%s", vip, vip, more)
}

// ports gives the same port of several addresses.
func ports(port uint16, addrs ...netip.Addr) []netip.AddrPort {
	var list []netip.AddrPort
	for _, a := range addrs {
		list = append(list, netip.AddrPortFrom(a, port))
	}
	return list
}

// nftScript runs nft with a script, in the namespace of the calling thread.
func nftScript(text string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}
