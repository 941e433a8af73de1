package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"onerule/daemon/model"
)

// A statement is what a file says of one object.
type statement struct {
	delivery
	// fault says that the notes are of something to mend. The others are of objects
	// that Kubernetes allows and that mean nothing here.
	fault bool
}

// A content is what one file says.
type content struct {
	objects []statement
	// notes are the faults that belong to no object whose name is known.
	notes []model.Note
	// broken says that a part of the file is not well formed: what it meant to say
	// is not known.
	broken bool
	// parsed has the objects that are documents by themselves and without a fault,
	// by the document's sum.
	parsed map[sum]statement
}

// A sum stands for a document's text.
type sum [sha256.Size]byte

// A parser makes contents of files.
type parser struct {
	node     string // the only Node that counts, unless allNodes
	allNodes bool
	convert  converter
}

// parse reads a file. Every fault in it becomes a note, and the rest is read. What
// was parsed of it before is taken from known: parsing takes most of the time, and
// of a large file little changes at once.
func (p parser) parse(file string, data []byte, known map[sum]statement) *content {
	c := &content{parsed: map[sum]statement{}}
	if len(bytes.TrimSpace(data)) == 0 {
		// A file that is being written begins empty.
		c.fail("is empty")
		return c
	}
	for _, d := range documents(file, data) {
		of := sum(sha256.Sum256(d.text))
		if s, ok := known[of]; ok && d.err == nil {
			c.objects = append(c.objects, s)
			c.parsed[of] = s
			continue
		}
		notes, objects := len(c.notes), len(c.objects)
		p.document(c, file, d)
		if len(c.notes) == notes && len(c.objects) == objects+1 && len(c.objects[objects].notes) == 0 {
			c.parsed[of] = c.objects[objects]
		}
	}
	return c
}

// fail notes that the file, or a part of it, is not well formed.
func (c *content) fail(detail string) {
	c.broken = true
	c.notes = append(c.notes, model.Note{Reason: model.ReasonParse, Detail: detail})
}

// A header is what every object, and every list of objects, begins with.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// document reads one document: an object, or a list of objects.
func (p parser) document(c *content, file string, d document) {
	value, err := d.json(file)
	if err != nil {
		c.fail(err.Error())
		return
	}
	if value == nil {
		return
	}
	where := fmt.Sprintf("document at line %d", d.line)
	var h header
	if err := json.Unmarshal(value, &h); err != nil {
		c.fail(where + ": " + err.Error())
		return
	}
	of, list := strings.CutSuffix(h.Kind, "List")
	if !list {
		p.object(c, where, value, h)
		return
	}
	if !readList(h.APIVersion, of) {
		c.unknown(where, h)
		return
	}
	var l struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	for _, n := range decode(value, &l) {
		n.Detail = where + ": " + n.Detail
		c.notes = append(c.notes, n)
	}
	for i, item := range l.Items {
		p.item(c, fmt.Sprintf("%s, items[%d]", where, i), item, header{APIVersion: h.APIVersion, Kind: of})
	}
}

// readList says whether lists of a kind are read: those that are typed, and the
// mixed one, of no kind.
func readList(version, kind string) bool {
	return version == "v1" && kind == "" || kindOf(version, kind) != nil
}

// item reads an object in a list. In a typed list it need not say its kind.
func (p parser) item(c *content, where string, raw json.RawMessage, typed header) {
	var h header
	if err := json.Unmarshal(raw, &h); err != nil || bytes.Equal(raw, []byte("null")) {
		c.fail(where + ": is not an object")
		return
	}
	if h.Kind == "" && h.APIVersion == "" && typed.Kind != "" {
		h = typed
	}
	p.object(c, where, raw, h)
}

// kindOf gives an empty object of a kind that is read, or nil.
func kindOf(version, kind string) metav1.Object {
	switch version + " " + kind {
	case "v1 Service":
		return &corev1.Service{}
	case "v1 Node":
		return &corev1.Node{}
	case discoveryv1.SchemeGroupVersion.String() + " EndpointSlice":
		return &discoveryv1.EndpointSlice{}
	case networkingv1.SchemeGroupVersion.String() + " ServiceCIDR":
		return &networkingv1.ServiceCIDR{}
	}
	return nil
}

func (c *content) unknown(where string, h header) {
	c.notes = append(c.notes, model.Note{
		Reason: model.ReasonUnknownKind,
		Field:  "kind",
		Detail: fmt.Sprintf("%s: apiVersion %s, kind %s is none that is read", where, quote(h.APIVersion), quote(h.Kind)),
	})
}

// object reads one object.
func (p parser) object(c *content, where string, raw []byte, h header) {
	obj := kindOf(h.APIVersion, h.Kind)
	if obj == nil {
		c.unknown(where, h)
		return
	}
	notes := decode(raw, obj)
	namespaced := h.Kind == "Service" || h.Kind == "EndpointSlice"
	if namespaced && obj.GetNamespace() == "" {
		obj.SetNamespace(metav1.NamespaceDefault)
	}
	d, err := p.convert.object(obj)
	if err != nil {
		c.fail(where + ": " + err.Error())
		return
	}
	s := statement{delivery: d, fault: len(d.notes) > 0 && !foreign(obj)}
	if len(notes) > 0 {
		s = statement{delivery: delivery{model.Change{Key: d.change.Key}, notes}, fault: true}
	}
	if d.change.Node != nil && d.change.Node.Name != p.node && !p.allNodes {
		s.change.Node = nil
	}
	if obj.GetName() != "" {
		c.objects = append(c.objects, s)
		return
	}
	for _, n := range s.notes {
		n.Detail = fmt.Sprintf("%s, %s without a name: %s", where, h.Kind, n.Detail)
		c.notes = append(c.notes, n)
	}
}

// foreign says whether an object is a good one that no Service proxy reads.
func foreign(obj metav1.Object) bool {
	s, ok := obj.(*discoveryv1.EndpointSlice)
	return ok && s.AddressType == discoveryv1.AddressTypeFQDN
}

// decode fills a value strictly: unknown and repeated fields are faults, each named
// by its path.
func decode(raw []byte, into any) []model.Note {
	var f findings
	strict, err := kjson.UnmarshalStrict(raw, into)
	for _, err := range strict {
		var field kjson.FieldError
		path := ""
		if errors.As(err, &field) {
			path = field.FieldPath()
		}
		f.add(model.ReasonParse, path, err.Error())
	}
	if err != nil {
		path := ""
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			path = wrong.Field
		}
		f.add(model.ReasonParse, path, err.Error())
	}
	return f.notes
}
