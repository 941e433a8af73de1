package source

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"onerule/daemon/model"
)

// taintLeaving is what the cluster autoscaler taints a node with before it deletes it.
const taintLeaving = "ToBeDeletedByClusterAutoscaler"

// leaving says whether load balancers should send no new traffic to the node.
func leaving(n *corev1.Node) bool {
	return n.DeletionTimestamp != nil || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taintLeaving })
}

// node converts a Node.
func (c converter) node(n *corev1.Node) (*model.Node, []model.Note) {
	var f findings
	if !f.subdomain(n.Name) {
		return nil, f.notes
	}
	m := &model.Node{Name: c.strings.of(n.Name), Zone: c.strings.of(n.Labels[corev1.LabelTopologyZone]), Leaving: leaving(n)}
	if !n.CreationTimestamp.IsZero() {
		m.Created = n.CreationTimestamp.Unix()
	}
	if len(n.Spec.PodCIDRs) > 0 {
		m.PodCIDRs = f.prefixes("spec.podCIDRs", n.Spec.PodCIDRs)
	} else if n.Spec.PodCIDR != "" {
		m.PodCIDRs = f.prefixes("spec.podCIDR", []string{n.Spec.PodCIDR})
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i, na := range n.Status.Addresses {
			if na.Type != kind {
				continue
			}
			a, err := parseAddr(na.Address)
			if err != nil {
				f.add(model.ReasonInvalidAddress, fmt.Sprintf("status.addresses[%d].address", i), err.Error())
			} else if !slices.Contains(m.Addrs, a) {
				m.Addrs = append(m.Addrs, a)
			}
		}
		if kind == corev1.NodeInternalIP {
			m.InternalIPs = slices.Clone(m.Addrs)
		}
	}
	return m, f.notes
}
