package source

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
)

// randomFile gives a file of a few of few objects: often a good one, and sometimes
// with a fault of every sort.
func randomFile(r *rand.Rand, faults bool) string {
	var docs []string
	names := r.Perm(5)
	for i := range r.IntN(4) {
		name := fmt.Sprintf("s%d", names[i])
		if faults {
			name = fmt.Sprintf("s%d", r.IntN(5)) // the same twice, now and then
		}
		switch n := r.IntN(10); {
		case faults && n == 0:
			docs = append(docs, "kind: [\n")
		case faults && n == 1:
			docs = append(docs, "apiVersion: v1\nkind: Pod\n")
		case faults && n == 2:
			docs = append(docs, serviceYAML(name, "10.96.0"))
		case n == 3:
			docs = append(docs, serviceYAML(name, "None"))
		default:
			docs = append(docs, serviceYAML(name, fmt.Sprintf("10.96.%d.%d", i, 1+r.IntN(3))))
		}
	}
	return join(append(docs, "# end\n")...)
}

// TestFilesComeToTheSameInAnyOrder changes files at random, and then states all of
// them without a fault: what the sink has must be what a source has that reads them
// for the first time, and no change may have been told that changes nothing.
func TestFilesComeToTheSameInAnyOrder(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range 200 {
		sink := &strictSink{recorder: newRecorder(), t: t}
		h := newHoldings(sink)
		p := parser{node: "n1", convert: newConverter()}
		set := func(h *holdings, files map[string]string) {
			contents := map[string]*content{}
			for name, text := range files {
				contents[name] = nil
				if text != "" {
					contents[name] = p.parse(name, []byte(text), h.parsed(name))
				}
			}
			h.set(contents)
		}
		for range 20 {
			files := map[string]string{}
			for range 1 + r.IntN(2) {
				name := fmt.Sprintf("f%d.yaml", r.IntN(4))
				files[name] = ""
				if r.IntN(4) > 0 {
					files[name] = randomFile(r, true)
				}
			}
			set(h, files)
		}
		last := map[string]string{}
		for i := range 4 {
			last[fmt.Sprintf("f%d.yaml", i)] = randomFile(r, false)
		}
		set(h, last)
		fresh := newRecorder()
		set(newHoldings(fresh), last)
		if diff := cmp.Diff(fresh.words(), sink.words()); diff != "" {
			t.Fatalf("seed %d, round %d: objects of (-fresh +changed):\n%s\nfiles %q", seed, round, diff, last)
		}
		if diff := cmp.Diff(fresh.notes, sink.notes); diff != "" {
			t.Fatalf("seed %d, round %d: notes of (-fresh +changed):\n%s\nfiles %q", seed, round, diff, last)
		}
	}
}

// A strictSink fails the test when it is told what it knows.
type strictSink struct {
	*recorder
	t *testing.T
}

func (s *strictSink) Changed(c model.Change) {
	old, had := s.objects[c.Key]
	now := (delivery{change: c}).present()
	if !had && !now {
		s.t.Errorf("%s is gone, and was not there", c.Key)
	}
	if had && now && cmp.Equal(old, c, compareAddresses()) {
		s.t.Errorf("%s was told twice", c.Key)
	}
	s.recorder.Changed(c)
}

// FuzzManifest reads arbitrary bytes as a file: it must name what it does not read,
// and reading it again with what is known must come to the same.
func FuzzManifest(f *testing.F) {
	for _, seed := range []string{
		"", " \n", "---\n", "null", "[]", "{}", "a: b: c", "kind: [", "\xff\xfe", "\x00", "--- # x\n...\n", "- &a [*a]",
		"apiVersion: v1\nkind: List\nitems: [null, 7, {kind: Service, apiVersion: v1}]\n",
		"apiVersion: v1\nkind: ServiceList\nitems: {}\n",
		"apiVersion: v1\nkind: Service\nmetadata: []\n",
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"clusterIP":"10.96.0.1"}} {"apiVersion"`,
		serviceYAML("web", "10.96.0.1"), serviceYAML("web", "010.96.0.0400"),
		join(serviceYAML("web", "10.96.0.1"), sliceYAML("web-1", "web", "10.1.0.1", "fd00::1")),
		"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c,*c,*c,*c,*c]\n",
	} {
		f.Add("a.yaml", []byte(seed))
		f.Add("a.json", []byte(seed))
	}
	f.Fuzz(func(t *testing.T, file string, data []byte) {
		p := parser{node: "n1", convert: newConverter()}
		c := p.parse(file, data, nil)
		for _, s := range c.objects {
			if s.change.Key.Name.Name == "" {
				t.Error("an object without a name")
			}
			if s.fault && len(s.notes) == 0 {
				t.Errorf("%s: a fault without a note", s.change.Key)
			}
			if s.change.Service != nil && len(s.change.Service.ClusterIPs) == 0 {
				t.Errorf("%s: a Service without an address", s.change.Key)
			}
		}
		if c.broken && len(c.notes) == 0 {
			t.Error("a broken file without a note")
		}
		again := p.parse(file, data, c.parsed)
		if diff := cmp.Diff(c, again, compareAddresses(), cmp.AllowUnexported(content{}, statement{}, delivery{})); diff != "" {
			t.Errorf("read again (-first +again):\n%s", diff)
		}
		h := newHoldings(newRecorder())
		h.set(map[string]*content{file: c})
		h.set(map[string]*content{file: nil})
		if len(h.delivered)+len(h.noted)+len(h.holders)+len(h.files) != 0 {
			t.Errorf("got %+v of a file that is gone, want nothing", h)
		}
	})
}
