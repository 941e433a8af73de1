package daemon

import "onerule/daemon/model"

// changesAtOnce have about as many elements as a transaction, for Services as they usually
// are: a zone or a ServiceCIDR that changes does not wait for more than that.
const changesAtOnce = 2000

// atOnce says how many changes are written at once; 0: all. A load writes everything, and
// who wants quiet between two writes gets few of them.
func (d *Daemon) atOnce() int {
	if !d.isLoaded() || d.settings.MinSyncPeriod > usualPause {
		return 0
	}
	return changesAtOnce
}

// later takes out what is beyond that, and gives it. The loop calls it, which owns the ledger.
func (d *Daemon) later(l *letters) map[model.Key]model.Change {
	return l.hold(d.atOnce(), d.ledger.ServiceOf)
}

// hold takes out what is beyond so many changes, and gives it. What belongs together is one
// group, and stays together also where it alone is more.
func (l *letters) hold(most int, serviceOf serviceOf) map[model.Key]model.Change {
	if most == 0 || len(l.changes) <= most {
		return nil
	}
	rest := l.changes
	l.changes = make(map[model.Key]model.Change, most)
	for _, g := range groupsOf(rest, serviceOf) {
		if n := len(l.changes); n > 0 && n+len(g.keys) > most {
			break
		}
		for _, key := range g.keys {
			l.changes[key] = rest[key]
			delete(rest, key)
		}
	}
	return rest
}

// rank says which changes come first: what all Services depend on; then Services that are
// gone, before others that may have their addresses, so that none refuses for a moment; and
// endpoints before Services that may be new.
func rank(c model.Change) int {
	switch gone := c.Service == nil && c.EndpointSlice == nil; {
	case c.Key.Kind == model.KindNode, c.Key.Kind == model.KindServiceCIDR:
		return 0
	case gone && c.Key.Kind == model.KindService:
		return 1
	case c.Key.Kind == model.KindEndpointSlice:
		return 2
	}
	return 3
}
