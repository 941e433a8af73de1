package plugin

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// A leaving attachment is one that goes.
type leaving struct {
	key   key
	rec   *record   // nil where there is none
	netns string    // a path; empty: the namespace is not entered
	at    time.Time // when its addresses count as released
}

// detach takes an attachment away: what is in the pod, the ports of the node, the link
// and with it the routes and neighbours, the record, the addresses last. An address is
// never free while a route or a port leads to it. What is there without a record is
// found by its owner.
func (p Process) detach(s *store, l leaving) error {
	if l.rec != nil && l.netns != "" {
		if err := removeRulesAt(l.netns, l.rec); err != nil {
			s.note("%s: %v", l.key, err)
		}
	}
	if err := s.silenceOnBridges(l.key, l.rec); err != nil {
		s.note("%s: %v", l.key, err) // they lead nowhere without the link
	}
	// The link goes also where the ports stay: nobody needs it any more.
	if err := errors.Join(s.releasePorts(l.key, l.rec), unwire(l.key)); err != nil {
		return failure(codeRemoval, err, "remove %s", l.key)
	}
	if err := s.removeRecord(l.key); err != nil {
		return failure(types.ErrIOFailure, err, "remove %s", l.key)
	}
	if err := s.release(l.key, l.rec, l.at); err != nil {
		var e *codedError
		if errors.As(err, &e) {
			return err
		}
		return failure(types.ErrIOFailure, err, "remove %s", l.key)
	}
	return nil
}

// removeRulesAt finds no fault with a namespace that is gone: the rules are, too.
func removeRulesAt(netns string, rec *record) error {
	pod, err := openNamespace(netns)
	if err != nil {
		return nil
	}
	defer pod.close()
	if err := removeRules(pod, rec.Addresses); err != nil {
		return fmt.Errorf("clean up in %s: %w", netns, err)
	}
	return nil
}

// sameNetns gives the path of the namespace if it still means the same one.
func (r *record) sameNetns() string {
	if r.NetnsInode == 0 || inodeOf(r.Netns) != r.NetnsInode {
		return ""
	}
	return r.Netns
}

// inodeOf gives 0 for a path that leads nowhere.
func inodeOf(path string) uint64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return stat.Ino
}
