package network

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"onerule/daemon/fabric/layout"
	"onerule/nft"
	"onerule/nft/guard"
	"onerule/nft/hostport"
)

// lockPatience is how long a plugin that claims a port may keep its folder locked.
const lockPatience = 10 * time.Second

// tables are those of the guard and of host ports. One goroutine has them.
type tables struct {
	network *Network
	monitor *nft.Monitor
	guards  map[nft.Family]*guard.Program
	due     bool // the tables of Services are loaded, or take too long
	brought bool // all was as it should be, once
	// ports are host ports of a folder, once there is one. known says that the kernel
	// holds what stands there, begun that it was looked at before.
	ports        *hostport.Ports
	folder       string
	known, begun bool
	broken       []string // owners whose records can't be read, as told
	several      bool     // folders, as told
}

func openTables(n *Network, m *nft.Monitor) (*tables, error) {
	t := &tables{network: n, monitor: m, guards: map[nft.Family]*guard.Program{}}
	for _, family := range n.cfg.Families {
		g, err := guard.Open(family)
		if err != nil {
			t.close()
			return nil, err
		}
		g.WatchedBy(m.Of(guard.TableName))
		if n.cfg.WithoutFib {
			g.WithoutFib()
		}
		if l := n.cfg.Settings.Layout; l.Encapsulation != layout.Never {
			g.VXLAN(l.Port)
		}
		t.guards[family] = g
	}
	n.put(func() { n.guards = t.guards })
	for _, line := range n.lacks() {
		n.cfg.Log.Info(line)
		n.event(n.cfg.Node, "GuardDegraded", line)
	}
	return t, nil
}

func (t *tables) close() {
	for _, g := range t.guards {
		_ = g.Close() // nothing is written any more
	}
}

// doubtPorts has host ports looked at again.
func (t *tables) doubtPorts() { t.known = false }

// found takes in what others did. Of host ports, the plugin is one of them: whether it did
// them harm is seen when they are read.
func (t *tables) found(list []nft.Foreign) {
	for _, f := range list {
		if f.Kind == nft.Lost || f.Table == hostport.TableName {
			t.known = false
		}
		for family, g := range t.guards {
			if f.Kind == nft.Lost || f.Table == guard.TableName && f.Family == family {
				g.Doubt()
			}
		}
		if f.Table == guard.TableName {
			t.network.cfg.Log.Info("others changed our table, it is put right", "change", f.String())
			t.network.repaired(kindGuard, f.String())
		}
	}
}

// bring makes the tables what they should be now.
func (t *tables) bring(ctx context.Context) error {
	ranges, known := t.network.ranges()
	if !t.due || !known {
		return nil
	}
	var errs []error
	for _, family := range t.network.cfg.Families {
		errs = append(errs, t.guard(ctx, family, ranges))
	}
	if !t.known {
		errs = append(errs, t.loadPorts(ctx))
	}
	err := errors.Join(errs...)
	t.brought = t.brought || err == nil
	return err
}

func (t *tables) guard(ctx context.Context, family nft.Family, want guard.Ranges) error {
	g := t.guards[family]
	if g.Known() {
		return g.Set(want)
	}
	found, err := g.Load(ctx, want)
	if err == nil && !found.Nothing() {
		t.network.cfg.Log.Info("table loaded", "table", fmt.Sprint(family, " ", guard.TableName), "because", found.String())
	}
	return err
}

// loadPorts makes the kernel hold the host ports that are claimed.
func (t *tables) loadPorts(ctx context.Context) error {
	if err := t.openPorts(); err != nil {
		return err
	}
	if t.ports == nil {
		t.network.cfg.HostPorts(nil)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	found, err := t.ports.Load(ctx)
	if err != nil {
		return fmt.Errorf("load host ports of %s: %w", t.folder, err)
	}
	if err := t.tellPorts(); err != nil {
		return err
	}
	begun := t.begun
	t.known, t.begun = true, true
	if !slices.Equal(found.Broken, t.broken) {
		t.broken = found.Broken
		t.network.cfg.Log.Info("records of host ports can't be read, and hold none", "folder", t.folder, "owners", strings.Join(found.Broken, ", "))
	}
	if found.Nothing() {
		return nil
	}
	note := fmt.Sprintf("tables missing: %d, with other rules: %d, elements added: %d, deleted: %d",
		len(found.Tables), len(found.Rules), found.Added, found.Deleted)
	t.network.cfg.Log.Info("host ports are put right", "folder", t.folder, "found", note)
	if begun {
		t.network.repaired(kindHostPorts, note)
	}
	return nil
}

// tellPorts tells who is claimed by the folder now. What changes meanwhile is an event.
func (t *tables) tellPorts() error {
	held, err := t.ports.Claims()
	if err != nil {
		return err
	}
	claims := make([]hostport.Claim, 0, len(held))
	for _, h := range held {
		claims = append(claims, h.Claim)
	}
	t.network.cfg.HostPorts(claims)
	return nil
}

// folders gives those in which the plugin keeps host ports: of several networks, those that
// have some.
func (t *tables) folders() ([]string, error) {
	list, err := filepath.Glob(filepath.Join(t.network.cfg.Settings.CNIState, "*", "hostports"))
	if err != nil || len(list) < 2 {
		return list, err
	}
	var held []string
	for _, folder := range list {
		ports, err := hostport.Open(folder)
		if err != nil {
			return nil, err
		}
		claims, err := ports.Claims()
		if err != nil {
			return nil, err
		}
		if len(claims) > 0 {
			held = append(held, folder)
		}
	}
	return held, nil
}

// openPorts finds the folder of host ports. Where there is none, there are none; and where
// several networks have some, their elements can't be told apart, and the tables are left
// alone.
func (t *tables) openPorts() error {
	folders, err := t.folders()
	if err != nil {
		return fmt.Errorf("look for host ports: %w", err)
	}
	if several := len(folders) > 1; several != t.several {
		t.several = several
		t.network.cfg.Log.Info("host ports are put right only where one network has some", "folders", strings.Join(folders, ", "))
	}
	if len(folders) != 1 {
		t.ports, t.folder, t.begun = nil, "", false
		return nil
	}
	if folders[0] == t.folder {
		return nil
	}
	ports, err := hostport.Open(folders[0])
	if err != nil {
		return err
	}
	ports.WatchedBy(t.monitor)
	t.ports, t.folder, t.begun = ports, folders[0], false
	return nil
}
