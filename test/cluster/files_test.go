package cluster

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

func someFacts(f Family) facts {
	return facts{
		Name: "n1", Dir: "/c/n1", Any: f.any(), Mode: "nftables", Runc: "/usr/sbin/runc", ClusterRanges: commas(f.clusterRanges()),
		NodePorts: f.nodePortAddresses(),
		PodRanges: f.podRanges(1), DNS: f.dnsService(), Credentials: "/c/credentials", Proxy: "/c/credentials/kube-proxy.kubeconfig",
		SandboxImage: pauseImage,
	}
}

func filled(t *testing.T, name string, with any) []byte {
	t.Helper()
	text, err := fill(name, with)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestKubeProxyTakesItsFile(t *testing.T) {
	for _, f := range Families() {
		var got kubeproxy.KubeProxyConfiguration
		if err := yaml.UnmarshalStrict(filled(t, "kube-proxy.yaml", someFacts(f)), &got); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if got.ClusterCIDR != commas(f.clusterRanges()) || got.BindAddress != f.any() || got.Mode != "nftables" ||
			`"`+strings.Join(got.NodePortAddresses, `", "`)+`"` != f.nodePortAddresses() {
			t.Errorf("%s: %+v", f, got)
		}
	}
}

func TestRuntimesTakeTheListOfPlugins(t *testing.T) {
	for _, f := range Families() {
		list, err := libcni.ConfListFromBytes(filled(t, "ptp.conflist", someFacts(f)))
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		var ptp struct {
			IPAM struct {
				Ranges [][]struct{ Subnet netip.Prefix }
				Routes []struct{ Dst netip.Prefix }
			}
		}
		if err := json.Unmarshal(list.Plugins[0].Bytes, &ptp); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		var subnets []netip.Prefix
		for i, set := range ptp.IPAM.Ranges {
			subnets = append(subnets, set[0].Subnet)
			if ptp.IPAM.Routes[i].Dst.Addr().Is4() != set[0].Subnet.Addr().Is4() || ptp.IPAM.Routes[i].Dst.Bits() != 0 {
				t.Errorf("%s: route %s for pods of %s", f, ptp.IPAM.Routes[i].Dst, set[0].Subnet)
			}
		}
		if commas(subnets) != commas(f.podRanges(1)) {
			t.Errorf("%s: pods get %s", f, commas(subnets))
		}
	}
}

func TestKubeletsKnowTheDNS(t *testing.T) {
	for _, f := range Families() {
		var got struct {
			Kind, Address string
			ClusterDNS    []string
		}
		if err := yaml.Unmarshal(filled(t, "kubelet.yaml", someFacts(f)), &got); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if diff := cmp.Diff([]string{f.dnsService().String()}, got.ClusterDNS); diff != "" || got.Address != f.any() || got.Kind != "KubeletConfiguration" {
			t.Errorf("%s: %+v", f, got)
		}
	}
}

func TestTheDNSHasItsAddress(t *testing.T) {
	for _, f := range Families() {
		text := string(filled(t, "coredns.yaml", map[string]any{"Image": dnsImage, "Address": f.dnsService()}))
		var service corev1.Service
		documents := strings.Split(text, "\n---\n")
		if err := yaml.UnmarshalStrict([]byte(documents[len(documents)-1]), &service); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if service.Spec.ClusterIP != f.dnsService().String() {
			t.Errorf("%s: ClusterIP is %s", f, service.Spec.ClusterIP)
		}
		if !strings.Contains(text, "image: "+dnsImage+"\n") {
			t.Errorf("%s: no image %s", f, dnsImage)
		}
	}
}

// What users apply must stay something that we can add two settings to.
func TestUsersManifestGetsWhereTheAPIServerIs(t *testing.T) {
	root, err := repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range Families() {
		c := assemble("/c", settings{Nodes: 1, Family: f, With: Onerule}, &Cache{root: root})
		manifest, err := c.installManifest()
		if err != nil {
			t.Fatal(err)
		}
		var where, daemon corev1.ConfigMap
		var config kubeproxy.KubeProxyConfiguration
		for i, document := range strings.Split(manifest, "\n---\n") {
			var one corev1.ConfigMap
			if err := yaml.Unmarshal([]byte(document), &one); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				where = one
			} else if one.Kind == "ConfigMap" {
				daemon = one
			}
		}
		if diff := cmp.Diff(map[string]string{"KUBERNETES_SERVICE_HOST": c.control.Addresses()[0].String(), "KUBERNETES_SERVICE_PORT": "6443"}, where.Data); diff != "" {
			t.Errorf("%s: the API server's address (-want +got):\n%s", f, diff)
		}
		if err := yaml.UnmarshalStrict([]byte(daemon.Data["config.yaml"]), &config); err != nil {
			t.Fatalf("%s: %v:\n%s", f, err, daemon.Data["config.yaml"])
		}
		if got := `"` + strings.Join(config.NodePortAddresses, `", "`) + `"`; got != f.nodePortAddresses() {
			t.Errorf("%s: NodePorts at %s", f, got)
		}
	}
}
