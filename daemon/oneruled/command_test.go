package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// asChild makes this test binary a program: logging can be set up once in a process.
const asChild = "ONERULED_TEST_ARGUMENTS"

func TestMain(m *testing.M) {
	if args, ok := os.LookupEnv(asChild); ok {
		os.Exit(child(strings.Split(args, "\n")))
	}
	os.Exit(m.Run())
}

// child runs the command with actions that only say that they run.
func child(args []string) int {
	say := func(what string, err error) func(context.Context, job) error {
		return func(_ context.Context, j job) error {
			_, _ = os.Stdout.WriteString(what + " " + j.Node + " " + j.version + "\n")
			return err
		}
	}
	does := actions{start: say("started", nil), initialize: say("initialized", nil), cleanup: say("cleaned", errors.New("a table stays"))}
	if os.Getenv("ONERULED_TEST_CLEAN") == "none" {
		does.cleanup = nil
	}
	cmd := command("v9", does)
	cmd.SetArgs(args)
	if err := cmd.Execute(); err != nil {
		_, _ = os.Stderr.WriteString("oneruled: " + err.Error() + "\n")
		return 1
	}
	return 0
}

// oneruled runs the command, and gives what it wrote and whether it succeeded.
func oneruled(t *testing.T, env []string, args ...string) (stdout, stderr string, ok bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), asChild+"="+strings.Join(args, "\n")), env...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), err == nil
}

// A14.10, A14.12 and what else ends at once.
func TestWhatIsAskedForIsDone(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "none")
	for name, c := range map[string]struct {
		env, args      []string
		stdout, stderr string
		ok             bool
	}{
		"serving":              {nil, []string{"--hostname-override=N"}, "started n v9\n", "", true},
		"an underscore":        {nil, []string{"--hostname_override=n"}, "started n v9\n", "", true},
		"initializing":         {nil, []string{"--init-only", "--hostname-override=n"}, "initialized n v9\n", "", true},
		"cleaning":             {nil, []string{"--cleanup", "--init-only", "--hostname-override=n"}, "cleaned n v9\n", "oneruled: --cleanup: a table stays\n", false},
		"cleaning without":     {[]string{"ONERULED_TEST_CLEAN=none"}, []string{"--cleanup"}, "", "oneruled: --cleanup: it is not built in\n", false},
		"version":              {nil, []string{"--version", "--oom-score-adj=5000"}, "oneruled version v9\n", "", true},
		"no version":           {nil, []string{"--version=old"}, "", "oneruled: --version: \"old\" is neither true, false nor raw\n", false},
		"an argument":          {nil, []string{"", "start"}, "", "oneruled: unexpected argument \"start\" (oneruled --help lists the flags)\n", false},
		"a mistyped command":   {nil, []string{"statsu"}, "", "oneruled: there is no command \"statsu\": did you mean oneruled status? (oneruled --help lists the commands)\n", false},
		"a check of the node":  {nil, []string{"preflight"}, "", "oneruled: there is no command \"preflight\": did you mean oneruled install --preflight? (oneruled --help lists the commands)\n", false},
		"a wrong metric":       {nil, []string{"--endpoint-metrics=all"}, "", "oneruled: --endpoint-metrics: \"all\" is neither off, service nor endpoint\n", false},
		"an argument too many": {nil, []string{"install", "it"}, "", "oneruled: unexpected argument \"it\" (oneruled install --help lists the flags)\n", false},
		"an empty argument":    {nil, []string{"--hostname-override=n", ""}, "started n v9\n", "", true},
		"an unknown flag":      {nil, []string{"--manifest=x"}, "", "oneruled: unknown flag: --manifest (oneruled --help lists the flags)\n", false},
		"a number as text":     {nil, []string{"--conntrack-min=many"}, "", "oneruled: invalid argument \"many\" for \"--conntrack-min\" flag: strconv.ParseInt: parsing \"many\": invalid syntax (oneruled --help lists the flags)\n", false},
		"a wrong value":        {nil, []string{"--oom-score-adj=5000"}, "", "oneruled: --oom-score-adj: 5000 is not within -1000 to 1000\n", false},
		"a file that is none":  {nil, []string{"--config", bad}, "", "oneruled: read config file: open " + bad + ": no such file or directory\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, ok := oneruled(t, c.env, c.args...)
			stderr = withoutLog(stderr)
			if stdout != c.stdout || stderr != c.stderr || ok != c.ok {
				t.Errorf("got %q, %q, success %t\nwant %q, %q, %t", stdout, stderr, ok, c.stdout, c.stderr, c.ok)
			}
		})
	}
}

// withoutLog leaves out the lines of the log.
func withoutLog(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "I") && !strings.HasPrefix(line, "E") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func TestA14_9TheConfigurationIsWrittenAndNothingElse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	stdout, _, ok := oneruled(t, nil, "--write-config-to", file, "--cleanup", "--conntrack-min=5")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !ok || stdout != "" || !strings.Contains(string(text), "\n  min: 5\n") {
		t.Errorf("success %t, got %q and the file %q", ok, stdout, text)
	}
}

func TestWarningsAndFormatOfTheLog(t *testing.T) {
	_, stderr, ok := oneruled(t, nil, "--proxy-mode=ipvs", "--logging-format=json")
	want := `"msg":"proxy mode ipvs is served with nftables: its settings count where nftables has them"`
	if !ok || !strings.Contains(stderr, want) {
		t.Errorf("success %t, got %q, want %s", ok, stderr, want)
	}
}

func TestHelpShowsFlagsInGroups(t *testing.T) {
	for _, flag := range []string{"--help", "-h"} {
		stdout, _, ok := oneruled(t, nil, flag)
		for _, want := range []string{"oneruled --config /var/lib/kube-proxy/config.conf", "\nTraffic:\n      --bind-address IP", "\nLogging:\n  -v, --v level"} {
			if !ok || !strings.Contains(stdout, want) {
				t.Errorf("%s: success %t, got %q, want %q in it", flag, ok, stdout, want)
			}
		}
	}
}
