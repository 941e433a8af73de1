package source

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// The media types of a client that prefers small and fast messages, and takes JSON
// from a server that knows nothing else.
const (
	protobufType = runtime.ContentTypeProtobuf
	acceptTypes  = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
)

// A Connection says how to reach the API server.
type Connection struct {
	// Kubeconfig is a file. Without it, and without Master, the service account of
	// the pod is used.
	Kubeconfig string
	// Master is the server's address and overrides that of the file.
	Master string
	// ContentType and AcceptContentTypes are protobuf, and protobuf before JSON,
	// unless they are set.
	ContentType, AcceptContentTypes string
	// QPS and Burst limit requests; 0 means the client library's defaults, 5 and 10.
	QPS   float32
	Burst int
	// UserAgent is sent with each request.
	UserAgent string
}

// A Client speaks to one API server. It knows only the kinds that a source reads, and
// events: the whole clientset costs every node its memory (README.md has the figures).
type Client struct {
	core, discovery, networking, events rest.Interface
	parameters                          runtime.ParameterCodec
}

// Connect reads the configuration and prepares a client. It sends nothing.
func Connect(c Connection) (*Client, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	config.ContentType, config.AcceptContentTypes = protobufType, acceptTypes
	if c.ContentType != "" {
		config.ContentType, config.AcceptContentTypes = c.ContentType, c.AcceptContentTypes
	}
	if c.AcceptContentTypes != "" {
		config.AcceptContentTypes = c.AcceptContentTypes
	}
	config.QPS, config.Burst, config.UserAgent = c.QPS, c.Burst, c.UserAgent
	return newClient(config)
}

func (c Connection) config() (*rest.Config, error) {
	if c.Kubeconfig == "" && c.Master == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("use the pod's service account: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig},
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: c.Master}},
	).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %q: %w", c.Kubeconfig, err)
	}
	return config, nil
}

func newClient(config *rest.Config) (*Client, error) {
	scheme := newScheme()
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare connection to %s: %w", config.Host, err)
	}
	c := &Client{parameters: runtime.NewParameterCodec(scheme)}
	for _, g := range []struct {
		version schema.GroupVersion
		path    string
		client  *rest.Interface
	}{
		{corev1.SchemeGroupVersion, "/api", &c.core},
		{discoveryv1.SchemeGroupVersion, "/apis", &c.discovery},
		{networkingv1.SchemeGroupVersion, "/apis", &c.networking},
		{eventsv1.SchemeGroupVersion, "/apis", &c.events},
	} {
		of := rest.CopyConfig(config)
		of.GroupVersion, of.APIPath = &g.version, g.path
		of.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		client, err := rest.RESTClientForConfigAndClient(of, httpClient)
		if err != nil {
			return nil, fmt.Errorf("prepare client of %s at %s: %w", g.version, config.Host, err)
		}
		*g.client = client
	}
	return c, nil
}

// newScheme knows the kinds that are read and written, and what every request needs.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, eventsv1.AddToScheme,
	} {
		utilruntime.Must(add(scheme)) // fails only when kinds are registered twice
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return scheme
}
