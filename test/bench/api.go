package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"

	"onerule/test/netns"
)

// An apiServer answers lists and watches of what a proxy reads, in protobuf, from
// memory. It is none: it stores nothing, knows one version of each object and lets
// everybody in. Selectors are ignored: there is nothing that they would leave out.
type apiServer struct {
	scheme  *runtime.Scheme
	encoder *protobuf.Serializer
	kinds   map[string]*kind // by path
}

// A kind is what the server has of one resource.
type kind struct {
	count  int // of objects
	object func(i int, version int64) runtime.Object
	list   func(version string) runtime.Object // all of them, made anew
	empty  runtime.Object                      // for bookmarks

	mu      sync.Mutex
	version int64
	frames  [][]byte // the objects as they are now, each as the event that adds it
	log     [][]byte // the events after firstVersion
	more    chan struct{}
	sentAll time.Time // when the last watch had got all that there is
}

// firstVersion is the version of the objects that a server begins with.
const firstVersion = 1000

const (
	slicesPath = "/apis/discovery.k8s.io/v1/endpointslices"
	nodesPath  = "/api/v1/nodes"
)

func newAPIServer(c *cluster) (*apiServer, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), networkingv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("name the kinds of the API: %w", err)
	}
	s := &apiServer{scheme: scheme, encoder: protobuf.NewSerializer(scheme, scheme), kinds: kindsOf(c)}
	for path, k := range s.kinds {
		k.version, k.more = firstVersion, make(chan struct{})
		for i := range k.count {
			frame, err := s.frame(watch.Added, k.object(i, firstVersion))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			k.frames = append(k.frames, frame)
		}
	}
	return s, nil
}

func kindsOf(c *cluster) map[string]*kind {
	n := len(c.endpoints)
	return map[string]*kind{
		"/api/v1/services": {count: n, empty: &corev1.Service{},
			object: func(i int, v int64) runtime.Object { return c.service(i, v) },
			list: func(v string) runtime.Object {
				l := &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: v}}
				for i := range n {
					l.Items = append(l.Items, *c.service(i, firstVersion))
				}
				return l
			}},
		slicesPath: {count: n, empty: &discoveryv1.EndpointSlice{},
			object: func(i int, v int64) runtime.Object { return c.slice(i, v) },
			list: func(v string) runtime.Object {
				l := &discoveryv1.EndpointSliceList{ListMeta: metav1.ListMeta{ResourceVersion: v}}
				for i := range n {
					l.Items = append(l.Items, *c.slice(i, firstVersion))
				}
				return l
			}},
		nodesPath: {count: 1, empty: &corev1.Node{},
			object: func(_ int, v int64) runtime.Object { return node(v) },
			list: func(v string) runtime.Object {
				return &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: v}, Items: []corev1.Node{*node(firstVersion)}}
			}},
		"/apis/networking.k8s.io/v1/servicecidrs": {count: 1, empty: &networkingv1.ServiceCIDR{},
			object: func(_ int, v int64) runtime.Object { return serviceCIDR(v) },
			list: func(v string) runtime.Object {
				return &networkingv1.ServiceCIDRList{ListMeta: metav1.ListMeta{ResourceVersion: v}, Items: []networkingv1.ServiceCIDR{*serviceCIDR(firstVersion)}}
			}},
	}
}

// listen answers at the loopback of a namespace until stop is called.
func (s *apiServer) listen(ns *netns.NS) (url string, stop func(), err error) {
	var l net.Listener
	if err := ns.Do(func() error {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		return "", nil, fmt.Errorf("listen for API requests in %s: %w", ns.Name(), err)
	}
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }() // ends with stop
	return "http://" + l.Addr().String(), func() { _ = server.Close() }, nil
}

// changed tells the watchers that the endpoints of a Service are others, and gives
// the moment before that.
func (s *apiServer) changed(service int) (time.Duration, error) {
	k := s.kinds[slicesPath]
	k.mu.Lock()
	defer k.mu.Unlock()
	object := k.object(service, k.version+1)
	added, err := s.frame(watch.Added, object)
	if err != nil {
		return 0, err
	}
	frame, err := s.frame(watch.Modified, object)
	if err != nil {
		return 0, err
	}
	k.version++
	k.frames[service] = added
	k.log = append(k.log, frame)
	at := monotonic()
	close(k.more)
	k.more = make(chan struct{})
	return at, nil
}

// lastSent gives the moment when every kind had been sent to the watcher that came
// last, false before.
func (s *apiServer) lastSent() (time.Time, bool) {
	var last time.Time
	for _, k := range s.kinds {
		k.mu.Lock()
		at := k.sentAll
		k.mu.Unlock()
		if at.IsZero() {
			return last, false
		}
		if at.After(last) {
			last = at
		}
	}
	return last, true
}

func (k *kind) sent() {
	k.mu.Lock()
	k.sentAll = time.Now()
	k.mu.Unlock()
}

// forget makes lastSent wait for the next watcher.
func (s *apiServer) forget() {
	for _, k := range s.kinds {
		k.mu.Lock()
		k.sentAll = time.Time{}
		k.mu.Unlock()
	}
}

// ServeHTTP answers lists and watches. Events that proxies write are refused as
// they would be on a server without them.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k := s.kinds[r.URL.Path]
	if k == nil || r.Method != http.MethodGet {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	if !strings.Contains(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		http.Error(w, "only "+runtime.ContentTypeProtobuf+" is spoken here", http.StatusNotAcceptable)
		return
	}
	query := r.URL.Query()
	if query.Get("watch") == "true" || query.Get("watch") == "1" {
		s.watch(r.Context(), w, k, query.Get("sendInitialEvents") == "true", query.Get("resourceVersion"))
		return
	}
	k.mu.Lock()
	version := k.version
	list := k.list(strconv.FormatInt(version, 10))
	k.mu.Unlock()
	body, err := s.encode(list)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_, _ = w.Write(body) // a client that went away needs no answer
	k.sent()
}

// watch streams events until the client goes: all objects first, if it asks for
// them, or what came after a version.
func (s *apiServer) watch(ctx context.Context, w http.ResponseWriter, k *kind, initial bool, since string) {
	version, err := strconv.ParseInt(since, 10, 64)
	if !initial && (err != nil || version < firstVersion) {
		http.Error(w, fmt.Sprintf("resourceVersion %q is none that was given here", since), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	out := bufio.NewWriterSize(w, 64<<10)
	flusher, ok := w.(http.Flusher)
	if !ok {
		return
	}
	if initial {
		if version, err = s.sendAll(out, k); err != nil {
			return
		}
		if out.Flush() != nil {
			return
		}
		flusher.Flush()
		k.sent()
	}
	for {
		k.mu.Lock()
		frames, more := k.log[version-firstVersion:], k.more
		k.mu.Unlock()
		for _, f := range frames {
			_, _ = out.Write(f) // the error stays and is that of Flush
		}
		version += int64(len(frames))
		if out.Flush() != nil {
			return
		}
		flusher.Flush()
		select {
		case <-ctx.Done():
			return
		case <-more:
		}
	}
}

// sendAll sends every object as an event, then the mark that says so. Nothing
// changes meanwhile.
func (s *apiServer) sendAll(out *bufio.Writer, k *kind) (version int64, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, frame := range k.frames {
		if _, err := out.Write(frame); err != nil {
			return 0, err
		}
	}
	mark := k.empty.DeepCopyObject()
	m, ok := mark.(metav1.Object)
	if !ok {
		return 0, errors.New("a bookmark needs metadata")
	}
	m.SetResourceVersion(strconv.FormatInt(k.version, 10))
	m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	frame, err := s.frame(watch.Bookmark, mark)
	if err != nil {
		return 0, err
	}
	_, err = out.Write(frame)
	return k.version, err
}

// frame gives an event as it goes over the wire: its length in 4 bytes, then the
// event, which holds the object with its kind before it.
func (s *apiServer) frame(what watch.EventType, obj runtime.Object) ([]byte, error) {
	body, err := s.encode(obj)
	if err != nil {
		return nil, err
	}
	event := metav1.WatchEvent{Type: string(what), Object: runtime.RawExtension{Raw: body}}
	data, err := event.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode event: %w", err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...), nil
}

// encode gives an object in protobuf, with its kind before it.
func (s *apiServer) encode(obj runtime.Object) ([]byte, error) {
	kinds, _, err := s.scheme.ObjectKinds(obj)
	if err != nil {
		return nil, fmt.Errorf("find the kind of %T: %w", obj, err)
	}
	obj.GetObjectKind().SetGroupVersionKind(kinds[0])
	var body bytes.Buffer
	if err := s.encoder.Encode(obj, &body); err != nil {
		return nil, fmt.Errorf("encode %T: %w", obj, err)
	}
	return body.Bytes(), nil
}
