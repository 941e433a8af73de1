package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"

	"github.com/prometheus/prometheus/promql/parser"
)

// A dashboard is what Grafana imports, as far as it has expressions.
type dashboard struct {
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	Title   string `json:"title"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
	Panels []panel `json:"panels"` // of a row that is folded
}

// checkDashboard reads every expression of a dashboard as Prometheus does once Grafana has
// filled in its variables.
func checkDashboard(file string, p parser.Parser) (faults []error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return []error{fmt.Errorf("read dashboard: %w", err)}
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		return []error{fmt.Errorf("read %s: %w", file, err)}
	}
	values := regexp.MustCompile(`^label_values\((.*), *\w+\)$`)
	for _, v := range d.Templating.List {
		if found := values.FindStringSubmatch(v.Definition); found != nil {
			if _, err := p.ParseMetricSelector(filled(found[1])); err != nil {
				faults = append(faults, fmt.Errorf("variable %s: %s: %w", v.Name, v.Definition, err))
			}
		}
	}
	number := 0
	for _, one := range flat(d.Panels) {
		for _, target := range one.Targets {
			number++
			if _, err := p.ParseExpr(filled(target.Expr)); err != nil {
				faults = append(faults, fmt.Errorf("panel %q: %s: %w", one.Title, target.Expr, err))
			}
		}
	}
	if number == 0 {
		faults = append(faults, fmt.Errorf("%s: no expressions", file))
	}
	return faults
}

func flat(panels []panel) []panel {
	var list []panel
	for _, p := range panels {
		list = append(append(list, p), flat(p.Panels)...)
	}
	return list
}

// filled puts something in the places of variables: a time for Grafana's own, as in
// [$__rate_interval], and what matches everything for others, which are in strings.
func filled(expr string) string {
	expr = regexp.MustCompile(`\$__\w+`).ReplaceAllString(expr, "5m")
	return regexp.MustCompile(`\$\{?\w+\}?`).ReplaceAllString(expr, ".*")
}
