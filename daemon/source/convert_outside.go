package source

import (
	"fmt"
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

// sourceRanges gives the ranges that are good. If none is, though some are said, nobody
// is let in: who restricts a Service does not mean to open it.
func (f *findings) sourceRanges(texts []string) []netip.Prefix {
	trimmed := make([]string, len(texts))
	for i, text := range texts {
		trimmed[i] = strings.TrimSpace(text)
	}
	ranges := f.prefixes("spec.loadBalancerSourceRanges", trimmed)
	if len(texts) > 0 && len(ranges) == 0 {
		return nobody()
	}
	return ranges
}

// nobody are ranges that no client is in.
func nobody() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 32), netip.PrefixFrom(netip.IPv6Unspecified(), 128)}
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

func (f *findings) nodePort(s *corev1.Service, i int) uint16 {
	if !hasNodePorts(s) {
		return 0
	}
	return f.number(fmt.Sprintf("spec.ports[%d].nodePort", i), s.Spec.Ports[i].NodePort)
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
	if err != nil {
		return 0
	}
	return t.UnixNano()
}
