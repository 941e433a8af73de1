package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"onerule/nft/inspect"
)

const (
	defaultStatusFile = "/run/onerule/network.json"
	// staleAfter is three times the interval in which a daemon that lives writes its
	// file.
	staleAfter = 90 * time.Second
	// guardTable is what onerule/nft/guard calls it.
	guardTable = "onerule-guard"
)

// A told is what the daemon on this node says: it sees routes to other nodes and rules of
// others, which this process does not. The plugin needs no daemon, so a file that is missing
// or no status says nothing.
type told struct {
	Time       time.Time `json:"time"`
	Conditions []struct {
		Code    uint   `json:"code"`
		Message string `json:"message"`
	} `json:"conditions"`
	// Served says that the daemon brought in all that it has to, once.
	Served bool `json:"served"`
}

func readTold(stdin []byte) (told, error) {
	path, err := statusFile(stdin)
	if err != nil {
		return told{}, err
	}
	var d told
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, &d) != nil {
		return told{}, nil
	}
	return d, nil
}

// unavailable gives what it says that keeps pods from being made, as long as it lives.
func (d told) unavailable(now time.Time) error {
	return d.first(now, func(code uint) bool { return code == types.ErrPluginNotAvailable })
}

// limited gives what else it says that is wrong.
func (d told) limited(now time.Time) error {
	return d.first(now, func(code uint) bool { return code != types.ErrPluginNotAvailable })
}

func (d told) first(now time.Time, is func(code uint) bool) error {
	if now.Sub(d.Time).Abs() > staleAfter {
		return nil
	}
	for _, c := range d.Conditions {
		if is(c.Code) {
			return errors.New(c.Message)
		}
	}
	return nil
}

// checkGuard wants the tables that keep pods from sending with others' addresses, once a
// daemon has brought them in: it need not live for them to stand. They are the node's and
// hold nothing of a pod, so to be there is all that is asked of them; what is in them is
// the daemon's concern.
func (d told) checkGuard(addrs []netip.Addr) error {
	boot, err := bootTime()
	if err != nil || !d.Served || d.Time.Before(boot) || len(addrs) == 0 {
		return err
	}
	r, err := inspect.Open()
	if err != nil {
		return fmt.Errorf("ask for the tables of the guard: %w", err)
	}
	defer func() { _ = r.Close() }()
	for _, f := range familiesOf(addrs) {
		table := inspect.Table{Family: unix.NFPROTO_IPV4, Name: guardTable}
		if f == ipv6 {
			table.Family = unix.NFPROTO_IPV6
		}
		flags, there, err := r.Flags(table)
		switch {
		case err != nil:
			return fmt.Errorf("ask for the %s table %s: %w", f, guardTable, err)
		case !there:
			return fmt.Errorf("there is no %s table %s any more, which the node's daemon made", f, guardTable)
		case flags&unix.NFT_TABLE_F_DORMANT != 0:
			return fmt.Errorf("the %s table %s is dormant", f, guardTable)
		}
	}
	return nil
}

func statusFile(stdin []byte) (string, error) {
	var in struct {
		StatusFile string `json:"statusFile"`
	}
	if err := json.Unmarshal(stdin, &in); err != nil {
		return "", failure(types.ErrDecodingFailure, err, "decode the network configuration")
	}
	switch {
	case in.StatusFile == "":
		return defaultStatusFile, nil
	case !filepath.IsAbs(in.StatusFile):
		return "", badConfig("statusFile", in.StatusFile, errors.New("not an absolute path"))
	}
	return in.StatusFile, nil
}
