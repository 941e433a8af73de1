package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// HandBack gives the addresses that pods have to host-local, where a list of others that is
// there or was set aside uses it: their pods go on, and no new one gets what they have. It
// gives how many there were.
func (p Places) HandBack(ctx context.Context) (int, error) {
	dir, err := p.hostLocal()
	if err != nil || dir == "" {
		return 0, err
	}
	if _, err := os.Stat(p.State); errors.Is(err, fs.ErrNotExist) {
		return 0, nil // no pod ever was here
	}
	if _, err := os.Stat(p.Binary()); errors.Is(err, fs.ErrNotExist) {
		return 0, nil // it goes last, when all is done
	}
	cmd := exec.CommandContext(ctx, p.Binary(), "hand-back", p.State, dir)
	cmd.Env = []string{}
	if p.Sysctls != "" {
		cmd.Env = append(cmd.Env, "ONERULE_SYSCTL_DIR="+p.Sysctls)
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("hand addresses back to host-local: %w: %s", err, strings.TrimSpace(said.String()))
	}
	var done struct {
		Addresses int `json:"addresses"`
	}
	if err := json.Unmarshal(out.Bytes(), &done); err != nil {
		return 0, fmt.Errorf("hand addresses back to host-local: what %s says: %w", p.Binary(), err)
	}
	return done.Addresses, nil
}

// hostLocal gives the directory of host-local's reservations of the first list of others
// that has any, or "".
func (p Places) hostLocal() (string, error) {
	lists, err := p.lists(func(name string) bool { return name != ListName })
	if err != nil {
		return "", err
	}
	for _, o := range lists {
		for _, r := range o.reservations {
			if dir := p.directory(r); dir != "" {
				return dir, nil
			}
		}
	}
	return "", nil
}

// directory gives where reservations are, or "" if they can't be anywhere.
func (p Places) directory(r reservations) string {
	dataDir := r.dataDir
	if dataDir == "" {
		dataDir = p.usualReservations()
	}
	if r.network == "" || !filepath.IsAbs(dataDir) {
		return ""
	}
	return filepath.Join(dataDir, r.network)
}

func (p Places) usualReservations() string {
	if p.Reservations == "" {
		return defaultReservations
	}
	return p.Reservations
}
