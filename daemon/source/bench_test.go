package source

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// manyYAML gives documents of services of 10 endpoints each.
func manyYAML(services int) string {
	var b strings.Builder
	for i := range services {
		name := fmt.Sprintf("svc-%d", i)
		b.WriteString(serviceYAML(name, fmt.Sprintf("10.%d.%d.%d", 96+i/62500, i/250%250, i%250+1)))
		var endpoints []string
		for e := range 10 {
			endpoints = append(endpoints, fmt.Sprintf("10.%d.%d.%d", 128+e, i/250, i%250+1))
		}
		b.WriteString("---\n" + sliceYAML(name+"-x7k2p", name, endpoints...) + "---\n")
	}
	return b.String()
}

// BenchmarkParse reads manifests of 1,000 services of 10 endpoints, and reads them
// again when one address has changed.
func BenchmarkParse(b *testing.B) {
	yaml := []byte(manyYAML(1000))
	var json []byte
	for _, d := range documents("a.yaml", yaml) {
		value, err := d.json("a.yaml")
		if err != nil {
			b.Fatal(err)
		}
		json = append(json, value...)
	}
	changed := bytes.Replace(yaml, []byte("10.128.1.1"), []byte("10.128.1.9"), 1)
	p := parser{node: "n1", convert: newConverter()}
	known := p.parse("a.yaml", yaml, nil).parsed
	for _, c := range []struct {
		name, file string
		data       []byte
		known      map[sum]statement
	}{{"all of YAML", "a.yaml", yaml, nil}, {"all of JSON", "a.json", json, nil}, {"one change in YAML", "a.yaml", changed, known}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.data)))
			b.ReportAllocs()
			for b.Loop() {
				if c := p.parse(c.file, c.data, c.known); len(c.objects) != 2000 {
					b.Fatalf("got %d objects, want 2000", len(c.objects))
				}
			}
		})
	}
}
