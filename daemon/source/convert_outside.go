package source

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"onerule/daemon/model"
)

// Bounds and default of sessionAffinityConfig.clientIP.timeoutSeconds, as the API has
// them.
const (
	defaultAffinity = 10800
	maxAffinity     = 86400
)

// outside converts how a Service is reached other than by its ClusterIPs, and its
// policies.
func (f *findings) outside(m *model.Service, s *corev1.Service) {
	for i, text := range s.Spec.ExternalIPs {
		f.externalIP(&m.ExternalIPs, fmt.Sprintf("spec.externalIPs[%d]", i), text)
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		// Mode Proxy: traffic is to go through the load balancer even from here.
		if in.IP == "" || in.IPMode != nil && *in.IPMode != corev1.LoadBalancerIPModeVIP {
			continue
		}
		f.externalIP(&m.LoadBalancerIPs, fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), in.IP)
	}
	m.SourceRanges = f.sourceRanges(s.Spec.LoadBalancerSourceRanges)
	m.InternalLocal = s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	m.ExternalLocal = s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal &&
		(hasNodePorts(s) || len(s.Spec.ExternalIPs) > 0)
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && m.ExternalLocal {
		m.HealthCheckNodePort = f.number("spec.healthCheckNodePort", s.Spec.HealthCheckNodePort)
	}
	m.Affinity = f.affinity(&s.Spec)
}

func hasNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// externalIP adds an address that others may send to. Addresses that only mean something
// on one host or link are never taken: they would catch the host's own traffic.
func (f *findings) externalIP(list *[]netip.Addr, field, text string) {
	a, err := parseAddr(text)
	switch {
	case err != nil:
		f.add(model.ReasonInvalidAddress, field, err.Error())
	case a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast():
		f.add(model.ReasonInvalidAddress, field, a.String()+" cannot be an address of a Service")
	case !slices.Contains(*list, a):
		*list = append(*list, a)
	}
}

// sourceRanges gives the ranges that are good. Where bad ones are all that is said of a
// family, nobody of it is let in: who restricts a Service does not mean to open it.
func (f *findings) sourceRanges(texts []string) []netip.Prefix {
	var bad, good [2]bool // of IPv4 and IPv6
	ranges := make([]netip.Prefix, 0, len(texts))
	for i, text := range texts {
		text = strings.TrimSpace(text) // which the API takes
		p, err := parsePrefix(text)
		if err == nil {
			good[0], good[1] = good[0] || p.Addr().Is4(), good[1] || p.Addr().Is6()
			ranges = append(ranges, p)
			continue
		}
		f.add(model.ReasonInvalidAddress, fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), err.Error())
		v4, v6 := strings.Contains(text, "."), strings.Contains(text, ":")
		bad[0], bad[1] = bad[0] || v4 || !v6, bad[1] || v6 || !v4 // what looks like neither counts for both
	}
	for v6, nobody := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if bad[v6] && !good[v6] {
			ranges = append(ranges, netip.PrefixFrom(nobody, nobody.BitLen())) // no client has that address
		}
	}
	return ranges
}

func (f *findings) affinity(spec *corev1.ServiceSpec) uint32 {
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if spec.SessionAffinityConfig == nil || spec.SessionAffinityConfig.ClientIP == nil || spec.SessionAffinityConfig.ClientIP.TimeoutSeconds == nil {
		return defaultAffinity
	}
	seconds := *spec.SessionAffinityConfig.ClientIP.TimeoutSeconds
	if seconds < 1 || seconds > maxAffinity {
		f.add(model.ReasonInvalidTimeout, "spec.sessionAffinityConfig.clientIP.timeoutSeconds", fmt.Sprintf("%d is not in 1..%d: %d is taken", seconds, maxAffinity, defaultAffinity))
		return defaultAffinity
	}
	return uint32(seconds)
}

// nodePort gives the NodePort of the i-th port. An API server lets no other type have one.
func (f *findings) nodePort(s *corev1.Service, i int) uint16 {
	field, n := fmt.Sprintf("spec.ports[%d].nodePort", i), s.Spec.Ports[i].NodePort
	if n != 0 && !hasNodePorts(s) {
		f.add(model.ReasonInvalidPort, field, fmt.Sprintf("%d is none that a Service of type %s can have", n, cmp.Or(s.Spec.Type, corev1.ServiceTypeClusterIP)))
		return 0
	}
	return f.number(field, n)
}

// number gives a port number that may be missing.
func (f *findings) number(field string, n int32) uint16 {
	if n < 0 || n > 65535 {
		f.add(model.ReasonInvalidPort, field, fmt.Sprintf("%d is not in 1..65535", n))
		return 0
	}
	return uint16(n)
}

// annotationTriggered says when the change was seen that a slice follows from.
const annotationTriggered = "endpoints.kubernetes.io/last-change-trigger-time"

// triggered gives the time that a slice says, in Unix nanoseconds; 0: none.
func triggered(annotations map[string]string) int64 {
	text := annotations[annotationTriggered]
	if text == "" {
		return 0
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Before(time.Unix(0, 0)) || t.After(time.Unix(0, math.MaxInt64)) {
		return 0
	}
	return t.UnixNano()
}
