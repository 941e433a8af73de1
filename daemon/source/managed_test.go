package source

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/go-logr/logr"
	discoveryv1 "k8s.io/api/discovery/v1"

	"onerule/daemon/model"
)

// Every writer of an object leaves managed fields in it, which no rule follows from: they
// take no memory once the objects are read.
func TestR140056ManagedFieldsAreNotKept(t *testing.T) {
	const objects, size = 500, 20 << 10
	for name, noStream := range map[string]bool{"streamed": false, "listed": true} {
		t.Run(name, func(t *testing.T) {
			small, large := heapOfReading(t, objects, 20, noStream), heapOfReading(t, objects, size, noStream)
			t.Logf("%d Services and slices: %d KiB, with %d KiB of managed fields each %d KiB", objects, small>>10, size>>10, large>>10)
			if grown := large - small; grown > objects*size/4 {
				t.Errorf("it takes %d KiB more, of %d KiB if one of the two kinds were kept", grown>>10, objects*size>>10)
			}
		})
	}
}

// heapOfReading gives how much memory it takes to have read so many Services and slices
// with so large managed fields.
func heapOfReading(t *testing.T, objects, size int, noStream bool) int64 {
	t.Helper()
	s := newAPIServer(t)
	s.noStream = noStream
	s.put(aNode("n1"), aServiceCIDR())
	for i := range objects {
		svc := largeService(i)
		svc.ManagedFields = managedFields(size)
		s.put(svc, webSlice(func(s *discoveryv1.EndpointSlice) {
			s.Name, s.ManagedFields = fmt.Sprintf("svc-%d-x7k2p", i), managedFields(size)
		}))
	}
	before := heap()
	k := &keeper{objects: map[model.Key]model.Change{}, synced: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- (API{Client: s.client(t), Node: "n1", Log: logr.Discard()}).Run(ctx, k) }()
	<-k.synced
	after := heap()
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := len(k.objects); n != 2*objects+2 {
		t.Errorf("%d objects were read, want %d", n, 2*objects+2)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return after - before
}

// heap gives what is in use, when all garbage is collected.
func heap() int64 {
	var m runtime.MemStats
	for range 2 { // what finalizers hold goes with the second
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
