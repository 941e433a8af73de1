package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// follow runs the source on a server until the test ends.
func follow(t *testing.T, s *apiServer) *recorder {
	t.Helper()
	r := newRecorder()
	run(t, API{Client: s.client(t), Node: "n1", Log: testr.New(t), absence: 20 * time.Millisecond}, r)
	return r
}

// run lets a source run until the test ends.
func run(t *testing.T, a interface {
	Run(context.Context, Sink) error
}, sink Sink) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, sink) }() // ends with the test
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the source did not end with its context")
		}
	})
}

func aService(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []corev1.ServicePort{{Port: 80}},
		},
	}
}

func aNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: "10.1.0.0/24"}}
}

func aServiceCIDR() *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}}
}

// fill puts a small cluster into a server; filled is what the source makes of it.
func fill(s *apiServer) {
	headless, other, external := aService("headless", "None"), aService("other", "10.96.0.7"), aService("external", "10.96.0.8")
	other.Labels = map[string]string{labelProxyName: "mine"}
	external.Spec.Type = corev1.ServiceTypeExternalName
	slice, unlisted := webSlice(nil), webSlice(nil)
	unlisted.Name, unlisted.Labels[labelHeadless] = "headless-1", ""
	s.put(aService("web", "10.96.0.1"), headless, other, external, slice, unlisted, aNode("n1"), aNode("n2"), aServiceCIDR())
}

func filled() []string {
	return []string{"Service default/web 10.96.0.1", "EndpointSlice default/web-x7k2p 1 endpoints", "Node n1", "ServiceCIDR kubernetes 10.96.0.0/16"}
}

func TestA14_20APIServerIsListedAndWatched(t *testing.T) { // A1.6, A1.8, A1.9
	for _, c := range []struct {
		name, mediaType string
		noStream        bool
	}{
		{name: "protobuf, streamed", mediaType: ""},
		{name: "protobuf, listed", mediaType: "", noStream: true},
		{name: "JSON, streamed", mediaType: runtime.ContentTypeJSON},
		{name: "JSON, listed", mediaType: runtime.ContentTypeJSON, noStream: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newAPIServer(t)
			s.mediaType, s.noStream = c.mediaType, c.noStream
			fill(s)
			r := follow(t, s)
			r.awaitSynced(t)
			// Nothing comes after Synced that was there before.
			if diff := cmp.Diff([]string{
				"+EndpointSlice default/web-x7k2p", "+Node n1", "+Service default/web", "+ServiceCIDR kubernetes",
			}, r.take()); diff != "" {
				t.Errorf("changes before Synced (-want +got):\n%s", diff)
			}
			r.awaitObjects(t, filled()...)

			s.put(aService("web", "10.96.0.2"), aService("new", "10.96.0.3"))
			s.remove(webSlice(nil))
			r.awaitObjects(t, "Service default/web 10.96.0.2", "Service default/new 10.96.0.3", "Node n1", "ServiceCIDR kubernetes 10.96.0.0/16")

			for _, want := range []string{
				"services watch=true labels=!service.kubernetes.io/service-proxy-name fields=spec.clusterIP!=None accept=application/vnd.kubernetes.protobuf",
				"endpointslices watch=true labels=!service.kubernetes.io/headless fields= accept=application/vnd.kubernetes.protobuf",
				"nodes watch=true labels= fields=metadata.name=n1 accept=application/vnd.kubernetes.protobuf",
				"servicecidrs watch=true labels= fields= accept=application/vnd.kubernetes.protobuf",
			} {
				if len(s.asked(want)) == 0 {
					t.Errorf("got requests\n%s\nwant one of %s", strings.Join(s.asked(""), "\n"), want)
				}
			}
			if lists := s.asked("services watch=false"); (len(lists) > 0) != c.noStream {
				t.Errorf("got lists of Services %q, want some: %t", lists, c.noStream)
			}
		})
	}
}

func TestServicesComeAndGoByTheirFields(t *testing.T) { // A1.7, A1.8
	s := newAPIServer(t)
	fill(s)
	r := follow(t, s)
	r.awaitSynced(t)
	without := filled()[1:]
	for _, c := range []struct {
		name   string
		change func(*corev1.Service)
	}{
		{"A1.8 handed to another proxy", func(svc *corev1.Service) { svc.Labels = map[string]string{labelProxyName: "mine"} }},
		{"A1.7 of type ExternalName", func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeExternalName }},
		{"A1.6 headless", func(svc *corev1.Service) { svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "None", []string{"None"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := aService("web", "10.96.0.1")
			c.change(svc)
			s.put(svc)
			r.awaitObjects(t, without...)
			s.put(aService("web", "10.96.0.1"))
			r.awaitObjects(t, filled()...)
		})
	}
}

func TestAnOutageIsSurvived(t *testing.T) {
	for _, c := range []struct {
		name           string
		noStream, lost bool
	}{
		{name: "the watch goes on where it ended"},
		{name: "all is streamed again, what is gone is missing", lost: true},
		{name: "all is listed again, what is gone is missing", lost: true, noStream: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newAPIServer(t)
			s.noStream = c.noStream
			fill(s)
			bad := aService("bad", "10.96.0.9")
			bad.Spec.Ports[0].Port = 0
			s.put(aService("gone", "10.96.0.4"), bad)
			r := follow(t, s)
			r.awaitSynced(t)
			r.awaitNotes(t, "Service default/bad: invalid-port spec.ports[0].port")
			s.down()
			s.remove(aService("gone", "10.96.0.4"), bad)
			s.put(aService("web", "10.96.0.5"), aService("new", "10.96.0.6"))
			if c.lost {
				s.set(func() { s.oldest = s.version })
			}
			s.up(t)
			r.awaitObjects(t, append(filled()[1:], "Service default/web 10.96.0.5", "Service default/new 10.96.0.6")...)
			r.awaitNotes(t)
			r.awaitSynced(t)
		})
	}
}

func TestServerThatComesLater(t *testing.T) {
	s := newAPIServer(t)
	fill(s)
	s.down()
	r := follow(t, s)
	s.up(t)
	r.awaitSynced(t)
	r.awaitObjects(t, filled()...)
}

func TestSyncedWaitsForEveryKind(t *testing.T) {
	for _, resource := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
		t.Run(resource, func(t *testing.T) {
			s := newAPIServer(t)
			fill(s)
			s.set(func() { s.refuse[resource] = 500 })
			r := follow(t, s)
			r.await(t, func() string { return cmp.Diff(3, len(r.objects)) })
			poll(t, func() string {
				if len(s.asked(resource)) == 0 {
					return resource + " were not asked for"
				}
				return ""
			})
			r.await(t, func() string { return cmp.Diff(0, r.synced) })
			s.set(func() { delete(s.refuse, resource) })
			r.awaitSynced(t)
			r.awaitObjects(t, filled()...)
		})
	}
}

func TestServerWithoutServiceCIDRs(t *testing.T) {
	for _, status := range []int{404, 403} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s := newAPIServer(t)
			fill(s)
			s.set(func() { s.refuse["servicecidrs"] = status })
			r := newRecorder()
			lines := make(chan string, 100)
			log := funcr.New(func(_, args string) {
				if strings.Contains(args, "does not offer") {
					lines <- args
				}
			}, funcr.Options{})
			run(t, API{Client: s.client(t), Node: "n1", Log: log, absence: 5 * time.Millisecond}, r)
			r.awaitSynced(t)
			r.awaitObjects(t, filled()[:3]...)
			poll(t, func() string {
				if n := len(s.asked("servicecidrs")); n < 3 {
					return fmt.Sprintf("asked %d times for ServiceCIDRs, want 3", n)
				}
				return ""
			})
			s.set(func() { delete(s.refuse, "servicecidrs") })
			r.awaitObjects(t, filled()...)
			r.awaitSynced(t)
			if len(lines) != 1 || !strings.Contains(<-lines, "servicecidrs") {
				t.Errorf("got %d lines of the log, want one that names servicecidrs", len(lines))
			}
		})
	}
}

func TestNotesOfAPIObjects(t *testing.T) {
	s := newAPIServer(t)
	fill(s)
	r := follow(t, s)
	r.awaitSynced(t)
	fqdn := webSlice(func(e *discoveryv1.EndpointSlice) {
		e.Name, e.AddressType = "names", discoveryv1.AddressTypeFQDN
	})
	bad := aService("web", "10.96.0.1")
	bad.Spec.Ports = append(bad.Spec.Ports, corev1.ServicePort{Name: "odd", Port: 1, Protocol: "ICMP"})
	s.put(fqdn, bad)
	r.awaitNotes(t, "EndpointSlice default/names: address-type addressType", "Service default/web: invalid-protocol spec.ports[1].protocol")
	r.awaitObjects(t, filled()...)
	s.put(aService("web", "10.96.0.1"))
	s.remove(fqdn)
	r.awaitNotes(t)
}

func TestHeartbeatsOfTheNodeAreNoChange(t *testing.T) {
	s := newAPIServer(t)
	fill(s)
	r := follow(t, s)
	r.awaitSynced(t)
	r.take()
	n := aNode("n1")
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
	s.put(n)
	n.Spec.PodCIDR = "10.2.0.0/24"
	s.put(n)
	r.await(t, func() string {
		for key, c := range r.objects {
			if c.Node != nil && c.Node.PodCIDRs[0].String() == "10.2.0.0/24" && key.Name.Name == "n1" {
				return ""
			}
		}
		return "the new range of the Node"
	})
	s.remove(n)
	r.awaitObjects(t, filled()[0], filled()[1], filled()[3])
	s.put(n)
	r.awaitObjects(t, filled()...)
	if diff := cmp.Diff([]string{"+Node n1", "+Node n1", "-Node n1"}, r.take()); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestA14_22Connect(t *testing.T) {
	s := newAPIServer(t)
	fill(s)
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "config")
	text := `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: x, context: {cluster: c}}]
current-context: x
`
	if err := os.WriteFile(kubeconfig, []byte(strings.Replace(text, "127.0.0.1:1", s.addr, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	unreachable := filepath.Join(dir, "unreachable")
	if err := os.WriteFile(unreachable, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		in     Connection
		accept string
	}{
		{"a file", Connection{Kubeconfig: kubeconfig}, acceptTypes},
		{"a server instead of the file's", Connection{Kubeconfig: unreachable, Master: "http://" + s.addr}, acceptTypes},
		{"a server alone", Connection{Master: "http://" + s.addr}, acceptTypes},
		{"JSON alone", Connection{Kubeconfig: kubeconfig, ContentType: "application/json", AcceptContentTypes: "application/json"}, "application/json"},
		{"JSON by what is accepted alone", Connection{Kubeconfig: kubeconfig, AcceptContentTypes: "application/json"}, "application/json"},
		{"JSON by what is sent alone", Connection{Kubeconfig: kubeconfig, ContentType: "application/json"}, "application/json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, err := Connect(c.in)
			if err != nil {
				t.Fatal(err)
			}
			before := len(s.asked(""))
			r := newRecorder()
			run(t, API{Client: client, Node: "n1", Log: testr.New(t)}, r)
			r.awaitSynced(t)
			r.awaitObjects(t, filled()...)
			for _, got := range s.asked("")[before:] {
				if !strings.Contains(got, "accept="+c.accept) {
					t.Errorf("got request %s, want it to accept %s", got, c.accept)
				}
			}
		})
	}
	for _, c := range []struct {
		name string
		in   Connection
		says string
	}{
		{"a file that is missing", Connection{Kubeconfig: filepath.Join(dir, "missing")}, "missing"},
		{"no file and no pod", Connection{}, "service account"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Connect(c.in); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error that says %q", err, c.says)
			}
		})
	}
	for name, c := range map[string]struct {
		in  Connection
		qps float32
	}{
		"requests are limited to five a second": {Connection{Master: "http://127.0.0.1:1"}, 5},
		"requests are limited as is said":       {Connection{Master: "http://127.0.0.1:1", QPS: 7.5, Burst: 3}, 7.5},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := Connect(c.in)
			if err != nil {
				t.Fatal(err)
			}
			limit := client.core.GetRateLimiter()
			if got := limit.QPS(); got != c.qps {
				t.Errorf("got %v requests a second, want %v", got, c.qps)
			}
			for i := range c.in.Burst {
				if !limit.TryAccept() {
					t.Errorf("request %d of %d at once has to wait", i, c.in.Burst)
				}
			}
			if c.in.Burst > 0 && limit.TryAccept() {
				t.Errorf("request %d at once need not wait", c.in.Burst)
			}
		})
	}
	t.Run("no node name", func(t *testing.T) {
		if err := (API{Client: s.client(t)}).Run(t.Context(), newRecorder()); err == nil {
			t.Error("got no error")
		}
	})
}
