package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"github.com/vishvananda/netlink"
)

// A family is an IP family by its number of address bits.
type family int

const (
	ipv4 family = 32
	ipv6 family = 128
)

func (f family) String() string {
	if f == ipv4 {
		return "IPv4"
	}
	return "IPv6"
}

func familyOf(a netip.Addr) family { return family(a.BitLen()) }

func netlinkFamily(f family) int {
	if f == ipv6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// ipNet gives an address as a whole prefix of netlink's type.
func ipNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// reservations is host-local's store, one file for each address, but Reserve
// leaves either a whole file or none when it is killed: nobody could ever release
// an empty one. Releasing is done by release, which does not pass over errors.
type reservations struct {
	*disk.Store
	dir string
}

// diskError is an error of the store, not of the request.
type diskError struct{ err error }

func (e *diskError) Error() string { return e.err.Error() }
func (e *diskError) Unwrap() error { return e.err }

func (s *store) openReservations() (*reservations, error) {
	d, err := disk.New("addresses", s.dir)
	if err != nil {
		return nil, fmt.Errorf("open the reservations: %w", err)
	}
	return &reservations{Store: d, dir: s.addressDir()}, nil
}

func (s *store) addressDir() string { return filepath.Join(s.dir, "addresses") }

func owner(container, ifName string) string { return container + disk.LineBreak + ifName }

// Reserve takes an address, or says that it is taken.
func (r *reservations) Reserve(id, ifName string, addr net.IP, rangeID string) (bool, error) {
	path := filepath.Join(r.dir, addr.String())
	if _, err := os.Lstat(path); err == nil {
		return false, nil // nearly full pools ask often: spare them the write
	}
	beside := besidePath(path)
	defer os.Remove(beside)
	if err := writeSynced(beside, []byte(owner(id, ifName))); err != nil {
		return false, &diskError{fmt.Errorf("reserve %s: %w", addr, err)}
	}
	err := os.Link(beside, path)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err == nil {
		last := filepath.Join(r.dir, "last_reserved_ip."+rangeID)
		err = os.WriteFile(last, []byte(addr.String()), 0o600) // a hint: a torn one costs the round robin
	}
	if err != nil {
		return false, &diskError{fmt.Errorf("reserve %s: %w", addr, err)}
	}
	return true, nil
}

// allocate reserves one address from each range set, the requested ones where
// they were asked for. All or none.
func (s *store) allocate(k key, ranges []allocator.RangeSet, requested []netip.Addr) ([]netip.Addr, error) {
	unlock, err := s.lockAddresses()
	if err != nil {
		return nil, err
	}
	defer unlock()
	r, err := s.openReservations()
	if err != nil {
		return nil, failure(types.ErrIOFailure, err, "address store")
	}
	defer r.Close()
	if have := r.GetByID(k.container, k.ifName); len(have) > 0 {
		return nil, failure(codeAttachmentExists, nil, "%s holds address %s already: DEL it first", k, have[0])
	}
	addrs, err := r.allocateAll(k, ranges, requested)
	if err == nil {
		err = syncDir(r.dir)
	}
	if err == nil {
		return addrs, nil
	}
	if undoErr := release(r.dir, k); undoErr != nil {
		err = withUndoError(err, undoErr)
	}
	return nil, err
}

func (r *reservations) allocateAll(k key, ranges []allocator.RangeSet, requested []netip.Addr) ([]netip.Addr, error) {
	var addrs []netip.Addr
	requested = slices.Clone(requested)
	slices.SortFunc(requested, netip.Addr.Compare)
	requested = slices.Compact(requested)
	wants := make([]netip.Addr, len(ranges))
	for i := range ranges {
		at := slices.IndexFunc(requested, func(a netip.Addr) bool { return ranges[i].Contains(a.AsSlice()) })
		if at >= 0 {
			wants[i] = requested[at]
			requested = slices.Delete(requested, at, at+1)
		}
	}
	if len(requested) > 0 {
		return nil, failure(codeAddressUnavailable, nil, "requested address %s: in no range, or in one that another request took", requested[0])
	}
	for i := range ranges {
		addr, err := r.allocateOne(k, i, &ranges[i], wants[i])
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// allocateOne gives the allocator's errors their codes. Those of the store are
// typed, so what is left means the pool, or the one address asked for.
func (r *reservations) allocateOne(k key, i int, set *allocator.RangeSet, want netip.Addr) (netip.Addr, error) {
	var ip net.IP
	if want.IsValid() {
		ip = want.AsSlice()
	}
	got, err := allocator.NewIPAllocator(set, r, i).Get(k.container, k.ifName, ip)
	var broken *diskError
	switch {
	case err == nil:
	case errors.As(err, &broken):
		return netip.Addr{}, failure(types.ErrIOFailure, err, "address store")
	case want.IsValid():
		return netip.Addr{}, failure(codeAddressUnavailable, err, "requested address %s", want)
	default:
		return netip.Addr{}, failure(codePoolExhausted, err, "address pool exhausted")
	}
	addr, ok := netip.AddrFromSlice(got.Address.IP)
	if !ok {
		return netip.Addr{}, failure(types.ErrInternal, nil, "the allocator gave %v, no address", got.Address)
	}
	return addr.Unmap(), nil
}

// release frees the addresses of an attachment; after it returns they stay free
// when the power goes.
func (s *store) release(k key) error {
	unlock, err := s.lockAddresses()
	if err != nil {
		return err
	}
	defer unlock()
	return release(s.addressDir(), k)
}

func release(dir string, k key) error {
	owners, err := reservationOwners(dir)
	for name, who := range owners {
		// A name with a dot is what a killed Reserve left: whoever holds the lock
		// knows that nobody is writing it.
		if who == owner(k.container, k.ifName) || name[0] == '.' {
			err = errors.Join(err, os.Remove(filepath.Join(dir, name)))
		}
	}
	if err = errors.Join(err, syncDir(dir)); err != nil {
		return fmt.Errorf("release the addresses of %s: %w", k, err)
	}
	return nil
}

// reservationOwners reads what is in the directory of reservations: by file name,
// who holds it.
func reservationOwners(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	owners := make(map[string]string, len(entries))
	for _, e := range entries {
		b, readErr := os.ReadFile(filepath.Join(dir, e.Name()))
		if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
			err = errors.Join(err, readErr)
		}
		owners[e.Name()] = string(b)
	}
	return owners, err
}
