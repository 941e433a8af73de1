package hostport

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// A Repair says what a load found that was not as it should be.
type Repair struct {
	// Tables are the families whose table was missing, Rules those whose rules were not
	// ours or not whole.
	Tables, Rules []string
	// Added and Deleted are elements.
	Added, Deleted int
	// Broken are the owners of records that can't be read. They stay until released.
	Broken []string
}

// Nothing says that the kernel had all as it should be.
func (r Repair) Nothing() bool {
	return len(r.Tables)+len(r.Rules)+r.Added+r.Deleted == 0
}

// Load makes the tables hold what stands in the folder, whatever they hold now, and
// forgets what is of another boot. If all is right already, nothing is written.
func (p *Ports) Load(ctx context.Context) (found Repair, err error) {
	if !p.hasFolder() {
		// Whoever claims a port meanwhile makes the folder first, and what was taken from
		// them is put back.
		if found, err = p.load(nil); err != nil || !p.hasFolder() {
			return found, err
		}
	}
	unlock, err := p.ledger.lock(ctx)
	if err != nil {
		return found, err
	}
	defer unlock()
	records, broken, old, err := p.ledger.read()
	if err != nil {
		return found, err
	}
	for _, owner := range old {
		if err := p.ledger.remove(owner); err != nil {
			return found, err
		}
	}
	found, err = p.load(records)
	found.Broken = broken
	return found, err
}

func (p *Ports) hasFolder() bool {
	_, err := os.Stat(p.ledger.dir)
	return !errors.Is(err, fs.ErrNotExist)
}

func (p *Ports) load(records []record) (found Repair, err error) {
	for _, f := range families() {
		done, err := reconcile(f, p.watcher, all(f, records))
		if err != nil {
			return found, err
		}
		if done.table {
			found.Tables = append(found.Tables, f.word())
		}
		if done.rules {
			found.Rules = append(found.Rules, f.word())
		}
		found.Added += done.added
		found.Deleted += done.deleted
	}
	return found, nil
}

func (f family) word() string {
	if f.number == unix.NFPROTO_IPV6 {
		return "ip6"
	}
	return "ip"
}

// Keep releases the ports of all owners that keep does not want, and names them.
func (p *Ports) Keep(ctx context.Context, keep func(owner string) bool) (released []string, err error) {
	if !p.hasFolder() {
		return nil, nil
	}
	unlock, err := p.ledger.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	records, broken, old, err := p.ledger.read()
	if err != nil {
		return nil, err
	}
	half, err := p.ledger.killed()
	if err != nil {
		return nil, err
	}
	owners := slices.Concat(broken, old, half)
	for _, r := range records {
		owners = append(owners, r.Owner)
	}
	slices.Sort(owners)
	for _, owner := range slices.Compact(owners) {
		if keep(owner) {
			continue
		}
		if err := p.release(owner); err != nil {
			return released, err
		}
		released = append(released, owner)
	}
	return released, nil
}
