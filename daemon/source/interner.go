package source

import (
	"strings"
	"sync"
)

// An interner keeps one copy of each string that many objects share: the names of
// nodes, namespaces, Services and ports. Without it every endpoint brings its
// node's name along. (The handles of package unique would have to stay in the
// model to keep their strings shared.)
type interner struct {
	mu   sync.Mutex
	seen map[string]string
}

func newInterner() *interner { return &interner{seen: map[string]string{}} }

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
