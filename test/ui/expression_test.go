package ui_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

// Served are the metrics of a daemon: the values of each label by name of metric.
type served map[string]map[string][]string

// servedBy takes what a daemon serves. Those of a scrape are added to every metric.
func servedBy(families map[string]*dto.MetricFamily) served {
	s := served{}
	for name, f := range families {
		labels := map[string][]string{"job": nil, "instance": nil}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = append(labels[l.GetName()], l.GetValue())
			}
		}
		s[name] = labels
		if f.GetType() == dto.MetricType_HISTOGRAM {
			s[name+"_count"], s[name+"_sum"] = labels, labels
			s[name+"_bucket"] = maps.Clone(labels)
			s[name+"_bucket"]["le"] = nil
			delete(s, name)
		}
	}
	return s
}

// An expression is read far enough to see what it names.
type expression struct {
	selectors map[string][]string // the matchers of each metric
	labels    []string            // that it groups or joins by
	unknown   []string            // functions
}

func read(text string) expression {
	e := expression{selectors: map[string][]string{}}
	selector := regexp.MustCompile(`([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}`)
	for _, found := range selector.FindAllStringSubmatch(text, -1) {
		for matcher := range strings.SplitSeq(found[2], ",") {
			e.selectors[found[1]] = append(e.selectors[found[1]], strings.TrimSpace(matcher))
		}
	}
	text = selector.ReplaceAllString(text, "$1")
	text = regexp.MustCompile(`\[[^\]]*\]`).ReplaceAllString(text, "")
	grouping := regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	for _, found := range grouping.FindAllStringSubmatch(text, -1) {
		e.labels = append(e.labels, strings.FieldsFunc(found[2], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	text = grouping.ReplaceAllString(text, "")
	functions := []string{"sum", "max", "count", "rate", "increase", "topk", "histogram_quantile", "vector"}
	for _, found := range regexp.MustCompile(`([a-zA-Z_:][\w:]*)\s*(\(?)`).FindAllStringSubmatch(text, -1) {
		switch word := found[1]; {
		case found[2] != "":
			if !slices.Contains(functions, word) {
				e.unknown = append(e.unknown, word)
			}
		case !slices.Contains([]string{"or", "and", "unless", "bool"}, word):
			e.selectors[word] = append(e.selectors[word], "")
		}
	}
	return e
}

// wrong says what of an expression is not served, and what of the labels that people are
// shown is not there. A value that is compared as it stands must be served, too.
func (s served) wrong(text string, shown ...string) []string {
	e := read(text)
	var found []string
	for _, f := range e.unknown {
		found = append(found, "function "+f+" is not known to this test")
	}
	if len(e.selectors) == 0 {
		found = append(found, "it names no metric")
	}
	known := map[string]bool{}
	matcher := regexp.MustCompile(`^(\w+)\s*(=~|!~|!=|=)\s*"(.*)"$`)
	for name, matchers := range e.selectors {
		if s[name] == nil {
			found = append(found, "metric "+name+" is not served")
			continue
		}
		for label := range s[name] {
			known[label] = true
		}
		for _, m := range matchers {
			if m == "" {
				continue
			}
			parts := matcher.FindStringSubmatch(m)
			if parts == nil {
				found = append(found, fmt.Sprintf("matcher %s of %s can't be read", m, name))
				continue
			}
			values, ok := s[name][parts[1]]
			if !ok {
				found = append(found, fmt.Sprintf("metric %s has no label %s", name, parts[1]))
			} else if parts[2] == "=" && !slices.Contains(values, parts[3]) {
				found = append(found, fmt.Sprintf("label %s of metric %s is never %q", parts[1], name, parts[3]))
			}
		}
	}
	for _, label := range e.labels {
		if !known[label] {
			found = append(found, "no metric of it has the label "+label)
		}
	}
	aggregated := regexp.MustCompile(`\b(sum|max|count)\b`).MatchString(text)
	for _, label := range shown {
		if !known[label] || aggregated && !slices.Contains(e.labels, label) {
			found = append(found, "the label "+label+" is shown, and is not there")
		}
	}
	slices.Sort(found)
	return found
}

func TestExpressionsThatNameWhatIsNotServedAreRefused(t *testing.T) {
	s := served{
		"a_total":  {"instance": nil, "reason": {"full"}},
		"b_bucket": {"instance": nil, "le": nil},
	}
	for _, c := range []struct {
		text, shown, want string
	}{
		{text: `sum by (instance) (rate(a_total{reason="full"}[5m])) > 3 or vector(0)`, shown: "instance"},
		{text: `histogram_quantile(.9, sum by (le) (rate(b_bucket[$__rate_interval])))`},
		{text: `rate(c_total[5m])`, want: "metric c_total is not served"},
		{text: `a_total > c_total`, want: "metric c_total is not served"},
		{text: `a_total{kind="x"}`, want: "metric a_total has no label kind"},
		{text: `a_total{reason="empty"}`, want: `label reason of metric a_total is never "empty"`},
		{text: `sum by (kind) (a_total)`, want: "no metric of it has the label kind"},
		{text: `sum by (instance) (a_total)`, shown: "reason", want: "the label reason is shown, and is not there"},
		{text: `a_total`, shown: "kind", want: "the label kind is shown, and is not there"},
		{text: `quantum(a_total)`, want: "function quantum is not known to this test"},
		{text: `vector(1)`, want: "it names no metric"},
	} {
		t.Run(c.text, func(t *testing.T) {
			if got := strings.Join(s.wrong(c.text, strings.Fields(c.shown)...), "; "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
