package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"

	"onerule/daemon/config"
)

// configured gives a job with a configuration file of these fields.
func configured(t *testing.T, fields string) (j job, rewrite func(fields string)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.conf")
	rewrite = func(fields string) {
		t.Helper()
		text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n" + fields
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	rewrite(fields)
	flags := config.NewFlags()
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.Register(set)
	if err := set.Parse([]string{"--config", file, "--hostname-override=n"}); err != nil {
		t.Fatal(err)
	}
	s, err := flags.Settings()
	if err != nil {
		t.Fatal(err)
	}
	return job{Settings: s, flags: flags, log: logr.Discard()}, rewrite
}

// What can be is applied live, and what can't ends the daemon with its name.
func TestA14_8ChangedFileIsAppliedOrNamed(t *testing.T) {
	one, two, metrics := free(t), free(t), free(t)
	fields := func(healthz string, profiling bool, more string) string {
		return fmt.Sprintf("healthzBindAddress: %s\nmetricsBindAddress: %s\nenableProfiling: %t\n%s", healthz, metrics, profiling, more)
	}
	j, rewrite := configured(t, fields(one, false, ""))
	s := newServers(j.log, says("healthy"), func(c config.Settings) http.Handler { return says(fmt.Sprint("profiling ", c.Profiling)) })
	ended := make(chan error, 1)
	go func() {
		ended <- together(t.Context(),
			func(ctx context.Context) error { return s.run(ctx, j.Settings) },
			func(ctx context.Context) error { return follow(ctx, j, s, func(config.Settings) {}) },
		)
	}()
	get(t, one, "healthy")
	get(t, metrics, "profiling false")
	rewrite(fields(two, true, ""))
	get(t, two, "healthy")
	get(t, one, "")
	get(t, metrics, "profiling true")
	rewrite(fields(two, true, "oomScoreAdj: 5000\n")) // wrong: it stays
	rewrite(fields(two, true, "hostnameOverride: other\nclientConnection: {kubeconfig: /k}\n"))
	select {
	case err := <-ended:
		want := ": it is changed in what takes a restart: clientConnection"
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	case <-time.After(patience):
		t.Fatal("a change that takes a restart is not noticed")
	}
}
