package config

import (
	"os"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

func TestA14_8ChangesAreLiveOrTakeARestart(t *testing.T) {
	for flag, want := range map[string]string{
		"--masquerade-all":                              "live masqueradeAll",
		"--masquerade-bit=3":                            "live masqueradeBit",
		"--cluster-cidr=10.0.0.0/8":                     "live clusterCIDR",
		"--detect-local-mode=NodeCIDR":                  "live detectLocalMode",
		"--nodeport-addresses=all":                      "live nodePortAddresses",
		"--iptables-sync-period=1m":                     "live syncPeriod",
		"--iptables-min-sync-period=2s":                 "live minSyncPeriod",
		"--conntrack-min=1":                             "live conntrack",
		"--conntrack-udp-timeout=1s":                    "live conntrack",
		"--healthz-bind-address=::1":                    "live healthzBindAddress",
		"--metrics-bind-address=::1":                    "live metricsBindAddress",
		"--bind-address-hard-fail":                      "live bindAddressHardFail",
		"--profiling":                                   "live enableProfiling",
		"--oom-score-adj=1":                             "live oomScoreAdj",
		"-v=3":                                          "live logging.verbosity",
		"--vmodule=a=3":                                 "restart logging.vmodule",
		"--logging-format=json":                         "restart logging.format",
		"--log-flush-frequency=1s":                      "restart logging.flushFrequency",
		"--bind-address=192.0.2.1":                      "restart bindAddress",
		"--hostname-override=other":                     "restart hostnameOverride",
		"--kubeconfig=/k":                               "restart clientConnection",
		"--kube-api-qps=7":                              "restart clientConnection",
		"--feature-gates=AllowServiceExternalIPs=false": "restart featureGates",
		"--ipvs-scheduler=sh":                           "nothing",
		"--config-sync-period=1m":                       "nothing",
		"--ipvs-sync-period=1m":                         "nothing",
		"--proxy-mode=nftables":                         "nothing",
		"--show-hidden-metrics-for-version=1.36":        "nothing",
		"--nodeport-addresses=primary":                  "nothing",
		"--feature-gates=NFTablesNetlink=true":          "nothing",
		"--iptables-localhost-nodeports=false":          "nothing",
	} {
		t.Run(flag, func(t *testing.T) {
			c := Compare(settings(t, "--hostname-override=n"), settings(t, "--hostname-override=n", flag))
			got := "nothing"
			if len(c.Live) > 0 {
				got = "live " + strings.Join(c.Live, " ")
			}
			if len(c.Restart) > 0 {
				got = "restart " + strings.Join(c.Restart, " ")
			}
			if got != want || c.Empty() != (want == "nothing") {
				t.Errorf("got %s, empty %t, want %s", got, c.Empty(), want)
			}
		})
	}
	bridge := []string{"--detect-local-mode=BridgeInterface", "--pod-bridge-interface="}
	c := Compare(settings(t, bridge[0], bridge[1]+"a"), settings(t, bridge[0], bridge[1]+"b"))
	if got := c.String(); got != "detectLocal" || len(c.Live) != 1 {
		t.Errorf("another bridge: got %s, want detectLocal, live", got)
	}
}

// A14.24. Logging belongs to the process, so that one test has all of it.
func TestLoggingIsApplied(t *testing.T) {
	stderr := os.Stderr
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stderr = w
	defer func() { os.Stderr = stderr }()
	s := settings(t, "--logging-format=json", "-v=1")
	if err := s.ApplyLogging(); err != nil {
		t.Fatal(err)
	}
	log := klog.Background()
	log.V(1).Info("first", "of", 1)
	log.V(2).Info("hidden")
	if err := settings(t, "-v=2").ApplyVerbosity(); err != nil {
		t.Fatal(err)
	}
	log.V(2).Info("second")
	klog.Flush()
	_ = w.Close()
	text := make([]byte, 64<<10)
	n, err := r.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text[:n])
	for _, want := range []string{`"msg":"first"`, `"of":1`, `"v":1`, `"msg":"second"`} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want %s in it", got, want)
		}
	}
	if strings.Contains(got, "hidden") {
		t.Errorf("got %s, want nothing of verbosity 2 before it is set", got)
	}
	if err := s.ApplyLogging(); err == nil || !strings.HasPrefix(err.Error(), "set up logging: ") {
		t.Errorf("a second time: got error %v, want one", err)
	}
}
