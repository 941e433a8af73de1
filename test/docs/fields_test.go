package docs_test

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// fields gives the names of what the pages speak of in Kubernetes' objects, each by itself and
// with those above it.
func fields() map[string]bool {
	found := map[string]bool{}
	for _, of := range []any{v1alpha1.KubeProxyConfiguration{}, corev1.Service{}, corev1.Node{}, corev1.PodTemplateSpec{}} {
		fieldsOf(reflect.TypeOf(of), "", found, 0)
	}
	return found
}

// fieldsOf goes as deep as the pages do.
func fieldsOf(of reflect.Type, above string, found map[string]bool, depth int) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || depth > 4 {
		return
	}
	for i := range of.NumField() {
		name, options, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		switch {
		case name == "" && strings.Contains(options, "inline"):
			fieldsOf(of.Field(i).Type, above, found, depth)
		case name != "" && name != "-":
			found[name], found[above+name] = true, true
			fieldsOf(of.Field(i).Type, above+name+".", found, depth+1)
		}
	}
}

// values gives the settings of the chart, with dots between.
func values(t *testing.T) map[string]bool {
	t.Helper()
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(readFile(t, filepath.Join(root, "install", "chart", "values.yaml"))), &tree); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	valuesOf(tree, "", found)
	return found
}

func valuesOf(tree map[string]any, above string, found map[string]bool) {
	for name, value := range tree {
		found[above+name] = true
		if below, ok := value.(map[string]any); ok {
			valuesOf(below, above+name+".", found)
		}
	}
}
