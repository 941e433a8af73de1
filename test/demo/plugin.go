package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// A pod is a host that the plugin wires.
type pod struct {
	host
	addrs map[string]netip.Addr // by the family's name
	took  time.Duration         // of its ADD
}

// network is the configuration that a container runtime hands to the plugin.
func (w *world) network() string {
	v4, v6 := families()[0].plan, families()[1].plan
	return fmt.Sprintf(`{
  "cniVersion": "1.1.0",
  "name": "pods",
  "type": "onerule",
  "dataDir": "%s",
  "ipam": {"ranges": [[{"subnet": "%s"}], [{"subnet": "%s"}]]}
}
`, filepath.Join(w.dir, "cni"), v4.NodePods, v6.NodePods)
}

// addPod makes a pod's namespace and lets the plugin wire it.
func (w *world) addPod(name string) (pod, error) {
	h, err := w.newHost(name)
	if err != nil {
		return pod{}, err
	}
	p := pod{host: h, addrs: map[string]netip.Addr{}}
	start := time.Now()
	out, err := w.callPlugin("ADD", h)
	p.took = time.Since(start)
	if err != nil {
		return p, err
	}
	var result types100.Result
	if err := json.Unmarshal(out, &result); err != nil {
		return p, fmt.Errorf("read the result of ADD for %s: %w", name, err)
	}
	for _, ip := range result.IPs {
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return p, fmt.Errorf("read the result of ADD for %s: %s is no address", name, ip.Address.IP)
		}
		p.addrs[familyOf(a.Unmap())] = a.Unmap()
	}
	for _, f := range families() {
		if !p.addrs[f.name].IsValid() {
			return p, fmt.Errorf("ADD gave %s no %s address", name, f.name)
		}
	}
	return p, nil
}

func familyOf(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// callPlugin calls the plugin in the node's namespace as a runtime does: a verb and
// the pod in the environment, the network on stdin.
func (w *world) callPlugin(verb string, h host) ([]byte, error) {
	cmd := exec.Command(w.plugin)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "CNI_PATH=" + filepath.Dir(w.plugin),
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + h.name, "CNI_IFNAME=eth0", "CNI_NETNS=" + h.ns.Path(),
	}
	cmd.Stdin = strings.NewReader(w.network())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := w.node.ns.Do(cmd.Run); err != nil {
		return nil, fmt.Errorf("%s of %s by %s: %w", verb, h.name, w.plugin, pluginError(err, stdout.Bytes(), stderr.String()))
	}
	return stdout.Bytes(), nil
}

// pluginError is what the plugin said itself where it did: on stdout, as JSON.
func pluginError(err error, stdout []byte, stderr string) error {
	var said types.Error
	if json.Unmarshal(stdout, &said) == nil && said.Msg != "" {
		return &said
	}
	if stderr = strings.TrimSpace(stderr); stderr != "" {
		return errors.Join(err, errors.New(stderr))
	}
	return err
}
