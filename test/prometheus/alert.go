package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/timestamp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/template"
)

// readAlerts gives the alerts of a file, which Prometheus has checked as it does at its start.
func readAlerts(file string, p parser.Parser) ([]rulefmt.Rule, []error) {
	groups, faults := rulefmt.ParseFile(file, false, model.UTF8Validation, p, slog.New(slog.DiscardHandler))
	if len(faults) > 0 {
		return nil, faults
	}
	var list []rulefmt.Rule
	for _, g := range groups.Groups {
		list = append(list, g.Rules...)
	}
	if len(list) == 0 {
		return nil, []error{fmt.Errorf("%s: no rules", file)}
	}
	return list, nil
}

// A firing is an alert that fires for some labels.
type firing struct {
	labels, annotations map[string]string
}

// A watch evaluates one alert again and again.
type watch struct {
	rule   rulefmt.Rule
	engine *promql.Engine
	in     memory
	// since is when the expression began to hold, by the labels of its samples.
	since map[string]time.Time
}

// at evaluates the alert, and gives what fires.
func (w *watch) at(ctx context.Context, now time.Time) ([]firing, error) {
	q, err := w.engine.NewInstantQuery(ctx, w.in, nil, w.rule.Expr, now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.rule.Alert, err)
	}
	defer q.Close()
	r := q.Exec(ctx)
	vector, err := r.Vector()
	if err = errors.Join(r.Err, err); err != nil {
		return nil, fmt.Errorf("%s: evaluate: %w", w.rule.Alert, err)
	}
	held := map[string]time.Time{}
	var list []firing
	for _, sample := range vector {
		key := sample.Metric.String()
		since, before := w.since[key]
		if !before {
			since = now
		}
		held[key] = since
		if now.Sub(since) < time.Duration(w.rule.For) {
			continue
		}
		f, err := w.fire(ctx, sample, now)
		if err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	w.since = held
	return list, nil
}

// fire gives the alert of a sample, with its texts filled in.
func (w *watch) fire(ctx context.Context, sample promql.Sample, now time.Time) (firing, error) {
	of := sample.Metric.DropReserved(func(name string) bool { return name == model.MetricNameLabel }).Map()
	fill := func(text string) (string, error) {
		data := template.AlertTemplateData(of, nil, "", sample)
		const names = "{{$labels := .Labels}}{{$value := .Value}}"
		none := func(context.Context, string, time.Time) (promql.Vector, error) {
			return nil, errors.New("the texts of alerts ask nothing")
		}
		return template.NewTemplateExpander(ctx, names+text, w.rule.Alert, data, model.Time(timestamp.FromTime(now)), none, &url.URL{}, []string{"missingkey=error"}).Expand()
	}
	f := firing{labels: map[string]string{"alertname": w.rule.Alert}, annotations: map[string]string{}}
	for name, value := range of {
		f.labels[name] = value
	}
	for _, texts := range []struct{ from, to map[string]string }{{w.rule.Labels, f.labels}, {w.rule.Annotations, f.annotations}} {
		for name, text := range texts.from {
			full, err := fill(text)
			if err != nil {
				return f, fmt.Errorf("%s: %s: %w", w.rule.Alert, name, err)
			}
			texts.to[name] = full
		}
	}
	return f, nil
}
