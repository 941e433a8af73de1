package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// status says whether an ADD would work now, and whether pods can be reached. It
// takes no lock, and makes nothing but the memory of soft conditions.
func (p Process) status(r request) error {
	b, err := parseBase(r.stdin)
	if err != nil {
		return err
	}
	if err := checkStateDir(filepath.Join(b.dataDir, b.network)); err != nil {
		return failure(types.ErrPluginNotAvailable, err, "state store")
	}
	s, err := p.findStore(b)
	if err != nil {
		return failure(types.ErrPluginNotAvailable, err, "state store")
	}
	if s != nil {
		defer s.close()
	}
	sets, err := statusRanges(r.stdin)
	if err != nil {
		return failure(types.ErrPluginNotAvailable, err, "no address to give")
	}
	d, err := readTold(r.stdin)
	if err != nil {
		return err
	}
	if err := d.unavailable(p.Now()); err != nil {
		return failure(types.ErrPluginNotAvailable, err, saidBy)
	}
	limited := d.limited(p.Now())
	if s == nil { // before the first ADD, which turns on what it needs: there is no memory yet
		if limited != nil {
			return failure(types.ErrLimitedConnectivity, limited, saidBy)
		}
		return nil
	}
	boot, err := bootID()
	if err != nil {
		return failure(types.ErrPluginNotAvailable, err, "state store")
	}
	return s.statusInUse(sets, boot, d, limited)
}

const saidBy = "the node's daemon"

// statusInUse looks at a node that has, or had, pods. limited is what the daemon says.
func (s *store) statusInUse(sets []rangeSet, boot string, d told, limited error) error {
	pools, err := s.levels(sets, boot)
	if err == nil {
		err = exhausted(pools)
	}
	if err != nil {
		return failure(types.ErrPluginNotAvailable, err, "no address to give")
	}
	living, before, now := s.livingRecords(boot), s.recall(), softConditions{}
	var worst error
	for _, c := range []struct {
		name string
		err  error
		code uint
		msg  string
	}{
		{"forwarding", checkForwarding(living), types.ErrLimitedConnectivity, "pods can't be reached"},
		{"routes", checkRoutes(living), types.ErrLimitedConnectivity, "pods can't be reached"},
		{"host ports", s.checkAllPorts(living), types.ErrLimitedConnectivity, "host ports don't lead to their pods"},
		{"guard", d.checkGuard(addressesOf(living)), types.ErrLimitedConnectivity, "nothing keeps pods from sending with others' addresses"},
		{"daemon", limited, types.ErrLimitedConnectivity, saidBy},
		{"addresses", low(pools, before.reported("addresses")), types.ErrPluginNotAvailable, "addresses run out"},
	} {
		if c.err == nil {
			continue
		}
		now[c.name] = min(before[c.name]+1, softLimit)
		switch {
		case !now.reported(c.name):
			s.warn("%s: %v (seen %d times in a row; reported when it is %d)", c.msg, c.err, now[c.name], softLimit)
		case worst == nil:
			worst = failure(c.code, c.err, "%s", c.msg)
		}
	}
	s.remember(before, now)
	return worst
}

// softConditions counts in how many calls in a row each condition was seen. A single
// sight is no reason for a runtime to call its node not ready: what others changed is
// mended within seconds, and pods come and go.
type softConditions map[string]int

const softLimit = 3

func (c softConditions) reported(name string) bool { return c[name] >= softLimit }

func (s *store) recall() softConditions {
	c := softConditions{}
	if b, err := os.ReadFile(filepath.Join(s.dir, "status")); err == nil {
		_ = json.Unmarshal(b, &c) // a torn one costs two calls
	}
	return c
}

// remember writes nothing where there is nothing to forget.
func (s *store) remember(before, now softConditions) {
	if len(before) == 0 && len(now) == 0 {
		return
	}
	if b, err := json.Marshal(now); err == nil {
		_ = writeWhole(filepath.Join(s.dir, "status"), b)
	}
}

// checkStateDir looks whether files can be made where the state is, or will be.
func checkStateDir(dir string) error {
	for errors.Is(statError(dir), fs.ErrNotExist) {
		dir = filepath.Dir(dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("write to %s: %w", dir, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("file system of %s: %w", dir, err)
	}
	if st.Bavail == 0 || (st.Files > 0 && st.Ffree == 0) {
		return fmt.Errorf("file system of %s is full", dir)
	}
	return nil
}

func statError(path string) error {
	_, err := os.Stat(path)
	return err
}

// statusRanges gives none where the runtime brings the ranges with each ADD.
func statusRanges(stdin []byte) ([]rangeSet, error) {
	sets, err := parseRanges(stdin)
	if err == nil {
		return sets, nil
	}
	var in types.PluginConf
	if json.Unmarshal(stdin, &in) == nil && in.Capabilities["ipRanges"] {
		return nil, nil
	}
	return nil, err
}

// A level is how many addresses of a set are left.
type level struct {
	set  rangeSet
	free *big.Int
}

func (s *store) levels(sets []rangeSet, boot string) ([]level, error) {
	var all []level
	for _, set := range sets {
		free, err := s.freeIn(set, boot)
		if err != nil {
			return nil, fmt.Errorf("read the reservations: %w", err)
		}
		all = append(all, level{set, free})
	}
	return all, nil
}

func exhausted(pools []level) error {
	for _, l := range pools {
		if l.free.Sign() <= 0 {
			return fmt.Errorf("all addresses of %s are taken", l.set)
		}
	}
	return nil
}

// low says that a set has few addresses left and, when that was reported, until it has
// twice as many.
func low(pools []level, reported bool) error {
	for _, l := range pools {
		mark := l.set.spare()
		if reported {
			mark *= 2
		}
		if l.free.Cmp(big.NewInt(mark)) <= 0 {
			return fmt.Errorf("%s addresses of %s are left", l.free, l.set)
		}
	}
	return nil
}

// freeIn looks at what the reservations say only when names alone leave few free: what
// an ADD would find void counts as free.
func (s *store) freeIn(set rangeSet, boot string) (*big.Int, error) {
	taken, _, err := s.takenAddresses()
	if err != nil {
		return nil, err
	}
	p := &pool{taken: map[netip.Addr]bool{}}
	for _, a := range taken {
		p.taken[a] = true
	}
	if free := p.free(set); free.Cmp(big.NewInt(2*set.spare())) > 0 {
		return free, nil
	}
	all, bad, err := s.reservations()
	if err != nil {
		return nil, err
	}
	claimed := s.claims(boot)
	for _, a := range bad {
		p.taken[a] = claimed[a] != nil
	}
	for a, r := range all {
		p.taken[a] = !s.void(r, boot)
	}
	return p.free(set), nil
}

// spare is how few addresses of a set are worth a word: one of 64, 1 to 4 of them,
// and none of a set that is so small that it would always be said.
func (set rangeSet) spare() int64 {
	size := set.size()
	if !size.IsInt64() || size.Int64() > 4*64 {
		return 4
	}
	n := size.Int64()
	return min(max(1, n/64), n/4)
}

// livingRecords gives the attachments of this boot.
func (s *store) livingRecords(boot string) []*record {
	var living []*record
	records, _ := s.records()
	for _, rec := range records {
		if rec.BootID == boot {
			living = append(living, rec)
		}
	}
	return living
}

func addressesOf(records []*record) (addrs []netip.Addr) {
	for _, rec := range records {
		addrs = append(addrs, rec.Addresses...)
	}
	return addrs
}

// checkForwarding looks once there are pods that need it: before the first ADD it may
// well be off, and ADD turns it on.
func checkForwarding(living []*record) error {
	for _, f := range familiesOf(addressesOf(living)) {
		path := forwardingPath(f)
		if v, err := readSysctl(path); err != nil || v != "1" {
			return errors.Join(err, fmt.Errorf("forwarding is off: %s is %q", path, v))
		}
	}
	return nil
}

// checkRoutes asks for the route to every pod that has a link.
func checkRoutes(living []*record) error {
	for _, rec := range living {
		link, err := netlink.LinkByName(rec.HostLink)
		if err != nil {
			continue // the pod is gone, and GC removes the rest
		}
		for _, a := range rec.Addresses {
			if err := checkHostRoute(a, link); err != nil {
				return fmt.Errorf("%s: %w", rec.key(), err)
			}
		}
	}
	return nil
}
