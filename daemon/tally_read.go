package daemon

import (
	"net/netip"

	"onerule/bpf"
	"onerule/daemon/metrics"
	"onerule/daemon/model"
	"onerule/daemon/plan"
)

// A share is an endpoint of a service port; one that is not valid stands for all that
// are gone.
type share struct {
	of       plan.ServicePort
	endpoint netip.AddrPort
}

// hits gives what was counted, by service port and endpoint. There is nothing as long as not
// all is known again that a daemon before this one knew: a part of a sum is less than the sum
// was, and is taken for one that began anew.
func (t *tally) hits() ([]metrics.Hit, error) {
	if !t.isWhole() {
		return nil, nil
	}
	sums, err := t.sums()
	if err != nil {
		return nil, err
	}
	list := make([]metrics.Hit, 0, len(sums))
	for s, n := range sums {
		h := metrics.Hit{Connections: n, ServicePort: metrics.ServicePort{
			Namespace: s.of.Service.Namespace, Service: s.of.Service.Name, Port: s.of.Port, Protocol: s.of.Protocol.String(),
		}}
		if s.endpoint.IsValid() {
			h.Endpoint = s.endpoint.String()
		}
		list = append(list, h)
	}
	return list, nil
}

func (t *tally) isWhole() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.whole
}

// sums adds up what all frontends have counted. What moves from one key to another while
// the map is read would be there twice or not at all, and a sum that falls is taken for
// one that began anew: so it is read again then, and at last without letting anything move.
func (t *tally) sums() (map[share]uint64, error) {
	for range 2 {
		t.mu.Lock()
		t.settle()
		before := t.moved
		t.mu.Unlock()
		read, err := t.read()
		if err != nil {
			return nil, err
		}
		t.mu.Lock()
		if t.moved == before {
			defer t.mu.Unlock()
			return t.byOwner(read), nil
		}
		t.mu.Unlock()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	read, err := t.read()
	return t.byOwner(read), err
}

func (t *tally) read() (map[bpf.Key]uint64, error) {
	read := map[bpf.Key]uint64{}
	err := t.counters.Load().Hits(func(k bpf.Key, n uint64) { read[k] = n })
	return read, err
}

func (t *tally) byOwner(read map[bpf.Key]uint64) map[share]uint64 {
	sums := map[share]uint64{}
	for k, n := range read {
		c, ours := t.known[frontendOf(k)]
		if !ours {
			continue
		}
		s := share{c.of, k.Endpoint}
		if k.Endpoint == nobody(c.of.Family) {
			s.endpoint = netip.AddrPort{}
		}
		s.of.Family = 0 // families are one Service
		sums[s] += n
	}
	return sums
}

// rejected gives the packets to NodePorts on loopback addresses that were refused, by
// protocol.
func (t *tally) rejected(ipv6 bool) (map[string]uint64, error) {
	if t.counters.Load() == nil {
		return nil, nil
	}
	sums := map[string]uint64{}
	err := t.counters.Load().Rejects(func(r bpf.Reject, n uint64) {
		if r.IPv6 == ipv6 {
			sums[model.Protocol(r.Protocol).String()] += n
		}
	})
	return sums, err
}
