package plugin

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

const (
	defaultStatusFile = "/run/onerule/network.json"
	// staleAfter is three times the interval in which a daemon that lives writes its
	// file.
	staleAfter = 90 * time.Second
)

// told gives what the daemon on this node says that is wrong: it sees routes to other
// nodes and rules of others, which this process does not. The plugin needs no daemon, so
// a file that is missing, old or no status says nothing.
func (p Process) told(stdin []byte) error {
	path, err := statusFile(stdin)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var said struct {
		Time       time.Time `json:"time"`
		Conditions []struct {
			Code    uint   `json:"code"`
			Message string `json:"message"`
		} `json:"conditions"`
	}
	if json.Unmarshal(b, &said) != nil || p.Now().Sub(said.Time).Abs() > staleAfter {
		return nil
	}
	var worst error
	for _, c := range said.Conditions {
		if c.Code == types.ErrPluginNotAvailable {
			return failure(c.Code, nil, "the node's daemon: %s", c.Message)
		}
		if worst == nil {
			worst = failure(types.ErrLimitedConnectivity, nil, "the node's daemon: %s", c.Message)
		}
	}
	return worst
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
