package process_test

import (
	"os"
	"strings"
	"testing"

	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/rig"
)

// machines are the files of what all network namespaces share.
func machines() []string {
	return []string{"/proc/sys/net/netfilter/nf_conntrack_max", "/sys/module/nf_conntrack/parameters/hashsize"}
}

// each are files of what each namespace has for itself.
func each() []string {
	var list []string
	for _, name := range []string{"tcp_timeout_established", "tcp_timeout_close_wait", "udp_timeout", "udp_timeout_stream", "tcp_be_liberal"} {
		list = append(list, "/proc/sys/net/netfilter/nf_conntrack_"+name)
	}
	return list
}

func read(t *testing.T, files []string) string {
	t.Helper()
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(file + " " + string(text))
	}
	return all.String()
}

// A daemon in a network namespace sets what is the namespace's, and nothing of the
// machine's: that is said, and no reason to end.
func TestA12_7R37ANamespaceSetsItsOwnOnly(t *testing.T) {
	w := newWorld(t)
	if mode := w.h.Node.Run(t, "stat", "-c", "%A", machines()[0]); strings.Contains(mode, "w") {
		t.Fatalf("the mode of %s is %s: this kernel would let the test change the machine", machines()[0], mode)
	}
	before := read(t, append(machines(), each()...))
	d := w.daemon(t, "--conntrack-max-per-core=99999999", "--conntrack-min=99999999",
		"--conntrack-tcp-timeout-established=2h", "--conntrack-tcp-timeout-close-wait=1m30s",
		"--conntrack-udp-timeout=44s", "--conntrack-udp-timeout-stream=144s", "--conntrack-tcp-be-liberal")
	d.Run()
	d.AwaitHealthy()
	says(t, d, "is for the machine to set, not for this network namespace")
	for file, want := range map[string]string{"tcp_timeout_established": "7200", "tcp_timeout_close_wait": "90", "udp_timeout": "44", "udp_timeout_stream": "144", "tcp_be_liberal": "1"} {
		if got := w.conntrack(t, file); got != want {
			t.Errorf("%s is %s, want %s", file, got, want)
		}
	}
	if after := read(t, append(machines(), each()...)); after != before {
		t.Errorf("the machine had\n%sand has\n%s", before, after)
	}
	if n := strings.Count(d.Log(), "connection tracking is not all as wanted"); n != 1 {
		t.Errorf("what is not as wanted is said %d times", n)
	}
	for _, p := range addr.Both() {
		w.answered(t, toVIP(p))
	}
}

func TestR37WhereNothingCanBeSetServicesAreServed(t *testing.T) {
	ns := netns.New(t, "node")
	file := "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"
	before := ns.Run(t, "cat", file)
	d := rig.New(t, ns, "--conntrack-udp-timeout=47s", "--conntrack-udp-timeout-stream=147s")
	d.By("unshare", "--mount", "--propagation=private", "sh", "-c", `mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$0" "$@"`)
	d.Run()
	d.AwaitHealthy()
	says(t, d, "set 47 instead of ")
	for _, want := range []string{"read-only file system", "Services are served all the same", "nf_conntrack_udp_timeout_stream"} {
		if log := d.Log(); strings.Count(log, "connection tracking is not all as wanted") != 1 || !strings.Contains(log, want) {
			t.Errorf("want one line with %q in\n%s", want, log)
		}
	}
	if after := ns.Run(t, "cat", file); after != before {
		t.Errorf("%s was %s and is %s", file, before, after)
	}
}
