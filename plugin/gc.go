package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	if err := s.adopt(); err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return failure(types.ErrIOFailure, err, "state store")
	}
	// What the runtime lists is older than this process.
	w := &sweep{p, s, list, boot, p.began}
	if err := errors.Join(w.attachments(), w.orphans(), w.ports(), w.leftovers()); err != nil {
		return failure(codeGarbageLeft, err, "not all garbage could be removed")
	}
	return nil
}

// reason says why an attachment must go, and nothing for one that stays. An
// attachment that was made after the start is younger than the list.
func (w *sweep) reason(rec *record) string {
	switch {
	case rec.BootID != w.boot && rec.BootID != "":
		return "it is of an earlier boot"
	case !rec.Created.Before(w.start):
		return ""
	case w.list.authoritative && !w.list.wanted[rec.key()]:
		return "the runtime does not list it"
	case !w.list.authoritative && rec.BootID != "" && linkGone(rec.HostLink):
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
		errs = append(errs, w.putAside(path))
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
	all, _, err := w.reservations()
	errs := []error{err}
	for _, r := range all {
		rec := w.recordOf(r)
		if w.reason(rec) != "" {
			errs = append(errs, w.collect(rec))
		}
	}
	return errors.Join(errs...)
}

// recordOf gives what a record would say at least.
func (s *store) recordOf(r *reservation) *record {
	k := key{s.network, r.Container, r.Interface}
	return &record{Network: k.network, Container: k.container, Interface: k.ifName, BootID: r.BootID, Created: r.Created, HostLink: k.hostLink()}
}

// collect looks again under the attachment's lock: an ADD may be at work. found may
// stand for a record that is not there.
func (w *sweep) collect(found *record) error {
	unlock, err := w.lockAttachment(found.key())
	if err != nil {
		return err
	}
	defer unlock()
	return w.collectLocked(found)
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
	at := rec.Created // it died unseen, some time ago
	if w.list.authoritative && rec.BootID == w.boot {
		at = w.start
	}
	return w.detach(w.store, leaving{key: k, rec: rec, netns: rec.sameNetns(), at: at})
}

// leftovers removes what belongs to no attachment: void reservations, and files
// whose writer was killed.
func (w *sweep) leftovers() error {
	names, err := fileNames(filepath.Join(w.dir, "attachments"))
	for _, hidden := range names {
		name, ok := strings.CutSuffix(hidden, ".json"+besideSuffix)
		if !ok || name[0] != '.' {
			continue
		}
		unlock, lockErr := w.lockName(name[1:])
		if lockErr != nil {
			err = errors.Join(err, lockErr)
			continue
		}
		if e := os.Remove(filepath.Join(w.dir, "attachments", hidden)); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
		unlock()
	}
	unlock, lockErr := w.lockAddresses()
	if lockErr != nil {
		return errors.Join(err, lockErr)
	}
	defer unlock()
	return errors.Join(err, w.removeHalfWritten(), w.dropVoid(w.boot))
}

// sweepDead removes, for an ADD that finds no address, the attachments of which
// nothing lives, and says how many. Those that a verb is at work on are left alone.
func (p Process) sweepDead(s *store, mine *record) (swept int) {
	w := &sweep{Process: p, store: s, boot: mine.BootID, start: p.Now()}
	collect := func(rec *record) {
		if rec.key() != mine.key() && w.reason(rec) != "" && w.tryCollect(rec) {
			swept++
		}
	}
	records, _ := s.records()
	for _, rec := range records {
		collect(rec)
	}
	orphans, _, _ := s.reservations()
	for _, r := range orphans {
		collect(s.recordOf(r))
	}
	return swept
}

func (w *sweep) tryCollect(rec *record) bool {
	unlock, ok := w.tryAttachment(rec.key())
	if !ok {
		return false
	}
	defer unlock()
	if err := w.collectLocked(rec); err != nil {
		w.note("sweep: %v", err)
		return false
	}
	return true
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
