package plugin

import (
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
	s, err := p.findStore(b)
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
	if err := s.adopt(); err != nil {
		s.note("%v", err) // a full disk
	}
	unlock, err := s.lockAttachment(k)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := s.readRecord(k)
	if err != nil {
		return failure(types.ErrIOFailure, err, "state store")
	}
	if rec == nil && asksForPorts(r.stdin) {
		if err := p.forgetPorts(s, k); err != nil {
			s.note("%s: %v", k, err) // the pod is gone all the same
		}
	}
	if err := p.detach(s, leaving{key: k, rec: rec, netns: r.netns, at: p.Now()}); err != nil || rec != nil {
		return err
	}
	return s.afterOldPod()
}
