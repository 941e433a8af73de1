package config

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestFilesThatAreNoConfiguration(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":             {" \n", "it is empty"},
		"no YAML":           {"a: [", "line 1: did not find expected node content"},
		"a list":            {"[1]", "it is no object of kind KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1"},
		"no kind":           {"apiVersion: kubeproxy.config.k8s.io/v1alpha1", `kind is "" of apiVersion "kubeproxy.config.k8s.io/v1alpha1", want KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1`},
		"another kind":      {"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration", `kind is "KubeletConfiguration" of apiVersion "kubelet.config.k8s.io/v1beta1", want KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1`},
		"another version":   {"apiVersion: kubeproxy.config.k8s.io/v9\nkind: KubeProxyConfiguration", `kind is "KubeProxyConfiguration" of apiVersion "kubeproxy.config.k8s.io/v9", want KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1`},
		"a text as number":  {head + "conntrack: {min: many}", `conntrack.min: "many" is not of type int32`},
		"too large":         {head + "oomScoreAdj: 3000000000", "oomScoreAdj: 3000000000 is not of type int32"},
		"a wrong duration":  {head + "configSyncPeriod: 5 minutes", `configSyncPeriod: "5 minutes": time: unknown unit " minutes" in duration "5 minutes"`},
		"a text for fields": {head + "nftables: fast", `nftables: "fast" is not of type v1alpha1.KubeProxyNFTablesConfiguration`},
		"several": {head + "conntrack: {min: many, udpTimeout: 3}\nmode: 5", `conntrack.min: "many" is not of type int32; ` +
			"conntrack.udpTimeout: 3 is not of type string; mode: 5 is not of type v1alpha1.ProxyMode"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "c")
			write(t, file, c.text)
			if got, want := fault(t, "--config", file), "config file "+file+": "+c.want; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	missing := filepath.Join(t.TempDir(), "none")
	if got, want := fault(t, "--config", missing), "read config file: open "+missing+": no such file or directory"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What is not known is named, and the rest counts.
func TestA14_7UnknownAndDoubleFieldsAreWarnings(t *testing.T) {
	for name, c := range map[string]struct{ fields, want string }{
		"unknown":       {"mode: nftables\noomScoreAdj: 7\nnewThing: 1\n", `unknown field "newThing" is ignored`},
		"unknown below": {"mode: nftables\noomScoreAdj: 7\nconntrack: {maxPerCpu: 1}\n", `unknown field "conntrack.maxPerCpu" is ignored`},
		"other case":    {"mode: nftables\noomScoreAdj: 7\nclustercidr: 10.0.0.0/8\n", `unknown field "clustercidr" is ignored`},
		"double":        {"mode: nftables\noomScoreAdj: 5\noomScoreAdj: 7\n", `line 5: key "oomScoreAdj" already set in map`},
	} {
		t.Run(name, func(t *testing.T) {
			file := configFile(t, c.fields)
			s := settings(t, "--config", file)
			if got, want := strings.Join(s.Warnings, "; "), "config file "+file+": "+c.want; got != want {
				t.Errorf("got warnings %q, want %q", got, want)
			}
			if s.OOMScoreAdj != 7 || len(s.ClusterCIDRs) > 0 {
				t.Errorf("got OOM score %d and ranges %v, want 7 and none", s.OOMScoreAdj, s.ClusterCIDRs)
			}
		})
	}
}

func TestJSONIsReadToo(t *testing.T) {
	value, err := yaml.YAMLToJSON([]byte(head + "oomScoreAdj: 7\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, indented := range map[string]string{"in a line": "", "with tabs": "\t"} {
		t.Run(name, func(t *testing.T) {
			text := string(value)
			if indented != "" {
				var of any
				if err := json.Unmarshal(value, &of); err != nil {
					t.Fatal(err)
				}
				b, err := json.MarshalIndent(of, "", indented)
				if err != nil {
					t.Fatal(err)
				}
				text = string(b)
			}
			file := filepath.Join(t.TempDir(), "c.json")
			write(t, file, text)
			if s := settings(t, "--config", file); s.OOMScoreAdj != 7 {
				t.Errorf("got OOM score %d, want 7", s.OOMScoreAdj)
			}
		})
	}
}

// Whatever a file holds, it is either refused in one line or gives settings that can
// be written and read again.
func FuzzFile(f *testing.F) {
	for _, c := range fieldCases() {
		f.Add(head + nested(c.field, c.value) + c.more)
	}
	for _, text := range []string{"", "{", "[1]", head + "conntrack: 1", head + "conntrack: {min: a}", head + "a: 1\na: 2", head + "mode: null", "null", head + "featureGates: []"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		file := filepath.Join(dir, "config")
		write(t, file, text)
		s, err := parse(t, "--config", file, "--hostname-override=n").Settings()
		if err != nil {
			if err.Error() == "" || strings.Contains(err.Error(), "\n") {
				t.Errorf("refused with %q, want one line", err)
			}
			return
		}
		again := filepath.Join(dir, "again")
		if err := s.Write(again); err != nil {
			t.Fatal(err)
		}
		back := settings(t, "--config", again, "--hostname-override=n")
		if c := Compare(s, back); !c.Empty() {
			t.Errorf("what was written and read again differs in %s", c)
		}
	})
}
