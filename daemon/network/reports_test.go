package network

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"onerule/daemon/fabric/layout"
	"onerule/daemon/model"
	"onerule/nft/forward"
)

// A listener is a reporter's network whose events are kept.
type listener struct{ events, lines []string }

func (l *listener) reporter(self string) *reporter {
	n := New(Config{
		Node:  self,
		Event: func(e Event) { l.events = append(l.events, fmt.Sprintf("%s %s: %s", e.Node, e.Reason, e.Note)) },
		Log:   funcr.New(func(_, args string) { l.lines = append(l.lines, args) }, funcr.Options{}),
	})
	return &reporter{network: n}
}

// What is wrong with a node all daemons find: an event of it is written by three at most.
func TestProblemsOfNodesAreEvents(t *testing.T) {
	problem := func(node string) layout.Problem { return layout.Problem{Node: node, Detail: "no address"} }
	for self, want := range map[string][]string{
		"a": {"b NodeNotConnected: no address", "a NodeNotConnected: no address"},
		"b": {"b NodeNotConnected: no address", "a NodeNotConnected: no address"},
		"c": {"b NodeNotConnected: no address", "a NodeNotConnected: no address"},
		"d": nil,
	} {
		t.Run("told by "+self, func(t *testing.T) {
			l := &listener{}
			r := l.reporter(self)
			r.know([]layout.Node{{Name: "d"}, {Name: "c"}, {Name: "b"}, {Name: "a"}})
			r.problems([]layout.Problem{problem("b"), problem("a")})
			r.problems([]layout.Problem{problem("a"), problem("b")}) // known
			if diff := cmp.Diff(want, l.events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			r.problems(nil)
			r.problems([]layout.Problem{problem("a")})
			if got, again := len(l.events)-len(want), len(want)/2; got != again {
				t.Errorf("one that came again is told %d times, want %d", got, again)
			}
		})
	}
}

func TestBarriersAreToldOnce(t *testing.T) {
	l := &listener{}
	r := l.reporter("a")
	drop := words([]forward.Barrier{{Family: "ip", Table: "filter", Chain: "FORWARD", Policy: true}})
	r.compare("ForwardChainDrops", nil, drop, "packets are lost")
	r.compare("ForwardChainDrops", drop, drop, "packets are lost")
	r.compare("ForwardChainDrops", drop, nil, "packets are lost")
	want := []string{"a ForwardChainDrops: chain FORWARD of table ip filter at the forward hook drops by its policy, packets are lost"}
	if diff := cmp.Diff(want, l.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if len(l.lines) != 2 {
		t.Errorf("got lines %q, want one that it is so and one that it is over", l.lines)
	}
}

// Before all Nodes were delivered, one that was not yet is not gone.
func TestNodesCountOnceAllAreKnown(t *testing.T) {
	n := New(Config{Node: "a", Log: logr.Discard()})
	change := func(name string, node *model.Node) {
		n.Changed(model.Change{Key: model.Key{Kind: model.KindNode, Name: model.Name{Name: name}}, Node: node})
	}
	change("a", &model.Node{Name: "a"})
	if got := n.take().nodes; got != nil {
		t.Errorf("got %v before all are known", got)
	}
	change("b", &model.Node{Name: "b"})
	n.Synced()
	if got := n.take().nodes; len(got) != 2 {
		t.Errorf("got %v, want both", got)
	}
	if got := n.take().nodes; got != nil {
		t.Errorf("got %v, and nothing has changed", got)
	}
	change("b", nil)
	if got := n.take().nodes; len(got) != 1 || got[0].Name != "a" {
		t.Errorf("got %v, want a", got)
	}
}

func TestStatusFile(t *testing.T) {
	dir := t.TempDir()
	l := &listener{}
	s := status{path: filepath.Join(dir, "run", "network.json"), log: l.reporter("a").network.cfg.Log}
	read := func() (got Status) {
		t.Helper()
		b, err := os.ReadFile(s.path)
		if err == nil {
			err = json.Unmarshal(b, &got)
		}
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	t.Run("nothing to say is said, too", func(t *testing.T) {
		s.write([]Condition{})
		if got := read(); got.Conditions == nil || len(got.Conditions) != 0 || got.Time.IsZero() {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("the same is not written again", func(t *testing.T) {
		before := read().Time
		s.write([]Condition{})
		if got := read().Time; !got.Equal(before) {
			t.Errorf("written at %s, and before at %s", got, before)
		}
	})
	t.Run("unless it is old", func(t *testing.T) {
		before := read().Time
		s.written = s.written.Add(-freshen)
		s.write([]Condition{})
		if got := read().Time; got.Equal(before) {
			t.Error("it is not written")
		}
	})
	t.Run("a condition", func(t *testing.T) {
		want := []Condition{{Code: 51, Message: "a wall"}}
		s.write(want)
		if diff := cmp.Diff(want, read().Conditions); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("what can't be written is told once, and tried again", func(t *testing.T) {
		s.path = filepath.Join(dir, "file", "network.json")
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			s.write(nil)
		}
		if len(l.lines) != 1 {
			t.Errorf("got lines %q, want one", l.lines)
		}
		if err := os.Remove(filepath.Join(dir, "file")); err != nil {
			t.Fatal(err)
		}
		s.write(nil)
		read()
	})
}
