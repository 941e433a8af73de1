package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
)

// A manifestDir is a directory with a running source on it.
type manifestDir struct {
	*recorder
	t    *testing.T
	path string
}

// newManifestDir makes an empty directory; run starts the source.
func newManifestDir(t *testing.T) *manifestDir {
	return &manifestDir{recorder: newRecorder(), t: t, path: t.TempDir()}
}

// run starts the source on the directory, to end with the test, and waits for its
// first look.
func (d *manifestDir) run() {
	d.t.Helper()
	d.runEvery(time.Hour) // events alone must do, unless a test says otherwise
}

func (d *manifestDir) runEvery(rescan time.Duration) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	m := Manifests{Dir: d.path, Node: "n1", Log: testr.New(d.t), rescan: rescan}
	go func() { ended <- m.Run(ctx, d) }() // ends with the test
	d.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			d.t.Errorf("run: %v", err)
		}
	})
	d.awaitSynced(d.t)
}

func (d *manifestDir) write(name, text string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.path, name), []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d *manifestDir) rename(from, to string) {
	d.t.Helper()
	if err := os.Rename(filepath.Join(d.path, from), filepath.Join(d.path, to)); err != nil {
		d.t.Fatal(err)
	}
}

func (d *manifestDir) remove(name string) {
	d.t.Helper()
	if err := os.Remove(filepath.Join(d.path, name)); err != nil {
		d.t.Fatal(err)
	}
}

// link makes a symlink, by renaming when one is there.
func (d *manifestDir) link(to, name string) {
	d.t.Helper()
	if err := os.Symlink(to, filepath.Join(d.path, ".new")); err != nil {
		d.t.Fatal(err)
	}
	d.rename(".new", name)
}

// barrier writes an object of its own and waits for it: whatever was to come of the
// changes before has come.
func (d *manifestDir) barrier() {
	d.t.Helper()
	d.mu.Lock()
	want := len(d.objects) + 1
	d.mu.Unlock()
	d.write("zz-barrier.yaml", serviceYAML("barrier", "10.96.255.1"))
	d.await(d.t, func() string { return cmp.Diff(want, len(d.objects)) })
	d.remove("zz-barrier.yaml")
	d.await(d.t, func() string { return cmp.Diff(want-1, len(d.objects)) })
}

func serviceYAML(name, ip string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: %s
spec:
  clusterIP: %s
  ports:
  - name: http
    port: 80
    targetPort: 8080
`, name, ip)
}

func sliceYAML(name, service string, endpoints ...string) string {
	text := fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %s
  labels: {kubernetes.io/service-name: %s}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
`, name, service)
	for _, e := range endpoints {
		text += "- addresses: [" + e + "]\n"
	}
	return text
}

func join(docs ...string) string { return strings.Join(docs, "---\n") }

func TestManifestsOfEveryKindAndForm(t *testing.T) {
	node := func(name string) string {
		return "apiVersion: v1\nkind: Node\nmetadata: {name: " + name + "}\nspec: {podCIDRs: [10.1.0.0/24]}\n"
	}
	d := newManifestDir(t)
	d.write("kinds.yaml", "# a comment\n---\n"+join(
		serviceYAML("web", "10.96.0.1"), sliceYAML("web-1", "web", "10.1.0.1", "10.1.0.2"), node("n1"), node("n2"),
		"apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/16]}\n",
		"", "# nothing\n"))
	d.write("list.yml", `--- # a mixed list
apiVersion: v1
kind: List
metadata: {resourceVersion: ""}
items:
- {apiVersion: v1, kind: Service, metadata: {name: of-list, namespace: other}, spec: {clusterIP: 10.96.0.2}}
...
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSliceList
items:
- {metadata: {name: of-typed, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, endpoints: [{addresses: [10.1.0.3]}]}
`)
	d.write("stream.json", `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "one"}, "spec": {"clusterIP": "10.96.0.3"}}
	{"apiVersion": "v1", "kind": "ServiceList", "items": [{"metadata": {"name": "two"}, "spec": {"clusterIP": "10.96.0.4"}}]}`)
	d.write("in-yaml.yaml", `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "three"}, "spec": {"clusterIP": "10.96.0.5"}}`)
	d.write(".hidden.yaml", serviceYAML("hidden", "10.96.0.6"))
	d.write("notes.txt", "not: a manifest")
	d.write("crlf.yaml", strings.ReplaceAll(join(serviceYAML("crlf", "10.96.0.7"), serviceYAML("crlf2", "10.96.0.8")), "\n", "\r\n"))
	if err := os.Mkdir(filepath.Join(d.path, "folder.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.run()
	d.awaitObjects(t,
		"Service default/web 10.96.0.1", "EndpointSlice default/web-1 2 endpoints", "Node n1", "ServiceCIDR kubernetes 10.96.0.0/16",
		"Service other/of-list 10.96.0.2", "EndpointSlice default/of-typed 1 endpoints",
		"Service default/one 10.96.0.3", "Service default/two 10.96.0.4", "Service default/three 10.96.0.5",
		"Service default/crlf 10.96.0.7", "Service default/crlf2 10.96.0.8")
	d.awaitNotes(t)
}

func TestManifestsNeedADirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, file + "-missing", ""} {
		r := newRecorder()
		err := Manifests{Dir: path, Node: "n1", Log: testr.New(t)}.Run(t.Context(), r)
		if err == nil || !strings.Contains(err.Error(), "manifests directory") || r.synced != 0 {
			t.Errorf("%q: got %v and %d calls of Synced, want an error and none", path, err, r.synced)
		}
	}
}

func TestFilesAreFollowed(t *testing.T) {
	d := newManifestDir(t)
	d.run()
	d.awaitObjects(t)

	d.write("a.yaml", join(serviceYAML("web", "10.96.0.1"), serviceYAML("dns", "10.96.0.2")))
	d.awaitObjects(t, "Service default/web 10.96.0.1", "Service default/dns 10.96.0.2")
	d.take()

	d.write("a.yaml", join(serviceYAML("web", "10.96.0.9"), serviceYAML("dns", "10.96.0.2")))
	d.awaitObjects(t, "Service default/web 10.96.0.9", "Service default/dns 10.96.0.2")
	if diff := cmp.Diff([]string{"+Service default/web"}, d.take()); diff != "" {
		t.Errorf("one of two objects changed (-want +got):\n%s", diff)
	}

	d.write("a.yaml", "# reordered\n"+join(serviceYAML("dns", "10.96.0.2"), serviceYAML("web", "10.96.0.9")))
	d.barrier()
	if diff := cmp.Diff([]string{"+Service default/barrier", "-Service default/barrier"}, d.take()); diff != "" {
		t.Errorf("nothing changed but the order (-want +got):\n%s", diff)
	}

	d.write("tmp~", serviceYAML("web", "10.96.0.10"))
	d.rename("tmp~", "a.yaml")
	d.awaitObjects(t, "Service default/web 10.96.0.10")
	d.take()

	d.rename("a.yaml", "b.yaml")
	d.barrier()
	if diff := cmp.Diff([]string{"+Service default/barrier", "-Service default/barrier"}, d.take()); diff != "" {
		t.Errorf("a file got another name (-want +got):\n%s", diff)
	}

	d.remove("b.yaml")
	d.awaitObjects(t)
	d.awaitNotes(t)
}

func TestAConfigMapIsFollowed(t *testing.T) {
	d := newManifestDir(t)
	fill := func(name, text string) {
		if err := os.Mkdir(filepath.Join(d.path, name), 0o700); err != nil {
			t.Fatal(err)
		}
		d.write(filepath.Join(name, "web.yaml"), text)
	}
	fill("..1", serviceYAML("web", "10.96.0.1"))
	d.link("..1", "..data")
	d.link("..data/web.yaml", "web.yaml")
	d.run()
	d.awaitObjects(t, "Service default/web 10.96.0.1")
	fill("..2", serviceYAML("web", "10.96.0.2"))
	d.link("..2", "..data")
	d.awaitObjects(t, "Service default/web 10.96.0.2")
	d.remove("..data")
	d.awaitObjects(t)
}

func TestWhatEventsDoNotTellIsFound(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "web.yaml")
	write := func(ip string) {
		if err := os.WriteFile(elsewhere, []byte(serviceYAML("web", ip)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("10.96.0.1")
	d := newManifestDir(t)
	d.link(elsewhere, "web.yaml")
	d.runEvery(50 * time.Millisecond)
	d.awaitObjects(t, "Service default/web 10.96.0.1")
	write("10.96.0.2") // as long as before
	d.awaitObjects(t, "Service default/web 10.96.0.2")
}

func TestADirectoryThatIsGoneKeepsWhatItSaid(t *testing.T) {
	d := newManifestDir(t)
	d.path = filepath.Join(d.path, "inner")
	mkdir := func() {
		if err := os.Mkdir(d.path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mkdir()
	d.write("web.yaml", serviceYAML("web", "10.96.0.1"))
	d.runEvery(50 * time.Millisecond)
	d.awaitObjects(t, "Service default/web 10.96.0.1")
	d.take()
	if err := os.Rename(d.path, d.path+"-away"); err != nil {
		t.Fatal(err)
	}
	mkdir()
	d.write("dns.yaml", serviceYAML("dns", "10.96.0.2"))
	d.write("web.yaml", serviceYAML("web", "10.96.0.1"))
	d.awaitObjects(t, "Service default/web 10.96.0.1", "Service default/dns 10.96.0.2")
	if diff := cmp.Diff([]string{"+Service default/dns"}, d.take()); diff != "" {
		t.Errorf("another directory took the name (-want +got):\n%s", diff)
	}
}

// TestTheWatchMovesToANewDirectory looks for the event itself: the next look at all
// files would hide that there is none.
func TestTheWatchMovesToANewDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "inner")
	mkdir := func() {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mkdir()
	r := &manifestRun{
		Manifests: Manifests{Dir: dir, Node: "n1", Log: testr.New(t)},
		dir:       newDirectory(dir),
		parser:    parser{node: "n1", convert: newConverter()},
		holdings:  newHoldings(newRecorder()),
	}
	if err := r.watch(); err != nil {
		t.Fatal(err)
	}
	defer r.unwatch()
	if err := os.Rename(dir, dir+"-away"); err != nil {
		t.Fatal(err)
	}
	mkdir()
	r.rescanAll()
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(20 * time.Second)
	for {
		select {
		case e := <-r.watcher.Events:
			if filepath.Base(e.Name) == "web.yaml" {
				return
			}
		case <-deadline:
			t.Fatal("no event of a file in the new directory")
		}
	}
}

func TestManyFiles(t *testing.T) {
	const n = 500
	d := newManifestDir(t)
	var want []string
	for i := range n {
		name, ip := fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)
		if i < n/2 {
			d.write(name+".yaml", serviceYAML(name, ip))
		}
		want = append(want, "Service default/"+name+" "+ip)
	}
	d.run()
	for i := n / 2; i < n; i++ {
		d.write(fmt.Sprintf("s%d.yaml", i), serviceYAML(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)))
	}
	d.awaitObjects(t, want...)
	for i := range n {
		d.remove(fmt.Sprintf("s%d.yaml", i))
	}
	d.awaitObjects(t)
}

func TestOneObjectInTwoFiles(t *testing.T) {
	d := newManifestDir(t)
	d.write("b.yaml", serviceYAML("web", "10.96.0.2"))
	d.run()
	d.awaitObjects(t, "Service default/web 10.96.0.2")

	d.write("a.yaml", serviceYAML("web", "10.96.0.1"))
	d.awaitObjects(t, "Service default/web 10.96.0.1")
	d.awaitNotes(t, "b.yaml: Service default/web: duplicate-object")
	if got, want := d.detail("b.yaml: Service default/web"), "a.yaml"; !strings.Contains(got, want) {
		t.Errorf("got detail %q, want it to name %s", got, want)
	}

	d.write("b.yaml", serviceYAML("web", "10.96.0.3"))
	d.barrier()
	d.awaitObjects(t, "Service default/web 10.96.0.1")

	d.take()
	d.remove("a.yaml")
	d.awaitObjects(t, "Service default/web 10.96.0.3")
	d.awaitNotes(t)
	if diff := cmp.Diff([]string{"+Service default/web"}, d.take()); diff != "" {
		t.Errorf("the second file takes over (-want +got):\n%s", diff)
	}

	d.write("a.yaml", join(serviceYAML("web", "10.96.0.1000"), serviceYAML("other", "10.96.0.4")))
	d.awaitNotes(t, "a.yaml: Service default/web: invalid-address spec.clusterIP")
	d.awaitObjects(t, "Service default/web 10.96.0.3", "Service default/other 10.96.0.4")
}
