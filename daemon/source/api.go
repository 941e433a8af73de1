package source

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// How long a kind that the server does not have is left alone: at first briefly,
// since a server that is starting up also refuses what it will soon allow.
const (
	firstAbsence = 10 * time.Second
	maxAbsence   = 5 * time.Minute
)

// How long a failure to ask for an optional kind is waited out.
const (
	firstOutage = time.Second
	maxOutage   = 30 * time.Second
)

// API is the source that reads an API server.
type API struct {
	Client *Client
	// Node is the name of this node: of all Nodes, only it is read, unless AllNodes.
	Node     string
	AllNodes bool
	Log      logr.Logger
	// Contact, if set, is told when the server cannot be heard.
	Contact *Contact

	absence time.Duration // for tests; 0: firstAbsence
}

// A resource says how the objects of one kind are asked for.
type resource struct {
	name     string // as in the URL
	client   rest.Interface
	labels   string // label selector
	fields   string // field selector
	object   runtime.Object
	list     func() runtime.Object
	optional bool // a server may lack it
}

// Run delivers the objects of the API server and their changes until ctx ends. It
// survives any outage of the server: the sink keeps what it has meanwhile, and is
// told afterwards what is gone.
func (a API) Run(ctx context.Context, sink Sink) error {
	if a.Client == nil || a.Node == "" {
		return errors.New("read API server: needs a client and a node name")
	}
	resources := a.resources()
	convert := converter{strings: newInterner()}
	var missing atomic.Int32
	missing.Store(int32(len(resources)))
	listed := func() {
		if missing.Add(-1) == 0 {
			sink.Synced()
		}
	}
	ctx = klog.NewContext(ctx, a.Log)
	var wg sync.WaitGroup
	for _, r := range resources {
		s := newStore(sink, convert, listed)
		wg.Go(func() { a.follow(ctx, r, s) }) // ends with ctx
	}
	wg.Wait()
	return nil
}

// resources lists the kinds. The selectors leave out on the server what is not for
// us; the converter leaves it out again.
func (a API) resources() []resource {
	nodes := metav1.ObjectNameField + "=" + a.Node
	if a.AllNodes {
		nodes = ""
	}
	return []resource{{
		name: "services", client: a.Client.core,
		labels: "!" + labelProxyName, fields: "spec.clusterIP!=" + corev1.ClusterIPNone,
		object: &corev1.Service{}, list: func() runtime.Object { return &corev1.ServiceList{} },
	}, {
		name: "endpointslices", client: a.Client.discovery, labels: "!" + labelHeadless,
		object: &discoveryv1.EndpointSlice{}, list: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
	}, {
		name: "nodes", client: a.Client.core, fields: nodes,
		object: &corev1.Node{}, list: func() runtime.Object { return &corev1.NodeList{} },
	}, {
		name: "servicecidrs", client: a.Client.networking, optional: true,
		object: &networkingv1.ServiceCIDR{}, list: func() runtime.Object { return &networkingv1.ServiceCIDRList{} },
	}}
}

// follow keeps a store up to date with a resource until ctx ends.
func (a API) follow(ctx context.Context, r resource, s *store) {
	lw := a.listWatch(r)
	if r.optional {
		a.awaitResource(ctx, r, s, lw)
	}
	log := klog.Logger(a.Log)
	cache.NewReflectorWithOptions(lw, r.object, s, cache.ReflectorOptions{Name: r.name, Logger: &log}).RunWithContext(ctx)
}

func (a API) listWatch(r resource) *cache.ListWatch {
	request := func(options *metav1.ListOptions) *rest.Request {
		options.LabelSelector, options.FieldSelector = r.labels, r.fields
		return r.client.Get().Resource(r.name).VersionedParams(options, a.Client.parameters)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			a.Contact.asks(r.name)
			list := r.list()
			err := request(&options).Do(ctx).Into(list)
			if err == nil || r.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) {
				a.Contact.hears(r.name)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			a.Contact.asks(r.name)
			options.Watch = true
			w, err := request(&options).Watch(ctx)
			if err == nil {
				a.Contact.hears(r.name)
			}
			return w, err
		},
	}
}

// awaitResource returns when the server has the resource, or when ctx ends. As long
// as the server lacks it or forbids it, the store counts as listed and empty.
func (a API) awaitResource(ctx context.Context, r resource, s *store, lw *cache.ListWatch) {
	absence, outage := firstAbsence, firstOutage
	if a.absence != 0 {
		absence = a.absence
	}
	for said := false; ; {
		_, err := lw.ListWithContext(ctx, metav1.ListOptions{Limit: 1})
		if err == nil || ctx.Err() != nil {
			return
		}
		pause := outage
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			pause, absence = absence, min(2*absence, maxAbsence)
			if !said {
				said = true
				a.Log.Info("API server does not offer a resource, going on without it", "resource", r.name, "reason", err.Error())
				_ = s.Replace(nil, "") // an empty list holds nothing that could fail
			}
		} else {
			outage = min(2*outage, maxOutage)
			a.Log.Error(err, "Failed to reach API server", "resource", r.name)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.Jitter(pause, 0.5)): // not every node at once
		}
	}
}
