// Package bpf counts, in the kernel, the new connections that each endpoint of a frontend
// is given, and the packets to NodePorts on loopback addresses that are refused. Nothing
// depends on it: without it packets go where they go.
package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// A Key is an endpoint as it is reached through a frontend.
type Key struct {
	// Frontend has no valid address for a NodePort, which is counted on all addresses.
	Frontend, Endpoint netip.AddrPort
	Protocol           uint8
}

// A Reject is a NodePort on the loopback addresses of a family.
type Reject struct {
	IPv6     bool
	Protocol uint8
	Port     uint16
}

// ErrFull says that the kernel takes no more keys: what has none is not counted.
var ErrFull = errors.New("the map is full")

// A Counters counts as long as it is open, and beyond that if it is pinned. Its methods
// may be called by several goroutines.
type Counters struct {
	hits, rejects *ebpf.Map
	links         []link.Link
	mode          string
}

// Mode says how connections are seen: "netfilter" (kernel 6.4 and later) or "fexit".
func (c *Counters) Mode() string { return c.mode }

// Put begins to count for keys. Those that are there count on. If there is no room for
// all, the others are put and the error is ErrFull.
func (c *Counters) Put(keys []Key) error {
	none := make([]hitsEndpointValue, ebpf.MustPossibleCPU())
	for i, k := range keys {
		if err := put(c.hits, k.inKernel(), none); err != nil {
			return fmt.Errorf("count for endpoint %s of %s: %w (%d more are not counted)", k.Endpoint, k.Frontend, err, len(keys)-i-1)
		}
	}
	return nil
}

// Delete ends to count for keys, whether they are there or not, and gives what was counted
// for each.
func (c *Counters) Delete(keys []Key) ([]uint64, error) {
	counted := make([]uint64, len(keys))
	for i, k := range keys {
		var values []hitsEndpointValue
		err := c.hits.Lookup(k.inKernel(), &values)
		if err == nil {
			counted[i] = sum(values)
			err = c.hits.Delete(k.inKernel())
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return counted, fmt.Errorf("count no more for endpoint %s of %s: %w", k.Endpoint, k.Frontend, err)
		}
	}
	return counted, nil
}

// Add adds to what was counted for a key that no program counts for. It puts the key.
func (c *Counters) Add(k Key, connections uint64) error {
	if err := c.Put([]Key{k}); err != nil {
		return err
	}
	var values []hitsEndpointValue
	err := c.hits.Lookup(k.inKernel(), &values)
	if err == nil {
		values[0].Connections += connections
		err = c.hits.Update(k.inKernel(), values, ebpf.UpdateExist)
	}
	if err != nil {
		return fmt.Errorf("add to endpoint %s of %s: %w", k.Endpoint, k.Frontend, err)
	}
	return nil
}

func sum(values []hitsEndpointValue) uint64 {
	var n uint64
	for _, v := range values {
		n += v.Connections
	}
	return n
}

// Hits calls f for each key with the connections that were counted, in no order. A key
// that is put or deleted meanwhile may be left out.
func (c *Counters) Hits(f func(Key, uint64)) error {
	return each(c.hits, func(k hitsEndpointKey, values []hitsEndpointValue) {
		f(keyOf(k), sum(values))
	})
}

// SetRejects counts for these NodePorts and no others. Those that are there count on.
func (c *Counters) SetRejects(list []Reject) error {
	want := map[hitsRejectKey]bool{}
	none := make([]hitsRejectValue, ebpf.MustPossibleCPU())
	for _, r := range list {
		want[r.inKernel()] = true
		if err := put(c.rejects, r.inKernel(), none); err != nil {
			return fmt.Errorf("count refusals of NodePort %d: %w", r.Port, err)
		}
	}
	var gone []hitsRejectKey
	err := each(c.rejects, func(k hitsRejectKey, _ []hitsRejectValue) {
		if !want[k] {
			gone = append(gone, k)
		}
	})
	for _, k := range gone {
		err = errors.Join(err, c.rejects.Delete(k))
	}
	return err
}

// Rejects calls f for each NodePort with the packets that were refused.
func (c *Counters) Rejects(f func(Reject, uint64)) error {
	return each(c.rejects, func(k hitsRejectKey, values []hitsRejectValue) {
		var sum uint64
		for _, v := range values {
			sum += v.Packets
		}
		f(Reject{IPv6: k.Family == 6, Protocol: k.Protocol, Port: k.Port}, sum)
	})
}

// How often put tries, a millisecond apart, while the kernel is short of elements.
const putTries = 20

// put adds a key unless it is there. The kernel keeps a few free elements for each CPU and
// makes more beside (bpf_mem_alloc, Linux 6.1): on a busy machine who adds many at once is
// told ENOMEM until it has.
func put[K, V any](m *ebpf.Map, key K, none []V) error {
	err := m.Update(key, none, ebpf.UpdateNoExist)
	for tries := 1; errors.Is(err, unix.ENOMEM) && tries < putTries; tries++ {
		time.Sleep(time.Millisecond)
		err = m.Update(key, none, ebpf.UpdateNoExist)
	}
	switch {
	case errors.Is(err, ebpf.ErrKeyExist):
		return nil
	case errors.Is(err, errNoRoom):
		return ErrFull
	}
	return err
}

// perBatch is how many keys one system call reads: more than a bucket of the kernel's
// hash ever has.
const perBatch = 4096

// each goes over a map, bucket by bucket.
func each[K, V any](m *ebpf.Map, f func(K, []V)) error {
	cpus := ebpf.MustPossibleCPU()
	keys, values := make([]K, perBatch), make([]V, perBatch*cpus)
	var at ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&at, keys, values, nil)
		for i := range n {
			f(keys[i], values[i*cpus:(i+1)*cpus])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) { // that was the last bucket
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", m, err)
		}
	}
}

func (k Key) inKernel() hitsEndpointKey {
	key := hitsEndpointKey{
		FrontendPort: k.Frontend.Port(), EndpointPort: k.Endpoint.Port(),
		Family: 4, Protocol: k.Protocol,
	}
	if k.Endpoint.Addr().Is6() {
		key.Family = 6
	}
	copy(key.FrontendAddress[:], k.Frontend.Addr().AsSlice())
	copy(key.EndpointAddress[:], k.Endpoint.Addr().AsSlice())
	return key
}

func keyOf(k hitsEndpointKey) Key {
	address := func(b [16]uint8) netip.Addr {
		if k.Family == 6 {
			return netip.AddrFrom16(b)
		}
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	frontend := address(k.FrontendAddress)
	if frontend.IsUnspecified() {
		frontend = netip.Addr{}
	}
	return Key{
		Frontend: netip.AddrPortFrom(frontend, k.FrontendPort),
		Endpoint: netip.AddrPortFrom(address(k.EndpointAddress), k.EndpointPort),
		Protocol: k.Protocol,
	}
}

func (r Reject) inKernel() hitsRejectKey {
	key := hitsRejectKey{Port: r.Port, Family: 4, Protocol: r.Protocol}
	if r.IPv6 {
		key.Family = 6
	}
	return key
}
