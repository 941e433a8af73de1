package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// A memory holds series for the engine.
type memory []storage.Series

// newMemory reads series as tests write them: one value for each interval, from time 0.
func newMemory(list []inputSeries, interval time.Duration, p parser.Parser) (memory, error) {
	var m memory
	for _, s := range list {
		name, values, err := p.ParseSeriesDesc(s.Series + " " + s.Values)
		if err != nil {
			return nil, fmt.Errorf("series %s: %w", s.Series, err)
		}
		var samples []chunks.Sample
		for i, v := range values {
			if !v.Omitted {
				samples = append(samples, sample{(time.Duration(i) * interval).Milliseconds(), v.Value})
			}
		}
		m = append(m, storage.NewListSeries(name, samples))
	}
	return m, nil
}

// Querier gives what selects series. It gives whole ones: the engine takes what it needs.
func (m memory) Querier(_, _ int64) (storage.Querier, error) {
	return querier{storage.NoopQuerier(), m}, nil
}

type querier struct {
	storage.Querier
	in memory
}

// Select gives the series that match.
func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, s := range q.in {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels().Get(m.Name)) }) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return &set{list: found}
}

// A set is what was selected, one after the other.
type set struct {
	list []storage.Series
	now  storage.Series
}

func (s *set) Next() bool {
	if len(s.list) == 0 {
		return false
	}
	s.now, s.list = s.list[0], s.list[1:]
	return true
}

func (s *set) At() storage.Series                { return s.now }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }

// A sample is a value at a time, in milliseconds.
type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
