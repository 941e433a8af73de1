package podlink

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A wire is what the CNI plugin made of a pod's link on the node, by its record.
type wire struct {
	link    string
	mac     net.HardwareAddr // of the node's end
	podMAC  net.HardwareAddr
	addrs   []netip.Addr // of the pod
	created time.Time
}

func (w wire) speaksIPv6() bool { return slices.ContainsFunc(w.addrs, netip.Addr.Is6) }

// records reads what the plugin knows of pods of this boot, by the name of their link. What
// can't be read is left out: the plugin puts it aside, and says so.
func records(state, boot string) (map[string]wire, error) {
	paths, err := filepath.Glob(filepath.Join(state, "*", "attachments", "*.json"))
	if err != nil {
		return nil, fmt.Errorf("look for records of pods: %w", err)
	}
	wires := map[string]wire{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("read the record of a pod: %w", err)
		}
		if w, ok := parseRecord(b, boot); ok {
			wires[w.link] = w
		}
	}
	return wires, nil
}

// parseRecord gives false for what is no record of a link that was made in this boot.
func parseRecord(b []byte, boot string) (wire, bool) {
	var r struct {
		BootID    string       `json:"bootID"`
		Created   time.Time    `json:"created"`
		HostLink  string       `json:"hostLink"`
		HostMAC   string       `json:"hostMAC"`
		PodMAC    string       `json:"podMAC"`
		Addresses []netip.Addr `json:"addresses"`
	}
	if json.Unmarshal(b, &r) != nil || r.BootID != boot || !ofPod(r.HostLink) || len(r.Addresses) == 0 {
		return wire{}, false
	}
	mac, err := net.ParseMAC(r.HostMAC)
	podMAC, podErr := net.ParseMAC(r.PodMAC)
	invalid := func(a netip.Addr) bool { return !a.IsValid() || a.Is4In6() || a.Zone() != "" }
	if err != nil || podErr != nil || slices.ContainsFunc(r.Addresses, invalid) {
		return wire{}, false
	}
	return wire{link: r.HostLink, mac: mac, podMAC: podMAC, addrs: r.Addresses, created: r.Created}, true
}

// ofPod says whether a name is one of a pod's link: a prefix and the beginning of a hash.
// Others of our devices begin alike.
func ofPod(link string) bool {
	const prefix, digits = "one", 12
	hash, ok := strings.CutPrefix(link, prefix)
	_, err := hex.DecodeString(hash)
	return ok && err == nil && len(hash) == digits
}

// bootID names the running boot of the machine.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
