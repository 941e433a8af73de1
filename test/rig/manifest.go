package rig

import (
	"fmt"
	"net/netip"
	"strings"
)

// Service gives the manifest of a Service in the default namespace. Ports are given
// as NAME/PROTOCOL/PORT.
func Service(name string, vips []netip.Addr, ports ...string) string {
	var ips, families []string
	for _, a := range vips {
		ips = append(ips, fmt.Sprintf("%q", a))
		family := "IPv4"
		if a.Is6() {
			family = "IPv6"
		}
		families = append(families, family)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec:
  clusterIP: %s
  clusterIPs: [%s]
  ipFamilies: [%s]
  ports: [%s]
`, name, ips[0], strings.Join(ips, ", "), strings.Join(families, ", "), portList(ports))
}

// Slice gives the manifest of an EndpointSlice of a Service, with ready endpoints on
// the daemon's node. All addresses are of one family.
func Slice(name, service string, addrs []netip.Addr, ports ...string) string {
	family, endpoints := "IPv4", ""
	for _, a := range addrs {
		if a.Is6() {
			family = "IPv6"
		}
		endpoints += fmt.Sprintf("\n- {addresses: [%q], nodeName: %s, conditions: {ready: true, serving: true, terminating: false}}", a, NodeName)
	}
	if endpoints == "" {
		endpoints = " []"
	}
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, namespace: default, labels: {kubernetes.io/service-name: %s}}
addressType: %s
ports: [%s]
endpoints:%s
`, name, service, family, portList(ports), endpoints)
}

// ServiceCIDR gives the manifest of a ServiceCIDR.
func ServiceCIDR(name string, cidrs ...netip.Prefix) string {
	var list []string
	for _, c := range cidrs {
		list = append(list, fmt.Sprintf("%q", c))
	}
	return fmt.Sprintf(`apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: %s}
spec: {cidrs: [%s]}
`, name, strings.Join(list, ", "))
}

func portList(ports []string) string {
	var list []string
	for _, p := range ports {
		f := strings.Split(p, "/")
		list = append(list, fmt.Sprintf("{name: %q, protocol: %s, port: %s}", f[0], f[1], f[2]))
	}
	return strings.Join(list, ", ")
}
