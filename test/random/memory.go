package random

import (
	"net/netip"

	"onerule/test/oracle"
)

// A Memory is what earlier packets left: pins, and who had one that is void now.
type Memory struct {
	Pins oracle.Pins
	left map[oracle.ServicePort]map[netip.Addr]bool
}

// NewMemory gives one of nothing.
func NewMemory() *Memory {
	return &Memory{Pins: oracle.Pins{}, left: map[oracle.ServicePort]map[netip.Addr]bool{}}
}

// Change forgets the pins that are void in a cluster as it is now.
func (m *Memory) Change(c oracle.Cluster, cfg oracle.Config) {
	kept := oracle.Prune(c, cfg, m.Pins)
	for port, clients := range m.Pins {
		for client := range clients {
			if kept[port][client] != clients[client] {
				m.leave(port, client)
			}
		}
	}
	for port := range m.left {
		if !oracle.HasAffinity(c, port) { // what it was pinned to then is of another time
			delete(m.left, port)
		}
	}
	m.Pins = kept
}

func (m *Memory) leave(port oracle.ServicePort, client netip.Addr) {
	if m.left[port] == nil {
		m.left[port] = map[netip.Addr]bool{}
	}
	m.left[port][client] = true
}

// Arrive remembers that a packet arrived at an endpoint.
func (m *Memory) Arrive(c oracle.Cluster, cfg oracle.Config, p oracle.Packet, at netip.AddrPort) {
	m.Pins = oracle.After(c, cfg, m.Pins, p, at)
}

// had says whether a client has or had a pin, whatever to.
func (m *Memory) had(port oracle.ServicePort, client netip.Addr) bool {
	return m.Pins[port][client] != oracle.Pin{} || m.left[port][client]
}
