package plugin

import (
	"errors"

	"github.com/containernetworking/cni/pkg/types"
)

// del removes what there is of an attachment, which may be nothing. It needs
// neither the namespace, nor prevResult, nor a record: the names of the link and
// of the reservation follow from the key.
func (p Process) del(r request) error {
	b, err := parseBase(r.stdin)
	if err != nil {
		return err
	}
	if err := r.refuseOwnNetns(); err != nil {
		return err
	}
	k := r.key(b.network)
	s, err := findStore(b)
	if err != nil {
		return failure(types.ErrIOFailure, err, "state store")
	}
	if s == nil {
		if err := unwire(k); err != nil {
			return failure(codeRemoval, err, "remove %s", k)
		}
		return nil
	}
	defer s.close()
	unlock, err := s.lockAttachment(k)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := s.readRecord(k)
	if err != nil {
		p.warn("%v", err)
	}
	if err != nil && !errors.Is(err, errBadRecord) {
		return failure(types.ErrIOFailure, err, "state store")
	}
	return p.detach(s, k, rec, r.netns)
}
