package source

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"onerule/daemon/model"
)

const (
	labelProxyName   = "service.kubernetes.io/service-proxy-name"
	labelHeadless    = "service.kubernetes.io/headless"
	labelServiceName = discoveryv1.LabelServiceName
)

// A converter makes model values of API objects. The result depends on the object
// alone: the strings that it keeps only save memory. A nil value says that the
// object is not for us; notes say what was skipped.
type converter struct{ strings *interner }

// A delivery is an API object converted.
type delivery struct {
	change model.Change
	notes  []model.Note
}

// present says whether there is something to deliver.
func (d delivery) present() bool {
	c := d.change
	return c.Service != nil || c.EndpointSlice != nil || c.Node != nil || c.ServiceCIDR != nil
}

// object converts an object of any kind.
func (c converter) object(obj any) (d delivery, err error) {
	switch o := obj.(type) {
	case *corev1.Service:
		d.change.Key = c.key(model.KindService, o)
		d.change.Service, d.notes = c.service(o)
	case *discoveryv1.EndpointSlice:
		d.change.Key = c.key(model.KindEndpointSlice, o)
		d.change.EndpointSlice, d.notes = c.slice(o)
	case *corev1.Node:
		d.change.Key = c.key(model.KindNode, o)
		d.change.Node, d.notes = c.node(o)
	case *networkingv1.ServiceCIDR:
		d.change.Key = c.key(model.KindServiceCIDR, o)
		d.change.ServiceCIDR, d.notes = c.serviceCIDR(o)
	default:
		return d, fmt.Errorf("convert object: type %T is none that is read", obj)
	}
	return d, nil
}

func (c converter) key(kind model.Kind, obj metav1.Object) model.Key {
	return model.Key{Kind: kind, Name: model.Name{Namespace: c.strings.of(obj.GetNamespace()), Name: obj.GetName()}}
}

// service converts a Service, unless it is headless, an ExternalName or another
// proxy's.
func (c converter) service(s *corev1.Service) (*model.Service, []model.Note) {
	if _, other := s.Labels[labelProxyName]; other {
		return nil, nil
	}
	// The type decides before the address: an ExternalName can hold a stale one.
	if s.Spec.Type == corev1.ServiceTypeExternalName || s.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil, nil
	}
	var f findings
	if s.Spec.ClusterIP == "" {
		if len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIPs[0] != corev1.ClusterIPNone {
			f.add(model.ReasonInvalidAddress, "spec.clusterIP", "is empty, but spec.clusterIPs is not: it must be the first of them")
		}
		return nil, f.notes
	}
	if !f.names(s.Namespace, s.Name) {
		return nil, f.notes
	}
	m := &model.Service{
		Name:       model.Name{Namespace: c.strings.of(s.Namespace), Name: s.Name},
		ClusterIPs: f.clusterIPs(&s.Spec),
	}
	if !s.CreationTimestamp.IsZero() {
		m.Created = s.CreationTimestamp.Unix()
	}
	if len(m.ClusterIPs) == 0 {
		return nil, f.notes
	}
	f.outside(m, s)
	m.Ports = c.servicePorts(&f, s)
	return m, f.notes
}

// servicePorts gives the ports that are good. Of several with one protocol and number
// the first one is: they would be one frontend.
func (c converter) servicePorts(f *findings, s *corev1.Service) []model.ServicePort {
	in := s.Spec.Ports
	ports := make([]model.ServicePort, 0, len(in))
	type frontend struct {
		protocol model.Protocol
		port     int32
	}
	holders := make(map[frontend]int, len(in))
	for i := range in {
		p := &in[i]
		protocol, ok := f.port(i, "spec.ports", p.Name, p.Protocol, p.Port)
		if !ok {
			continue
		}
		key := frontend{protocol, p.Port}
		if holder, held := holders[key]; held {
			f.add(model.ReasonDuplicateFrontend, fmt.Sprintf("spec.ports[%d]", i), fmt.Sprintf("%s %d is that of spec.ports[%d] already", protocol, p.Port, holder))
			continue
		}
		holders[key] = i
		ports = append(ports, model.ServicePort{Name: c.strings.of(p.Name), Protocol: protocol, Port: uint16(p.Port), NodePort: f.nodePort(s, i)})
	}
	return ports
}

// clusterIPs gives the ClusterIPs that are good: at most one of each family, each
// of the family that the Service says. A Service without families, as old API
// servers store it, tells them by its addresses.
func (f *findings) clusterIPs(spec *corev1.ServiceSpec) []netip.Addr {
	texts := spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{spec.ClusterIP}
	}
	ips := make([]netip.Addr, 0, len(texts))
	for i, text := range texts {
		field := fmt.Sprintf("spec.clusterIPs[%d]", i)
		if len(spec.ClusterIPs) == 0 {
			field = "spec.clusterIP"
		}
		a, err := parseAddr(text)
		switch {
		case err != nil:
			f.add(model.ReasonInvalidAddress, field, err.Error())
		case a.IsUnspecified() || a.IsLoopback() || a.IsMulticast():
			f.add(model.ReasonInvalidAddress, field, a.String()+" cannot be a service address")
		case len(spec.IPFamilies) > 0 && (i >= len(spec.IPFamilies) || spec.IPFamilies[i] != familyOf(a)):
			f.add(model.ReasonInvalidAddress, field, fmt.Sprintf("%s is not of the family that spec.ipFamilies[%d] says", a, i))
		case slices.ContainsFunc(ips, func(o netip.Addr) bool { return o.Is4() == a.Is4() }):
			f.add(model.ReasonInvalidAddress, field, a.String()+" is the second address of its family")
		default:
			ips = append(ips, a)
		}
	}
	return ips
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// slice converts an EndpointSlice, unless it is a headless Service's.
func (c converter) slice(s *discoveryv1.EndpointSlice) (*model.EndpointSlice, []model.Note) {
	if _, headless := s.Labels[labelHeadless]; headless {
		return nil, nil
	}
	var f findings
	service := s.Labels[labelServiceName]
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	default:
		f.add(model.ReasonAddressType, "addressType", quote(string(s.AddressType))+" is neither IPv4 nor IPv6")
		return nil, f.notes
	}
	if service == "" {
		f.add(model.ReasonNoService, "metadata.labels["+labelServiceName+"]", "names no Service")
		return nil, f.notes
	}
	if !f.subdomain(s.Name) || !f.label("metadata.namespace", s.Namespace) ||
		!f.label("metadata.labels["+labelServiceName+"]", service) {
		return nil, f.notes
	}
	m := &model.EndpointSlice{
		Name:    model.Name{Namespace: c.strings.of(s.Namespace), Name: s.Name},
		Service: c.strings.of(service),
	}
	m.Ports = c.slicePorts(&f, s.Ports)
	m.Endpoints = c.endpoints(&f, s)
	m.Triggered = triggered(s.Annotations)
	return m, f.notes
}

// slicePorts skips without a note what an EndpointSlice may hold and no Service
// port can mean: a port without a name or a number.
func (c converter) slicePorts(f *findings, in []discoveryv1.EndpointPort) []model.SlicePort {
	ports := make([]model.SlicePort, 0, len(in))
	for i := range in {
		p := &in[i]
		if p.Name == nil || p.Port == nil || *p.Port == 0 {
			continue
		}
		var named corev1.Protocol
		if p.Protocol != nil {
			named = *p.Protocol
		}
		if protocol, ok := f.port(i, "ports", *p.Name, named, *p.Port); ok {
			ports = append(ports, model.SlicePort{Name: c.strings.of(*p.Name), Protocol: protocol, Port: uint16(*p.Port)})
		}
	}
	return ports
}

func (c converter) endpoints(f *findings, s *discoveryv1.EndpointSlice) []model.Endpoint {
	endpoints := make([]model.Endpoint, 0, len(s.Endpoints))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		a, err := endpointAddr(e.Addresses, s.AddressType)
		if err != nil {
			f.add(model.ReasonInvalidAddress, fmt.Sprintf("endpoints[%d].addresses", i), err.Error())
			continue
		}
		m := model.Endpoint{
			Addr:        a,
			Ready:       or(e.Conditions.Ready, true),
			Serving:     or(e.Conditions.Serving, true),
			Terminating: or(e.Conditions.Terminating, false),
			Hints:       c.strings.hints(e.Hints),
		}
		if e.NodeName != nil {
			m.Node = c.strings.of(*e.NodeName)
		}
		endpoints = append(endpoints, m)
	}
	return endpoints
}

// endpointAddr gives the first address: the others have no meaning yet.
func endpointAddr(addresses []string, family discoveryv1.AddressType) (netip.Addr, error) {
	if len(addresses) == 0 {
		return netip.Addr{}, fmt.Errorf("holds no address")
	}
	a, err := parseAddr(addresses[0])
	switch {
	case err != nil:
		return netip.Addr{}, err
	case a.Is4() != (family == discoveryv1.AddressTypeIPv4):
		return netip.Addr{}, fmt.Errorf("%s is not of the slice's addressType %s", a, family)
	case a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast():
		// What the API server refuses too; manifests have no API server.
		return netip.Addr{}, fmt.Errorf("%s cannot be an endpoint", a)
	}
	return a, nil
}

func or(b *bool, absent bool) bool {
	if b == nil {
		return absent
	}
	return *b
}

// serviceCIDR converts a ServiceCIDR.
func (c converter) serviceCIDR(s *networkingv1.ServiceCIDR) (*model.ServiceCIDR, []model.Note) {
	var f findings
	if !f.subdomain(s.Name) {
		return nil, f.notes
	}
	return &model.ServiceCIDR{Name: s.Name, CIDRs: f.prefixes("spec.cidrs", s.Spec.CIDRs)}, f.notes
}
