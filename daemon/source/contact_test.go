package source

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
)

// A server is lost from the first question without an answer on, by the resource that
// waits for longest, until all are answered.
func TestContactIsLostUntilAllIsAnswered(t *testing.T) {
	c := &Contact{}
	if c.Lost() != 0 || (*Contact)(nil).Lost() != 0 {
		t.Error("lost before anything was asked")
	}
	c.asks("services")
	c.asks("nodes")
	began := c.lost["services"].Add(-time.Hour)
	c.lost["services"] = began
	c.asks("services") // once more
	if lost := c.Lost(); lost < time.Hour || c.lost["services"] != began {
		t.Errorf("lost for %s, want from the first question on: an hour", lost)
	}
	c.hears("services")
	if lost := c.Lost(); lost == 0 || lost >= time.Hour {
		t.Errorf("lost for %s, want as long as the nodes", lost)
	}
	c.hears("nodes")
	if lost := c.Lost(); lost != 0 {
		t.Errorf("lost for %s when all is answered", lost)
	}
}

// A server that refuses to tell of Services says nothing about them, whatever it answers.
func TestContactIsLostWhileRightsAreMissing(t *testing.T) {
	s, c := newAPIServer(t), &Contact{}
	s.put(aService("web", "10.96.0.1"))
	r := newRecorder()
	run(t, API{Client: s.client(t), Node: "n1", Log: testr.New(t), Contact: c, absence: 20 * time.Millisecond}, r)
	r.awaitSynced(t)
	refuse := func(status int) {
		s.set(func() {
			for _, resource := range []string{"services", "endpointslices", "nodes"} {
				s.refuse[resource] = status
			}
		})
		s.down()
		s.up(t)
	}
	refuse(http.StatusForbidden)
	poll(t, func() string {
		if lost := c.Lost(); lost < time.Second {
			return fmt.Sprintf("it is lost for %v, want a second at least", lost)
		}
		return ""
	})
	refuse(0)
	poll(t, func() string {
		if lost := c.Lost(); lost > 0 {
			return fmt.Sprintf("it is lost for %v, want it heard", lost)
		}
		return ""
	})
}
