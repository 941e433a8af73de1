package chart

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
)

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// There is no Docker here to run it with: the cluster has to be one by kind's own types, and
// what its script names has to be what there is.
func TestTheClusterOfKindIsMadeForTheManifest(t *testing.T) {
	decoder := yaml.NewDecoder(strings.NewReader(text(t, "../kind/cluster.yaml")))
	decoder.KnownFields(true) // as kind does
	var cluster v1alpha4.Cluster
	if err := decoder.Decode(&cluster); err != nil {
		t.Fatal(err)
	}
	v1alpha4.SetDefaultsCluster(&cluster)
	if cluster.Kind != "Cluster" || cluster.APIVersion != "kind.x-k8s.io/v1alpha4" {
		t.Errorf("it is a %s of %s", cluster.Kind, cluster.APIVersion)
	}
	if n := cluster.Networking; !n.DisableDefaultCNI || n.KubeProxyMode != "none" || n.IPFamily != v1alpha4.DualStackFamily || len(cluster.Nodes) < 2 {
		t.Errorf("got %+v, want nodes of both families, without a network and without kube-proxy", cluster)
	}
	script, o := text(t, "../kind/up.sh"), manifest(t, "onerule.yaml")
	if out, err := exec.Command("sh", "-n", "../kind/up.sh").CombinedOutput(); err != nil {
		t.Errorf("sh -n: %v: %s", err, out)
	}
	set, makefile := o.set(t), text(t, "../../Makefile")
	for _, want := range []string{
		"create configmap " + o.daemon(t).EnvFrom[0].ConfigMapRef.Name + " ",
		"rollout status daemonset/" + set.Name + " ",
		"--namespace " + set.Namespace + " ",
		"--config install/kind/cluster.yaml\n",
		"apply -f install/onerule.yaml\n",
		"load image-archive bin/onerule-image.tar ",
		"KUBERNETES_SERVICE_HOST=", "KUBERNETES_SERVICE_PORT=6443",
	} {
		if !strings.Contains(script, want) {
			t.Errorf("up.sh has no %q", want)
		}
	}
	for _, want := range []string{"-o bin/onerule-image.tar\n", "\nIMAGE ?= " + o.daemon(t).Image + "\n"} {
		if !strings.Contains(makefile, want) {
			t.Errorf("the Makefile has no %q", want)
		}
	}
}

// A file of a script's, of the manifests' or of a Dockerfile's text that is gone breaks it.
func TestWhatTextsNameIsThere(t *testing.T) {
	path := regexp.MustCompile(`install/[a-z-]+(?:/[a-z-]+)*\.(?:yaml|sh|md)`)
	for _, file := range []string{"../onerule.yaml", "../uninstall.yaml", "../manifests.sh", "../kind/up.sh", "../kind/cluster.yaml", "values.yaml"} {
		for _, name := range path.FindAllString(text(t, file), -1) {
			if _, err := os.Stat("../../" + name); err != nil {
				t.Errorf("%s names %s: %v", file, name, err)
			}
		}
	}
}
