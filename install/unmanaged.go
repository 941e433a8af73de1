package install

import (
	_ "embed"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed networkmanager.conf
var networkManagerConf []byte

//go:embed networkd.conf
var networkdConf []byte

//go:embed networkd.network
var networkdNetwork []byte

//go:embed networkd.link
var networkdLink []byte

// A notice tells a program that manages the network of the machine to leave our links alone.
type notice struct {
	reader  string // a folder that is there if the program is
	path    string
	content []byte
}

// forNetworkManager gives what NetworkManager is told. It reads this when it is told to
// reload.
func (p Places) forNetworkManager() []notice {
	if p.Etc == "" {
		return nil
	}
	reader := filepath.Join(p.Etc, "NetworkManager", "conf.d")
	return []notice{{reader, filepath.Join(reader, "90-onerule.conf"), networkManagerConf}}
}

// forNetworkd gives what systemd-networkd and udev are told. Of files that are for the same
// link the first by name counts, so that ours come before those that are for all. udev sees
// a new one by itself.
func (p Places) forNetworkd() []notice {
	if p.Etc == "" {
		return nil
	}
	reader := filepath.Join(p.Etc, "systemd", "network")
	return []notice{
		{reader, filepath.Join(reader, "00-onerule.network"), networkdNetwork},
		{reader, filepath.Join(reader, "00-onerule.link"), networkdLink},
		{reader, filepath.Join(p.Etc, "systemd", "networkd.conf.d", "90-onerule.conf"), networkdConf},
	}
}

// notices gives those whose readers the node has.
func (p Places) notices() []notice {
	return slices.DeleteFunc(append(p.forNetworkManager(), p.forNetworkd()...), func(n notice) bool { return !n.read() })
}

func (n notice) read() bool {
	info, err := os.Stat(n.reader)
	return err == nil && info.IsDir()
}

// PlaceUnmanaged tells those who manage the network of the machine to leave links of pods
// alone, and gives the files that had to be written for it.
func (p Places) PlaceUnmanaged() (written []string, err error) {
	for _, n := range p.notices() {
		changed, err := p.place(n.path, n.content, 0o644)
		if err != nil {
			return written, err
		}
		if changed {
			written = append(written, n.path)
		}
	}
	return written, nil
}

func (p Places) removeUnmanaged() error {
	var errs []error
	for _, n := range p.notices() {
		_, err := remove(n.path)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (m Machine) networkManager() Check {
	return told("NetworkManager", m.Places.forNetworkManager(), "nmcli general reload")
}

// networkd looks at the process: its folders are on every machine with systemd.
func (m Machine) networkd() Check {
	const name = "networkd"
	if !m.runs("systemd-network") { // of a name the kernel keeps so much
		return ok(name, "it is not seen to run")
	}
	return told(name, m.Places.forNetworkd(), "systemctl restart systemd-networkd")
}

// told says whether a program leaves our links alone.
func told(name string, notices []notice, reread string) Check {
	notices = slices.DeleteFunc(notices, func(n notice) bool { return !n.read() })
	if len(notices) == 0 {
		return ok(name, "none")
	}
	var missing []string
	for _, n := range notices {
		if !holds(n.path, n.content, 0o644) {
			missing = append(missing, n.path)
		}
	}
	if len(missing) == 0 {
		return ok(name, "it leaves links of pods alone")
	}
	return warn(name, "it may take over links of pods", "install writes "+strings.Join(missing, ", ")+"; then: "+reread)
}

// runs says whether a process of a name is seen.
func (m Machine) runs(name string) bool {
	paths, err := filepath.Glob(filepath.Join(m.Proc, "[0-9]*", "comm"))
	return err == nil && slices.ContainsFunc(paths, func(path string) bool {
		b, err := os.ReadFile(path)
		return err == nil && strings.TrimSpace(string(b)) == name
	})
}
