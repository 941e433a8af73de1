package source

import (
	"strconv"
	"strings"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"

	"onerule/daemon/model"
)

// An interner keeps one copy of each string that many objects share: the names of
// nodes, namespaces, Services and ports. Without it every endpoint brings its
// node's name along. (The handles of package unique would have to stay in the
// model to keep their strings shared.)
type interner struct {
	mu     sync.Mutex
	seen   map[string]string
	shared map[string]*model.Hints
}

func newInterner() *interner {
	return &interner{seen: map[string]string{}, shared: map[string]*model.Hints{}}
}

// maxInterned bounds the strings kept of objects that are long gone. Starting over
// costs second copies, nothing else.
const maxInterned = 1 << 16

func (i *interner) of(s string) string {
	if s == "" {
		return ""
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if kept, ok := i.seen[s]; ok {
		return kept
	}
	if len(i.seen) >= maxInterned {
		clear(i.seen)
	}
	s = strings.Clone(s) // not a part of a larger buffer
	i.seen[s] = s
	return s
}

// hints gives the model's form of hints, one for all endpoints that have the same: an
// endpoint keeps a pointer, whatever they say.
func (i *interner) hints(h *discoveryv1.EndpointHints) *model.Hints {
	if h == nil || len(h.ForZones)+len(h.ForNodes) == 0 {
		return nil
	}
	key := appendHints(make([]byte, 0, 256), h)
	i.mu.Lock()
	kept := i.shared[string(key)]
	i.mu.Unlock()
	if kept != nil {
		return kept
	}
	made := &model.Hints{}
	for _, z := range h.ForZones {
		made.Zones = append(made.Zones, i.of(z.Name))
	}
	for _, n := range h.ForNodes {
		made.Nodes = append(made.Nodes, i.of(n.Name))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if kept := i.shared[string(key)]; kept != nil {
		return kept
	}
	if len(i.shared) >= maxInterned {
		clear(i.shared)
	}
	i.shared[string(key)] = made
	return made
}

// appendHints adds a text that only equal hints have.
func appendHints(key []byte, h *discoveryv1.EndpointHints) []byte {
	for _, z := range h.ForZones {
		key = strconv.AppendQuote(append(key, 'z'), z.Name)
	}
	for _, n := range h.ForNodes {
		key = strconv.AppendQuote(append(key, 'n'), n.Name)
	}
	return key
}
