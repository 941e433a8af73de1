package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"onerule/nft/hostport"
)

// A record is what is known of an attachment. It is on disk before anything of
// the attachment is made and goes after everything of it is gone.
type record struct {
	Network   string `json:"network"`
	Container string `json:"container"`
	Interface string `json:"interface"`
	// BootID tells records of this boot from others: no link survives a reboot.
	BootID  string    `json:"bootID"`
	Created time.Time `json:"created"`
	Netns   string    `json:"netns"`
	// Node is the inode of the node's namespace: only there the links can be seen.
	Node uint64 `json:"node,omitempty"`
	// NetnsInode tells whether the path still means the same namespace.
	NetnsInode uint64       `json:"netnsInode,omitempty"`
	HostLink   string       `json:"hostLink"`
	HostMAC    string       `json:"hostMAC,omitempty"`
	PodMAC     string       `json:"podMAC,omitempty"`
	MTU        int          `json:"mtu,omitempty"`
	Addresses  []netip.Addr `json:"addresses,omitempty"`
	// HostPorts are the ports of the node that lead to the pod.
	HostPorts []hostport.Claim `json:"hostPorts,omitempty"`
	// settled is when the ADD was done: the time of the file.
	settled time.Time
}

// since is when the attachment was whole, or was begun if it never was: a list that was made
// before can't have it.
func (r *record) since() time.Time {
	if r.settled.After(r.Created) {
		return r.settled
	}
	return r.Created
}

func (r *record) key() key { return key{r.Network, r.Container, r.Interface} }

func (r *record) reservation() *reservation {
	return &reservation{Container: r.Container, Interface: r.Interface, BootID: r.BootID, Node: r.Node, Created: r.Created}
}

// errBadRecord is what a record, or a reservation, is that can't be read as one.
var errBadRecord = errors.New("no readable record")

// writeRecord gives what it wrote.
func (s *store) writeRecord(r *record) ([]byte, error) {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the record of %s: %w", r.key(), err)
	}
	b = append(b, '\n')
	if err := writeWhole(s.recordPath(r.key()), b); err != nil {
		return nil, fmt.Errorf("write the record of %s: %w", r.key(), err)
	}
	return b, nil
}

// readRecord gives nil for an attachment without a record, and for one whose record
// can't be read, which is put aside.
func (s *store) readRecord(k key) (*record, error) {
	r, err := s.peekRecord(k)
	if errors.Is(err, errBadRecord) {
		err = s.putAside(s.recordPath(k))
	}
	return r, err
}

// peekRecord is readRecord without a change on disk.
func (s *store) peekRecord(k key) (*record, error) {
	path := s.recordPath(k)
	b, written, err := readWithTime(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of %s: %w", k, err)
	}
	r := &record{settled: written}
	if err := json.Unmarshal(b, r); err != nil || r.key() != k {
		return nil, fmt.Errorf("%s: %w", path, errBadRecord)
	}
	return r, nil
}

// readWithTime also gives when the file was written.
func readWithTime(path string) ([]byte, time.Time, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	b, err := io.ReadAll(f)
	return b, info.ModTime(), err
}

// settle notes, as the time of the record, that its ADD is done: a GC that began before has
// a list without it. That takes one call, and no block.
func (s *store) settle(k key, now time.Time) error {
	if err := os.Chtimes(s.recordPath(k), now, now); err != nil {
		return failure(types.ErrIOFailure, err, "settle the record of %s", k)
	}
	return nil
}

// putAside moves a file that is no record out of the way, where people find it.
// A rename needs no free block.
func (s *store) putAside(path string) error {
	to := filepath.Join(s.dir, "quarantine", filepath.Base(path))
	if err := os.Rename(path, to); err != nil {
		return fmt.Errorf("put %s aside: %w", path, err)
	}
	s.note("%s can't be read: put aside as %s", path, to)
	return nil
}

// removeRecord removes the record and what a killed write left beside it.
func (s *store) removeRecord(k key) error {
	path := s.recordPath(k)
	for _, p := range []string{path, besidePath(path)} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the record of %s: %w", k, err)
		}
	}
	return nil
}

// records reads all records of the network, and names the files that can't be read
// as one.
func (s *store) records() (all []*record, bad []string) {
	dir := filepath.Join(s.dir, "attachments")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil // never made: nothing is attached
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || strings.HasPrefix(name, ".") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		r := new(record)
		if err != nil || json.Unmarshal(b, r) != nil || r.Network != s.network || r.key().fileName() != name {
			bad = append(bad, path)
			continue
		}
		all = append(all, r)
	}
	return all, bad
}

func (s *store) recordPath(k key) string {
	return filepath.Join(s.dir, "attachments", k.fileName()+".json")
}

// bootID names the running boot of the machine.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
