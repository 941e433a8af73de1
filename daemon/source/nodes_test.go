package source

import (
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"onerule/daemon/model"
)

// Who makes routes between nodes needs all of them; each is told only when it differs,
// since kubelets write their Nodes again and again.
func TestAllNodesAreReadForWhoNeedsThem(t *testing.T) {
	t.Run("from an API server", func(t *testing.T) {
		s := newAPIServer(t)
		s.put(aNode("n1"), aNode("n2"), aServiceCIDR())
		r := newRecorder()
		run(t, API{Client: s.client(t), Node: "n1", AllNodes: true, Log: testr.New(t)}, r)
		r.awaitSynced(t)
		r.awaitObjects(t, "Node n1", "Node n2", "ServiceCIDR kubernetes 10.96.0.0/16")
		if got := s.asked("nodes watch=true labels= fields= accept"); len(got) == 0 {
			t.Errorf("got requests %q, want one for all Nodes", s.asked("nodes"))
		}
		r.take()
		heartbeat := aNode("n2")
		heartbeat.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
		s.put(heartbeat, aNode("n3"))
		r.awaitObjects(t, "Node n1", "Node n2", "Node n3", "ServiceCIDR kubernetes 10.96.0.0/16")
		if got := r.take(); len(got) != 1 || got[0] != "+Node n3" {
			t.Errorf("told %q, want the new Node alone", got)
		}
		s.remove(aNode("n2"))
		r.awaitObjects(t, "Node n1", "Node n3", "ServiceCIDR kubernetes 10.96.0.0/16")
	})
	t.Run("from manifests", func(t *testing.T) {
		d := newManifestDir(t)
		d.write("nodes.yaml", `apiVersion: v1
kind: NodeList
items:
- metadata: {name: n1, creationTimestamp: "2026-01-01T00:00:00Z"}
  spec: {podCIDRs: [10.1.1.0/24]}
- metadata: {name: n2}
  spec: {podCIDRs: [10.1.2.0/24]}
  status: {addresses: [{type: InternalIP, address: 192.0.2.2}, {type: ExternalIP, address: 198.51.100.2}]}
`)
		run(t, Manifests{Dir: d.path, Node: "n1", AllNodes: true, Log: testr.New(t), rescan: time.Hour}, d.recorder)
		d.awaitSynced(t)
		d.awaitObjects(t, "Node n1", "Node n2")
		d.mu.Lock()
		defer d.mu.Unlock()
		n1 := d.objects[model.Key{Kind: model.KindNode, Name: model.Name{Name: "n1"}}].Node
		n2 := d.objects[model.Key{Kind: model.KindNode, Name: model.Name{Name: "n2"}}].Node
		if want := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Unix(); n1.Created != want {
			t.Errorf("n1 was created at %d, want %d", n1.Created, want)
		}
		if len(n2.InternalIPs) != 1 || n2.InternalIPs[0].String() != "192.0.2.2" {
			t.Errorf("n2 has the internal addresses %v, want 192.0.2.2", n2.InternalIPs)
		}
	})
}
