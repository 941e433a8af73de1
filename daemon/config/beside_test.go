package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Beside a file a flag either has the effect that it has alone, or none, and is named.
func TestA14_7EachFlagBesideAFile(t *testing.T) {
	counts := []string{
		"hostname-override", "master",
		"logging-format", "log-flush-frequency", "v", "vmodule",
		"log-text-split-stream", "log-text-info-buffer-size", "log-json-split-stream", "log-json-info-buffer-size",
		// Ours.
		"manifests", "masquerade-bit", "reject-without-local-endpoints", "reset-removed-endpoints",
		"bpf-dir", "sysctl-dir", "endpoint-metrics", "external-ip-cidrs", "pod-network", "encapsulation", "vxlan-port", "vxlan-vni",
		"vxlan-checksum-offload", "non-masquerade-cidrs", "cni-state", "network-status-file",
		"install-cni", "cni-plugin", "cni-bin-dir", "cni-conf-dir", "etc-dir", "cni-exclusive", "cni-mtu",
	}
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	for name, c := range flagCases() {
		t.Run(name, func(t *testing.T) {
			file := configFile(t, "mode: nftables\nhostnameOverride: of-file\nfeatureGates: {LoggingAlphaOptions: true}\n")
			s := settings(t, append([]string{"--config", file}, c.args...)...)
			if name == "masquerade-bit" { // the other flag of its case does not count
				c.of, c.want = func(s Settings) any { return s.MasqueradeBit }, uint8(31)
			}
			if got := cmp.Equal(c.want, c.of(s), same); got != slices.Contains(counts, name) {
				t.Errorf("%q has its effect beside a file: %t, want %t", c.args, got, !got)
			}
			named := strings.Contains(strings.Join(s.Warnings, "\n")+",", "--"+name+",")
			if named == slices.Contains(counts, name) {
				t.Errorf("it is said that --%s does not count: %t, want %t: %q", name, named, !named, s.Warnings)
			}
		})
	}
}

func TestA14_13NameOfTheNode(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	named := configFile(t, "mode: nftables\nhostnameOverride: ' Of-File '\n")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"the host's":               {nil, strings.ToLower(host)},
		"the host's, with a file":  {[]string{"--config", configFile(t, "mode: nftables\n")}, strings.ToLower(host)},
		"the flag's":               {[]string{"--hostname-override= Node-1.Example "}, "node-1.example"},
		"the file's":               {[]string{"--config", named}, "of-file"},
		"the flag's before a file": {[]string{"--config", named, "--hostname-override=Of-Flag"}, "of-flag"},
		"an empty flag is none":    {[]string{"--config", named, "--hostname-override="}, "of-file"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := settings(t, c.args...).Node; got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if got, want := fault(t, "--hostname-override= \t"), "--hostname-override: the name is blank"; got != want {
		t.Errorf("a blank one: got %q, want %q", got, want)
	}
	if got, want := fault(t, "--config", named, "--hostname-override= "), "--hostname-override: the name is blank"; got != want {
		t.Errorf("a blank one beside a file: got %q, want %q", got, want)
	}
}

func TestA14_9WhatIsWrittenIsWhatAFileAndFlagsSay(t *testing.T) {
	s := settings(t, "--config", configFile(t, "mode: nftables\nnewThing: 1\nconntrack: {min: 7}\n"), "--hostname-override= N ", "-v=3")
	file := filepath.Join(t.TempDir(), "written")
	if err := s.Write(file); err != nil {
		t.Fatal(err)
	}
	text := read(t, file)
	for _, want := range []string{"kind: KubeProxyConfiguration", "\nhostnameOverride: \"n\"\n", "\n  min: 7\n", "\n  verbosity: 3\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("got %s, want %q in it", text, want)
		}
	}
	if strings.Contains(text, "newThing") {
		t.Errorf("got %s, want nothing that is not known", text)
	}
}
