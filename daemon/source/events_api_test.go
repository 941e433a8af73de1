package source

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"onerule/daemon/model"
	"onerule/test/apiserver"
	"onerule/test/netns"
)

// A realServer is a kube-apiserver, and Events of a node that may do what the cluster
// lets every kube-proxy do.
type realServer struct {
	*apiserver.Server
	admin  *Client // no clientset: its memory would be in BenchmarkMemory's figures
	events *Events
	stop   func()
	logged chan string
}

func newRealServer(t *testing.T) *realServer {
	t.Helper()
	r := &realServer{Server: apiserver.Start(t, netns.New(t, "cluster"), apiserver.Options{}), logged: make(chan string, 1000)}
	admin, err := newClient(r.Config())
	if err != nil {
		t.Fatal(err)
	}
	r.admin = admin
	file, err := r.KubeconfigOf("system:kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	config.Dial, config.QPS = r.Config().Dial, -1
	config.ContentType, config.AcceptContentTypes = protobufType, acceptTypes
	client, err := newClient(config)
	if err != nil {
		t.Fatal(err)
	}
	r.events = NewEvents(client, "n1.example", funcr.New(func(_, args string) {
		select {
		case r.logged <- args:
		default:
		}
	}, funcr.Options{}))
	r.run(t)
	return r
}

// run sends events until stop is called, or the test ends.
func (r *realServer) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.events.Run(ctx) }() // ends with stop
	r.stop = func() {
		cancel()
		select {
		case err := <-ended:
			ended <- err
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Events did not end with its context")
		}
	}
	t.Cleanup(r.stop)
}

// list gives "type reason namespace/kind/name count note" of each of our events, sorted.
func (r *realServer) list(t *testing.T) ([]string, []eventsv1.Event) {
	t.Helper()
	var list eventsv1.EventList
	if err := r.admin.events.Get().Resource("events").Do(t.Context()).Into(&list); err != nil {
		return []string{err.Error()}, nil
	}
	items := slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool { return e.ReportingController != "kube-proxy" })
	var words []string
	for _, e := range items {
		count := int32(1)
		if e.Series != nil {
			count = e.Series.Count
		}
		words = append(words, fmt.Sprintf("%s %s %s/%s/%s %d %s", e.Type, e.Reason, e.Regarding.Namespace, e.Regarding.Kind, e.Regarding.Name, count, e.Note))
	}
	slices.Sort(words)
	return words, items
}

func (r *realServer) await(t *testing.T, want ...string) []eventsv1.Event {
	t.Helper()
	slices.Sort(want)
	var items []eventsv1.Event
	poll(t, func() string {
		words, found := r.list(t)
		items = found
		return cmp.Diff(want, words)
	})
	return items
}

// awaitLog waits for a line that contains all of these.
func (r *realServer) awaitLog(t *testing.T, parts ...string) {
	t.Helper()
	poll(t, func() string {
		for {
			select {
			case line := <-r.logged:
				if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
					return ""
				}
			default:
				return fmt.Sprintf("no log line with %q", parts)
			}
		}
	})
}

// clear deletes all events, so that each test counts its own.
func (r *realServer) clear(t *testing.T) {
	t.Helper()
	for _, namespace := range []string{"default", "shop"} {
		if err := r.admin.events.Delete().Namespace(namespace).Resource("events").Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *realServer) service(t *testing.T, namespace, name string) *corev1.Service {
	t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if err := r.admin.core.Post().Namespace(namespace).Resource("services").Body(s).Do(t.Context()).Into(s); err != nil {
		t.Fatal(err)
	}
	return s
}

func serviceKey(namespace, name string) model.Key {
	return model.Key{Kind: model.KindService, Name: model.Name{Namespace: namespace, Name: name}}
}

func TestEventsInARealCluster(t *testing.T) { // A14.19
	r := newRealServer(t)
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	if err := r.admin.core.Post().Resource("namespaces").Body(shop).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		test func(*testing.T, *realServer)
	}{
		{"about the node", testEventOfTheNode},
		{"about a Service, as describe finds it", testEventOfAService},
		{"repeated", testEventsRepeated},
		{"repeated after the server has forgotten it", testEventsForgotten},
		{"about what does not exist", testEventsOfNothing},
		{"while the server is down", testEventsInAnOutage},
		{"last words", testLastWords},
	} {
		t.Run(step.name, func(t *testing.T) { step.test(t, r) })
		r.clear(t)
	}
}

func testEventOfTheNode(t *testing.T, r *realServer) {
	r.events.Normal(r.events.Node(), "Starting", "StartKubeProxy", "")
	e := r.await(t, "Normal Starting /Node/n1.example 1 ")[0]
	want := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "n1.example", UID: "n1.example"}
	if diff := cmp.Diff(want, e.Regarding); diff != "" {
		t.Errorf("regarding (-want +got):\n%s", diff)
	}
	if e.Namespace != "default" || e.Action != "StartKubeProxy" || e.ReportingInstance != "kube-proxy-n1.example" || e.EventTime.IsZero() {
		t.Errorf("got namespace %s, action %s, instance %s, time %v", e.Namespace, e.Action, e.ReportingInstance, e.EventTime)
	}
}

func testEventOfAService(t *testing.T, r *realServer) {
	web := r.service(t, "shop", "web")
	r.service(t, "default", "web") // has another UID
	r.events.Warning(serviceKey("shop", "web"), "FailedToStartServiceHealthcheck", "Listen", "port 32000 is taken")
	e := r.await(t, "Warning FailedToStartServiceHealthcheck shop/Service/web 1 port 32000 is taken")[0]
	if e.Regarding.UID != web.UID || web.UID == "" {
		t.Errorf("got UID %q, want that of the Service, %q", e.Regarding.UID, web.UID)
	}
	slice := model.Key{Kind: model.KindEndpointSlice, Name: model.Name{Namespace: "shop", Name: "web-x"}}
	cidr := model.Key{Kind: model.KindServiceCIDR, Name: model.Name{Name: "kubernetes"}}
	r.events.Warning(slice, "Skipped", "Sync", strings.Repeat("x", 5000))
	r.events.Warning(cidr, "Skipped", "Sync", "y")
	for _, e := range r.await(t,
		"Warning FailedToStartServiceHealthcheck shop/Service/web 1 port 32000 is taken",
		"Warning Skipped shop/EndpointSlice/web-x 1 "+strings.Repeat("x", 1021)+"...",
		"Warning Skipped /ServiceCIDR/kubernetes 1 y") {
		if e.Regarding.Kind == "ServiceCIDR" && e.Regarding.UID == "" {
			t.Error("the ServiceCIDR has no UID")
		}
	}
}

func testEventsRepeated(t *testing.T, r *realServer) {
	r.events.Warning(r.events.Node(), "Repeated", "Sync", "first")
	r.await(t, "Warning Repeated /Node/n1.example 1 first")
	for range 10 {
		r.events.Warning(r.events.Node(), "Repeated", "Sync", "another")
	}
	// The second one is told at once; how many were seen by then is chance.
	poll(t, func() string {
		words, items := r.list(t)
		if len(items) != 1 || items[0].Series == nil || items[0].Series.Count < 2 || items[0].Series.LastObservedTime.IsZero() {
			return fmt.Sprintf("got %q, want a series", words)
		}
		return ""
	})
}

func testEventsForgotten(t *testing.T, r *realServer) {
	r.events.Warning(r.events.Node(), "Forgotten", "Sync", "again and again")
	r.await(t, "Warning Forgotten /Node/n1.example 1 again and again")
	r.clear(t)
	r.events.Warning(r.events.Node(), "Forgotten", "Sync", "again and again")
	r.await(t, "Warning Forgotten /Node/n1.example 2 again and again")
}

func testEventsOfNothing(t *testing.T, r *realServer) {
	r.events.Warning(serviceKey("nowhere", "web"), "Skipped", "Sync", "the namespace is not there")
	r.events.Warning(serviceKey("shop", "gone"), "Skipped", "Sync", "the Service is not there")
	e := r.await(t, "Warning Skipped shop/Service/gone 1 the Service is not there")[0]
	if e.Regarding.UID != "" {
		t.Errorf("got UID %q of a Service that is not there", e.Regarding.UID)
	}
	r.awaitLog(t, "refuses an event", "nowhere/web")
}

func testEventsInAnOutage(t *testing.T, r *realServer) {
	r.Stop()
	for range 3 {
		r.events.Warning(r.events.Node(), "Outage", "Sync", "nobody listens")
	}
	r.awaitLog(t, "trying again", "Outage")
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.await(t, "Warning Outage /Node/n1.example 3 nobody listens")
}

func testLastWords(t *testing.T, r *realServer) {
	r.stop()
	r.events.Warning(r.events.Node(), "LastWords", "Sync", "told although it has ended already")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.events.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if words, _ := r.list(t); len(words) != 1 || !strings.Contains(words[0], "LastWords") {
		t.Errorf("got %q, want the last words", words)
	}
}
