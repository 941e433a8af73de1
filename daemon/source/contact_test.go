package source

import (
	"testing"
	"time"
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
