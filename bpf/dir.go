package bpf

import "os"

// HostDir gives the directory to pin to: DefaultDir in the machine's own network
// namespace, and none in another one, whose daemons would share it.
func HostDir() string {
	// One of the settings that only the first network namespace has.
	if _, err := os.Stat("/proc/sys/net/core/netdev_max_backlog"); err != nil {
		return ""
	}
	return DefaultDir
}
