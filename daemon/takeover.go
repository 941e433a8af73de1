package daemon

import (
	"context"
	"time"

	"onerule/nft/takeover"
)

// lookAgain is how often rules of kube-proxy are looked for: one that still runs writes
// them again.
const lookAgain = time.Minute

// takeOver removes what a kube-proxy has left on the node, once our own rules are in, and
// says so if it comes back. It ends with ctx.
func (d *Daemon) takeOver(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-d.loaded:
	}
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for times := 0; ; {
		if d.removeLeftovers(ctx, times > 0) {
			times++
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// removeLeftovers says whether there was anything, and it is gone.
func (d *Daemon) removeLeftovers(ctx context.Context, again bool) bool {
	found, err := takeover.Find(ctx)
	if err != nil {
		d.cfg.Log.Error(err, "cannot tell all that a kube-proxy has left on this node")
	}
	if found.Empty() {
		return false
	}
	d.cfg.Log.Info("the rules of kube-proxy are removed, ours are in", "found", found.String())
	if again {
		d.cfg.Log.Info("kube-proxy runs beside: it is to be stopped on this node")
		d.event(Event{Object: d.nodeKey(), Reason: "KubeProxyRunsBeside", Note: "kube-proxy writes its rules again: " + found.String()})
	}
	if err := takeover.Remove(ctx, found); err != nil {
		d.cfg.Log.Error(err, "not all that a kube-proxy has left could be removed, trying again", "after", lookAgain)
		return false
	}
	return true
}
