package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// portsOf are the TCP ports at which a piece serves.
func portsOf(piece string) []int {
	return map[string][]int{
		"etcd":                    {2379, 2380},
		"kube-apiserver":          {apiPort},
		"kube-controller-manager": {10257},
		"kube-scheduler":          {10259},
		"kubelet":                 {10248, 10250},
		"kube-proxy":              {10249, 10256},
		"oneruled":                {10249, 10256},
	}[piece]
}

// portsFree says which port of a piece is taken on the machine, and by whom.
func (m *Machine) portsFree(piece string) error {
	for _, port := range portsOf(piece) {
		taken, by, err := listener("/proc", m.pid, port)
		if err != nil {
			return fmt.Errorf("start %s on %s: %w", piece, m.name, err)
		}
		if taken {
			return fmt.Errorf("start %s on %s: port %d is taken by %s", piece, m.name, port, by)
		}
	}
	return nil
}

// listener finds who listens at a TCP port in the network namespace of a process.
func listener(proc string, pid, port int) (taken bool, by string, err error) {
	for _, file := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "net", file))
		if os.IsNotExist(err) && file == "tcp6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return false, "", fmt.Errorf("list listening sockets: %w", err)
		}
		if inode, found := listening(string(text), port); found {
			return true, owner(proc, inode), nil
		}
	}
	return false, "", nil
}

// listening finds a listening socket in a table of the kernel.
func listening(table string, port int) (inode string, found bool) {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[3] != "0A" {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		if p, err := strconv.ParseInt(hex, 16, 32); err == nil && int(p) == port {
			return fields[9], true
		}
	}
	return "", false
}

// owner says which process has a socket.
func owner(proc, inode string) string {
	links, err := filepath.Glob(filepath.Join(proc, "[0-9]*/fd/*"))
	if err != nil {
		return "an unknown process"
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != "socket:["+inode+"]" {
			continue
		}
		process := filepath.Dir(filepath.Dir(link))
		name, _ := os.ReadFile(filepath.Join(process, "comm")) // its number says enough
		return fmt.Sprintf("process %s (%s)", filepath.Base(process), strings.TrimSpace(string(name)))
	}
	return "an unknown process"
}
