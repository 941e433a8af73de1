package network

import (
	"errors"
	"fmt"
	"io/fs"

	"onerule/daemon/neighbours"
	"onerule/nft/guard"
)

// raiseNeighbours makes room for the pods and nodes of a cluster.
func (n *Network) raiseNeighbours() {
	for _, f := range neighbours.Families() {
		changed, err := neighbours.Raise(n.neighbourFiles(), f)
		for _, c := range changed {
			n.cfg.Log.Info("the limit of neighbours is raised", "change", c)
		}
		if err != nil {
			n.cfg.Log.Error(err, "the limit of neighbours stays as it is", "family", f.String())
		}
	}
}

func (n *Network) neighbourFiles() neighbours.Roots {
	return neighbours.Roots{Sysctls: n.cfg.Sysctls, Stats: n.cfg.NeighbourStats}
}

// readNeighbours gives the tables of both families, without those that there are not.
func (n *Network) readNeighbours() map[neighbours.Family]neighbours.Table {
	tables := map[neighbours.Family]neighbours.Table{}
	for _, f := range neighbours.Families() {
		t, err := neighbours.Read(n.neighbourFiles(), f)
		switch {
		case err == nil:
			tables[f] = t
		case !errors.Is(err, fs.ErrNotExist):
			n.cfg.Log.Error(err, "how many neighbours there are is not known", "family", f.String())
		}
	}
	return tables
}

// crowded says which tables are nearly full, or were so since they were looked at.
func crowded(before, now map[neighbours.Family]neighbours.Table, permanent func(neighbours.Family, string) (int, error)) (texts []string) {
	for _, f := range neighbours.Families() {
		t := now[f]
		if earlier, known := before[f]; known && t.Refused > earlier.Refused {
			texts = append(texts, "the table of "+f.String()+" neighbours is full")
			continue
		}
		if !nearlyFull(t.Entries, t.Limit) {
			continue
		}
		exempt, err := permanent(f, guard.PodLinks)
		if err == nil && nearlyFull(t.Entries-exempt, t.Limit) {
			texts = append(texts, fmt.Sprintf("the table of %s neighbours is nearly full", f))
		}
	}
	return texts
}

// nearlyFull is so above four fifths. A limit of 0 is not known.
func nearlyFull(entries, limit int) bool { return limit > 0 && entries*5 > limit*4 }
