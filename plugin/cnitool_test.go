package plugin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"onerule/test/netns"
)

// A cnitool is a node whose plugin is driven by another program than ours.
type cnitool struct {
	*node
	pod        *netns.NS
	dir        string // with the program and the plugin
	conf       string
	capability string // what it asks for in the runtime's stead, as JSON
}

func (n *node) cnitool(t *testing.T, dir, version string) *cnitool {
	t.Helper()
	c := &cnitool{node: n, pod: netns.New(t, "pod"), dir: dir, conf: t.TempDir(), capability: "{}"}
	if err := os.WriteFile(filepath.Join(c.conf, "10-onerule.conflist"), n.conflist(t, version).Bytes, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cnitool) run(t *testing.T, verb string) (out string, failed bool) {
	t.Helper()
	cmd := exec.Command(filepath.Join(c.dir, "cnitool"), verb, "pods", c.pod.Path())
	cmd.Env = append(os.Environ(), "CNI_PATH="+c.dir, "NETCONFPATH="+c.conf, "CNI_CACHE_DIR="+c.conf+"/cache", "CAP_ARGS="+c.capability)
	var all strings.Builder
	cmd.Stdout, cmd.Stderr = &all, &all
	if err := c.Start(cmd); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	err := cmd.Wait()
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return all.String(), err != nil
}

func (c *cnitool) succeed(t *testing.T, verb string) string {
	t.Helper()
	out, failed := c.run(t, verb)
	if failed {
		t.Fatalf("cnitool %s: %s", verb, out)
	}
	return out
}

func TestCnitool(t *testing.T) {
	dir := build(t, "github.com/containernetworking/cni/cnitool")
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run("C13, C60: add, check, status, gc and del with version "+version, func(t *testing.T) {
			testCnitoolVerbs(t, newNode(t).cnitool(t, dir, version), version)
		})
	}
	for _, tc := range checkCases() {
		t.Run("C44, C60: check when "+tc.name, func(t *testing.T) { testCnitoolCheck(t, newNode(t).cnitool(t, dir, "1.1.0"), tc) })
	}
	for _, syscall := range []string{"setns", "renameat", "sendto"} {
		t.Run("C15, C60: del of an add that was killed at "+syscall, func(t *testing.T) {
			testCnitoolKilled(t, newNode(t).cnitool(t, dir, "1.1.0"), syscall)
		})
	}
}

// What is more than the verbs: it comes by libcni's own way of asking for it.
func TestCnitoolOfTheRest(t *testing.T) {
	dir := build(t, "github.com/containernetworking/cni/cnitool")
	for name, test := range map[string]func(*testing.T, *cnitool){
		"C58, C60: ports of the host come and go":                             testCnitoolPorts,
		"C48, C60: gc ends what libcni has on record":                         testCnitoolGC,
		"C48, C60: gc ends what libcni has not on record":                     testCnitoolGCWithoutRecord,
		"C47, C60: status says what is missing":                               testCnitoolStatus,
		"C28, C60: an add that is refused leaves nothing, del after it works": testCnitoolRefused,
	} {
		t.Run(name, func(t *testing.T) { test(t, newNode(t).cnitool(t, dir, "1.1.0")) })
	}
}

func testCnitoolPorts(t *testing.T, c *cnitool) {
	ports, err := json.Marshal(object{"portMappings": bothProtocols(hostPort)})
	if err != nil {
		t.Fatal(err)
	}
	c.capability = string(ports)
	c.succeed(t, "add")
	c.succeed(t, "check")
	if got := c.hostPortRules(t); !strings.Contains(got, fmt.Sprint(hostPort)) {
		t.Errorf("no port %d: %s", hostPort, got)
	}
	c.succeed(t, "del")
	c.clean(t)
}

func testCnitoolGC(t *testing.T, c *cnitool) {
	c.succeed(t, "add")
	c.succeed(t, "gc")
	c.clean(t)
	podIsClean(t, c.pod)
}

// testCnitoolGCWithoutRecord is about what only the plugin knows: cnitool sends an empty list.
func testCnitoolGCWithoutRecord(t *testing.T, c *cnitool) {
	c.succeed(t, "add")
	if err := os.RemoveAll(filepath.Join(c.conf, "cache")); err != nil {
		t.Fatal(err)
	}
	c.succeed(t, "gc")
	c.clean(t)
	podIsClean(t, c.pod)
}

func testCnitoolStatus(t *testing.T, c *cnitool) {
	c.succeed(t, "add")
	c.Sysctl(t, "net.ipv4.ip_forward", "0")
	for range softLimit - 1 {
		c.succeed(t, "status")
	}
	if out, failed := c.run(t, "status"); !failed || !strings.Contains(out, "ip_forward") {
		t.Errorf("got failure %t: %s", failed, out)
	}
	c.Sysctl(t, "net.ipv4.ip_forward", "1")
	c.succeed(t, "status")
}

func testCnitoolRefused(t *testing.T, c *cnitool) {
	for capability, want := range map[string]string{
		`{"ips":["10.9.9.9"]}`:        "10.9.9.9",
		`{"mac":"01:00:5e:00:00:01"}`: "01:00:5e:00:00:01",
		`{"portMappings":[{"hostPort":70000,"containerPort":80,"protocol":"tcp"}]}`: "70000",
	} {
		c.capability = capability
		if out, failed := c.run(t, "add"); !failed || !strings.Contains(out, want) {
			t.Errorf("%s: got failure %t: %s", capability, failed, out)
		}
		c.clean(t)
		podIsClean(t, c.pod)
		c.succeed(t, "del")
	}
}

func testCnitoolVerbs(t *testing.T, c *cnitool, version string) {
	c.capability = `{"ips":["10.1.0.9"],"mac":"02:00:00:00:00:09"}`
	var r struct {
		CNIVersion string
		IPs        []struct{ Address string }
	}
	if out := c.succeed(t, "add"); json.Unmarshal([]byte(out), &r) != nil || r.CNIVersion != version {
		t.Fatalf("got result %s", out)
	}
	if len(r.IPs) != 2 || r.IPs[0].Address != "10.1.0.9/32" {
		t.Errorf("got addresses %v", r.IPs)
	}
	if version != "0.3.1" {
		c.succeed(t, "check")
	}
	if version == "1.1.0" {
		c.succeed(t, "status")
		c.succeed(t, "gc")
	}
	c.succeed(t, "del")
	c.clean(t)
}

func testCnitoolCheck(t *testing.T, c *cnitool, tc checkCase) {
	out := c.succeed(t, "add")
	c.succeed(t, "check")
	var r struct{ Interfaces []struct{ Name string } }
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	tc.spoil(t, c.node, c.pod, r.Interfaces[0].Name)
	out, failed := c.run(t, "check")
	if failed != (tc.what != "") || !strings.Contains(out, tc.what) {
		t.Errorf("got failure %t: %s, want it to name %q", failed, out, tc.what)
	}
	c.succeed(t, "del")
}

// testCnitoolKilled has the plugin killed at its first call of a kind, and at some later ones.
func testCnitoolKilled(t *testing.T, c *cnitool, syscall string) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace")
	}
	own := c.dir
	for when := 1; when <= 3; when++ {
		killing := t.TempDir()
		script := fmt.Sprintf("#!/bin/sh\nexec %s -f -qqq -o /dev/null -e trace=%s -e inject=%s:signal=SIGKILL:when=%d %s/onerule\n", strace, syscall, syscall, when, own)
		if err := errors.Join(os.WriteFile(killing+"/onerule", []byte(script), 0o755), os.Symlink(own+"/cnitool", killing+"/cnitool")); err != nil {
			t.Fatal(err)
		}
		c.dir = killing
		if out, failed := c.run(t, "add"); !failed && when == 1 {
			t.Errorf("it was not killed: %s", out)
		}
		c.dir = own
		c.succeed(t, "del")
		c.clean(t)
		podIsClean(t, c.pod)
	}
}
