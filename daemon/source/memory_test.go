package source

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"onerule/daemon/model"
)

// BenchmarkMemory prints what the source takes of a process that reads 10,000
// services of 10 endpoints from a server and keeps the values: in a process of its
// own, once as it is and once beside a store of the API's objects.
func BenchmarkMemory(b *testing.B) {
	const services = 10000
	for _, c := range []struct {
		name, mode string
		noStream   bool
	}{{"nothing read", "idle", false}, {"streamed", "convert", false}, {"listed", "convert", true}, {"and the objects kept", "keep", false}} {
		b.Run(c.name, func(b *testing.B) {
			s := newAPIServer(b)
			s.noStream = c.noStream
			s.put(aNode("n1"), aServiceCIDR())
			for i := range services {
				s.put(largeService(i), largeSlice(i))
			}
			for b.Loop() {
				cmd := exec.Command(os.Args[0], "-test.run=^TestMemoryOfAChild$", "-test.v")
				cmd.Env = append(os.Environ(), "ONERULE_TEST_SERVER="+s.addr, "ONERULE_TEST_MODE="+c.mode)
				out, err := cmd.CombinedOutput()
				found := regexp.MustCompile(`(peak|settled|heap)=(\d+)`).FindAllStringSubmatch(string(out), -1)
				if err != nil || len(found) != 3 {
					b.Fatalf("child: %v: %s", err, out)
				}
				for _, f := range found {
					kib, _ := strconv.Atoi(f[2])
					b.ReportMetric(float64(kib)/1024, f[1]+"-MiB")
				}
			}
		})
	}
}

// largeService is a Service as a cluster stores it, managed fields and all.
func largeService(i int) *corev1.Service {
	s := aService(fmt.Sprintf("svc-%d", i), fmt.Sprintf("10.96.%d.%d", i/250, i%250+1))
	s.Labels = map[string]string{"app.kubernetes.io/name": s.Name, "app.kubernetes.io/part-of": "shop"}
	s.Spec.Selector = map[string]string{"app.kubernetes.io/name": s.Name}
	s.UID, s.CreationTimestamp = "c0ffee00-0000-0000-0000-000000000000", metav1.Now()
	s.ManagedFields = managedFields(300)
	return s
}

func largeSlice(i int) *discoveryv1.EndpointSlice {
	return webSlice(func(s *discoveryv1.EndpointSlice) {
		s.Name, s.Labels[labelServiceName] = fmt.Sprintf("svc-%d-x7k2p", i), fmt.Sprintf("svc-%d", i)
		s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: s.Labels[labelServiceName], UID: "c0ffee00-0000-0000-0000-000000000000"}}
		s.ManagedFields = managedFields(400)
		s.Endpoints = nil
		for e := range 10 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 128+e, i/250, i%250+1)},
				Conditions: discoveryv1.EndpointConditions{Ready: ptr(true), Serving: ptr(true), Terminating: ptr(false)},
				NodeName:   ptr(fmt.Sprintf("node-%03d.example.org", (i+e)%100)),
				TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("svc-%d-6f7d8c9b5-%05d", i, e), UID: "c0ffee00-0000-0000-0000-000000000000"},
			})
		}
	})
}

func managedFields(size int) []metav1.ManagedFieldsEntry {
	fields := metav1.NewFieldsV1(`{"f:x":"` + strings.Repeat("y", size) + `"}`)
	return []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", Operation: "Update", FieldsV1: fields}}
}

// TestMemoryOfAChild is the process that BenchmarkMemory measures.
func TestMemoryOfAChild(t *testing.T) {
	addr := os.Getenv("ONERULE_TEST_SERVER")
	if addr == "" {
		t.Skip("is the child of BenchmarkMemory")
	}
	client, err := newClient(&rest.Config{
		Host: "http://" + addr, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: protobufType, AcceptContentTypes: acceptTypes},
	})
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{objects: map[model.Key]model.Change{}, synced: make(chan struct{})}
	a := API{Client: client, Node: "n1", Log: logr.Discard()}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var stores []cache.Store
	mode := os.Getenv("ONERULE_TEST_MODE")
	if mode != "idle" {
		go func() { _ = a.Run(ctx, k) }() // ends with the process
		<-k.synced
	}
	if mode == "keep" {
		stores = keepObjects(ctx, t, a)
	}
	rss := func(field string) string {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(field + `:\s*(\d+)`).FindStringSubmatch(string(status))[1]
	}
	peak := rss("VmHWM")
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Printf("peak=%s settled=%s heap=%d\n", peak, rss("VmRSS"), m.HeapAlloc/1024)
	runtime.KeepAlive(k)
	runtime.KeepAlive(stores)
}

// keepObjects fills stores of API objects, as informers do.
func keepObjects(ctx context.Context, t *testing.T, a API) []cache.Store {
	var stores []cache.Store
	for _, r := range a.resources() {
		s := cache.NewStore(cache.MetaNamespaceKeyFunc)
		stores = append(stores, s)
		lw := a.listWatch(r)
		go cache.NewReflectorWithOptions(lw, r.object, s, cache.ReflectorOptions{}).RunWithContext(ctx) // ends with the process
	}
	poll(t, func() string {
		n := 0
		for _, s := range stores {
			n += len(s.List())
		}
		if n != 20002 {
			return fmt.Sprintf("%d objects kept", n)
		}
		return ""
	})
	return stores
}

// A keeper is a Sink that keeps the values and nothing else.
type keeper struct {
	mu      sync.Mutex
	objects map[model.Key]model.Change
	synced  chan struct{}
}

func (k *keeper) Changed(c model.Change) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.objects[c.Key] = c
}
func (k *keeper) Noted(string, []model.Note) {}
func (k *keeper) Synced()                    { close(k.synced) }
