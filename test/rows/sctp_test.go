package rows_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/oracle"
)

// sctp sends the first packet of an association from everywhere, which is what
// decides, and checks where it arrives and as whose.
func (w *world) sctp(t *testing.T, p addr.Plan, to, endpoint netip.AddrPort) {
	w.noAssociations(t)
	for _, client := range hosts.Clients(p) {
		seen, err := w.h.ProbeSCTP(at(to.Addr(), model.SCTP, to.Port()).from(client), endpoint, hosts.Patience)
		switch {
		case err != nil:
			t.Error(err)
		case seen.Verdict != hosts.Answered || seen.Endpoint != endpoint:
			t.Errorf("from %s: %s, want it to arrive at %s", client.From, seen, endpoint)
		case client.From == oracle.Pod && seen.Peer != seen.Local:
			t.Errorf("the pod %s is seen as %s", seen.Local, seen.Peer)
		case client.From != oracle.Pod && !slices.Contains(w.h.NodeAddrs(), seen.Peer.Addr()):
			t.Errorf("from %s: seen as %s, want an address of the node", client.From, seen.Peer)
		}
	}
}

// noAssociations says in the log that no whole association is tested, and fails on a
// kernel that could.
func (w *world) noAssociations(t *testing.T) {
	t.Helper()
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err == nil {
		_ = unix.Close(s)
		t.Fatal("this kernel has SCTP sockets, and this test does not use them")
	}
	if !errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Fatal(err)
	}
	t.Log("first packets only: this kernel has no SCTP sockets")
}
