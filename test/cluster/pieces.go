package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A piece is a program that is built from source. Its version is that of its module's
// go.mod, and stands nowhere else.
type piece struct {
	name   string
	module string // folder of the go.mod, from the top of the repository
	path   string // of the package
	test   bool   // a package of tests
	tags   string
	// versioned names a module whose VERSION, MAJOR and MINOR the linker writes into
	// variables.
	versioned string
	variables []string
}

// ours is the folder of what is in this repository's own module.
const ours = "test/cluster"

// pieces are all programs, in the order in which they are built.
func pieces() []piece {
	kube := func(name, path string) piece {
		const v = "k8s.io/component-base/version."
		return piece{
			name: name, module: "test/cluster/kubernetes", path: path, versioned: "k8s.io/kubernetes",
			variables: []string{v + "gitVersion=VERSION", v + "gitMajor=MAJOR", v + "gitMinor=MINOR"},
		}
	}
	containerd := func(name string) piece {
		const m = "github.com/containerd/containerd/v2"
		return piece{
			name: name, module: "test/cluster/containerd", path: m + "/cmd/" + name,
			tags:      "no_btrfs no_devmapper no_zfs",
			versioned: m, variables: []string{m + "/version.Version=VERSION"},
		}
	}
	image := func(name string) piece {
		return piece{name: name, module: "test/cluster/kubernetes", path: "k8s.io/kubernetes/test/images/" + name}
	}
	plugin := func(name, kind string) piece {
		return piece{name: name, module: "test/reference", path: "github.com/containernetworking/plugins/plugins/" + kind + "/" + name}
	}
	tests := kube("e2e.test", "k8s.io/kubernetes/test/e2e")
	tests.test = true
	all := []piece{
		{name: "pause", module: ours, path: "./pause"},
		plugin("ptp", "main"), plugin("bridge", "main"), plugin("loopback", "main"),
		plugin("host-local", "ipam"), plugin("portmap", "meta"),
		{name: "etcd", module: "test/cluster/etcd", path: "go.etcd.io/etcd/server/v3"},
		containerd("containerd"), containerd("containerd-shim-runc-v2"), containerd("ctr"),
		{name: "coredns", module: "test/cluster/coredns", path: "."},
	}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"} {
		all = append(all, kube(name, "k8s.io/kubernetes/cmd/"+name))
	}
	return append(all, image("agnhost"), image("regression-issue-74839"),
		piece{name: "ginkgo", module: "test/cluster/kubernetes", path: "github.com/onsi/ginkgo/v2/ginkgo"}, tests)
}

// arguments are those of go, but for the output.
func (p piece) arguments(root string) ([]string, error) {
	args := []string{"build"}
	if p.test {
		args = []string{"test", "-c"}
	}
	if p.tags != "" {
		args = append(args, "-tags", p.tags)
	}
	flags := "-s -w"
	if p.versioned != "" {
		version, err := moduleVersion(filepath.Join(root, p.module), p.versioned)
		if err != nil {
			return nil, err
		}
		major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
		minor, _, _ := strings.Cut(rest, ".")
		numbers := strings.NewReplacer("VERSION", version, "MAJOR", major, "MINOR", minor)
		for _, v := range p.variables {
			flags += " -X " + numbers.Replace(v)
		}
	}
	return append(args, "-buildvcs=false", "-ldflags", flags), nil
}

// moduleVersion reads the version of a module in a go.mod.
func moduleVersion(folder, module string) (string, error) {
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("version of %s: %w", module, err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("version of %s: go.mod in %s does not name it", module, folder)
}
