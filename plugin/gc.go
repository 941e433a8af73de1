package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
)

// A garbageList is what GC is told about attachments that are still wanted.
type garbageList struct {
	// authoritative says that the runtime gave a list, maybe an empty one. Without
	// one, or with null, which libcni sends for a list that it does not have, only
	// what is provably dead may go.
	authoritative bool
	wanted        map[key]bool
}

// A sweep removes attachments for which its list gives a reason.
type sweep struct {
	Process
	*store
	list  garbageList
	boot  string
	start time.Time
	// node is the inode of the node's namespace, where links are only looked for if
	// that is where they were made; 0: they are looked for anyway.
	node uint64
	// patient says to wait for verbs that are at work on an attachment. Without it, theirs
	// are left alone.
	patient bool
	// urgent says that an ADD waits for an address: one whose pod died unseen counts as
	// released long ago.
	urgent bool
	before possessions
	swept  Swept
	// portless says that it was told already that there is no portmap.
	portless bool
}

// gc removes the attachments of this network that the runtime no longer wants. It
// goes on after errors and reports them together.
func (p Process) gc(r request) error {
	b, err := parseBase(r.stdin)
	if err != nil {
		return err
	}
	list, err := parseGarbageList(r.stdin, b.network)
	if err != nil {
		return err
	}
	s, err := p.findStore(b)
	if err != nil {
		return failure(types.ErrIOFailure, err, "state store")
	}
	if s == nil {
		return nil
	}
	defer s.close()
	boot, err := bootID()
	if err != nil {
		return failure(types.ErrIOFailure, err, "state store")
	}
	adopting := s.adopt() // a full disk: what GC removes makes room
	// What the runtime lists is older than this process.
	w := &sweep{Process: p, store: s, list: list, boot: boot, start: p.began, patient: true}
	if err := w.all(); err != nil {
		return failure(codeGarbageLeft, errors.Join(err, adopting), "not all garbage could be removed")
	}
	if adopting != nil {
		adopting = s.adopt()
	}
	return adopting
}

// all goes on after errors.
func (w *sweep) all() error {
	w.before = w.possessions()
	return errors.Join(w.unfinished(), w.attachments(), w.orphans(), w.ports(), w.frees())
}

// reason says why an attachment must go, and nothing for one that stays. An
// attachment whose ADD was not done before the start is younger than the list.
func (w *sweep) reason(rec *record) string {
	switch {
	case rec.BootID != w.boot && rec.BootID != "":
		return "it is of an earlier boot"
	case !rec.since().Before(w.start):
		return ""
	case w.list.authoritative && !w.list.wanted[rec.key()]:
		return "the runtime does not list it"
	case w.node != 0 && rec.Node != 0 && w.node != rec.Node:
		return ""
	case !w.list.authoritative && rec.BootID != "" && rec.HostLink != "" && linkGone(rec.HostLink):
		// The kernel deletes a pair together with either namespace. Of one that was
		// adopted we do not know the link.
		return "its link is gone"
	}
	return ""
}

func linkGone(name string) bool {
	_, err := netlink.LinkByName(name)
	var gone netlink.LinkNotFoundError
	return errors.As(err, &gone)
}

func (w *sweep) attachments() error {
	records, bad := w.records()
	var errs []error
	for _, path := range bad {
		errs = append(errs, w.setAside(path))
	}
	for _, rec := range records {
		if w.reason(rec) != "" {
			errs = append(errs, w.collect(rec))
		}
	}
	return errors.Join(errs...)
}

// orphans removes reservations that no record speaks of, with their links.
func (w *sweep) orphans() error {
	all, err := w.reserving()
	errs := []error{err}
	for _, rec := range all {
		if w.reason(rec) != "" {
			errs = append(errs, w.collect(rec))
		}
	}
	return errors.Join(errs...)
}

// reserving gives the attachments that have reservations, each once.
func (s *store) reserving() ([]*record, error) {
	reserved, _, err := s.reservations()
	seen := map[key]bool{}
	var all []*record
	for _, r := range reserved {
		if rec := s.recordOf(r); !seen[rec.key()] {
			seen[rec.key()] = true
			all = append(all, rec)
		}
	}
	return all, err
}

// setAside looks again under the lock: an ADD may have put a record there by now.
func (w *sweep) setAside(path string) error {
	name := strings.TrimSuffix(filepath.Base(path), ".json")
	return w.locked(name, func() error {
		if _, bad := w.records(); !slices.Contains(bad, path) {
			return nil
		}
		w.swept.Files++
		return w.putAside(path)
	})
}

// locked does something under the lock of an attachment, by the name of its file. Without
// patience it does nothing where a verb is at work.
func (w *sweep) locked(name string, do func() error) error {
	var unlock func()
	if w.patient {
		var err error
		if unlock, err = w.lockName(name); err != nil {
			return err
		}
	} else {
		var ok bool
		if unlock, ok = w.tryName(name); !ok {
			return nil
		}
	}
	defer unlock()
	return do()
}

// recordOf gives what a record would say at least.
func (s *store) recordOf(r *reservation) *record {
	k := key{s.network, r.Container, r.Interface}
	rec := &record{Network: k.network, Container: k.container, Interface: k.ifName, BootID: r.BootID, Node: r.Node, Created: r.Created}
	if !r.Adopted {
		rec.HostLink = k.hostLink()
	}
	return rec
}

// collect looks again under the attachment's lock: an ADD may be at work. found may
// stand for a record that is not there.
func (w *sweep) collect(found *record) error {
	return w.locked(found.key().fileName(), func() error { return w.collectLocked(found) })
}

func (w *sweep) collectLocked(found *record) error {
	k := found.key()
	rec, err := w.readRecord(k)
	if err != nil {
		return err
	}
	if rec == nil {
		rec = found
	}
	why := w.reason(rec)
	if why == "" {
		return nil
	}
	w.note("removing %s with %v: %s", k, rec.Addresses, why)
	at := w.start
	if w.urgent || rec.BootID != w.boot {
		at = rec.Created
	}
	if rec.BootID == w.boot {
		w.forgetPorts(k)
	}
	there := w.before.of(k)
	if err := w.detach(w.store, leaving{key: k, rec: rec, netns: rec.sameNetns(), at: at}); err != nil {
		return err
	}
	w.swept.add(there)
	return nil
}

// unfinished removes files whose writer was killed.
func (w *sweep) unfinished() error {
	names, err := fileNames(filepath.Join(w.dir, "attachments"))
	for _, hidden := range names {
		name, ok := strings.CutSuffix(hidden, ".json"+besideSuffix)
		if !ok || name[0] != '.' {
			continue
		}
		err = errors.Join(err, w.locked(name[1:], func() error {
			return w.remove(filepath.Join(w.dir, "attachments", hidden))
		}))
	}
	unlock, lockErr := w.lockAddresses()
	if lockErr != nil {
		return errors.Join(err, lockErr)
	}
	defer unlock()
	_, half, readErr := w.takenAddresses()
	for _, name := range half {
		err = errors.Join(err, w.remove(filepath.Join(w.addressDir(), name)))
	}
	return errors.Join(err, readErr)
}

// frees ends reservations that belong to no attachment, and then sees to what is left of
// pods that were adopted.
func (w *sweep) frees() error {
	unlock, err := w.lockAddresses()
	if err != nil {
		return err
	}
	defer unlock()
	return errors.Join(w.dropVoid(w.boot), w.tendBridges())
}

func (w *sweep) remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		w.swept.Files++
	}
	return err
}

// sweepDead removes, for an ADD that finds no address, the attachments of which
// nothing lives, and says how many. Those that a verb is at work on are left alone.
func (p Process) sweepDead(s *store, mine *record) (swept int) {
	w := &sweep{Process: p, store: s, boot: mine.BootID, start: p.Now(), urgent: true}
	collect := func(rec *record) {
		if rec.key() == mine.key() || w.reason(rec) == "" {
			return
		}
		if err := w.collect(rec); err != nil {
			w.note("sweep: %v", err)
		}
	}
	records, _ := s.records()
	for _, rec := range records {
		collect(rec)
	}
	orphans, _ := s.reserving()
	for _, rec := range orphans {
		collect(rec)
	}
	return w.swept.Attachments
}

// parseGarbageList prefers the specification's key to the older one that libcni
// sends beside it.
func parseGarbageList(stdin []byte, network string) (garbageList, error) {
	var in struct {
		Valid json.RawMessage `json:"cni.dev/valid-attachments"`
		Older json.RawMessage `json:"cni.dev/attachments"`
	}
	if err := json.Unmarshal(stdin, &in); err != nil {
		return garbageList{}, failure(types.ErrDecodingFailure, err, "decode the network configuration")
	}
	for _, raw := range []json.RawMessage{in.Valid, in.Older} {
		var attachments []types.GCAttachment
		if len(raw) == 0 {
			continue
		}
		if err := json.Unmarshal(raw, &attachments); err != nil {
			return garbageList{}, failure(types.ErrDecodingFailure, err, "decode cni.dev/valid-attachments")
		}
		if attachments == nil {
			continue
		}
		list := garbageList{authoritative: true, wanted: map[key]bool{}}
		for i, a := range attachments {
			if a.ContainerID == "" || a.IfName == "" {
				return garbageList{}, badConfig("cni.dev/valid-attachments", fmt.Sprint(i), errors.New("no containerID or no ifname"))
			}
			list.wanted[key{network, a.ContainerID, a.IfName}] = true
		}
		return list, nil
	}
	return garbageList{}, nil
}
