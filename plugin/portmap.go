package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// portmapName is the plugin that led ports of the node to pods that were adopted.
const portmapName = "portmap"

var errNoPortmap = errors.New("no " + portmapName)

// forgetPorts has portmap take away what it made for a pod that was adopted. Its list is in
// force no more, so the runtime calls us alone, and what stays would lead a port of the node
// to nobody, before ours. Nothing is done for other attachments.
func (p Process) forgetPorts(s *store, k key) error {
	network := s.formerNetwork()
	if network == "" || !s.hasAdopted(k) {
		return nil
	}
	path := p.Getenv("CNI_PATH")
	file := findPlugin(path, portmapName)
	if file == "" {
		return fmt.Errorf("%w in CNI_PATH %q: the rules that it has made for host ports of old pods stay, and come before ours", errNoPortmap, path)
	}
	env := []string{
		"CNI_COMMAND=DEL", "CNI_CONTAINERID=" + k.container, "CNI_IFNAME=" + k.ifName,
		"CNI_PATH=" + path, "PATH=" + p.Getenv("PATH"),
	}
	// Which backend its list had is not known. By itself it takes iptables where that works;
	// one that knows no other does the same twice.
	var errs []error
	for _, backend := range []string{"", "nftables"} {
		stdin, err := portmapConfig(network, backend)
		if err == nil {
			err = call(file, env, stdin, s.base.lockTimeout)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("forget old host ports: %s: %w", file, err))
		}
	}
	return errors.Join(errs...)
}

// forgetPorts is for a pod that the runtime does not list. Whether it had ports is not known,
// and it goes all the same.
func (w *sweep) forgetPorts(k key) {
	if w.portless {
		return
	}
	if err := w.Process.forgetPorts(w.store, k); err != nil {
		w.portless = errors.Is(err, errNoPortmap)
		w.note("%s: %v", k, err)
	}
}

// portmapConfig is what a DEL of portmap needs. It does nothing without a port; which one
// it is does not matter, since it goes by the names of network and container.
func portmapConfig(network, backend string) ([]byte, error) {
	c := map[string]any{
		"cniVersion": "0.3.1", "name": network, "type": portmapName,
		"runtimeConfig": map[string]any{
			"portMappings": []any{map[string]any{"hostPort": 1, "containerPort": 1, "protocol": "tcp"}},
		},
	}
	if backend != "" {
		c["backend"] = backend
	}
	return json.Marshal(c)
}

// formerNetwork gives the name of the network whose reservations were adopted, or "":
// host-local has a directory for each, and portmap's chains are named by it.
func (s *store) formerNetwork() string {
	from, err := os.ReadFile(filepath.Join(s.dir, adoptedName))
	if err != nil {
		return ""
	}
	return filepath.Base(strings.TrimSpace(string(from)))
}

// hasAdopted says whether another plugin wired this pod.
func (s *store) hasAdopted(k key) bool {
	all, _, _ := s.reservations()
	for _, r := range all {
		if r.Adopted && r.of(k) {
			return true
		}
	}
	return false
}

// asksForPorts says whether the runtime has ports of the node for this pod.
func asksForPorts(stdin []byte) bool {
	var c struct {
		RuntimeConfig struct {
			PortMappings []json.RawMessage `json:"portMappings"`
		} `json:"runtimeConfig"`
	}
	return json.Unmarshal(stdin, &c) == nil && len(c.RuntimeConfig.PortMappings) > 0
}

// findPlugin gives "" where there is none.
func findPlugin(path, name string) string {
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return file
		}
	}
	return ""
}

// call runs another plugin to its end, or ends one that waits longer than a limit: iptables
// has a lock, too. What libcni has for it, and os/exec, would make each start of the plugin
// longer only by being linked in.
func call(file string, env []string, stdin []byte, limit time.Duration) error {
	in, err := filled(stdin)
	if err != nil {
		return err
	}
	defer in.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	out, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	started, err := os.StartProcess(file, []string{file}, &os.ProcAttr{Env: env, Files: []*os.File{in, theirs, null}})
	_ = theirs.Close() // else the end of its answer is not seen
	if err != nil {
		return err
	}
	_ = out.SetReadDeadline(time.Now().Add(limit)) // a pipe has one
	said, late := io.ReadAll(out)
	if late != nil {
		_ = started.Kill() // what it has called may wait on, and does no harm
	}
	state, err := started.Wait()
	switch {
	case late != nil:
		return fmt.Errorf("wait for its answer: %w", late)
	case err != nil:
		return err
	case !state.Success():
		return fmt.Errorf("%v: %s", state, complaint(said))
	}
	return nil
}

// filled gives a pipe that holds a few bytes, which it takes before anyone reads.
func filled(content []byte) (*os.File, error) {
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = out.Write(content)
	if err := errors.Join(err, out.Close()); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}

// complaint gives the message of an error object of a plugin, or what else it said.
func complaint(said []byte) string {
	var e struct{ Msg, Details string }
	if json.Unmarshal(said, &e) != nil || e.Msg == "" {
		return strings.TrimSpace(string(said))
	}
	return strings.TrimSpace(e.Msg + " " + e.Details)
}
