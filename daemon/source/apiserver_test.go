package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// An apiServer speaks the list and watch protocol for the four kinds, over HTTP, in
// JSON or protobuf as it is asked.
type apiServer struct {
	codecs    serializer.CodecFactory
	mediaType string // answer in this, whatever is asked for; empty: the first asked for
	addr      string

	mu       sync.Mutex
	http     *http.Server
	listener net.Listener
	version  int
	oldest   int // watches from before are answered "expired"
	objects  map[string]map[string]apiObject
	events   []apiEvent
	changed  chan struct{}  // closed at each event
	refuse   map[string]int // resource: HTTP status
	noStream bool           // no initial events in a watch, as before Kubernetes 1.32
	requests []string
}

type apiObject interface {
	runtime.Object
	metav1.Object
}

type apiEvent struct {
	version  int
	resource string
	old, now apiObject // nil: there was none, there is none
}

func newAPIServer(t testing.TB) *apiServer {
	s := &apiServer{
		codecs:  serializer.NewCodecFactory(newScheme()),
		version: 1,
		objects: map[string]map[string]apiObject{},
		changed: make(chan struct{}),
		refuse:  map[string]int{},
		addr:    "127.0.0.1:0",
	}
	s.up(t)
	t.Cleanup(s.down)
	return s
}

// up listens, always on the same address; down breaks all connections.
func (s *apiServer) up(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.addr = l.Addr().String()
	server := &http.Server{Handler: s}
	s.http, s.listener = server, l
	s.mu.Unlock()
	go func() { // ends with down
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("API server of the test: %v", err)
		}
	}()
}

func (s *apiServer) down() {
	s.mu.Lock()
	server, listener := s.http, s.listener
	s.mu.Unlock()
	_ = server.Close()
	_ = listener.Close() // the server closes it only if it serves already
}

func (s *apiServer) client(t testing.TB) *Client {
	c, err := newClient(&rest.Config{
		Host: "http://" + s.addr, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: protobufType, AcceptContentTypes: acceptTypes},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func resourceOf(obj runtime.Object) string {
	switch obj.(type) {
	case *corev1.Service:
		return "services"
	case *discoveryv1.EndpointSlice:
		return "endpointslices"
	case *corev1.Node:
		return "nodes"
	case *networkingv1.ServiceCIDR:
		return "servicecidrs"
	}
	panic(fmt.Sprintf("no resource of %T", obj))
}

// put creates or updates objects.
func (s *apiServer) put(objects ...apiObject) {
	for _, obj := range objects {
		s.change(obj, obj.DeepCopyObject().(apiObject))
	}
}

// remove deletes objects.
func (s *apiServer) remove(objects ...apiObject) {
	for _, obj := range objects {
		s.change(obj, nil)
	}
}

func (s *apiServer) change(of, now apiObject) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resource, key := resourceOf(of), of.GetNamespace()+"/"+of.GetName()
	if s.objects[resource] == nil {
		s.objects[resource] = map[string]apiObject{}
	}
	s.version++
	old := s.objects[resource][key]
	if now == nil {
		delete(s.objects[resource], key)
	} else {
		now.SetResourceVersion(strconv.Itoa(s.version))
		s.objects[resource][key] = now
	}
	s.events = append(s.events, apiEvent{s.version, resource, old, now})
	close(s.changed)
	s.changed = make(chan struct{})
}

// set changes how the server answers.
func (s *apiServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// asked gives the requests so far that contain a text.
func (s *apiServer) asked(text string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.requests), func(r string) bool { return !strings.Contains(r, text) })
}

// A query is one request.
type query struct {
	resource string
	version  schema.GroupVersion
	labels   labels.Selector
	fields   fields.Selector
	info     runtime.SerializerInfo
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, err := s.query(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	watch := r.FormValue("watch") == "true" || r.FormValue("watch") == "1"
	s.mu.Lock()
	status := s.refuse[q.resource]
	s.requests = append(s.requests, fmt.Sprintf("%s watch=%t labels=%s fields=%s accept=%s",
		q.resource, watch, r.FormValue("labelSelector"), r.FormValue("fieldSelector"), r.Header.Get("Accept")))
	s.mu.Unlock()
	switch {
	case status != 0:
		s.fail(w, q, apierrors.NewGenericServerResponse(status, "get", schema.GroupResource{Resource: q.resource}, "", "as the test wants it", 0, false))
	case watch:
		s.watch(w, r, q)
	default:
		s.list(w, q)
	}
}

func (s *apiServer) query(r *http.Request) (q query, err error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) < 3 {
		return q, fmt.Errorf("path %s", r.URL.Path)
	}
	q.resource = parts[len(parts)-1]
	q.version = schema.GroupVersion{Version: parts[len(parts)-2]}
	if parts[0] == "apis" {
		q.version.Group = parts[1]
	}
	if q.labels, err = labels.Parse(r.FormValue("labelSelector")); err != nil {
		return q, err
	}
	if q.fields, err = fields.ParseSelector(r.FormValue("fieldSelector")); err != nil {
		return q, err
	}
	mediaType := s.mediaType
	if mediaType == "" {
		mediaType, _, _ = strings.Cut(r.Header.Get("Accept"), ",")
		mediaType, _, _ = strings.Cut(mediaType, ";")
	}
	info, ok := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return q, fmt.Errorf("media type %q", mediaType)
	}
	q.info = info
	return q, nil
}

// matches says whether an object is selected.
func (q query) matches(obj apiObject) bool {
	if obj == nil {
		return false
	}
	set := fields.Set{"metadata.name": obj.GetName()}
	if svc, ok := obj.(*corev1.Service); ok {
		set["spec.clusterIP"] = svc.Spec.ClusterIP
	}
	return q.labels.Matches(labels.Set(obj.GetLabels())) && q.fields.Matches(set)
}

func (s *apiServer) encoder(q query, of runtime.Serializer) runtime.Encoder {
	return s.codecs.EncoderForVersion(of, q.version)
}

func (s *apiServer) fail(w http.ResponseWriter, q query, err *apierrors.StatusError) {
	w.Header().Set("Content-Type", q.info.MediaType)
	w.WriteHeader(int(err.ErrStatus.Code))
	_ = s.codecs.EncoderForVersion(q.info.Serializer, metav1.SchemeGroupVersion).Encode(&err.ErrStatus, w)
}

func (s *apiServer) list(w http.ResponseWriter, q query) {
	s.mu.Lock()
	meta := metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}
	var selected []apiObject
	for _, obj := range s.objects[q.resource] {
		if q.matches(obj) {
			selected = append(selected, obj)
		}
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", q.info.MediaType)
	_ = s.encoder(q, q.info.Serializer).Encode(listOf(q.resource, meta, selected), w)
}

func listOf(resource string, meta metav1.ListMeta, objects []apiObject) runtime.Object {
	switch resource {
	case "services":
		return &corev1.ServiceList{ListMeta: meta, Items: items[corev1.Service](objects)}
	case "endpointslices":
		return &discoveryv1.EndpointSliceList{ListMeta: meta, Items: items[discoveryv1.EndpointSlice](objects)}
	case "nodes":
		return &corev1.NodeList{ListMeta: meta, Items: items[corev1.Node](objects)}
	}
	return &networkingv1.ServiceCIDRList{ListMeta: meta, Items: items[networkingv1.ServiceCIDR](objects)}
}

func items[T any](objects []apiObject) []T {
	list := make([]T, 0, len(objects))
	for _, obj := range objects {
		list = append(list, *any(obj).(*T))
	}
	return list
}

// watch sends events as long as the client listens and the server is up.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, q query) {
	from, _ := strconv.Atoi(r.FormValue("resourceVersion"))
	initial := r.FormValue("sendInitialEvents") == "true"
	s.mu.Lock()
	switch {
	case initial && s.noStream:
		s.mu.Unlock()
		s.fail(w, q, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
		return
	case from != 0 && from < s.oldest:
		s.mu.Unlock()
		s.fail(w, q, apierrors.NewResourceExpired("too old resource version"))
		return
	}
	send := s.sender(w, q)
	if initial || from == 0 {
		for _, obj := range s.objects[q.resource] {
			if q.matches(obj) {
				send("ADDED", obj)
			}
		}
		from = s.version
	}
	if initial {
		mark := emptyOf(q.resource)
		mark.SetResourceVersion(strconv.Itoa(s.version))
		mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		send("BOOKMARK", mark)
	}
	s.mu.Unlock()
	s.follow(r, q, from, send)
}

func emptyOf(resource string) apiObject {
	return map[string]apiObject{
		"services": &corev1.Service{}, "endpointslices": &discoveryv1.EndpointSlice{},
		"nodes": &corev1.Node{}, "servicecidrs": &networkingv1.ServiceCIDR{},
	}[resource]
}

func (s *apiServer) follow(r *http.Request, q query, from int, send func(string, apiObject)) {
	for {
		s.mu.Lock()
		changed := s.changed
		var news []apiEvent
		for _, e := range s.events {
			if e.version > from && e.resource == q.resource {
				news = append(news, e)
			}
		}
		from = s.version
		s.mu.Unlock()
		for _, e := range news {
			was, is := q.matches(e.old), q.matches(e.now)
			switch {
			case !was && is:
				send("ADDED", e.now)
			case was && is:
				send("MODIFIED", e.now)
			case was: // deleted, or not selected any more
				send("DELETED", e.old)
			}
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// sender gives a function that sends one event.
func (s *apiServer) sender(w http.ResponseWriter, q query) func(string, apiObject) {
	stream := q.info.StreamSerializer
	contentType := q.info.MediaType
	if contentType == runtime.ContentTypeProtobuf {
		contentType += ";stream=watch"
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(http.StatusOK)
	frames := stream.NewFrameWriter(w)
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	return func(what string, obj apiObject) {
		raw, err := runtime.Encode(s.encoder(q, q.info.Serializer), obj)
		if err != nil {
			panic(err)
		}
		event := &metav1.WatchEvent{Type: what, Object: runtime.RawExtension{Raw: raw}}
		if contentType == runtime.ContentTypeJSON {
			_ = json.NewEncoder(frames).Encode(event)
		} else {
			_ = stream.Encode(event, frames)
		}
		_ = flush.Flush()
	}
}
