package life_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"onerule/test/netns"
)

// A turn is a Service without a selector whose one endpoint is now one pod, now another:
// both live, so that nothing is lost, and clients see when a change has come about.
type turn struct {
	w     *world
	pods  [2]corev1.Pod
	mu    sync.Mutex
	took  []time.Duration // until a node gave connects to the new endpoint
	err   error
	done  chan struct{}
	ended context.CancelFunc
}

const turnManifest = `
apiVersion: v1
kind: Service
metadata: {name: turn}
spec:
  clusterIP: 10.96.7.8
  ports: [{port: 80, targetPort: 8080}]
`

func turnKind(node string) string { return "turn " + node }

// newTurn makes the Service.
func (w *world) newTurn(t *testing.T, a applications) *turn {
	t.Helper()
	if err := w.Apply(t.Context(), turnManifest); err != nil {
		t.Fatal(err)
	}
	u := &turn{w: w, pods: [2]corev1.Pod(a.host), done: make(chan struct{})}
	slices := w.api.DiscoveryV1().EndpointSlices("default")
	_ = slices.Delete(t.Context(), "turn", metav1.DeleteOptions{}) // of an earlier test
	if _, err := slices.Create(t.Context(), u.slice(0), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return u
}

func (u *turn) slice(i int) *discovery.EndpointSlice {
	name, port, protocol := "", int32(serverPort), corev1.ProtocolTCP
	return &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "turn", Labels: map[string]string{discovery.LabelServiceName: "turn"}},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
		Endpoints:   []discovery.Endpoint{{Addresses: []string{u.pods[i].Status.PodIP}}},
	}
}

// flows are those of a pod on each node to the Service.
func (u *turn) flows(pods map[string]*netns.NS) []flow {
	var flows []flow
	for node, pod := range pods {
		to := netip.MustParseAddrPort("10.96.7.8:80")
		flows = append(flows, flow{kind: turnKind(node), from: pod, to: to, short: true})
	}
	return flows
}

// begin changes the endpoint again and again, each time when the last change has come
// about on all nodes, until end is called.
func (u *turn) begin(ctx context.Context, tr *traffic) {
	ctx, u.ended = context.WithCancel(ctx)
	go func() { // ends with ctx
		defer close(u.done)
		for i := 1; ctx.Err() == nil; i++ {
			if err := u.change(ctx, tr, i%2); err != nil && ctx.Err() == nil {
				u.mu.Lock()
				u.err = errors.Join(u.err, err)
				u.mu.Unlock()
				return
			}
		}
	}()
}

// change makes one change and waits until clients see it.
func (u *turn) change(ctx context.Context, tr *traffic, to int) error {
	begun := time.Now()
	if _, err := u.w.api.DiscoveryV1().EndpointSlices("default").Update(ctx, u.slice(to), metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("change an endpoint: %w", err)
	}
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	waiting := map[string]bool{"n1": true, "n2": true}
	for len(waiting) > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
		}
		for node := range waiting {
			if !tr.lastAnswer(turnKind(node), u.pods[to].Name).After(begun) {
				continue
			}
			delete(waiting, node)
			u.mu.Lock()
			u.took = append(u.took, time.Since(begun))
			u.mu.Unlock()
		}
		if time.Since(begun) > 2*time.Minute {
			return fmt.Errorf("a changed endpoint was not applied within 2 minutes on %v", waiting)
		}
	}
	return nil
}

// end stops the changes, prints how long they took, and says what is wrong.
func (u *turn) end(t *testing.T) {
	t.Helper()
	u.ended()
	<-u.done
	if u.err != nil {
		t.Error(u.err)
	}
	longest, sum := time.Duration(0), time.Duration(0)
	for _, d := range u.took {
		longest, sum = max(longest, d), sum+d
	}
	if len(u.took) < 4 {
		t.Fatalf("%d changes came about: the test shows nothing", len(u.took))
	}
	t.Logf("changes   %5d came about, on average after %s, the longest after %s (connects every %s show it)",
		len(u.took), (sum / time.Duration(len(u.took))).Round(time.Millisecond), longest.Round(time.Millisecond), pause)
}
