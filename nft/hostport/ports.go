package hostport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A Watcher tells commits of ours from those of others.
type Watcher interface {
	// Own says that what is committed through the socket with this port ID is ours, until
	// the returned function is called.
	Own(port uint32) (closed func())
}

// Ports are the ports of the node that lead to pods. Several processes may use the same
// folder at a time; all of them work in the network namespace of the calling thread.
type Ports struct {
	ledger  ledger
	watcher Watcher
}

// Open takes a folder, such as /var/lib/cni/onerule/NETWORK/hostports, which is made when
// the first port is claimed.
func Open(dir string) (*Ports, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot ID: %w", err)
	}
	return &Ports{ledger: ledger{filepath.Clean(dir), strings.TrimSpace(string(b))}}, nil
}

// WatchedBy tells a watcher which commits are ours.
func (p *Ports) WatchedBy(w Watcher) { p.watcher = w }

// Names gives the tables that a monitor should watch.
func Names() []string { return []string{TableName} }

// Claim takes ports for an owner, all or none, in place of those that it had. A port that
// is held gives a *TakenError, after a while if the holder may be a proxy that follows the
// folder. UDP flows from before that go elsewhere are deleted, so that a client which keeps
// its port reaches the pod.
func (p *Ports) Claim(ctx context.Context, owner string, claims []Claim) error {
	if len(claims) == 0 {
		return nil
	}
	for _, c := range claims {
		if err := c.check(); err != nil {
			return err
		}
	}
	return patiently(ctx, func() error { return p.claim(ctx, owner, claims) })
}

func (p *Ports) claim(ctx context.Context, owner string, claims []Claim) error {
	unlock, err := p.ledger.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	records, _, _, err := p.ledger.read()
	if err != nil {
		return err
	}
	if err := p.free(owner, records, claims); err != nil {
		return err
	}
	_, again := find(records, owner)
	if err := p.ledger.put(record{p.ledger.boot, owner, claims}); err != nil {
		return err
	}
	if err = p.lead(owner, claims, again); err == nil {
		err = deleteElsewhere(claims)
	}
	if err != nil && !again { // else its ports may lead to it still
		err = errors.Join(err, p.release(owner))
	}
	return err
}

// free says who holds one of the ports: another owner, a Service, or a process on the
// node.
func (p *Ports) free(owner string, records []record, claims []Claim) error {
	for _, c := range claims {
		for _, r := range records {
			if r.Owner != owner && slices.ContainsFunc(r.Claims, c.overlaps) {
				return &TakenError{Claim: c, Owner: r.Owner, By: r.Owner}
			}
		}
		if own, _ := find(records, owner); slices.ContainsFunc(own.Claims, c.samePort) {
			continue // its proxy may listen there
		}
		if err := errors.Join(freeOfServices(c), freeOfProcesses(c)); err != nil {
			return err
		}
	}
	return nil
}

func find(records []record, owner string) (record, bool) {
	for _, r := range records {
		if r.Owner == owner {
			return r, true
		}
	}
	return record{}, false
}

// lead writes the elements of an owner, in one transaction for each family. An owner that
// claims again may have been interrupted: all that stands in the folder is compared.
func (p *Ports) lead(owner string, claims []Claim, again bool) error {
	for _, f := range families() {
		if err := p.leadIn(f, elements(f, owner, claims), again); err != nil {
			return err
		}
	}
	return nil
}

// leadIn also compares all where the table is not there, or is another version's.
func (p *Ports) leadIn(f family, list []element, again bool) error {
	if again {
		return p.reconcile(f)
	}
	if len(list) == 0 {
		return nil
	}
	ok, err := ready(f)
	if err != nil {
		return err
	}
	if !ok {
		return p.reconcile(f)
	}
	t, err := begin(f, p.watcher)
	if err != nil {
		return err
	}
	defer t.close()
	err = errors.Join(t.add(list), t.commit())
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) { // others wrote
		return p.reconcile(f)
	}
	return err
}

// reconcile makes a table hold what stands in the folder.
func (p *Ports) reconcile(f family) error {
	records, _, _, err := p.ledger.read()
	if err != nil {
		return err
	}
	_, err = reconcile(f, p.watcher, all(f, records))
	return err
}

func all(f family, records []record) []element {
	var list []element
	for _, r := range records {
		list = append(list, elements(f, r.Owner, r.Claims)...)
	}
	return list
}

// Release gives the ports of an owner back, and deletes the UDP flows to its pod. An owner
// without ports costs a look for two files. A record that can't be read is released too.
func (p *Ports) Release(ctx context.Context, owner string) error {
	path, err := p.ledger.path(owner)
	if err != nil {
		return err
	}
	_, err = os.Lstat(path)
	_, half := os.Lstat(p.ledger.beside(owner))
	if errors.Is(err, fs.ErrNotExist) && errors.Is(half, fs.ErrNotExist) {
		return nil
	}
	unlock, err := p.ledger.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return p.release(owner)
}

func (p *Ports) release(owner string) error {
	r, err := p.ledger.get(owner)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return p.ledger.remove(owner)
	case err != nil: // what it held stands nowhere but in the kernel
		if err := p.ledger.remove(owner); err != nil {
			return err
		}
		return errors.Join(p.reconcile(ipv4()), p.reconcile(ipv6()))
	case r.Boot != p.ledger.boot:
		return p.ledger.remove(owner)
	}
	if err := p.unlead(r); err != nil {
		return err
	}
	return errors.Join(deleteLeading(r.Claims), p.ledger.remove(owner))
}

// unlead deletes the elements of a record. If some are gone already, or the table is, the
// rest is compared with the folder, without the record.
func (p *Ports) unlead(r record) error {
	for _, f := range families() {
		gone := elements(f, r.Owner, r.Claims)
		if len(gone) == 0 {
			continue
		}
		t, err := begin(f, p.watcher)
		if err != nil {
			return err
		}
		err = errors.Join(t.delete(gone), t.commit())
		t.close()
		if errors.Is(err, unix.ENOENT) {
			err = p.reconcileWithout(f, r.Owner)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *Ports) reconcileWithout(f family, owner string) error {
	records, _, _, err := p.ledger.read()
	if err != nil {
		return err
	}
	records = slices.DeleteFunc(records, func(r record) bool { return r.Owner == owner })
	_, err = reconcile(f, p.watcher, all(f, records))
	return err
}

// Check says what is missing of an owner's ports: in the folder, or in the kernel.
func (p *Ports) Check(owner string, claims []Claim) error {
	r, err := p.ledger.get(owner)
	if errors.Is(err, fs.ErrNotExist) && len(claims) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	for _, c := range claims {
		if !slices.Contains(r.Claims, c) || r.Boot != p.ledger.boot {
			return fmt.Errorf("%s is not claimed by %s", c, owner)
		}
	}
	for _, f := range families() {
		if err := p.checkIn(f, elements(f, owner, claims)); err != nil {
			return err
		}
	}
	return nil
}

func (p *Ports) checkIn(f family, want []element) error {
	if len(want) == 0 {
		return nil
	}
	ok, err := ready(f)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("table %s is missing or another version's", TableName)
	}
	t, err := begin(f, p.watcher)
	if err != nil {
		return err
	}
	defer t.close()
	have, err := t.read()
	if err != nil {
		return err
	}
	if missing := subtract(want, have); len(missing) > 0 {
		return fmt.Errorf("%d elements of table %s are missing or lead elsewhere, first in %s", len(missing), TableName, missing[0].set)
	}
	return nil
}

// Held is a port and who holds it.
type Held struct {
	Owner string
	Claim
}

// Claims gives all that are held, by owner. A proxy on the node serves those at loopback
// addresses.
func (p *Ports) Claims() ([]Held, error) {
	records, _, _, err := p.ledger.read()
	var list []Held
	for _, r := range records {
		for _, c := range r.Claims {
			list = append(list, Held{r.Owner, c})
		}
	}
	return list, err
}
