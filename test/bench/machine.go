package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"onerule/nft"
)

// machine says what the figures were measured on. Facts that cannot be had are
// "unknown".
type machine struct {
	cpu    string
	cores  int
	kernel string
	nft    string
	golang string
	commit string
	load   string // as the machine was before
}

func thisMachine(ctx context.Context) (machine, error) {
	found, err := nft.Probe(ctx)
	if err != nil {
		return machine{}, err
	}
	m := machine{
		cpu: "unknown", cores: runtime.NumCPU(), kernel: found.Kernel, nft: found.Nft,
		golang: strings.TrimPrefix(runtime.Version(), "go"), commit: commit(ctx), load: "unknown",
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.cpu = cpuModel(string(text))
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.load = strings.Join(strings.Fields(string(text))[:3], ", ")
	}
	return m, nil
}

func cpuModel(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// commit names what is checked out here. As root, git distrusts a clone of somebody
// else's, unless the command says otherwise.
func commit(ctx context.Context) string {
	git := func(args ...string) string {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*"}, args...)...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	hash := git("rev-parse", "--short=12", "HEAD")
	switch {
	case hash == "":
		return "unknown"
	case git("status", "--porcelain") != "":
		return hash + " and changes that are not committed"
	}
	return hash
}

func (m machine) String() string {
	return fmt.Sprintf("%s, %d cores; kernel %s; nft %s; Go %s; commit %s; load average before: %s",
		m.cpu, m.cores, m.kernel, m.nft, m.golang, m.commit, m.load)
}
