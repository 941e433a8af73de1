package daemon

import (
	"net/netip"
	"sync"

	"onerule/localproxy"
	"onerule/nft"
	"onerule/nft/hostport"
)

// loopbackPorts serves ports on loopback addresses: NodePorts, and host ports where no
// NodePort has the number. Its methods may be called by several goroutines.
type loopbackPorts struct {
	nodePorts, hostPorts *localproxy.Proxy

	mu    sync.Mutex
	taken map[netip.AddrPort]bool           // by NodePorts, also by those without an endpoint
	pods  map[netip.AddrPort]netip.AddrPort // that host ports lead to
}

// newLoopback gives what serves ports on loopback addresses.
func (d *Daemon) newLoopback() *loopbackPorts {
	nodePorts, hostPorts := d.saysLoopback("NodePort"), d.saysLoopback("host port")
	said := nodePorts.Failed
	nodePorts.Failed = func(at netip.AddrPort, err error, again bool) {
		d.metrics.LocalhostFailed(familyLabel(familyOf(at.Addr())))
		said(at, err, again)
	}
	nodePorts.Listening = func(ipv6 bool, n int) {
		family := nft.IPv4
		if ipv6 {
			family = nft.IPv6
		}
		d.metrics.LocalhostListeners(familyLabel(family), n)
	}
	nodePorts.Given = func(at, endpoint netip.AddrPort) { d.tally.gave(at, endpoint) }
	return &loopbackPorts{
		nodePorts: localproxy.New(nodePorts), hostPorts: localproxy.New(hostPorts),
		taken: map[netip.AddrPort]bool{}, pods: map[netip.AddrPort]netip.AddrPort{},
	}
}

// saysLoopback gives what tells people of ports of a kind.
func (d *Daemon) saysLoopback(kind string) localproxy.Config {
	log := d.cfg.Log
	return localproxy.Config{
		Failed: func(at netip.AddrPort, err error, again bool) {
			if !again {
				log.Error(err, "a "+kind+" on a loopback address is not served, trying again", "address", at)
			}
		},
		Served: func(at netip.AddrPort) {
			log.Info("a "+kind+" on a loopback address is served now", "address", at)
		},
		NotTaken: func(at netip.AddrPort, err error) {
			log.Error(err, "connections to a "+kind+" on a loopback address are not taken", "address", at)
		},
		Unanswered: func(at, endpoint netip.AddrPort, err error) {
			log.V(2).Info("an endpoint does not answer", "address", at, "endpoint", endpoint, "err", err)
		},
	}
}

// take serves a NodePort. Without an endpoint nobody answers, as at the node's address.
func (l *loopbackPorts) take(at netip.AddrPort, s localproxy.Service, answers bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken[at] = true
	l.hostPorts.Delete(at)
	if !answers {
		l.nodePorts.Delete(at)
		return
	}
	l.nodePorts.Put(at, s)
}

// leave serves a NodePort no longer.
func (l *loopbackPorts) leave(at netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free(at)
}

func (l *loopbackPorts) free(at netip.AddrPort) {
	delete(l.taken, at)
	l.nodePorts.Delete(at)
	l.lead(at)
}

// keep leaves all NodePorts but these.
func (l *loopbackPorts) keep(these func(netip.AddrPort) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := range l.taken {
		if !these(at) {
			l.free(at)
		}
	}
}

// claim serves the host ports of these claims, and no others.
func (l *loopbackPorts) claim(claims []hostport.Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.pods)
	for _, c := range claims {
		if at, ok := c.Loopback(); ok {
			l.pods[at] = c.Pod
		}
	}
	l.hostPorts.Keep(func(at netip.AddrPort) bool { return l.pods[at].IsValid() })
	for at := range l.pods {
		l.lead(at)
	}
}

// lead serves a host port, if it is one and no NodePort has its number.
func (l *loopbackPorts) lead(at netip.AddrPort) {
	if pod := l.pods[at]; pod.IsValid() && !l.taken[at] {
		l.hostPorts.Put(at, localproxy.Service{Endpoints: []netip.AddrPort{pod}})
	}
}

// hostPort gives the pod whose host port is served at a loopback address, why it is not, and
// whether it is to be.
func (l *loopbackPorts) hostPort(at netip.AddrPort) (pod netip.AddrPort, fault string, led bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pod = l.pods[at]
	if !pod.IsValid() || l.taken[at] {
		return pod, "", false
	}
	return pod, l.hostPorts.Fault(at), true
}

// fault says why a NodePort that has an endpoint is not served; "" if it is.
func (l *loopbackPorts) fault(at netip.AddrPort) string { return l.nodePorts.Fault(at) }

func (l *loopbackPorts) close() {
	l.nodePorts.Close()
	l.hostPorts.Close()
}
