package wired

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// Retransmissions asks the kernel how many segments of a connection were sent again, which
// is the SYN as long as nothing else was sent.
func Retransmissions(c *net.TCPConn) (n uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = info.Total_retrans
		}
	})
	return n, errors.Join(err, controlErr)
}
