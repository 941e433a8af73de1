package plugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// Swept says how much a sweep removed.
type Swept struct {
	Attachments int `json:"attachments"` // of pods that are gone
	Addresses   int `json:"addresses"`   // that can be given again
	// Links take their routes and neighbours along. There is none of a pod that is gone,
	// as a rule: the kernel deletes it together with the pod's namespace.
	Links     int `json:"links"`
	HostPorts int `json:"hostPorts"`
	Files     int `json:"files"` // that a killed process left, or that can't be read
	// Strangers are links by names such as ours that nothing on record speaks of. They
	// stay: a pod may use them whose record was deleted by others.
	Strangers []string `json:"strangers,omitempty"`
}

func (s *Swept) add(more Swept) {
	s.Attachments += more.Attachments
	s.Addresses += more.Addresses
	s.Links += more.Links
	s.HostPorts += more.HostPorts
	s.Files += more.Files
}

// sweepLockTimeout is short: what is locked is in use, and the next sweep comes.
const sweepLockTimeout = time.Second

// Sweep removes what is left of pods that are provably gone, in all networks of a state
// directory, for runtimes that call no GC: attachments of an earlier boot, and those whose
// link is gone, which the kernel deletes together with the pod's namespace. It prints a
// Swept, says on stderr what could not be removed, and gives the exit code.
func (p Process) Sweep(dataDir string) int {
	p.began, p.verb = p.Now(), "SWEEP"
	swept, err := p.sweepAll(filepath.Clean(dataDir))
	if err := p.print(swept); err != nil {
		p.warn("%v", err)
		return 1
	}
	if err != nil {
		p.warn("%v", err)
		return 1
	}
	return 0
}

func (p Process) sweepAll(dataDir string) (Swept, error) {
	var all Swept
	known := map[string]bool{}
	boot, err := bootID()
	if err != nil {
		return all, err
	}
	folders, err := filepath.Glob(filepath.Join(dataDir, "*", "attachments"))
	if err != nil {
		return all, fmt.Errorf("look for networks: %w", err)
	}
	for _, folder := range folders {
		network := filepath.Base(filepath.Dir(folder))
		swept, e := p.sweepNetwork(base{network: network, dataDir: dataDir, lockTimeout: sweepLockTimeout}, boot, known)
		all.add(swept)
		if e != nil {
			err = errors.Join(err, fmt.Errorf("network %s: %w", network, e))
		}
	}
	all.Strangers = strangers(known)
	return all, err
}

// sweepNetwork adds the links that the network knows of.
func (p Process) sweepNetwork(b base, boot string, known map[string]bool) (Swept, error) {
	s, err := p.findStore(b)
	if err != nil || s == nil {
		return Swept{}, err
	}
	defer s.close()
	w := &sweep{Process: p, store: s, boot: boot, start: p.began, node: inodeOf(ownNamespace)}
	err = w.all()
	records, _ := s.records()
	for _, rec := range records {
		known[rec.HostLink] = true
	}
	orphans, readErr := s.reserving()
	for _, rec := range orphans {
		known[rec.HostLink] = true
	}
	return w.swept, errors.Join(err, readErr)
}

// strangers asks for names only, by the folder of sysctls: a dump of all links costs more
// the more pods there are.
func strangers(known map[string]bool) []string {
	devices, err := fileNames(sysctlPath("ipv4/conf"))
	if err != nil {
		return nil
	}
	ours := regexp.MustCompile("^" + hostLinkPrefix + "[0-9a-f]{12}$")
	devices = slices.DeleteFunc(devices, func(name string) bool { return known[name] || !ours.MatchString(name) })
	slices.Sort(devices)
	return devices
}

// possessions are what attachments had when a sweep began: read once for all.
type possessions struct {
	addresses map[key]int
	ports     map[string]int // by owner
}

func (w *sweep) possessions() possessions {
	p := possessions{addresses: map[key]int{}}
	reserved, _, _ := w.reservations() // what can't be read is told by who removes it
	for _, r := range reserved {
		p.addresses[w.recordOf(r).key()]++
	}
	if _, err := os.Stat(w.portsDir()); err != nil {
		return p
	}
	if ports, err := w.openPorts(); err == nil {
		p.ports = countClaims(ports)
	}
	return p
}

// of says what there is of an attachment now.
func (p possessions) of(k key) Swept {
	there := Swept{Attachments: 1, Addresses: p.addresses[k], HostPorts: p.ports[k.fileName()]}
	if !linkGone(k.hostLink()) {
		there.Links = 1
	}
	return there
}
