package cluster

import (
	"fmt"
	"net"
	"os"
	"testing"
)

func TestWhoHasAPortIsFound(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			l, err := net.Listen("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			port := l.Addr().(*net.TCPAddr).Port
			taken, by, err := listener("/proc", os.Getpid(), port)
			if err != nil || !taken || by != fmt.Sprintf("process %d (cluster.test)", os.Getpid()) {
				t.Errorf("port %d: taken %v by %s, %v", port, taken, by, err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if taken, by, err := listener("/proc", os.Getpid(), port); err != nil || taken {
				t.Errorf("port %d after the end: taken %v by %s, %v", port, taken, by, err)
			}
		})
	}
}
