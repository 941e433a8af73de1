package plugin

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// sockets ask the kernel, on the node and in the pod. An ADD asks some twenty times, and a
// socket for each time, as the library opens them, would wake a thread each time.
type sockets struct{ node, pod *netlink.Handle }

func (s *sockets) openNode() error { return openSocket(&s.node) }

// openPod is called in the pod's namespace.
func (s *sockets) openPod() error { return openSocket(&s.pod) }

func openSocket(to **netlink.Handle) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	*to = h
	return nil
}

func (s *sockets) close() {
	for _, h := range []*netlink.Handle{s.node, s.pod} {
		if h != nil {
			h.Close()
		}
	}
}

// eachTime opens a socket for each request, in the namespace of the calling thread.
func eachTime() *netlink.Handle { return new(netlink.Handle) }
