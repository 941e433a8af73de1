package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
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

// gc removes the attachments of this network that the runtime no longer wants. It
// goes on after errors and reports them together.
func (p Process) gc(r request) error {
	start := p.Now()
	b, err := parseBase(r.stdin)
	if err != nil {
		return err
	}
	list, err := parseGarbageList(r.stdin, b.network)
	if err != nil {
		return err
	}
	s, err := findStore(b)
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
	records, bad := s.records()
	for _, path := range bad {
		p.warn("%v", s.putAside(path))
	}
	var errs []error
	// An attachment that was made after the start is younger than the list.
	unwanted := func(rec *record) bool {
		return rec.BootID != boot || (rec.Created.Before(start) && !list.keeps(rec))
	}
	for _, rec := range records {
		if unwanted(rec) {
			errs = append(errs, p.collect(s, rec.key(), unwanted))
		}
	}
	if list.authoritative {
		errs = append(errs, p.collectOrphans(s, &list, unwanted))
	}
	if err := errors.Join(errs...); err != nil {
		return failure(codeGarbageLeft, err, "not all garbage could be removed")
	}
	return nil
}

// keeps says whether an attachment of this boot stays. Without a list it is dead
// only when its link is: the kernel deletes a pair together with either namespace.
func (l *garbageList) keeps(rec *record) bool {
	if l.authoritative {
		return l.wanted[rec.key()]
	}
	_, err := netlink.LinkByName(rec.HostLink)
	var gone netlink.LinkNotFoundError
	return !errors.As(err, &gone)
}

// collect looks again under the attachment's lock: an ADD may be at work.
func (p Process) collect(s *store, k key, unwanted func(*record) bool) error {
	unlock, err := s.lockAttachment(k)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := s.readRecord(k)
	if err != nil && !errors.Is(err, errBadRecord) {
		return err
	}
	if rec != nil && !unwanted(rec) {
		return nil
	}
	p.warn("gc: removing %s", k)
	// The namespace is not entered: its path may mean another one by now.
	return p.detach(s, k, rec, "")
}

// collectOrphans releases reservations that no record speaks of.
func (p Process) collectOrphans(s *store, list *garbageList, unwanted func(*record) bool) error {
	owners, err := reservationOwners(s.addressDir())
	errs := []error{err}
	for _, who := range owners {
		container, ifName, ok := strings.Cut(who, disk.LineBreak)
		k := key{s.network, container, ifName}
		if !ok || validateContainer(container) != nil || validateIfName(ifName) != nil || list.wanted[k] {
			continue // the allocator's own files, or one to keep
		}
		errs = append(errs, p.collect(s, k, unwanted))
	}
	return errors.Join(errs...)
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
