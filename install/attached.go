package install

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Attached counts the pods' interfaces of our plugin whose links are there, in the network
// namespace of the process. A record that can't be read counts, since its pod may live.
func (p Places) Attached() (int, error) {
	records, err := filepath.Glob(filepath.Join(p.State, "*", "attachments", "*.json"))
	if err != nil {
		return 0, fmt.Errorf("look for attachments: %w", err)
	}
	count := 0
	for _, path := range records {
		b, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue
		}
		var r struct {
			HostLink string `json:"hostLink"`
		}
		if err != nil || json.Unmarshal(b, &r) != nil || r.HostLink == "" || linkExists(r.HostLink) {
			count++
		}
	}
	return count, nil
}

func linkExists(name string) bool {
	_, err := os.Stat(filepath.Join("/proc/sys/net/ipv4/conf", name))
	return err == nil
}
