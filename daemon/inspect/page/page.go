// Package page draws what endpoints are given as one HTML page that needs nothing else: no
// script, font or picture of elsewhere. It is for people whose Services are spread
// unevenly, and who want to see that before they read a number.
package page

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"onerule/daemon/inspect"
)

//go:embed page.html
var source string

// Bounds of a page: what is beyond is counted, and said to be left out. A browser shows so
// much without trouble.
const (
	opened       = 3    // Services whose endpoints are shown at once
	unfolded     = 50   // Services that are listed at once, the others after a click
	maxServices  = 2000 // Services that are listed at all
	maxEndpoints = 100  // endpoints of each
	maxInAll     = 8000 // endpoints of all of them
	maxColumns   = 40   // columns of the small picture of each
)

// A Page is a reading for people.
type Page struct {
	Reading inspect.Reading
	// Off says why nothing is counted; empty: it is.
	Off string
	// Live has the page read itself again, from where it came.
	Live bool
}

// A view is a page as it is drawn.
type view struct {
	Title, At, Rate    string
	Off                string
	Live               bool
	Folded             string // says how many Services a click shows
	First, Rest        []service
	LeftOut            int // Services that are not listed
	Services, Uneven   int
	Endpoints, Refresh int // Refresh is in seconds
}

// A service is what one service port was given.
type service struct {
	Name, Port, Count, Total, Rate string
	// Share is its part of the largest one, in percent.
	Share float64
	// Even is where the bars would end if all endpoints had been given the same, in percent
	// of the longest one.
	Even      float64
	Uneven    string // empty: it is not
	Open      bool
	Columns   []float64 // heights in percent
	Endpoints []endpoint
	LeftOut   int
}

// An endpoint is one, and its bar: the longest one of a Service has 100.
type endpoint struct {
	Address, Total, Share, Rate string
	Width                       float64
}

// refresh is how many seconds a live page waits before it reads itself again.
const refresh = 2

// Write writes a page.
func (p Page) Write(w io.Writer) error {
	t, err := template.New("page").Parse(source)
	if err != nil {
		return fmt.Errorf("parse the page: %w", err)
	}
	if err := t.Execute(w, p.view()); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

func (p Page) view() view {
	v := view{
		Title: "oneruled: what endpoints are given", At: p.Reading.At.Format("2006-01-02 15:04:05 MST"),
		Off: p.Off, Live: p.Live, Refresh: refresh, Services: len(p.Reading.Services),
	}
	list := slices.Clone(p.Reading.Services)
	slices.SortStableFunc(list, func(a, b inspect.ServiceHits) int { return cmp.Compare(b.Total, a.Total) })
	rate, largest := 0.0, uint64(1)
	var drawn []service
	room := maxInAll
	for i, s := range list {
		rate += s.Rate
		largest = max(largest, s.Total)
		d := draw(s, largest, p.Reading.Seconds, min(room, maxEndpoints))
		room -= s.Serving() - d.LeftOut
		d.Open = i < opened
		v.Endpoints += s.Serving()
		if d.Uneven != "" {
			v.Uneven++
		}
		if i < maxServices {
			drawn = append(drawn, d)
		}
	}
	v.LeftOut = len(list) - len(drawn)
	v.First = drawn[:min(len(drawn), unfolded)]
	v.Rest = drawn[len(v.First):]
	v.Folded = fmt.Sprintf("%d more, each with %s connections or fewer", len(v.Rest), lastTotal(v.First))
	v.Rate = fmt.Sprintf("%.1f", rate)
	return v
}

func lastTotal(list []service) string {
	if len(list) == 0 {
		return "0"
	}
	return list[len(list)-1].Total
}

// draw draws one service port, with so many endpoints at most.
func draw(s inspect.ServiceHits, largest uint64, seconds float64, room int) service {
	there, gone := split(s.Endpoints)
	d := service{
		Name: s.Namespace + "/" + s.Service, Port: s.PortWord(), Count: endpoints(len(there)), Total: digits(s.Total), Rate: fmt.Sprintf("%.1f", s.Rate),
		Share: 100 * float64(s.Total) / float64(largest), Uneven: uneven(there, seconds), LeftOut: max(0, len(there)-room),
	}
	longest, sum := uint64(1), uint64(0)
	for _, e := range there {
		longest, sum = max(longest, e.Total), sum+e.Total
	}
	d.Even = 100 * float64(sum) / float64(max(1, len(there))) / float64(longest)
	for i, e := range there {
		width := 100 * float64(e.Total) / float64(longest)
		if i < maxColumns {
			d.Columns = append(d.Columns, width)
		}
		if i < room {
			d.Endpoints = append(d.Endpoints, bar(e, width, sum))
		}
	}
	if gone > 0 {
		d.Endpoints = append(d.Endpoints, endpoint{Address: "endpoints that are gone", Total: digits(gone)})
	}
	return d
}

func bar(e inspect.EndpointHits, width float64, sum uint64) endpoint {
	share := 100 * float64(e.Total) / float64(max(1, sum))
	return endpoint{Address: e.Address, Total: digits(e.Total), Share: fmt.Sprintf("%.1f%%", share), Rate: fmt.Sprintf("%.1f", e.Rate), Width: width}
}

// split gives the endpoints that are there, the one with the most first, and what those that
// are gone were given.
func split(all []inspect.EndpointHits) (there []inspect.EndpointHits, gone uint64) {
	for _, e := range all {
		if e.Address == "" {
			gone += e.Total
			continue
		}
		there = append(there, e)
	}
	slices.SortFunc(there, func(a, b inspect.EndpointHits) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Address, b.Address))
	})
	return there, gone
}

// enough is how many connections an endpoint needs on average before its Service is called
// uneven: fewer say nothing.
const enough = 20

// uneven says how unevenly endpoints were chosen, where chance alone is no explanation. The
// reading counts if it has seen enough; since counting began an endpoint that came later
// has been given less.
func uneven(there []inspect.EndpointHits, seconds float64) string {
	var lately, ever []float64
	for _, e := range there {
		lately, ever = append(lately, math.Round(e.Rate*seconds)), append(ever, float64(e.Total))
	}
	for _, counted := range [][]float64{lately, ever} {
		if mean := mean(counted); mean >= enough {
			return beyondChance(counted, mean)
		}
	}
	return ""
}

// beyondChance says so of counts of which one is further from the mean than chance brings
// about once in 15,000 times, and by a quarter at least.
func beyondChance(counts []float64, mean float64) string {
	deviation := math.Sqrt(mean * (1 - 1/float64(len(counts))))
	most, least := slices.Max(counts), slices.Min(counts)
	off := max(most-mean, mean-least)
	if off <= 4*deviation || off < mean/4 {
		return ""
	}
	if most-mean >= mean-least {
		return fmt.Sprintf("uneven: one has %.1f times the even share", most/mean)
	}
	return fmt.Sprintf("uneven: one has %.0f%% of the even share", 100*least/mean)
}

func mean(list []float64) float64 {
	sum := 0.0
	for _, n := range list {
		sum += n
	}
	return sum / float64(max(1, len(list)))
}

func endpoints(n int) string {
	if n == 1 {
		return "1 endpoint"
	}
	return fmt.Sprintf("%d endpoints", n)
}

// digits writes a number with thin spaces between thousands.
func digits(n uint64) string {
	text := fmt.Sprint(n)
	var b strings.Builder
	for i, d := range text {
		if i > 0 && (len(text)-i)%3 == 0 {
			b.WriteRune('\u202f')
		}
		b.WriteRune(d)
	}
	return b.String()
}
