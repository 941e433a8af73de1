package source

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestBadManifests states a good file, spoils it, and mends it: what was good stays,
// each fault is named once, and nothing else is touched.
func TestBadManifests(t *testing.T) {
	good := join(serviceYAML("web", "10.96.0.1"), sliceYAML("web-1", "web", "10.1.0.1", "10.1.0.2"))
	const webKept, sliceKept = "Service default/web 10.96.0.1", "EndpointSlice default/web-1 2 endpoints"
	long := strings.Repeat("a", 64)
	for _, c := range []struct {
		name    string
		bad     string
		objects []string // beside the kept ones
		notes   []string // without the file's name
		detail  string   // a part of the detail of the first note
	}{
		{name: "no YAML", bad: "a: b: c\n", notes: []string{": parse"}, detail: "line 1:"},
		{
			name: "a second document that is no YAML", bad: join(serviceYAML("dns", "10.96.0.3"), "kind: [\n"),
			objects: []string{"Service default/dns 10.96.0.3"}, notes: []string{": parse"}, detail: "line 12:",
		},
		{name: "cut off in the middle of a document", bad: good[:strings.Index(good, "port: 8080")-7], notes: []string{": parse"}, detail: "line 1"},
		{name: "cut off where its rest is YAML of another shape", bad: good[:strings.Index(good, "name: web-1")+3], notes: []string{": parse metadata"}, detail: "document at line 11"},
		{name: "cut off at its beginning", bad: "", notes: []string{": parse"}, detail: "is empty"},
		{
			name: "one document of two, and a fault in it", bad: serviceYAML("web", "10.96.0.300"),
			notes: []string{": Service default/web: invalid-address spec.clusterIP"}, detail: "10.96.0.300",
		},
		{
			name: "an unknown kind", bad: join(serviceYAML("dns", "10.96.0.3"), "apiVersion: v1\nkind: Servce\nmetadata: {name: web}\n"),
			objects: []string{"Service default/dns 10.96.0.3"}, notes: []string{": unknown-kind kind"}, detail: `line 11: apiVersion "v1", kind "Servce"`,
		},
		{name: "a known kind of an unknown version", bad: strings.Replace(good, "discovery.k8s.io/v1", "discovery.k8s.io/v1beta1", 1),
			notes: []string{": unknown-kind kind"}, detail: "v1beta1"},
		{name: "no kind", bad: "metadata: {name: web}\n", notes: []string{": unknown-kind kind"}, detail: `kind ""`},
		{name: "a document that is a number", bad: "42\n", notes: []string{": parse"}, detail: "line 1: "},
		{name: "an unknown field", bad: strings.Replace(good, "  clusterIP:", "  clusterIp:", 1),
			notes: []string{": Service default/web: parse spec.clusterIp"}, detail: `unknown field "spec.clusterIp"`},
		{name: "an unknown field deep inside", bad: strings.Replace(good, "    targetPort", "    targetport", 1),
			notes: []string{": Service default/web: parse spec.ports[0].targetport"}},
		{name: "a field twice", bad: strings.Replace(good, "    port: 80\n", "    port: 80\n    port: 81\n", 1), notes: []string{": parse"}, detail: `line 10: key "port"`},
		{name: "a field of a wrong type", bad: strings.Replace(good, "port: 80\n", "port: eighty\n", 1),
			notes: []string{": Service default/web: parse spec.ports.port"}},
		{name: "a port that fits no integer", bad: strings.Replace(good, "port: 80\n", "port: 99999999999\n", 1),
			notes: []string{": Service default/web: parse spec.ports.port"}},
		{name: "a port out of range", bad: strings.Replace(good, "port: 80\n", "port: 65536\n", 1),
			notes: []string{": Service default/web: invalid-port spec.ports[0].port"}, detail: "65536"},
		{name: "an unknown protocol", bad: strings.Replace(good, "port: 80\n", "port: 80\n    protocol: HTTP\n", 1),
			notes: []string{": Service default/web: invalid-protocol spec.ports[0].protocol"}, detail: "HTTP"},
		{name: "an invalid address of an endpoint", bad: strings.Replace(good, "10.1.0.2", "10.1.0.2000", 1),
			notes: []string{": EndpointSlice default/web-1: invalid-address endpoints[1].addresses"}, detail: "10.1.0.2000"},
		{name: "an address of the other family", bad: strings.Replace(good, "10.1.0.2", "'fd00::2'", 1),
			notes: []string{": EndpointSlice default/web-1: invalid-address endpoints[1].addresses"}, detail: "IPv4"},
		{name: "a slice of no Service", bad: strings.Replace(good, "kubernetes.io/service-name", "service-name", 1),
			notes: []string{": EndpointSlice default/web-1: no-service metadata.labels[kubernetes.io/service-name]"}},
		{name: "a type of address with a spelling mistake", bad: strings.Replace(good, "addressType: IPv4", "addressType: IPV4", 1),
			notes: []string{": EndpointSlice default/web-1: address-type addressType"}, detail: "IPV4"},
		{name: "no name", bad: strings.Replace(good, "  name: web\n", "  generateName: web\n", 1),
			notes: []string{": invalid-name metadata.name"}, detail: "document at line 1, Service without a name"},
		{name: "a name beyond the maximum", bad: strings.Replace(good, "name: web\n", "name: "+long+"\n", 1),
			notes: []string{": Service default/" + long + ": invalid-name metadata.name"}, detail: "64 characters"},
		{name: "one object twice", bad: good + "---\n" + serviceYAML("web", "10.96.0.9"),
			notes: []string{": Service default/web: duplicate-object"}},
		{
			name: "bad items of a list beside a good one",
			bad: `apiVersion: v1
kind: ServiceList
items:
- {metadata: {name: dns}, spec: {clusterIP: 10.96.0.3}}
- {metadata: {name: bad}, spec: {clusterIP: 10.96.0}}
- {metadata: {name: odd}, spec: {ip: 10.96.0.5}}
- 7
- null
- {apiVersion: v1, kind: List, items: []}
`,
			objects: []string{"Service default/dns 10.96.0.3"},
			notes: []string{": Service default/bad: invalid-address spec.clusterIP", ": Service default/odd: parse spec.ip",
				": parse", ": parse", ": unknown-kind kind"},
		},
		{name: "a list of an unknown kind", bad: "apiVersion: v1\nkind: PodList\nitems: []\n", notes: []string{": unknown-kind kind"}, detail: "PodList"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newManifestDir(t)
			d.write("good.yaml", serviceYAML("bystander", "10.96.0.2"))
			d.write("web.yaml", good)
			d.run()
			kept := []string{"Service default/bystander 10.96.0.2", webKept, sliceKept}
			d.awaitObjects(t, kept...)

			d.write("web.yaml", c.bad)
			var notes []string
			for _, n := range c.notes {
				notes = append(notes, "web.yaml"+n)
			}
			d.awaitNotes(t, notes...)
			d.awaitObjects(t, append(c.objects, kept...)...)
			object, _, _ := strings.Cut(notes[0], ": "+lastWords(notes[0]))
			if got := d.detail(object); !strings.Contains(got, c.detail) {
				t.Errorf("got detail %q of %s, want it to say %q", got, object, c.detail)
			}

			calls := d.calls()
			d.write("web.yaml", c.bad) // the same again
			d.barrier()
			if got := d.calls(); got != calls {
				t.Errorf("the same faults were given %d times more", got-calls)
			}

			d.take()
			d.write("web.yaml", good)
			d.awaitNotes(t)
			d.awaitObjects(t, kept...)
			for _, change := range d.take() {
				if strings.HasSuffix(change, "default/web") || strings.HasSuffix(change, "default/web-1") {
					t.Errorf("mending changed what was good all the time: %s", change)
				}
			}
		})
	}
}

// lastWords gives the reason and field at the end of a note's text.
func lastWords(note string) string { return note[strings.LastIndex(note, ": ")+2:] }

func TestFaultsInANewFile(t *testing.T) {
	d := newManifestDir(t)
	d.write("web.yaml", join(serviceYAML("web", "10.96.0.1"), serviceYAML("bad", "nowhere"), "a: b: c\n",
		sliceYAML("web-1", "web", "10.1.0.1", "10.1.0")))
	d.write("cut.json", `{"apiVersion": "v1", "kind": "Service",`+"\n"+`"metadata": {"name": "cut"`)
	d.write("wrong.json", "{\"apiVersion\": \"v1\",\n \"kind\" \"Service\"}")
	d.run()
	d.awaitObjects(t, "Service default/web 10.96.0.1", "EndpointSlice default/web-1 1 endpoints")
	d.awaitNotes(t, "web.yaml: parse", "web.yaml: Service default/bad: invalid-address spec.clusterIP",
		"web.yaml: EndpointSlice default/web-1: invalid-address endpoints[1].addresses", "cut.json: parse", "wrong.json: parse")
	for object, want := range map[string]string{"web.yaml": "line 23: ", "cut.json": "line 2: ends in the middle", "wrong.json": "line 2: "} {
		if got := d.detail(object); !strings.HasPrefix(got, want) {
			t.Errorf("got detail %q of %s, want it to begin with %q", got, object, want)
		}
	}
	// What was never good gives way to what is less bad.
	d.write("web.yaml", sliceYAML("web-1", "web", "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0"))
	d.awaitObjects(t, "Service default/web 10.96.0.1", "EndpointSlice default/web-1 3 endpoints")
	d.remove("web.yaml")
	d.remove("cut.json")
	d.remove("wrong.json")
	d.awaitObjects(t)
	d.awaitNotes(t)
}

func TestAFileIsWrittenSlowly(t *testing.T) {
	d := newManifestDir(t)
	before := join(serviceYAML("web", "10.96.0.1"), serviceYAML("dns", "10.96.0.2"))
	after := join(serviceYAML("web", "10.96.0.8"), serviceYAML("dns", "10.96.0.9"))
	d.write("web.yaml", before)
	d.run()
	d.awaitObjects(t, "Service default/web 10.96.0.1", "Service default/dns 10.96.0.2")
	d.take()
	f, err := os.Create(filepath.Join(d.path, "web.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d.awaitNotes(t, "web.yaml: parse")
	half := strings.LastIndex(after, "port: 80") + 2
	if _, err := f.WriteString(after[:half]); err != nil {
		t.Fatal(err)
	}
	d.await(t, func() string { // another fault than that of the empty file
		if n := d.notes["web.yaml"]; len(n) != 1 || n[0].Detail == "is empty" {
			return cmp.Diff("a fault of the half", n)
		}
		return ""
	})
	d.awaitObjects(t, "Service default/web 10.96.0.1", "Service default/dns 10.96.0.2")
	if diff := cmp.Diff([]string(nil), d.take()); diff != "" {
		t.Errorf("a half written file changed something (-want +got):\n%s", diff)
	}
	if _, err := f.WriteString(after[half:]); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	d.awaitObjects(t, "Service default/web 10.96.0.8", "Service default/dns 10.96.0.9")
	d.awaitNotes(t)
}

func TestWhatAFileDropsWhileItIsAtFault(t *testing.T) {
	d := newManifestDir(t)
	web, dns := serviceYAML("web", "10.96.0.1"), serviceYAML("dns", "10.96.0.2")
	d.write("a.yaml", join(web, dns))
	d.run()
	d.awaitObjects(t, "Service default/web 10.96.0.1", "Service default/dns 10.96.0.2")
	d.write("a.yaml", join(serviceYAML("web", "10.96.0.3"), serviceYAML("bad", "x")))
	d.awaitObjects(t, "Service default/web 10.96.0.3", "Service default/dns 10.96.0.2")
	d.write("a.yaml", serviceYAML("web", "10.96.0.3"))
	d.awaitObjects(t, "Service default/web 10.96.0.3")
	d.awaitNotes(t)

	// Headless is well stated: it goes, whatever else is wrong.
	d.write("a.yaml", join(serviceYAML("web", "None"), serviceYAML("bad", "x")))
	d.awaitObjects(t)
	d.remove("a.yaml")
	d.awaitNotes(t)
}

func TestASliceOfNamesIsNoFault(t *testing.T) { // A1.11
	d := newManifestDir(t)
	fqdn := strings.Replace(sliceYAML("web-1", "web", "example.org"), "IPv4", "FQDN", 1)
	d.write("a.yaml", join(serviceYAML("web", "10.96.0.1"), serviceYAML("dns", "10.96.0.2"), fqdn))
	d.run()
	d.awaitNotes(t, "a.yaml: EndpointSlice default/web-1: address-type addressType")
	d.write("a.yaml", join(serviceYAML("web", "10.96.0.1"), fqdn))
	d.awaitObjects(t, "Service default/web 10.96.0.1")
}

func TestFilesThatCanNotBeRead(t *testing.T) {
	d := newManifestDir(t)
	d.write("web.yaml", serviceYAML("web", "10.96.0.1"))
	if err := syscall.Mkfifo(filepath.Join(d.path, "pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.link("loop.yaml", "loop.yaml")
	d.link("nowhere", "dangling.yaml")
	d.run()
	d.awaitObjects(t, "Service default/web 10.96.0.1")
	d.awaitNotes(t, "pipe.yaml: parse", "loop.yaml: parse")

	d.link("web.yaml", "web.yaml") // takes the place of the good file
	d.awaitNotes(t, "pipe.yaml: parse", "loop.yaml: parse", "web.yaml: parse")
	d.awaitObjects(t, "Service default/web 10.96.0.1")
	d.remove("web.yaml")
	d.awaitObjects(t)
	d.awaitNotes(t, "pipe.yaml: parse", "loop.yaml: parse")
}
