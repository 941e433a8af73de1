// Package install puts the CNI plugin onto a node, keeps it there, and takes it off again:
// its binary and the list of plugins that runtimes read. Everything lands by a rename. It
// also says what a node lacks.
package install

import "path/filepath"

// The names of what is installed.
const (
	BinaryName = "onerule"
	// ListName sorts before most others: runtimes take the first.
	ListName = "10-onerule.conflist"
)

// Places are directories of a node, as absolute paths.
type Places struct {
	Binaries string // where runtimes look for plugins
	Lists    string // where runtimes look for lists of plugins
	State    string // of our plugin
	// Reservations is where host-local keeps those of each network, if it is not told
	// another place.
	Reservations string
	// Etc is where those who manage the network of the machine are told to leave links of pods
	// alone, below NetworkManager/conf.d and systemd/network; empty: they are not told.
	Etc string
	// Sysctls is below which the plugin writes settings of the kernel when it hands addresses
	// back; empty: /proc/sys.
	Sysctls string
	// Dry says that PlaceBinary, PlaceUnmanaged, Publish and SetAside write nothing, and say
	// what they would.
	Dry bool
}

// Usual gives where they are on most nodes.
func Usual() Places {
	return Places{
		Binaries:     "/opt/cni/bin",
		Lists:        "/etc/cni/net.d",
		State:        "/var/lib/cni/onerule",
		Reservations: defaultReservations,
		Etc:          "/etc",
	}
}

// Binary gives the path of our plugin.
func (p Places) Binary() string { return filepath.Join(p.Binaries, BinaryName) }

// List gives the path of our list of plugins.
func (p Places) List() string { return filepath.Join(p.Lists, ListName) }
