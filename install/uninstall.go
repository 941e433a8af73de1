package install

import (
	"errors"
	"fmt"
)

// Removed says what Uninstall has done.
type Removed struct {
	Restored []string // lists of others that are back
	List     bool     // ours was there
	Plugin   bool     // it was there
	Attached int      // interfaces of pods that keep the rest here
}

// Uninstall takes our plugin off a node, in the order that harms least: first the list, so
// that no pod begins with it any more, then what clean removes, and the binary last. As long
// as pods are attached only the list goes: they need the rest, also to end.
func (p Places) Uninstall(clean func() error) (Removed, error) {
	var r Removed
	var err error
	if r.List, err = p.Withdraw(); err != nil {
		return r, err
	}
	if r.Restored, err = p.Restore(); err != nil {
		return r, err
	}
	if r.Attached, err = p.Attached(); err != nil || r.Attached > 0 {
		return r, err
	}
	if err := clean(); err != nil {
		return r, fmt.Errorf("clean up, the binary stays: %w", err)
	}
	r.Plugin, err = p.RemoveBinary()
	return r, errors.Join(err, p.removeUnmanaged())
}
