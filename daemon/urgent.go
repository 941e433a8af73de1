package daemon

import (
	"cmp"
	"maps"
	"slices"

	"onerule/daemon/model"
)

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

// hold takes out what is beyond so many changes, and gives it.
func (l *letters) hold(most int) map[model.Key]model.Change {
	rest := map[model.Key]model.Change{}
	if most == 0 || len(l.changes) <= most {
		return rest
	}
	keys := slices.SortedFunc(maps.Keys(l.changes), func(a, b model.Key) int {
		return cmp.Compare(rank(l.changes[a]), rank(l.changes[b]))
	})
	for _, key := range keys[most:] {
		rest[key] = l.changes[key]
		delete(l.changes, key)
	}
	return rest
}

// rank says which changes come first: what all Services depend on; then Services that are
// gone, before others that may have their addresses and before their slices, so that none
// refuses for a moment; and slices before the Services that may be new.
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
