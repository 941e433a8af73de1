package config

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// readFile reads a configuration file, and completes it with defaults. The warnings
// name what is in it and is not known, or is there twice.
func readFile(file string) (c *v1alpha1.KubeProxyConfiguration, warnings []string, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("read config file: %w", err)
	}
	c, warnings, err = decode(data)
	if err != nil {
		return nil, nil, fmt.Errorf("config file %s: %w", file, err)
	}
	for i, w := range warnings {
		warnings[i] = fmt.Sprintf("config file %s: %s", file, w)
	}
	setDefaults(c)
	return c, warnings, nil
}

// decode is strict first. A field that is not known, or is there twice, is only a
// warning then: newer and older files are to work.
func decode(data []byte) (*v1alpha1.KubeProxyConfiguration, []string, error) {
	value, warnings, err := toJSON(data)
	if err != nil {
		return nil, nil, err
	}
	if err := checkKind(value); err != nil {
		return nil, nil, err
	}
	c := &v1alpha1.KubeProxyConfiguration{}
	strict, err := json.UnmarshalStrict(value, c)
	if err != nil {
		return nil, nil, oneLine(misfits(nil, value, err))
	}
	for _, s := range strict {
		warnings = append(warnings, s.Error()+" is ignored")
	}
	return c, warnings, nil
}

// toJSON takes YAML, and JSON, which is YAML too.
func toJSON(data []byte) (value []byte, warnings []string, err error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil, errors.New("it is empty")
	}
	value, strict := yaml.YAMLToJSONStrict(data)
	if strict == nil {
		return value, nil, nil
	}
	if value, err = yaml.YAMLToJSON(data); err != nil {
		return nil, nil, errors.New(plain(err))
	}
	return value, []string{plain(strict)}, nil
}

// plain gives an error of the YAML parser in a line.
func plain(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return text
}

func checkKind(value []byte) error {
	var of struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(value, &of); err != nil {
		return fmt.Errorf("it is no object of kind %s of %s", kind, v1alpha1.SchemeGroupVersion)
	}
	if of.Kind != kind || of.APIVersion != v1alpha1.SchemeGroupVersion.String() {
		return fmt.Errorf("kind is %q of apiVersion %q, want %s of %s", of.Kind, of.APIVersion, kind, v1alpha1.SchemeGroupVersion)
	}
	return nil
}

// misfits finds the fields whose values do not fit by decoding each alone: the
// decoder ends at the first one and does not always name it.
func misfits(path []string, value []byte, err error) []error {
	var fields map[string]stdjson.RawMessage
	if stdjson.Unmarshal(value, &fields) != nil {
		return []error{fmt.Errorf("%s: %s", strings.Join(path, "."), misfit(value, err))}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		at := append(slices.Clone(path), name)
		if err := decodeAlone(at, fields[name]); err != nil {
			errs = append(errs, misfits(at, fields[name], err)...)
		}
	}
	if len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%s: %s", strings.Join(path, "."), misfit(value, err)))
	}
	return errs
}

// decodeAlone decodes a value as the only field of a configuration.
func decodeAlone(path []string, value []byte) error {
	for _, name := range slices.Backward(path) {
		value = fmt.Appendf(nil, "{%q:%s}", name, value)
	}
	return json.UnmarshalCaseSensitivePreserveInts(value, &v1alpha1.KubeProxyConfiguration{})
}

func misfit(value []byte, err error) string {
	const most = 60
	shown := strings.Join(strings.Fields(string(value)), " ")
	if len(shown) > most {
		shown = shown[:most] + "..."
	}
	var wrong *stdjson.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Sprintf("%s is not of type %s", shown, wrong.Type)
	}
	return fmt.Sprintf("%s: %s", shown, strings.TrimPrefix(err.Error(), "json: "))
}

// oneLine joins errors in a line, as all others are.
func oneLine(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}
