package plugin

import (
	"errors"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
)

const fallbackMTU = 1500 // of a node without a default route

// add makes an attachment and prints its result. Everything that can be refused
// is refused before anything is made.
func (p Process) add(r request) error {
	c, err := parseConfig(r.stdin, r.args)
	if err != nil {
		return err
	}
	var ask sockets
	defer ask.close()
	pod, err := r.openNetns(ask.openPod)
	if err != nil {
		return err
	}
	defer pod.close()
	if err := ask.openNode(); err != nil {
		return failure(codeWiring, err, "ask the kernel of the node")
	}
	if err := c.chooseMTU(ask.node); err != nil {
		return err
	}
	s, err := p.openStore(c.base)
	if err != nil {
		return failure(types.ErrIOFailure, err, "state store")
	}
	defer s.close()
	if err := s.adopt(); err != nil {
		return err
	}
	k := r.key(c.network)
	unlock, err := s.lockAttachment(k)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := p.newRecord(s, k, r.netns)
	if err != nil {
		return err
	}
	rec.NetnsInode = inodeOf(r.netns)
	if err := refuseExisting(ask.pod, r.ifName); err != nil {
		return err
	}
	var u undo
	w := &wire{key: k, netns: pod, sockets: ask}
	err = p.attach(s, &c, rec, w, &u)
	if err == nil {
		err = p.printResult(&c, w, r.netns)
	}
	if err != nil {
		return u.run(err)
	}
	return nil
}

// chooseMTU takes the uplink's where none is configured, so that nothing between
// pods of two nodes has to be cut.
func (c *config) chooseMTU(node *netlink.Handle) error {
	families := []family{ipv4, ipv6}
	if !c.hasIPv6() {
		families = families[:1]
	}
	if c.mtu == 0 {
		c.mtu = uplinkMTU(node, families)
	}
	if c.mtu == 0 {
		c.mtu = fallbackMTU
	}
	if c.hasIPv6() && c.mtu < minMTU6 {
		return failure(codeWiring, nil, "the uplink's MTU is %d, and IPv6 needs %d: set mtu", c.mtu, minMTU6)
	}
	return nil
}

// newRecord refuses an attachment that there is already. What is left of one from
// before a reboot is swept: its links and its namespace are gone.
func (p Process) newRecord(s *store, k key, netns string) (*record, error) {
	boot, err := bootID()
	if err != nil {
		return nil, failure(types.ErrIOFailure, err, "state store")
	}
	old, err := s.peekRecord(k)
	switch {
	case errors.Is(err, errBadRecord):
		if err := p.replaceUnreadable(s, k, boot); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, failure(types.ErrIOFailure, err, "state store")
	case old != nil && old.BootID == boot:
		return nil, failure(codeAttachmentExists, nil, "%s exists already, since %s: DEL it first", k, old.Created.Format("2006-01-02 15:04:05 MST"))
	case old != nil:
		if err := p.detach(s, leaving{key: k, rec: old, at: old.Created}); err != nil {
			return nil, err
		}
	}
	return &record{
		Network: k.network, Container: k.container, Interface: k.ifName,
		BootID: boot, Created: p.Now().UTC(), Node: inodeOf(ownNamespace), Netns: netns, HostLink: k.hostLink(),
	}, nil
}

// replaceUnreadable makes room for a new record, unless a reservation says that the
// attachment is there.
func (p Process) replaceUnreadable(s *store, k key, boot string) error {
	all, _, err := s.reservations()
	if err != nil {
		return failure(types.ErrIOFailure, err, "state store")
	}
	for a, r := range all {
		if r.of(k) && (r.BootID == boot || r.BootID == "") {
			return failure(codeAttachmentExists, nil, "%s holds address %s already, and its record can't be read: DEL it first", k, a)
		}
	}
	if err := s.putAside(s.recordPath(k)); err != nil {
		return failure(types.ErrIOFailure, err, "state store")
	}
	return nil
}

// refuseExisting says clearly what the kernel would refuse later: the interface
// name is taken in the pod. It is never deleted: it is another's.
func refuseExisting(pod *netlink.Handle, ifName string) error {
	_, err := pod.LinkByName(ifName)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return nil
	case err != nil:
		return failure(codeWiring, err, "look for %s in the pod", ifName)
	}
	return failure(codeInterfaceExists, nil, "interface %s exists already in the pod", ifName)
}

// attach makes the attachment step by step: a record first, so that a SIGKILL at any
// point leaves what DEL needs, and each step with its undo.
func (p Process) attach(s *store, c *config, rec *record, w *wire, u *undo) error {
	k := w.key
	// As if released before the quarantine: no packet came from here. A later try
	// takes another address all the same, in case this one is the fault.
	u.push("addresses", func() error { return s.release(k, rec, p.Now().Add(-c.quarantine)) })
	u.push("record", func() error { return s.removeRecord(k) })
	w.mtu, w.hostMAC, w.podMAC = c.mtu, k.mac("node"), k.mac("pod")
	if c.mac != nil {
		w.podMAC = c.mac
	}
	rec.MTU, rec.HostMAC, rec.PodMAC = w.mtu, w.hostMAC.String(), w.podMAC.String()
	if err := p.allocate(s, c, rec); err != nil {
		return err
	}
	w.addrs = rec.Addresses
	if err := w.create(); err != nil {
		return err
	}
	u.push("link", func() error { return unwire(k) })
	u.push("rules in the pod", func() error { return removeRules(w.netns, w.addrs) })
	if err := w.configure(p.warn); err != nil {
		return err
	}
	u.push("answers on old bridges", func() error { return s.silenceOnBridges(k, rec) })
	if err := s.answerOnBridges(w.addrs); err != nil {
		return failure(codeWiring, err, "let old pods find the new one")
	}
	if len(rec.HostPorts) > 0 {
		// Last: until now nothing leads to the pod.
		u.push("host ports", func() error { return s.releasePorts(k, nil) })
		if err := s.claimPorts(rec); err != nil {
			return err
		}
	}
	return s.settle(k, p.Now())
}
