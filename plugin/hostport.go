package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"

	"onerule/nft/hostport"
)

// parsePorts reads portMappings, and refuses what could not be claimed by a pod with
// addresses of our ranges.
func (c *config) parsePorts(raw json.RawMessage) ([]hostport.Mapping, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var ports []hostport.Mapping
	if err := json.Unmarshal(raw, &ports); err != nil {
		return nil, badPorts(err)
	}
	var pod []netip.Addr
	for _, set := range c.ranges {
		pod = append(pod, set[0].first)
	}
	if _, err := hostport.Claims(ports, pod); err != nil {
		return nil, badPorts(err)
	}
	return ports, nil
}

func badPorts(err error) error {
	return failure(types.ErrInvalidNetworkConfig, err, "runtimeConfig.portMappings")
}

// openPorts gives the ports of the node that lead to pods of this network. An
// attachment holds its by the name of its file.
func (s *store) openPorts() (*hostport.Ports, error) {
	return hostport.Open(s.portsDir())
}

const portsFolder = "hostports"

func (s *store) portsDir() string { return filepath.Join(s.dir, portsFolder) }

// withPorts does something that may have to wait for the lock of all host ports.
func (s *store) withPorts(do func(context.Context, *hostport.Ports) error) error {
	ports, err := s.openPorts()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.base.lockTimeout)
	defer cancel()
	return do(ctx, ports)
}

// claimPorts leads the ports on record to their pod.
func (s *store) claimPorts(rec *record) error {
	if err := s.refuseSecondNetwork(); err != nil {
		return err
	}
	err := s.withPorts(func(ctx context.Context, ports *hostport.Ports) error {
		return ports.Claim(ctx, rec.key().fileName(), rec.HostPorts)
	})
	var taken *hostport.TakenError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &taken):
		return failure(codePortTaken, err, "a host port is taken")
	case errors.Is(err, context.DeadlineExceeded):
		return failure(types.ErrTryAgainLater, err, "host ports: still locked after %s", s.base.lockTimeout)
	}
	return failure(codeWiring, err, "lead host ports to the pod")
}

// refuseSecondNetwork keeps a node's host ports with one network: the tables follow its
// folder, and what another one put there would go.
func (s *store) refuseSecondNetwork() error {
	folders, err := filepath.Glob(filepath.Join(s.base.dataDir, "*", portsFolder))
	if err != nil {
		return failure(types.ErrIOFailure, err, "host ports")
	}
	for _, folder := range folders {
		if folder == s.portsDir() {
			continue
		}
		ports, err := hostport.Open(folder)
		if err != nil {
			return failure(types.ErrIOFailure, err, "host ports")
		}
		held, err := ports.Claims()
		if err != nil {
			return failure(types.ErrIOFailure, err, "host ports")
		}
		if len(held) > 0 {
			return failure(codePortTaken, nil, "host ports of this node are those of network %s, as %s of %s",
				filepath.Base(filepath.Dir(folder)), held[0].Claim, held[0].Owner)
		}
	}
	return nil
}

// releasePorts gives back the ports of an attachment. Where it had none this is a look
// for files. Where others deleted its claim, all ports in the kernel are compared: what
// is there of this one must not lead to the next pod with its address.
func (s *store) releasePorts(k key, rec *record) error {
	return s.withPorts(func(ctx context.Context, ports *hostport.Ports) error {
		lost := rec != nil && len(rec.HostPorts) > 0 &&
			errors.Is(statError(filepath.Join(s.portsDir(), k.fileName()+".json")), fs.ErrNotExist)
		err := ports.Release(ctx, k.fileName())
		if err == nil && lost {
			_, err = ports.Load(ctx)
		}
		return err
	})
}

// checkPorts says what is missing of the ports on record.
func (s *store) checkPorts(rec *record) error {
	if len(rec.HostPorts) == 0 {
		return nil
	}
	ports, err := s.openPorts()
	if err != nil {
		return err
	}
	return ports.Check(rec.key().fileName(), rec.HostPorts)
}

// checkAllPorts looks at pods that have a link: the ports of the others go with them.
func (s *store) checkAllPorts(living []*record) error {
	for _, rec := range living {
		if len(rec.HostPorts) == 0 || linkGone(rec.HostLink) {
			continue
		}
		if err := s.checkPorts(rec); err != nil {
			return fmt.Errorf("%s: %w", rec.key(), err)
		}
	}
	return nil
}

// ports releases those of attachments that nothing else speaks of. A record comes before
// its ports and goes after them, so none is missed that an ADD is at work on.
func (w *sweep) ports() error {
	all, _, err := w.reservations()
	if err != nil {
		return err
	}
	reserved := map[string]bool{}
	for _, r := range all {
		reserved[w.recordOf(r).key().fileName()] = true
	}
	return w.withPorts(func(ctx context.Context, ports *hostport.Ports) error {
		claims := countClaims(ports)
		released, err := ports.Keep(ctx, func(owner string) bool {
			missing := errors.Is(statError(filepath.Join(w.dir, "attachments", owner+".json")), fs.ErrNotExist)
			return reserved[owner] || !missing
		})
		for _, owner := range released {
			w.swept.HostPorts += claims[owner]
			w.note("released the host ports of %s: no attachment has them", owner)
		}
		return err
	})
}

// countClaims gives how many ports each owner has, as far as that can be read.
func countClaims(ports *hostport.Ports) map[string]int {
	held, err := ports.Claims()
	if err != nil {
		return nil
	}
	count := map[string]int{}
	for _, h := range held {
		count[h.Owner]++
	}
	return count
}
