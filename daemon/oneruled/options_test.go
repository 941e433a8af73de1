package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestBindAddressesHaveADefaultPort(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "",
		"127.0.0.1":          "127.0.0.1:10256",
		"127.0.0.1:80":       "127.0.0.1:80",
		"::":                 "[::]:10256",
		"[::]":               "[::]:10256",
		"fd00::1":            "[fd00::1]:10256",
		"[fd00::1]":          "[fd00::1]:10256",
		"[fd00::1]:80":       "[fd00::1]:80",
		"[fe80::1%eth0]:80":  "[fe80::1%eth0]:80",
		"::ffff:192.0.2.1":   "[::ffff:192.0.2.1]:10256",
		"0.0.0.0:65535":      "0.0.0.0:65535",
		"here":               "refused",
		":10256":             "refused",
		"127.0.0.1:":         "refused",
		"127.0.0.1:0":        "refused",
		"127.0.0.1:65536":    "refused",
		"127.0.0.1:http":     "refused",
		"[127.0.0.1]":        "refused",
		"[127.0.0.1]:80":     "refused",
		"[::":                "refused",
		"[fd00::1]80":        "refused",
		"localhost:10256":    "refused",
		"127.0.0.1 ":         "refused",
		"127.0.0.1,10.0.0.1": "refused",
	} {
		got, err := bindAddress(text, healthzPort)
		if err != nil {
			got = "refused"
			if want := fmt.Sprintf("%q is not an address, with or without a port, like 0.0.0.0:10256", text); err.Error() != want {
				t.Errorf("%q: got error %q, want %q", text, err, want)
			}
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestRangesOfPods(t *testing.T) {
	for _, c := range []struct{ list, want string }{
		{"", "[]"},
		{"10.244.0.0/16", "[10.244.0.0/16]"},
		{"10.244.1.2/16, fd00:10::/56", "[10.244.0.0/16 fd00:10::/56]"},
		{",", `range 1 of "," is empty`},
		{"10.0.0.0/8, ,fd00::/64", `range 2 of "10.0.0.0/8, ,fd00::/64" is empty`},
		{"10.0.0.0/8,", `range 2 of "10.0.0.0/8," is empty`},
		{"10.0.0.0/8,10.0.0.0", `"10.0.0.0" is not a range of addresses, like 10.244.0.0/16`},
	} {
		all, err := prefixes(c.list)
		got := fmt.Sprint(all)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q: got %s, want %s", c.list, got, c.want)
		}
	}
}

// All that is wrong with the flags is said at once, each by the flag's name.
func TestEachBadFlagIsNamed(t *testing.T) {
	o := options{
		manifests: "/m", master: "https://api", hostnameOverride: " ", clusterCIDR: ",", masqueradeBit: 32,
		healthzAddress: "here", metricsAddress: "there",
	}
	_, err := o.settle()
	if err == nil {
		t.Fatal("the flags are taken")
	}
	for _, flag := range []string{"--manifests", "--hostname-override", "--cluster-cidr", "--masquerade-bit", "--healthz-bind-address", "--metrics-bind-address"} {
		if strings.Count(err.Error(), flag+":")+strings.Count(err.Error(), flag+" excludes") != 1 {
			t.Errorf("got %q, want %s to be named once", err, flag)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("got %q, want one line", err)
	}
}

func TestServersHaveKubeProxysAddresses(t *testing.T) {
	o := options{hostnameOverride: "node", healthzAddress: "::1", metricsAddress: "::1"}
	s, err := o.settle()
	if err != nil {
		t.Fatal(err)
	}
	if s.healthz != "[::1]:10256" || s.metrics != "[::1]:10249" {
		t.Errorf("got %s and %s, want ports 10256 and 10249", s.healthz, s.metrics)
	}
	flags := command("test").Flags()
	for flag, want := range map[string]string{"healthz-bind-address": "0.0.0.0:10256", "metrics-bind-address": "127.0.0.1:10249"} {
		if got := flags.Lookup(flag).DefValue; got != want {
			t.Errorf("--%s is %s unless given, want %s", flag, got, want)
		}
	}
}
