package chart

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"onerule/test/rig"
)

// Objects are what a manifest says, by their names.
type objects struct {
	accounts   map[string]*corev1.ServiceAccount
	roles      map[string]*rbacv1.ClusterRole
	bindings   map[string]*rbacv1.ClusterRoleBinding
	configMaps map[string]*corev1.ConfigMap
	sets       map[string]*appsv1.DaemonSet
}

// decode reads a manifest, strictly: no field that the API does not have, no object of
// another kind, nothing twice.
func decode(t *testing.T, text []byte) objects {
	t.Helper()
	o := objects{map[string]*corev1.ServiceAccount{}, map[string]*rbacv1.ClusterRole{}, map[string]*rbacv1.ClusterRoleBinding{}, map[string]*corev1.ConfigMap{}, map[string]*appsv1.DaemonSet{}}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return o
		}
		if err != nil {
			t.Fatal(err)
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			t.Fatalf("%v: %s", err, document)
		}
		switch kind.Kind {
		case "":
			err = empty(document)
		case "ServiceAccount":
			err = take(document, o.accounts)
		case "ClusterRole":
			err = take(document, o.roles)
		case "ClusterRoleBinding":
			err = take(document, o.bindings)
		case "ConfigMap":
			err = take(document, o.configMaps)
		case "DaemonSet":
			err = take(document, o.sets)
		default:
			err = errors.New("what is this?")
		}
		if err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
	}
}

func empty(document []byte) error {
	for line := range bytes.Lines(document) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && string(line) != "---" {
			return errors.New("an object without a kind")
		}
	}
	return nil
}

func take[T any, P interface {
	*T
	metav1.Object
}](document []byte, into map[string]P) error {
	object := P(new(T))
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return err
	}
	if into[object.GetName()] != nil {
		return errors.New("it is there already")
	}
	into[object.GetName()] = object
	return nil
}

func manifest(t *testing.T, name string) objects {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", name))
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, b)
}

func (o objects) set(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	if len(o.sets) != 1 {
		t.Fatalf("got %d DaemonSets, want 1", len(o.sets))
	}
	for _, s := range o.sets {
		return s
	}
	return nil
}

// daemon gives the container that there is.
func (o objects) daemon(t *testing.T) corev1.Container {
	t.Helper()
	spec := o.set(t).Spec.Template.Spec
	if len(spec.Containers) != 1 || len(spec.InitContainers) != 0 {
		t.Fatalf("got %d containers, want 1", len(spec.Containers)+len(spec.InitContainers))
	}
	return spec.Containers[0]
}

func (o objects) hostPath(t *testing.T, volume string) string {
	t.Helper()
	for _, v := range o.set(t).Spec.Template.Spec.Volumes {
		if v.Name == volume && v.HostPath != nil {
			return v.HostPath.Path
		}
	}
	return ""
}

// data gives what a ConfigMap holds, nothing if it is not there.
func (o objects) data(name string) map[string]string {
	if c := o.configMaps[name]; c != nil {
		return c.Data
	}
	return nil
}

func mounted(c corev1.Container, path string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path })
}

// oneruled runs the real program and gives what it prints.
func oneruled(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), args...).CombinedOutput()
	if err != nil {
		t.Errorf("oneruled %q: %v: %s", args, err, out)
	}
	return string(out)
}

// accepts has the real program read what the objects give it, and gives all that is then set.
func accepts(t *testing.T, o objects) map[string]any {
	t.Helper()
	dir := t.TempDir()
	config, written := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "written.yaml")
	if err := os.WriteFile(config, []byte(o.data("oneruled")["config.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--write-config-to=" + written}
	for _, arg := range o.daemon(t).Args {
		if file, ok := strings.CutPrefix(arg, "--config="); ok {
			if file != "/etc/onerule/config.yaml" || !mounted(o.daemon(t), "/etc/onerule") {
				t.Errorf("the configuration %s is not mounted", file)
			}
			arg = "--config=" + config
		}
		args = append(args, strings.ReplaceAll(arg, "$(NODE_NAME)", "node-1"))
	}
	if out := oneruled(t, args...); strings.Contains(out, "do not count") {
		t.Errorf("it says %s", out)
	}
	b, err := os.ReadFile(written)
	if err != nil {
		t.Fatal(err)
	}
	var set map[string]any
	if err := yaml.Unmarshal(b, &set); err != nil {
		t.Fatal(err)
	}
	return set
}

func TestTheDaemonAcceptsWhatTheManifestGivesIt(t *testing.T) {
	o := manifest(t, "onerule.yaml")
	set := accepts(t, o)
	for field, want := range map[string]string{"hostnameOverride": "node-1", "detectLocalMode": "NodeCIDR", "mode": "nftables"} {
		if set[field] != want {
			t.Errorf("%s: got %v, want %s", field, set[field], want)
		}
	}
	t.Run("probes ask where it answers", func(t *testing.T) {
		c := o.daemon(t)
		for name, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
			want := "0.0.0.0:" + probe.HTTPGet.Port.String()
			if set["healthzBindAddress"] != want {
				t.Errorf("%s: the daemon answers at %v, want %s", name, set["healthzBindAddress"], want)
			}
			if path := probe.HTTPGet.Path; path != "/livez" && path != "/healthz" {
				t.Errorf("%s asks for %s", name, path)
			}
		}
	})
}

// What the daemon writes must reach the node.
func TestTheFoldersThatTheDaemonWritesToAreTheNodes(t *testing.T) {
	o := manifest(t, "onerule.yaml")
	c, help := o.daemon(t), oneruled(t, "--help")
	defaults := map[string]string{}
	flag := regexp.MustCompile(`(?m)^ +--([a-z-]+)(?: [a-z]+)?  `)
	value := regexp.MustCompile(`\(default\s+"(/[^"]*)"\)`)
	starts := flag.FindAllStringSubmatchIndex(help, -1)
	for i, at := range starts {
		end := len(help)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		if path := value.FindStringSubmatch(help[at[0]:end]); path != nil {
			defaults[help[at[2]:at[3]]] = path[1]
		}
	}
	defaults["sysctl-dir"] = "/host/proc/sys/net" // as the argument says
	for _, flag := range []string{"cni-bin-dir", "cni-conf-dir", "cni-state", "network-status-file", "sysctl-dir"} {
		path := defaults[flag]
		if path == "" {
			t.Errorf("--%s has no default in the help: %v", flag, defaults)
		}
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			return !m.ReadOnly && (path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/")) && o.hostPath(t, m.Name) != ""
		}) {
			t.Errorf("--%s is %s, which is no folder of the node's", flag, path)
		}
	}
	if !slices.Contains(c.Args, "--sysctl-dir=/host/proc/sys") {
		t.Errorf("arguments %q leave the kernel's settings read-only", c.Args)
	}
}

// The pod is on every node, before everything else, and without privileges that it does not
// need.
func TestThePodIsThatOfANodesNetwork(t *testing.T) {
	o := manifest(t, "onerule.yaml")
	set, c := o.set(t), o.daemon(t)
	spec, s := set.Spec.Template.Spec, c.SecurityContext
	update := set.Spec.UpdateStrategy.RollingUpdate
	for what, is := range map[string]bool{
		"on the node's network":                  spec.HostNetwork,
		"critical":                               spec.PriorityClassName == "system-node-critical",
		"tolerates all taints":                   cmp.Equal(spec.Tolerations, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}),
		"ends soon":                              *spec.TerminationGracePeriodSeconds <= 10,
		"not privileged":                         s.Privileged == nil && !*s.AllowPrivilegeEscalation && *s.ReadOnlyRootFilesystem,
		"has these capabilities":                 cmp.Equal(s.Capabilities, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "BPF", "PERFMON", "DAC_OVERRIDE"}}),
		"asks for memory and CPU, without limit": len(c.Resources.Requests) == 2 && len(c.Resources.Limits) == 0,
		"the next one comes before it ends":      update.MaxUnavailable.String() == "0" && update.MaxSurge.String() == "10%",
		"declares no port, which would clash":    len(c.Ports) == 0,
		"where the API server is can be said":    len(c.EnvFrom) == 1 && c.EnvFrom[0].ConfigMapRef.Name == "onerule-apiserver" && *c.EnvFrom[0].ConfigMapRef.Optional,
		"and is not overridden":                  len(c.Env) == 1 && c.Env[0].Name == "NODE_NAME",
		"selects its pods":                       cmp.Equal(set.Spec.Selector.MatchLabels, set.Spec.Template.Labels),
	} {
		if !is {
			t.Errorf("it is not so: %s", what)
		}
	}
	if len(o.accounts) != 1 || o.accounts[spec.ServiceAccountName] == nil {
		t.Errorf("accounts %v, want %s", slices.Collect(maps.Keys(o.accounts)), spec.ServiceAccountName)
	}
	for name, b := range o.bindings {
		if o.roles[b.RoleRef.Name] == nil || len(b.Subjects) != 1 || b.Subjects[0].Name != spec.ServiceAccountName || b.Subjects[0].Namespace != set.Namespace {
			t.Errorf("binding %s gives %+v to %+v", name, b.RoleRef, b.Subjects)
		}
	}
}

// The roles of the separate files are held to what the daemon asks for by test/apiproxy and
// daemon/source; those of the whole manifest are the same.
func TestTheRolesAreThoseOfTheSeparateFiles(t *testing.T) {
	whole, parts := manifest(t, "onerule.yaml"), map[string]*rbacv1.ClusterRole{}
	for _, name := range []string{"rbac.yaml", "rbac-network.yaml"} {
		maps.Copy(parts, manifest(t, name).roles)
	}
	if diff := cmp.Diff(parts, whole.roles); diff != "" {
		t.Errorf("(-separate +whole):\n%s", diff)
	}
}

// What takes onerule off a node sees the folders that what puts it there writes to.
func TestUninstallingReachesWhatWasInstalled(t *testing.T) {
	whole, off := manifest(t, "onerule.yaml"), manifest(t, "uninstall.yaml")
	reaches(t, whole, off)
	for _, folder := range []string{"/opt/cni/bin", "/etc/cni/net.d", "/var/lib/cni", "/run/onerule", "/sys/fs/bpf", "/host/proc/sys/net"} {
		if !mounted(off.daemon(t), folder) {
			t.Errorf("%s is not mounted", folder)
		}
	}
	if got, want := off.daemon(t).SecurityContext.Capabilities.Add, []corev1.Capability{"NET_ADMIN", "DAC_OVERRIDE"}; !cmp.Equal(got, want) {
		t.Errorf("it has the capabilities %q, want %q", got, want)
	}
	if set := off.set(t); cmp.Equal(set.Spec.Selector.MatchLabels, whole.set(t).Spec.Selector.MatchLabels) || set.Name == whole.set(t).Name {
		t.Error("it takes itself for the daemon's")
	}
}

// reaches wants of the pod that takes onerule off a node that it is where the daemon's is, and
// may reach what that may.
func reaches(t *testing.T, whole, off objects) {
	t.Helper()
	if diff := cmp.Diff(place(t, whole), place(t, off)); diff != "" {
		t.Errorf("it is not where the daemon is (-daemon +uninstall):\n%s", diff)
	}
	theirs, ours := whole.daemon(t), off.daemon(t)
	for _, c := range ours.SecurityContext.Capabilities.Add {
		if !slices.Contains(theirs.SecurityContext.Capabilities.Add, c) {
			t.Errorf("it has %s, which the daemon has not", c)
		}
	}
	if args := ours.Args[:2]; !slices.Equal(args, []string{"uninstall", "--stay"}) {
		t.Errorf("arguments %q", args)
	}
	// What it does not know ends it before the help.
	help := oneruled(t, append(slices.Clone(ours.Args), "--help")...)
	for _, arg := range theirs.Args {
		flag, _, _ := strings.Cut(arg, "=")
		if known := regexp.MustCompile(`(?m)^ +(-\w, )?` + flag + "( |$)"); known.MatchString(help) && !slices.Contains(ours.Args, arg) {
			t.Errorf("arguments %q, without the daemon's %s", ours.Args, arg)
		}
	}
	if len(off.accounts)+len(off.roles)+len(off.bindings)+len(off.configMaps) > 0 {
		t.Errorf("there is more than it: %+v", off)
	}
}

// place gives where a pod is and what it sees there, without what is only the daemon's.
func place(t *testing.T, o objects) corev1.PodSpec {
	t.Helper()
	spec := o.set(t).Spec.Template.Spec.DeepCopy()
	c := spec.Containers[0]
	c.SecurityContext.Capabilities.Add = nil
	spec.ServiceAccountName, spec.AutomountServiceAccountToken = "", nil
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil })
	spec.Containers = []corev1.Container{{
		Image: c.Image, ImagePullPolicy: c.ImagePullPolicy, SecurityContext: c.SecurityContext,
		VolumeMounts: slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "config" }),
	}}
	return *spec
}
