package hostport

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A socket is one that is bound to a port, at an address or at all of a family; the zero
// value if it can't be found.
type socket struct {
	local netip.Addr
	inode string
}

// process says for people whose it is, as well as can be found: a process may be another
// container's, or end meanwhile.
func (s socket) process() string {
	const nameless = "a process of the node"
	if s.inode == "" {
		return nameless
	}
	pids, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nameless
	}
	for _, dir := range pids {
		if !hasSocket(dir, s.inode) {
			continue
		}
		name, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			return nameless
		}
		return fmt.Sprintf("process %s (%s)", bytes.TrimSpace(name), filepath.Base(dir))
	}
	return nameless
}

// socketsOf finds the sockets that are bound to the port, in the lists of both families: a
// socket of IPv6 may take IPv4 too.
func socketsOf(c Claim) (all []socket) {
	for _, list := range []string{c.Protocol.String(), c.Protocol.String() + "6"} {
		f, err := os.Open("/proc/thread-self/net/" + list)
		if err != nil {
			continue // sctp has lists of another form
		}
		all = append(all, socketsIn(f, c)...)
		_ = f.Close()
	}
	return all
}

// socketsIn reads lines such as "0: 00000000:1F90 00000000:0000 0A 00000000:00000000
// 00:00000000 00000000 0 0 12345": the addresses of both ends, the state, and the inode.
func socketsIn(f *os.File, c Claim) (all []socket) {
	const (
		local, state, node = 1, 3, 9
		listening          = "0A"
	)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= node || c.Protocol == TCP && fields[state] != listening {
			continue
		}
		hexAddr, hexPort, _ := strings.Cut(fields[local], ":")
		if port, err := strconv.ParseUint(hexPort, 16, 16); err == nil && uint16(port) == c.HostPort {
			all = append(all, socket{addressIn(hexAddr), fields[node]})
		}
	}
	return all
}

// addressIn reads an address that is written as words of the machine's byte order.
func addressIn(digits string) netip.Addr {
	const perWord = 8
	var b []byte
	for len(digits) >= perWord {
		word, err := strconv.ParseUint(digits[:perWord], 16, 32)
		if err != nil {
			return netip.Addr{}
		}
		b, digits = binary.NativeEndian.AppendUint32(b, uint32(word)), digits[perWord:]
	}
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap()
}

func hasSocket(dir, inode string) bool {
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return false // ended, or not ours to see
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil && to == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}
