package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"golang.org/x/sys/unix"
)

// status says whether an ADD would work now. It makes nothing and takes no lock.
func (p Process) status(r request) error {
	b, err := parseBase(r.stdin)
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dataDir, b.network)
	if err := checkStateDir(dir); err != nil {
		return failure(types.ErrPluginNotAvailable, err, "state store")
	}
	if err := checkPool(r.stdin, dir); err != nil {
		return failure(types.ErrPluginNotAvailable, err, "no address to give")
	}
	if err := checkNodeForwards(b); err != nil {
		return failure(types.ErrLimitedConnectivity, err, "pods can't be reached")
	}
	return nil
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

// checkPool looks for a free address in every range set. Where the runtime brings
// the ranges with each ADD, there is nothing to look at.
func checkPool(stdin []byte, dir string) error {
	ranges, err := parseRanges(stdin)
	if err != nil {
		var in types.PluginConf
		if json.Unmarshal(stdin, &in) == nil && in.Capabilities["ipRanges"] {
			return nil
		}
		return err
	}
	taken, err := reservationOwners(filepath.Join(dir, "addresses"))
	if err != nil {
		return fmt.Errorf("read the reservations: %w", err)
	}
	for i := range ranges {
		if !hasFree(&ranges[i], taken) {
			return fmt.Errorf("all addresses of %s are taken", ranges[i].String())
		}
	}
	return nil
}

func hasFree(set *allocator.RangeSet, taken map[string]string) bool {
	free := new(big.Int)
	for i := range *set {
		r := &(*set)[i]
		size := new(big.Int).Sub(new(big.Int).SetBytes(r.RangeEnd), new(big.Int).SetBytes(r.RangeStart))
		free.Add(free, size.Add(size, big.NewInt(1)))
		if r.Contains(r.Gateway) {
			free.Sub(free, big.NewInt(1)) // never given
		}
	}
	for name := range taken {
		if ip := net.ParseIP(name); ip != nil && set.Contains(ip) {
			free.Sub(free, big.NewInt(1))
		}
	}
	return free.Sign() > 0
}

// checkNodeForwards looks at forwarding once there are pods that need it: before
// the first ADD it may well be off, and ADD turns it on.
func checkNodeForwards(b base) error {
	s, err := findStore(b)
	if err != nil || s == nil {
		return err
	}
	defer s.close()
	boot, err := bootID()
	if err != nil {
		return err
	}
	records, _ := s.records()
	for _, rec := range records {
		if rec.BootID != boot {
			continue
		}
		for _, f := range familiesOf(rec.Addresses) {
			path := forwardingPaths(f, rec.HostLink)[0]
			if v, err := readSysctl(path); err != nil || v != "1" {
				return errors.Join(err, fmt.Errorf("forwarding is off: %s is %q", path, v))
			}
		}
	}
	return nil
}
