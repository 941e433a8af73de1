package fabric

import (
	"fmt"

	"onerule/daemon/fabric/layout"
)

// Remove takes out what Run made, in the network namespace of the calling thread: our
// routes, and the VXLAN device with what is on it. Settings stay, since nobody knows what
// they were before, and who needs them by now.
func Remove() error {
	cfg := Defaults()
	k, err := openKernel(cfg.Sysctls, cfg.PodLinks)
	if err != nil {
		return err
	}
	defer k.close()
	have, err := k.read(nil)
	if err != nil {
		return err
	}
	have.Settings = nil
	var failed failures
	for _, c := range layout.Diff(have, layout.NewState()) {
		if err := k.apply(c); err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("remove routes between nodes: %w", failed)
	}
	return nil
}
