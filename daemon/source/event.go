package source

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"onerule/daemon/model"
)

const (
	eventNormal  = corev1.EventTypeNormal
	eventWarning = corev1.EventTypeWarning
	// eventReporter is whom events name as their reporter: dashboards and alerts that
	// look for kube-proxy's go on.
	eventReporter = "kube-proxy"
	// eventTimeout bounds one request: the next series waits behind it.
	eventTimeout = 10 * time.Second
)

// Limits of the API, in bytes.
const (
	maxEventNote     = 1024
	maxEventInstance = 128
	maxEventSubject  = 200 // of the 253 of a name, before the time
)

// tell writes one series as it is.
func (e *Events) tell(ctx context.Context, s series) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	var err error
	if s.name != "" {
		if err = e.update(ctx, s); apierrors.IsNotFound(err) {
			s.name = "" // it is older than the server keeps events
		}
	}
	if s.name == "" {
		s.name, err = e.create(ctx, s)
	}
	e.settled(s, err)
}

// final says whether the server would refuse the same again. Forbidden can be a server
// that is starting up and has not read its roles.
func final(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err) ||
		apierrors.IsMethodNotSupported(err) || apierrors.IsRequestEntityTooLargeError(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// create makes the event and gives its name.
func (e *Events) create(ctx context.Context, s series) (string, error) {
	regarding, err := e.reference(ctx, s.about)
	if err != nil {
		return "", err
	}
	event := e.event(s, regarding)
	err = e.client.events.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) { // then only the answer was lost
		return "", fmt.Errorf("create event %s/%s: %w", event.Namespace, event.Name, err)
	}
	return event.Name, nil
}

// update writes the count.
func (e *Events) update(ctx context.Context, s series) error {
	patch, err := json.Marshal(map[string]any{"series": seriesOf(s)})
	if err != nil {
		return fmt.Errorf("count event %s: %w", s.name, err)
	}
	namespace := eventNamespace(s.about)
	err = e.client.events.Patch(types.StrategicMergePatchType).Namespace(namespace).Resource("events").Name(s.name).Body(patch).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("count event %s/%s: %w", namespace, s.name, err)
	}
	return nil
}

// event gives the object that says what a series says.
func (e *Events) event(s series, regarding corev1.ObjectReference) *eventsv1.Event {
	event := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: eventNamespace(s.about), Name: eventName(s)},
		EventTime:           metav1.NewMicroTime(s.first),
		ReportingController: eventReporter,
		ReportingInstance:   cut(eventReporter+"-"+e.node, maxEventInstance),
		Action:              s.action,
		Reason:              s.reason,
		Regarding:           regarding,
		Note:                shorten(s.note, maxEventNote),
		Type:                s.kind,
	}
	if s.count > 1 {
		event.Series = seriesOf(s)
	}
	return event
}

func seriesOf(s series) *eventsv1.EventSeries {
	return &eventsv1.EventSeries{Count: s.count, LastObservedTime: metav1.NewMicroTime(s.last)}
}

// eventNamespace gives where events of an object are looked for.
func eventNamespace(about model.Key) string {
	if about.Name.Namespace == "" {
		return metav1.NamespaceDefault
	}
	return about.Name.Namespace
}

// eventName gives a name that no other event has. It stays the same for a series whose
// creation is tried again.
func eventName(s series) string {
	return fmt.Sprintf("%s.%x", strings.TrimRight(cut(s.about.Name.Name, maxEventSubject), ".-"), s.first.UnixNano())
}

// cut gives at most n bytes of a text, and no part of a character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// shorten cuts a text so that it is seen.
func shorten(text string, n int) string {
	const mark = "..."
	if len(text) <= n {
		return text
	}
	return cut(text, n-len(mark)) + mark
}

// A place is where objects of a kind are in the API.
type place struct {
	client   rest.Interface
	version  string
	resource string
	list     runtime.Object
}

func (c *Client) place(k model.Kind) place {
	switch k {
	case model.KindService:
		return place{c.core, "v1", "services", &corev1.ServiceList{}}
	case model.KindEndpointSlice:
		return place{c.discovery, discoveryv1.SchemeGroupVersion.String(), "endpointslices", &discoveryv1.EndpointSliceList{}}
	case model.KindServiceCIDR:
		return place{c.networking, networkingv1.SchemeGroupVersion.String(), "servicecidrs", &networkingv1.ServiceCIDRList{}}
	}
	return place{c.core, "v1", "nodes", &corev1.NodeList{}}
}

// reference names an object as kubectl describe looks for its events: by its UID. That is
// asked for, since the model does without. An object that is gone, or that this user may
// not read, has none.
func (e *Events) reference(ctx context.Context, about model.Key) (corev1.ObjectReference, error) {
	p := e.client.place(about.Kind)
	r := corev1.ObjectReference{APIVersion: p.version, Kind: about.Kind.String(), Namespace: about.Name.Namespace, Name: about.Name.Name}
	if about.Kind == model.KindNode {
		r.UID = types.UID(about.Name.Name) // what kubelets write, and kubectl looks for
		return r, nil
	}
	options := &metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, about.Name.Name).String()}
	err := p.client.Get().NamespaceIfScoped(about.Name.Namespace, about.Name.Namespace != "").Resource(p.resource).
		VersionedParams(options, e.client.parameters).Do(ctx).Into(p.list)
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		return r, nil
	case err != nil:
		return r, fmt.Errorf("look up %s for an event: %w", about, err)
	}
	return r, meta.EachListItem(p.list, func(obj runtime.Object) error {
		found, err := meta.Accessor(obj)
		if err == nil {
			r.UID = found.GetUID()
		}
		return err
	})
}
