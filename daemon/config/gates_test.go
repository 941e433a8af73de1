package config

import (
	"strings"
	"testing"
)

func TestA14_CGatesOfKubeProxyAreKnown(t *testing.T) {
	known := knownGates()
	for name, want := range map[string]gate{
		"AllowServiceExternalIPs":             {on: true, maturity: "ga"},
		"KubeProxyIPVS":                       {on: true, maturity: "deprecated"},
		"KubeProxyNFTablesLocalhostNodePorts": {maturity: "alpha"},
		"NFTablesNetlink":                     {on: true, maturity: "beta"},
		"NFTablesProxyMode":                   {on: true, maturity: "ga", locked: true},
		"MultiCIDRServiceAllocator":           {on: true, maturity: "ga", locked: true},
		"PreferSameTrafficDistribution":       {on: true, maturity: "ga", locked: true},
		"ComponentFlagz":                      {on: true, maturity: "beta"},
		"ComponentStatusz":                    {on: true, maturity: "beta"},
		"ContextualLogging":                   {on: true, maturity: "beta"},
		"LoggingAlphaOptions":                 {maturity: "alpha"},
		"LoggingBetaOptions":                  {on: true, maturity: "beta"},
		"NativeHistograms":                    {on: true, maturity: "beta"},
		"WatchListClient":                     {on: true, maturity: "beta"},
		"ClientsAllowCBOR":                    {maturity: "alpha"},
		"AllAlpha":                            {maturity: "alpha"},
		"AllBeta":                             {maturity: "beta"},
	} {
		if got, ok := known[name]; !ok || got != want {
			t.Errorf("%s: got %+v, known %t, want %+v", name, got, ok, want)
		}
	}
	for name, g := range known {
		if g.maturity != "alpha" && g.maturity != "beta" && g.maturity != "ga" && g.maturity != "deprecated" {
			t.Errorf("%s has maturity %q", name, g.maturity)
		}
	}
}

func TestGroupsOfGates(t *testing.T) {
	values, errs := gates(map[string]bool{"AllAlpha": true, "AllBeta": false, "LoggingAlphaOptions": false, "NFTablesProxyMode": true})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for name, want := range map[string]bool{
		"KubeProxyNFTablesLocalhostNodePorts": true,  // by AllAlpha
		"LoggingAlphaOptions":                 false, // itself, and not by AllAlpha
		"NFTablesNetlink":                     false, // by AllBeta
		"NFTablesProxyMode":                   true,
		"AllowServiceExternalIPs":             true,
		"AllAlpha":                            true,
	} {
		if values[name] != want {
			t.Errorf("%s: got %t, want %t", name, values[name], want)
		}
	}
}

func TestGatesOnTheCommandLine(t *testing.T) {
	g := gatesValue{}
	for _, text := range []string{"B=false, A=true", "", "C = T,"} {
		if err := g.Set(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if got, want := g.String(), "A=true,B=false,C=true"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for text, want := range map[string]string{
		"A":        `"A" has no value, like A=true`,
		"A=":       `value of A is "", neither true nor false`,
		"A=1,B=no": `value of B is "no", neither true nor false`,
	} {
		if err := (gatesValue{}).Set(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %s", text, err, want)
		}
	}
}
