// Package chart holds what users apply to a cluster against the programs that it runs, and
// against a real API server.
package chart

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// helm gives the path of a real helm, which is built the first time.
func helm(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("sh", "../../test/tools.sh", "../../test/helm", "helm.sh/helm/v4/cmd/helm")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("build helm: %v: %s", err, said.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// run runs helm, which finds no configuration of a user's and keeps nothing.
func run(t *testing.T, helm string, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.Command(helm, args...)
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir(), "KUBECONFIG=/dev/null")
	return cmd.CombinedOutput()
}

// rendered gives the objects that the chart makes of settings.
func rendered(t *testing.T, helm string, settings ...string) objects {
	t.Helper()
	args := []string{"template", "onerule", ".", "--namespace", "kube-system"}
	for _, s := range settings {
		args = append(args, "--set-json", s)
	}
	out, err := run(t, helm, args...)
	if err != nil {
		t.Fatalf("helm template %q: %v: %s", settings, err, out)
	}
	return decode(t, out)
}

// The manifests are made from the chart, and are what it makes.
func TestTheManifestsAreThoseOfTheChart(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("sh", "../manifests.sh", helm(t), dir).CombinedOutput(); err != nil {
		t.Fatalf("make manifests: %v: %s", err, out)
	}
	for _, name := range []string{"onerule.yaml", "rbac.yaml", "rbac-network.yaml", "uninstall.yaml"} {
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join("..", name))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("it is not what the chart makes, make manifests mends that (-chart +file):\n%s", diff)
			}
		})
	}
}

func TestHelmFindsNoFaultInTheChart(t *testing.T) {
	if out, err := run(t, helm(t), "lint", "--strict", "."); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A setting that nothing takes is one that lies.
func TestEachSettingOfTheChartHasItsEffect(t *testing.T) {
	program := helm(t)
	usual := rendered(t, program)
	hasArg := func(arg string) func(objects) bool {
		return func(o objects) bool { return slices.Contains(o.daemon(t).Args, arg) }
	}
	for _, c := range []struct {
		setting string
		has     func(objects) bool
	}{
		{`image.repository="registry.example/onerule"`, func(o objects) bool { return o.daemon(t).Image == "registry.example/onerule:dev" }},
		{`image.tag="v1"`, func(o objects) bool { return o.daemon(t).Image == "onerule:v1" }},
		{`image.pullPolicy="Always"`, func(o objects) bool { return o.daemon(t).ImagePullPolicy == "Always" }},
		{`imagePullSecrets=["mine"]`, func(o objects) bool {
			list := o.set(t).Spec.Template.Spec.ImagePullSecrets
			return len(list) == 1 && list[0].Name == "mine"
		}},
		{`apiServer={"host":"fd00::1","port":443}`, func(o objects) bool {
			return cmp.Equal(o.data("onerule-apiserver"), map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"})
		}},
		{`config={"detectLocalMode":"ClusterCIDR","clusterCIDR":"10.0.0.0/8"}`, func(o objects) bool {
			text := o.data("oneruled")["config.yaml"]
			return strings.Contains(text, "\ndetectLocalMode: ClusterCIDR\n") && strings.Contains(text, "clusterCIDR: 10.0.0.0/8\n")
		}},
		{`podNetwork.enabled=false`, func(o objects) bool {
			_, role := o.roles["oneruled-network"]
			return !hasArg("--pod-network")(o) && !hasArg("--install-cni")(o) && !role && !mounted(o.daemon(t), "/opt/cni/bin")
		}},
		{`podNetwork.encapsulation="never"`, hasArg("--encapsulation=never")},
		{`podNetwork.exclusive=true`, hasArg("--cni-exclusive")},
		{`podNetwork.nonMasqueradeCIDRs=["10.1.0.0/16","fd01::/64"]`, hasArg("--non-masquerade-cidrs=10.1.0.0/16,fd01::/64")},
		{`podNetwork.mtu=1400`, hasArg("--cni-mtu=1400")},
		{`podNetwork.binDir="/usr/libexec/cni"`, func(o objects) bool { return o.hostPath(t, "cni-bin") == "/usr/libexec/cni" }},
		{`podNetwork.confDir="/etc/cni/other.d"`, func(o objects) bool { return o.hostPath(t, "cni-conf") == "/etc/cni/other.d" }},
		{`podNetwork.networkManager=true`, func(o objects) bool { return mounted(o.daemon(t), "/etc/NetworkManager/conf.d") }},
		{`podNetwork.networkd=true`, func(o objects) bool {
			return mounted(o.daemon(t), "/etc/systemd/network") && mounted(o.daemon(t), "/etc/systemd/networkd.conf.d") && o.hostPath(t, "networkd-links") == "/etc/systemd/network"
		}},
		{`endpointMetrics="off"`, func(o objects) bool {
			return hasArg("--bpf-dir=off")(o) && !mounted(o.daemon(t), "/sys/fs/bpf") && !slices.Contains(o.daemon(t).SecurityContext.Capabilities.Add, "BPF")
		}},
		{`extraArgs=["--v=4"]`, hasArg("--v=4")},
		{`extraArgs=["--cni-state=/var/lib/cni/mine","--etc-dir="]`, hasArg("--cni-state=/var/lib/cni/mine")},
		{`extraCapabilities=["SYS_ADMIN"]`, func(o objects) bool {
			return slices.Contains(o.daemon(t).SecurityContext.Capabilities.Add, "SYS_ADMIN")
		}},
		{`resources={"requests":{"memory":"1Gi"}}`, func(o objects) bool {
			q := o.daemon(t).Resources.Requests[corev1.ResourceMemory]
			return q.String() == "1Gi"
		}},
		{`updateStrategy={"type":"OnDelete","rollingUpdate":null}`, func(o objects) bool { return o.set(t).Spec.UpdateStrategy.Type == "OnDelete" }},
		{`nodeSelector={"mine":"yes"}`, func(o objects) bool { return o.set(t).Spec.Template.Spec.NodeSelector["mine"] == "yes" }},
		{`tolerations=[]`, func(o objects) bool { return len(o.set(t).Spec.Template.Spec.Tolerations) == 0 }},
	} {
		t.Run(c.setting, func(t *testing.T) {
			if c.has(usual) {
				t.Error("it is so without the setting, too")
			}
			got := rendered(t, program, c.setting)
			if !c.has(got) {
				t.Errorf("it has no effect: %+v", got.daemon(t))
			}
			accepts(t, got)
			reaches(t, got, rendered(t, program, c.setting, "uninstall=true"))
		})
	}
}

// Helm takes any setting unless it is told which there are.
func TestASettingThatIsNoneIsRefused(t *testing.T) {
	program := helm(t)
	for setting, names := range map[string]string{
		`apiserver.host="192.0.2.1"`:         "apiserver",
		`podNetwork.MTU=1400`:                "MTU",
		`apiServer.host="https://192.0.2.1"`: "host",
		`podNetwork.encapsulation="maybe"`:   "encapsulation",
		`endpointMetrics=true`:               "endpointMetrics",
		`extraArgs=["v=4"]`:                  "extraArgs",
		`uninstall="yes"`:                    "uninstall",
	} {
		t.Run(setting, func(t *testing.T) {
			out, err := run(t, program, "template", "onerule", ".", "--set-json", setting)
			if err == nil || !strings.Contains(string(out), names) {
				t.Errorf("got %v, want it refused with %q: %.300s", err, names, out)
			}
		})
	}
}
