package config

import (
	"strings"
	"testing"
)

func TestFaultsOfThePodNetwork(t *testing.T) {
	for arg, want := range map[string]string{
		"--encapsulation=sometimes":   `--encapsulation: "sometimes" is neither auto, always nor never`,
		"--vxlan-port=0":              "--vxlan-port: 0 is not within 1 to 65535",
		"--vxlan-port=65536":          "--vxlan-port: 65536 is not within 1 to 65535",
		"--vxlan-vni=16777216":        "--vxlan-vni: 16777216 is not within 1 to 16777215",
		"--cni-state=here":            `--cni-state: "here" is no absolute path`,
		"--network-status-file=here":  `--network-status-file: "here" is no absolute path`,
		"--cni-conf-dir=here":         `--cni-conf-dir: "here" is no absolute path`,
		"--install-cni":               "--install-cni: it needs --pod-network, which says when pods can be served",
		"--external-ip-cidrs=a":       `--external-ip-cidrs: "a" is not a range of addresses, like 10.244.0.0/16`,
		"--non-masquerade-cidrs=1::/": `--non-masquerade-cidrs: "1::/" is not a range of addresses, like 10.244.0.0/16`,
	} {
		if got := fault(t, arg); got != want {
			t.Errorf("%s: got %s, want %s", arg, got, want)
		}
	}
}

func TestRangesInWhichNoExternalIPCanBe(t *testing.T) {
	for arg, want := range map[string]int{
		"127.0.0.0/8": 1, "127.0.0.7/32,10.0.0.0/8": 1, "::1/128,fe80::/64,169.254.0.0/16": 3,
		"0.0.0.0/0": 0, "::/0": 0, "192.0.2.0/24": 0,
	} {
		s := settings(t, "--external-ip-cidrs="+arg)
		if got := strings.Count(strings.Join(s.Warnings, "\n"), "--external-ip-cidrs: "); got != want {
			t.Errorf("%s: %d warnings, want %d: %q", arg, got, want, s.Warnings)
		}
	}
}
