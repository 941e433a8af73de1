package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// A testFile is what promtool test rules reads, as far as it is used.
type testFile struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []test         `yaml:"tests"`
}

// A test is a time with series, and what fires in it.
type test struct {
	Name          string         `yaml:"name"`
	Interval      model.Duration `yaml:"interval"`
	InputSeries   []inputSeries  `yaml:"input_series"`
	AlertRuleTest []expectation  `yaml:"alert_rule_test"`
}

type inputSeries struct {
	Series string `yaml:"series"`
	Values string `yaml:"values"`
}

// An expectation is what fires of an alert at a time: nothing, if it has no alerts.
type expectation struct {
	EvalTime  model.Duration  `yaml:"eval_time"`
	Alertname string          `yaml:"alertname"`
	ExpAlerts []expectedAlert `yaml:"exp_alerts"`
}

type expectedAlert struct {
	Labels      map[string]string `yaml:"exp_labels"`
	Annotations map[string]string `yaml:"exp_annotations"`
}

// runTests runs the tests of a file. Each alert must have one in which it fires, and one in
// which it does not.
func runTests(ctx context.Context, file string, alerts []rulefmt.Rule, p parser.Parser) []error {
	var all testFile
	if err := readYAML(file, &all); err != nil {
		return []error{err}
	}
	r := runner{engine: newEngine(p), parser: p, alerts: map[string]rulefmt.Rule{}, every: time.Duration(all.EvaluationInterval), fires: map[string]bool{}, silent: map[string]bool{}}
	for _, rule := range alerts {
		r.alerts[rule.Alert] = rule
	}
	var faults []error
	for _, one := range all.Tests {
		for _, fault := range r.run(ctx, one) {
			faults = append(faults, fmt.Errorf("test %q: %w", one.Name, fault))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.alerts)) {
		if !r.fires[name] {
			faults = append(faults, fmt.Errorf("%s fires in no test", name))
		}
		if !r.silent[name] {
			faults = append(faults, fmt.Errorf("no test has %s silent", name))
		}
	}
	return faults
}

func readYAML(file string, into any) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read tests: %w", err)
	}
	defer f.Close()
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read %s: %w", file, err)
	}
	return nil
}

func newEngine(p parser.Parser) *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: p})
}

// A runner runs tests, and notes which alerts they saw firing, and silent.
type runner struct {
	engine        *promql.Engine
	parser        parser.Parser
	alerts        map[string]rulefmt.Rule
	every         time.Duration
	fires, silent map[string]bool
}

func (r runner) run(ctx context.Context, one test) (faults []error) {
	in, err := newMemory(one.InputSeries, time.Duration(one.Interval), r.parser)
	if err != nil {
		return []error{err}
	}
	for _, want := range one.AlertRuleTest {
		rule, there := r.alerts[want.Alertname]
		if !there {
			faults = append(faults, fmt.Errorf("there is no alert %s", want.Alertname))
			continue
		}
		got, err := r.until(ctx, &watch{rule: rule, engine: r.engine, in: in}, time.Duration(want.EvalTime))
		if err != nil {
			faults = append(faults, err)
			continue
		}
		seen := r.silent
		if len(want.ExpAlerts) > 0 {
			seen = r.fires
		}
		seen[rule.Alert] = true
		faults = append(faults, compare(want, got)...)
	}
	return faults
}

// until evaluates an alert as often as Prometheus does until a time, and gives what fires then.
func (r runner) until(ctx context.Context, w *watch, end time.Duration) (list []firing, err error) {
	for at := time.Duration(0); at <= end && err == nil; at += r.every {
		list, err = w.at(ctx, time.UnixMilli(at.Milliseconds()))
	}
	return list, err
}

func compare(want expectation, got []firing) (faults []error) {
	texts := func(labels, annotations map[string]string) string {
		return fmt.Sprintf("%v %v", labels, annotations) // maps are printed in the order of their keys
	}
	var wanted, fired []string
	for _, a := range want.ExpAlerts {
		all := map[string]string{"alertname": want.Alertname}
		maps.Copy(all, a.Labels)
		wanted = append(wanted, texts(all, a.Annotations))
	}
	for _, f := range got {
		fired = append(fired, texts(f.labels, f.annotations))
	}
	slices.Sort(wanted)
	slices.Sort(fired)
	if !slices.Equal(wanted, fired) {
		faults = append(faults, fmt.Errorf("%s at %s: fires\n  %s\nwant\n  %s", want.Alertname, want.EvalTime, listed(fired), listed(wanted)))
	}
	return faults
}

func listed(list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, "\n  ")
}
