package source

import (
	"sync"
	"time"
)

// A Contact knows since when an API server cannot be heard. Its methods can be called from
// any goroutine; a nil Contact knows nothing.
type Contact struct {
	mu   sync.Mutex
	lost map[string]time.Time // by resource
}

// asks says that a resource is not watched now, and is asked for.
func (c *Contact) asks(resource string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost == nil {
		c.lost = map[string]time.Time{}
	}
	if _, known := c.lost[resource]; !known {
		c.lost[resource] = time.Now()
	}
}

// hears says that the server has answered about a resource.
func (c *Contact) hears(resource string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lost, resource)
}

// Lost says for how long the server has not answered about some resource, 0 if there is
// none: what has changed since is not known.
func (c *Contact) Lost() time.Duration {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	longest := time.Duration(0)
	for _, since := range c.lost {
		longest = max(longest, time.Since(since))
	}
	return longest
}
