package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
)

// DefaultDir is where maps and links are pinned.
const DefaultDir = "/sys/fs/bpf/onerule"

// errNoRoom is what the kernel says when a hash has max_entries keys.
const errNoRoom = unix.E2BIG

// Options say how to count.
type Options struct {
	// Dir is where maps and links are pinned, so that counting goes on while no daemon
	// runs; it is made. With "" both go with the process.
	Dir string
	// Size is the number of keys that there is room for, 0 for the default of 1,048,576.
	// The kernel takes memory for those that are there only.
	Size uint32
	IPv6 bool // whether the host has IPv6
	Log  logr.Logger
}

// Open begins to count the connections of the caller's network namespace. If the kernel
// has neither way of counting, the error says why in one line, with the verifier's last
// words; VerifierLog gives the rest of them.
func Open(o Options) (*Counters, error) {
	spec, err := loadHits()
	if err != nil {
		return nil, fmt.Errorf("read the programs: %w", err)
	}
	return load(spec, o)
}

// load is Open for programs that are read.
func load(spec *ebpf.CollectionSpec, o Options) (*Counters, error) {
	netns, err := ownNetns()
	if err != nil {
		return nil, err
	}
	if err := makeDir(o.Dir); err != nil {
		return nil, err
	}
	c := &Counters{}
	if err := c.openMaps(spec, o); err != nil {
		return nil, errors.Join(denied(err), c.Close())
	}
	if err := c.attach(spec, o, netns); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close ends counting, unless it is pinned.
func (c *Counters) Close() error {
	var errs []error
	for _, l := range c.links {
		errs = append(errs, l.Close())
	}
	for _, m := range []*ebpf.Map{c.hits, c.rejects} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// Remove ends counting, and deletes what was pinned in a directory. It is no error if
// nothing is there, or there is no directory ("").
func Remove(dir string) error {
	list, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read directory of pinned maps: %w", err)
	}
	var errs []error
	for _, e := range list {
		errs = append(errs, unpin(filepath.Join(dir, e.Name())))
	}
	return errors.Join(append(errs, os.Remove(dir))...)
}

// makeDir makes a directory for pins.
func makeDir(dir string) error {
	if dir == "" {
		return nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(dir), &fs); err != nil {
		return fmt.Errorf("look for the BPF file system at %s: %w", filepath.Dir(dir), err)
	}
	if fs.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%s is in no BPF file system: mount -t bpf bpf /sys/fs/bpf", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory for pinned maps: %w", err)
	}
	return nil
}

// openMaps takes the pinned maps over. One of another layout or size goes, and with it
// what it has counted.
func (c *Counters) openMaps(spec *ebpf.CollectionSpec, o Options) error {
	if o.Size > 0 {
		spec.Maps[hitsMapEndpointHits].MaxEntries = o.Size
	}
	for name, m := range map[string]**ebpf.Map{hitsMapEndpointHits: &c.hits, hitsMapLocalhostRejects: &c.rejects} {
		s := spec.Maps[name]
		if o.Dir != "" {
			s.Pinning = ebpf.PinByName
		}
		opened, err := ebpf.NewMapWithOptions(s, ebpf.MapOptions{PinPath: o.Dir})
		if errors.Is(err, ebpf.ErrMapIncompatible) {
			o.Log.Info("a pinned map is of another version, counting begins at 0", "map", filepath.Join(o.Dir, name))
			if err := os.Remove(filepath.Join(o.Dir, name)); err != nil {
				return fmt.Errorf("delete the pinned map of another version: %w", err)
			}
			opened, err = ebpf.NewMapWithOptions(s, ebpf.MapOptions{PinPath: o.Dir})
		}
		if err != nil {
			return fmt.Errorf("open map %s: %w", name, err)
		}
		*m = opened
	}
	return nil
}
