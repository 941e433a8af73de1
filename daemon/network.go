package daemon

import (
	"context"
	"path/filepath"

	"onerule/daemon/inspect"
	"onerule/daemon/metrics"
	"onerule/daemon/model"
	"onerule/daemon/network"
	"onerule/nft"
)

// newNetwork makes the pod network, if there is to be one.
func (d *Daemon) newNetwork() *network.Network {
	if !d.settings.PodNetwork.On {
		return nil
	}
	return network.New(network.Config{
		Node:       d.cfg.Settings.Node,
		Families:   d.cfg.Families,
		WithoutFib: d.cfg.WithoutFib,
		Settings:   d.settings.PodNetwork,
		Sysctls:    filepath.Join(d.settings.SysctlDir, "net"),
		Event: func(e network.Event) {
			d.event(Event{Object: model.Key{Kind: model.KindNode, Name: model.Name{Name: e.Node}}, Reason: e.Reason, Note: e.Note})
		},
		Foreign:   func(kind string) { d.metrics.ForeignChange(kind) },
		HostPorts: d.loopback.claim,
		Log:       d.cfg.Log,
	})
}

// furtherTables gives those that are watched beside that of Services.
func (d *Daemon) furtherTables() []string {
	if d.network == nil {
		return nil
	}
	return network.Tables()
}

// keepNetwork keeps the pod network until ctx ends, if there is to be one.
func (d *Daemon) keepNetwork(ctx context.Context) {
	if d.network == nil {
		return
	}
	if err := d.network.Run(ctx, d.monitor, d.loaded); err != nil {
		d.end(err)
	}
}

// Changed takes a change of an object in. Of Nodes, Services depend on the own one only.
func (d *Daemon) Changed(c model.Change) {
	if d.network != nil && c.Key.Kind == model.KindNode {
		d.network.Changed(c)
		if c.Key.Name.Name != d.cfg.Settings.Node {
			return
		}
	}
	d.mailbox.Changed(c)
}

// Synced says that everything has been delivered once.
func (d *Daemon) Synced() {
	if d.network != nil {
		d.network.Synced()
	}
	d.mailbox.Synced()
}

// tellFoundOut gives what others did to those whose tables it concerns.
func (d *Daemon) tellFoundOut(found []nft.Foreign) {
	var services, further []nft.Foreign
	for _, f := range found {
		if f.Kind == nft.Lost || f.Table == nft.TableName {
			services = append(services, f)
		}
		if f.Kind == nft.Lost || f.Table != nft.TableName {
			further = append(further, f)
		}
	}
	if len(services) > 0 {
		d.mailbox.foreign(services)
	}
	if len(further) > 0 && d.network != nil {
		d.network.Found(further)
	}
}

// Serving gives what is closed once the pod network serves; nil: there is to be none.
func (d *Daemon) Serving() <-chan struct{} {
	if d.network == nil {
		return nil
	}
	return d.network.Serving()
}

// sample gives what reads the figures of the pod network; nil: there is none.
func (d *Daemon) sample() func() metrics.Network {
	if d.network == nil {
		return nil
	}
	return d.network.Sample
}

// podNetwork says what it is like to people.
func podNetwork(s network.Summary) *inspect.PodNetwork {
	p := &inspect.PodNetwork{Ranges: []string{}, Peers: s.Peers, Routed: s.Routed, Tunnelled: s.Tunnelled, Served: s.Served}
	for _, r := range s.Ranges {
		p.Ranges = append(p.Ranges, r.String())
	}
	switch {
	case s.Published:
		p.List = "published"
	case s.Installs:
		p.List = "not published yet"
	}
	return p
}
