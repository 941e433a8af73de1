package metrics

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/version"
)

// KubernetesVersion is the release of Kubernetes that the program behaves like, as in
// v1.37.2: the one that its libraries are of. It is what monitoring compares with the
// cluster's, so it is not our own.
func KubernetesVersion() string {
	if stamped := version.Get().GitVersion; !strings.HasPrefix(stamped, "v0.0.0") {
		return stamped
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return ofLibraries(info)
}

// ofLibraries gives the release that the libraries of a program are of: v0.37.2 of
// client-go is of v1.37.2.
func ofLibraries(info *debug.BuildInfo) string {
	for _, m := range info.Deps {
		if m.Path != "k8s.io/client-go" {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		if rest, ok := strings.CutPrefix(m.Version, "v0."); ok {
			return "v1." + rest
		}
	}
	return ""
}

// Emulated gives the "major.minor" of KubernetesVersion.
func Emulated() string {
	major, minor := majorMinor(KubernetesVersion())
	return major + "." + minor
}

// majorMinor splits "v1.37.2" into "1" and "37".
func majorMinor(release string) (major, minor string) {
	major, rest, _ := strings.Cut(strings.TrimPrefix(release, "v"), ".")
	minor, _, _ = strings.Cut(rest, ".")
	return major, minor
}

// buildInfo says which Kubernetes this is, in the labels of all its components.
func buildInfo() prometheus.Collector {
	release := KubernetesVersion()
	major, minor := majorMinor(release)
	stamp := version.Get()
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "Always 1, with the release of Kubernetes that this program behaves like, and how it was built, as labels.",
		ConstLabels: prometheus.Labels{
			"major": major, "minor": minor, "git_version": release,
			"git_commit": stampOf(stamp.GitCommit), "git_tree_state": stampOf(stamp.GitTreeState), "build_date": stampOf(stamp.BuildDate),
			"go_version": runtime.Version(), "compiler": runtime.Compiler, "platform": fmt.Sprintf("%s/%s", runtime.GOOS, runtime.GOARCH),
		},
	})
	g.Set(1)
	return g
}

// stampOf gives what a build stamped, or nothing if it did not.
func stampOf(s string) string {
	if strings.HasPrefix(s, "$Format") || s == "1970-01-01T00:00:00Z" {
		return ""
	}
	return s
}
