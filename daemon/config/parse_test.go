package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// parse gives flags as a command line sets them.
func parse(t *testing.T, args ...string) *Flags {
	t.Helper()
	f := NewFlags()
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	set.SetOutput(&strings.Builder{}) // what is said of deprecated flags
	f.Register(set)
	if err := set.Parse(args); err != nil {
		t.Fatalf("parse %q: %v", args, err)
	}
	return f
}

// settings gives what a command line asks for.
func settings(t *testing.T, args ...string) Settings {
	t.Helper()
	s, err := parse(t, args...).Settings()
	if err != nil {
		t.Fatalf("settings of %q: %v", args, err)
	}
	return s
}

// fault gives what is said of a command line that is wrong.
func fault(t *testing.T, args ...string) string {
	t.Helper()
	s, err := parse(t, args...).Settings()
	if err == nil {
		t.Fatalf("%q is taken: %+v", args, s)
	}
	return err.Error()
}

// configFile writes the fields of a configuration, and gives the file.
func configFile(t *testing.T, fields string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.conf")
	write(t, file, head+fields)
	return file
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
