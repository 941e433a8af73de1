package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridgesName is the file that says behind which bridges pods are that were adopted.
const bridgesName = "bridges"

// bridges are those of pods that the plugin bridge wired. To such a pod the addresses of
// all pods of the node are on its own link, so it asks there for new ones too, which are
// not: the node answers in their place, by an entry for each address.
type bridges struct {
	// Node is the inode of the namespace in which they are.
	Node    uint64   `json:"node"`
	Devices []string `json:"devices"`
	// Settings are the sysctls that were changed for it, as they were before.
	Settings map[string]string `json:"settings"`
}

func (s *store) bridgesPath() string { return filepath.Join(s.dir, bridgesName) }

// readBridges gives none where no pod is behind a bridge, and where this is another
// namespace than theirs.
func (s *store) readBridges() (bridges, error) {
	content, err := os.ReadFile(s.bridgesPath())
	if errors.Is(err, fs.ErrNotExist) {
		return bridges{}, nil
	}
	if err != nil {
		return bridges{}, fmt.Errorf("read which bridges old pods are behind: %w", err)
	}
	var b bridges
	if err := json.Unmarshal(content, &b); err != nil {
		return bridges{}, s.putAside(s.bridgesPath()) // the next sweep finds them anew
	}
	if b.Node != inodeOf(ownNamespace) {
		return bridges{}, nil
	}
	return b, nil
}

// answerOnBridges has old pods find a new one. Under the lock, so that who removes all
// entries with the last old pod misses none.
func (s *store) answerOnBridges(addrs []netip.Addr) error {
	if statError(s.bridgesPath()) != nil {
		return nil
	}
	unlock, err := s.lockAddresses()
	if err != nil {
		return err
	}
	defer unlock()
	b, err := s.readBridges()
	if err != nil {
		return err
	}
	return b.answer(addrs)
}

// silenceOnBridges takes the entries of an attachment that goes.
func (s *store) silenceOnBridges(k key, rec *record) error {
	b, err := s.readBridges()
	if err != nil || len(b.Devices) == 0 {
		return err
	}
	var addrs []netip.Addr
	if rec != nil {
		addrs = rec.Addresses
	}
	all, _, err := s.reservations()
	for a, r := range all {
		if r.of(k) {
			addrs = appendNew(addrs, a)
		}
	}
	return errors.Join(err, b.silence(addrs))
}

// afterOldPod runs when one may have gone.
func (s *store) afterOldPod() error {
	if statError(s.bridgesPath()) != nil {
		return nil
	}
	unlock, err := s.lockAddresses()
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.tendBridges(); err != nil {
		s.note("%v", err) // the next sweep tries again
	}
	return nil
}

// tendBridges looks for the bridges of the pods that were adopted, and brings what the node
// has to answer there in order; with the last of these pods it takes all of it away. It runs
// under the lock.
func (s *store) tendBridges() error {
	before, err := s.readBridges()
	if err != nil {
		return err
	}
	reserved, _, err := s.reservations()
	if err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	var old, others []netip.Addr
	for a, r := range reserved {
		switch {
		case r.BootID != boot:
		case r.Adopted:
			old = append(old, a)
		default:
			others = append(others, a)
		}
	}
	if len(old) == 0 {
		return s.leaveBridges(before, others)
	}
	// A bridge that is down has no routes, and is one all the same.
	devices := append(slices.Clone(before.Devices), bridgesTo(old)...)
	slices.Sort(devices)
	devices = slices.Compact(devices)
	if len(devices) == 0 {
		return nil
	}
	now := bridges{Node: inodeOf(ownNamespace), Devices: devices, Settings: maps.Clone(before.Settings)}
	return errors.Join(s.enterBridges(before, now), now.answer(others))
}

// enterBridges writes down what it is about to change.
func (s *store) enterBridges(before, now bridges) error {
	if now.Settings == nil {
		now.Settings = map[string]string{}
	}
	wanted := now.wanted()
	for path := range wanted {
		v, err := readSysctl(path)
		if err != nil {
			delete(wanted, path) // the bridge has gone, or speaks no IPv6
			continue
		}
		if _, known := now.Settings[path]; !known && v != wanted[path] {
			now.Settings[path] = v
		}
	}
	if !slices.Equal(before.Devices, now.Devices) || !maps.Equal(before.Settings, now.Settings) {
		b, err := json.Marshal(now)
		if err == nil {
			err = writeWhole(s.bridgesPath(), append(b, '\n'))
		}
		if err != nil {
			return fmt.Errorf("write down which bridges old pods are behind: %w", err)
		}
		s.note("answering for new pods on %v, for old ones that are behind it", now.Devices)
	}
	var errs []error
	for path, value := range wanted {
		errs = append(errs, s.setSysctl(path, value))
	}
	return errors.Join(errs...)
}

// leaveBridges ends all answers. An entry that the kernel does not take back now it never
// will. A setting can be put back later, from where /proc/sys is not read-only: until then the
// file stays, since nothing else says what it was.
func (s *store) leaveBridges(b bridges, others []netip.Addr) error {
	if len(b.Devices) == 0 {
		return nil
	}
	silent := b.silence(others)
	if err := s.restore(b.Settings); err != nil {
		return errors.Join(silent, err)
	}
	s.note("no more answers on %v: the last old pod has gone", b.Devices)
	return errors.Join(silent, os.Remove(s.bridgesPath()))
}

// restore passes over settings of a bridge that is gone: they went with it.
func (s *store) restore(settings map[string]string) error {
	var errs []error
	for path, value := range settings {
		if err := s.setSysctl(path, value); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// wanted gives sysctls. Solicitations are answered only with the first, and that of the
// bridge alone is not enough: by it the kernel answers who asks all, and passes on to the
// pod what a neighbour asks that wants to know whether its entry still holds. Where there are
// no entries it does nothing. The others let answers go at once instead of up to 0.8 s later.
func (b bridges) wanted() map[string]string {
	settings := map[string]string{sysctlPath("ipv6/conf/all/proxy_ndp"): "1"}
	for _, dev := range b.Devices {
		settings[sysctlPath("ipv4/neigh", dev, "proxy_delay")] = "0"
		settings[sysctlPath("ipv6/neigh", dev, "proxy_delay")] = "0"
	}
	return settings
}

func (b bridges) answer(addrs []netip.Addr) error {
	return b.each(addrs, func(n *netlink.Neigh) error {
		if err := netlink.NeighSet(n); err != nil {
			return fmt.Errorf("answer for %s on an old bridge: %w", n.IP, err)
		}
		return nil
	})
}

func (b bridges) silence(addrs []netip.Addr) error {
	return b.each(addrs, func(n *netlink.Neigh) error {
		if err := netlink.NeighDel(n); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("end the answers for %s on an old bridge: %w", n.IP, err)
		}
		return nil
	})
}

// each passes over a bridge that is gone, with all its entries, and over families that it
// does not speak: nobody asks there.
func (b bridges) each(addrs []netip.Addr, do func(*netlink.Neigh) error) error {
	var errs []error
	for _, dev := range b.Devices {
		link, err := netlink.LinkByName(dev)
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if familyOf(a) == ipv4 || speaksIPv6(dev) {
				errs = append(errs, do(&netlink.Neigh{LinkIndex: link.Attrs().Index, Flags: netlink.NTF_PROXY, IP: a.AsSlice()}))
			}
		}
	}
	return errors.Join(errs...)
}

// checkAnswers wants what answerOnBridges made.
func (s *store) checkAnswers(addrs []netip.Addr) error {
	b, err := s.readBridges()
	if err != nil {
		return err
	}
	return b.each(addrs, func(n *netlink.Neigh) error {
		a, _ := netip.AddrFromSlice(n.IP)
		got, err := getAnswer(n.LinkIndex, a)
		if err == nil && got == nil {
			err = fmt.Errorf("old pods on the bridge do not find %s: no proxy entry", a)
		}
		return err
	})
}

// bridgesTo gives the bridges by which addresses are reached.
func bridgesTo(addrs []netip.Addr) []string {
	var names []string
	seen := map[int]bool{}
	for _, a := range addrs {
		r, ok := lookup(eachTime(), a, lookupOptions{})
		if !ok || seen[r.LinkIndex] {
			continue
		}
		seen[r.LinkIndex] = true
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil && link.Type() == "bridge" {
			names = append(names, link.Attrs().Name)
		}
	}
	return names
}
