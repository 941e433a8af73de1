package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// A service is what a Service's manifest says.
type service struct {
	name string
	vips []netip.Addr // one of each family
}

const (
	namespace   = "shop"
	servicePort = 80
	crowdSize   = 1000 // Services added in one go
)

// The Services, by the number of their ClusterIP. Those of the crowd follow.
const (
	webVIP = iota
	silentVIP
	crowdVIP
)

func newService(name string, vip int) service {
	s := service{name: name}
	for _, f := range families() {
		s.vips = append(s.vips, f.plan.VIP(vip))
	}
	return s
}

func web() service { return newService("web", webVIP) }

func silent() service { return newService("silent", silentVIP) }

func crowd(i int) service { return newService(fmt.Sprintf("crowd-%d", i+1), crowdVIP+i) }

// frontend is where clients send, in a family given by its place in families.
func (s service) frontend(family int, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(s.vips[family], port)
}

// manifest is the Service as YAML.
func (s service) manifest() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s}
spec:
  clusterIP: %q
  clusterIPs: [%q, %q]
  ports: [{name: http, port: %d, targetPort: %d}]
`, s.name, namespace, s.vips[0], s.vips[0], s.vips[1], servicePort, podPort)
}

// slice is the EndpointSlice of a family as YAML.
func (s service) slice(f family, endpoints []pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %s-%s
  namespace: %s
  labels: {kubernetes.io/service-name: %s}
addressType: %s
ports: [{name: http, port: %d}]
endpoints:
`, s.name, strings.ToLower(f.name), namespace, s.name, f.name, podPort)
	for _, p := range endpoints {
		fmt.Fprintf(&b, "- {addresses: [%q], nodeName: %s, conditions: {ready: true}}\n", p.addrs[f.name], nodeName)
	}
	if len(endpoints) == 0 {
		return strings.Replace(b.String(), "endpoints:\n", "endpoints: []\n", 1)
	}
	return b.String()
}

// serviceRanges is the ServiceCIDR as YAML.
func serviceRanges() string {
	fs := families()
	return fmt.Sprintf(`apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec:
  cidrs: [%q, %q]
`, fs[0].plan.ServiceCIDR, fs[1].plan.ServiceCIDR)
}

// crowdManifest is many Services with their slices, in one file.
func crowdManifest(endpoints []pod) string {
	var documents []string
	for i := range crowdSize {
		s := crowd(i)
		documents = append(documents, s.manifest())
		for _, f := range families() {
			documents = append(documents, s.slice(f, endpoints))
		}
	}
	return strings.Join(documents, "---\n")
}

func (s service) sliceFile(f family) string {
	return fmt.Sprintf("%s-%s.yaml", s.name, strings.ToLower(f.name))
}
