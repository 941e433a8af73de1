package guard

import (
	"fmt"
	"strings"

	"onerule/nft"
	"onerule/nft/inspect"
)

// OfPod says whether a device is the node's end of a pod's link, by its name.
func OfPod(device string) bool {
	return strings.HasPrefix(device, PodLinks) && !strings.HasPrefix(device, ownDevices)
}

// There says whether a family's table is in the kernel, whoever has loaded it.
func There(f nft.Family) (bool, error) {
	r, err := inspect.Open()
	if err != nil {
		return false, err
	}
	defer func() { _ = r.Close() }()
	_, there, err := r.Flags((&Program{family: f}).table())
	if err != nil {
		return false, fmt.Errorf("look for table %s %s: %w", f, TableName, err)
	}
	return there, nil
}
