package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
)

// Network is the name of the network that our list is of. The plugin's state stands in a
// directory of this name.
const Network = "pods"

// A List says what our list of plugins holds.
type List struct {
	// Ranges are this node's own: a pod gets one address of each family.
	Ranges []netip.Prefix
	MTU    int // of pods; 0: the plugin looks at the way out
	// DataDir is where the plugin keeps its state, StatusFile where the daemon tells it
	// what it knows. Empty: where the plugin has them anyway.
	DataDir, StatusFile string
	// Adopt is a directory of host-local's reservations to take over; empty: none.
	Adopt string
}

// What the file holds. Other keys of other plugins' lists are of no interest here.
type (
	file struct {
		CNIVersion  string   `json:"cniVersion"`
		CNIVersions []string `json:"cniVersions"`
		Name        string   `json:"name"`
		// OnlyInlined keeps runtimes from taking in what stands in a directory named
		// after the network.
		OnlyInlined bool    `json:"loadOnlyInlinedPlugins"`
		Plugins     []entry `json:"plugins"`
	}
	entry struct {
		Type         string          `json:"type"`
		MTU          int             `json:"mtu,omitempty"`
		DataDir      string          `json:"dataDir,omitempty"`
		StatusFile   string          `json:"statusFile,omitempty"`
		Adopt        string          `json:"adopt,omitempty"`
		IPAM         ipam            `json:"ipam"`
		Capabilities map[string]bool `json:"capabilities"`
	}
	ipam struct {
		Ranges [][]subnet `json:"ranges"`
	}
	subnet struct {
		Subnet netip.Prefix `json:"subnet"`
	}
)

// file gives what is to be written.
func (l List) file() (file, error) {
	var v4, v6 []subnet
	for _, r := range l.Ranges {
		if r.Addr().Is4() {
			v4 = append(v4, subnet{r.Masked()})
		} else {
			v6 = append(v6, subnet{r.Masked()})
		}
	}
	var sets [][]subnet
	for _, set := range [][]subnet{v4, v6} {
		if len(set) > 0 {
			sets = append(sets, set)
		}
	}
	if len(sets) == 0 {
		return file{}, errors.New("this node has no ranges of pod addresses")
	}
	return file{
		CNIVersion: "1.0.0", CNIVersions: versions(), Name: Network, OnlyInlined: true,
		Plugins: []entry{{
			Type: BinaryName, MTU: l.MTU, DataDir: l.DataDir, StatusFile: l.StatusFile, Adopt: l.Adopt, IPAM: ipam{sets},
			Capabilities: map[string]bool{"ips": true, "mac": true, "ipRanges": true, "portMappings": true},
		}},
	}, nil
}

// Publish lets runtimes read a list. All plugins that it names must be there.
func (p Places) Publish(l List) (changed bool, err error) {
	f, err := l.file()
	if err != nil {
		return false, fmt.Errorf("publish %s: %w", p.List(), err)
	}
	for _, plugin := range f.Plugins {
		if err := p.executable(plugin.Type); err != nil && !p.Dry {
			return false, fmt.Errorf("publish %s: look for its plugin %s: %w", p.List(), plugin.Type, err)
		}
	}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return false, fmt.Errorf("publish %s: %w", p.List(), err)
	}
	return p.place(p.List(), append(b, '\n'), 0o600)
}

// Withdraw removes our list, so that runtimes start no more pods with it, and says whether it
// was there.
func (p Places) Withdraw() (was bool, err error) { return remove(p.List()) }

// RemoveBinary removes our plugin, and says whether it was there. Pods that are left can't be
// taken down afterwards.
func (p Places) RemoveBinary() (was bool, err error) { return remove(p.Binary()) }

// remove removes a file, if it is there.
func remove(path string) (was bool, err error) {
	err = os.Remove(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return true, fmt.Errorf("remove: %w", err)
	}
	return err == nil, nil
}
