package page

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/inspect"
)

func noon() time.Time { return time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC) }

// endpointsOf gives endpoints with so many connections, and the rate of each in 2 seconds.
func endpointsOf(lately []float64, ever ...uint64) []inspect.EndpointHits {
	var list []inspect.EndpointHits
	for i, n := range ever {
		e := inspect.EndpointHits{Address: fmt.Sprintf("10.0.0.%d:80", i+1), Total: n}
		if i < len(lately) {
			e.Rate = lately[i] / 2
		}
		list = append(list, e)
	}
	return list
}

func TestUnevenIsWhatChanceDoesNotExplain(t *testing.T) {
	for name, c := range map[string]struct {
		endpoints []inspect.EndpointHits
		want      string
	}{
		"none":                                {nil, ""},
		"one endpoint":                        {endpointsOf(nil, 5000), ""},
		"all the same":                        {endpointsOf(nil, 1000, 1000, 1000), ""},
		"as chance has it":                    {endpointsOf(nil, 34, 33, 23), ""},
		"too few to say":                      {endpointsOf(nil, 30, 0, 0), ""},
		"many, and a little off":              {endpointsOf(nil, 1_100_000, 1_000_000, 900_000), ""},
		"one has all":                         {endpointsOf(nil, 0, 90, 0), "uneven: one has 3.0 times the even share"},
		"one has too few":                     {endpointsOf(nil, 1000, 1000, 1000, 100), "uneven: one has 13% of the even share"},
		"lately even, one came later":         {endpointsOf([]float64{100, 103, 98}, 9000, 9000, 300), ""},
		"lately uneven, over all even":        {endpointsOf([]float64{300, 0, 0}, 9000, 9000, 9000), "uneven: one has 3.0 times the even share"},
		"lately too few to say, over all not": {endpointsOf([]float64{3, 0, 0}, 900, 0, 0), "uneven: one has 3.0 times the even share"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := uneven(c.endpoints, 2); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func written(t *testing.T, p Page) string {
	t.Helper()
	var out bytes.Buffer
	if err := p.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestAServiceIsDrawn(t *testing.T) {
	s := inspect.ServiceHits{Namespace: "default", Service: "web", Port: "http", Protocol: "TCP", Rate: 2.5, Total: 12345,
		Endpoints: append(endpointsOf([]float64{5}, 0, 1000, 250), inspect.EndpointHits{Total: 11095})}
	got := draw(s, 24690, 2, 100)
	want := service{
		Name: "default/web", Port: "http/TCP", Count: "3 endpoints", Total: "12\u202f345", Rate: "2.5", Share: 50, Even: 1250. / 30,
		Uneven: "uneven: one has 2.4 times the even share", Columns: []float64{100, 25, 0},
		Endpoints: []endpoint{
			{"10.0.0.2:80", "1\u202f000", "80.0%", "0.0", 100},
			{"10.0.0.3:80", "250", "20.0%", "0.0", 25},
			{"10.0.0.1:80", "0", "0.0%", "2.5", 0},
			{Address: "endpoints that are gone", Total: "11\u202f095"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got): %s", diff)
	}
}

func TestPagesAreBounded(t *testing.T) {
	r := inspect.Reading{At: noon(), Seconds: 2}
	for i := range maxServices + 7 {
		r.Services = append(r.Services, inspect.ServiceHits{Namespace: "default", Service: fmt.Sprint("web-", i), Protocol: "TCP", Total: 100})
	}
	r.Services[7].Total = 1000
	for i := range maxEndpoints + 5 {
		r.Services[7].Endpoints = append(r.Services[7].Endpoints, inspect.EndpointHits{Address: fmt.Sprint("10.0.0.1:", i), Total: 10})
	}
	body := written(t, Page{Reading: r})
	for _, want := range []string{">7 more, with fewer connections", ">5 more endpoints", "2007 service ports, 105 endpoints", ">1950 more, each with 100 connections or fewer"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if n := strings.Count(body, `class="service`); n != maxServices {
		t.Errorf("%d Services are listed, want %d", n, maxServices)
	}
	if first, _, _ := strings.Cut(body[strings.Index(body, "data-key="):], ">"); !strings.Contains(first, "default/web-7 TCP") {
		t.Errorf("the first one is %s, want the largest", first)
	}
}

func TestEndpointsOfManyServicesAreBounded(t *testing.T) {
	r := inspect.Reading{At: noon(), Seconds: 2}
	for i := range 200 {
		s := inspect.ServiceHits{Namespace: "default", Service: fmt.Sprint("web-", i), Protocol: "TCP", Total: uint64(i)}
		for e := range 70 {
			s.Endpoints = append(s.Endpoints, inspect.EndpointHits{Address: fmt.Sprintf("10.0.%d.%d:80", i, e)})
		}
		r.Services = append(r.Services, s)
	}
	body := written(t, Page{Reading: r})
	if n := strings.Count(body, "<li>"); n != maxInAll {
		t.Errorf("%d endpoints are listed, want %d", n, maxInAll)
	}
	// 114 Services have room for all of theirs, one for 20, and 85 for none.
	if some, none := strings.Count(body, ">50 more endpoints"), strings.Count(body, ">70 more endpoints"); some != 1 || none != 85 {
		t.Errorf("%d Services leave out 50 endpoints and %d all 70, want 1 and 85", some, none)
	}
}

// Names come from the API server, which checks them; the page does not rely on it.
func TestNamesStayText(t *testing.T) {
	const bad = `"><script>alert(1)</script>`
	body := written(t, Page{Reading: inspect.Reading{At: noon(), Services: []inspect.ServiceHits{{
		Namespace: bad, Service: bad, Port: bad, Protocol: "TCP", Total: 1, Endpoints: []inspect.EndpointHits{{Address: bad, Total: 1}},
	}}}})
	if strings.Contains(body, "<script") {
		t.Errorf("a name became a script: %s", body)
	}
}

func TestPagesNeedNothingElse(t *testing.T) {
	for _, live := range []bool{false, true} {
		body := written(t, Page{Live: live, Reading: inspect.Reading{At: noon()}})
		for _, address := range []string{"http:", "https:", "//cdn", "src=", "@import", "url("} {
			if strings.Contains(body, address) {
				t.Errorf("the page names %s", address)
			}
		}
		if !strings.Contains(body, "No endpoint is counted yet.") || strings.Contains(body, "<script") != live {
			t.Errorf("live %t: the page is %s", live, body)
		}
	}
	if body := written(t, Page{Off: "connections are not counted: no BTF"}); !strings.Contains(body, "not counted: no BTF") || strings.Contains(body, "counted yet") {
		t.Errorf("the page does not say why it is empty: %s", body)
	}
}

// A told source says what it is told.
type told struct {
	hits  inspect.Hits
	err   error
	asked int
}

func (s *told) Hits(context.Context) (inspect.Hits, error) {
	s.asked++
	return s.hits, s.err
}

func TestLivePages(t *testing.T) {
	at := noon()
	source := &told{}
	count := func(n uint64) {
		source.hits = inspect.Hits{At: at, Hits: []inspect.Hit{{Namespace: "default", Service: "web", Protocol: "TCP", Endpoint: "10.0.0.1:80", Connections: n}}}
	}
	h := &live{source: source, now: func() time.Time { return at }}
	ask := func(method string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/ui", nil))
		return w
	}
	shows := func(t *testing.T, want string) {
		t.Helper()
		if w := ask(http.MethodGet); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%d %s, want %q in it", w.Code, w.Body, want)
		}
	}
	count(100)
	shows(t, "0.0 new connections per second")
	t.Run("the kernel is not read more than once a second", func(t *testing.T) {
		at = at.Add(fresh / 2)
		count(500)
		shows(t, "<b>100</b>")
		if source.asked != 1 {
			t.Errorf("it was read %d times, want once", source.asked)
		}
	})
	t.Run("rates are of the time between two readings", func(t *testing.T) {
		at = noon().Add(2 * time.Second)
		count(150)
		shows(t, "25.0 new connections per second")
	})
	t.Run("after a long time there is no rate", func(t *testing.T) {
		at = at.Add(time.Hour)
		count(9000)
		shows(t, "0.0 new connections per second")
	})
	t.Run("what was not known before has no rate", func(t *testing.T) {
		at = at.Add(2 * time.Second)
		source.hits = inspect.Hits{At: at, Off: "not known yet"}
		shows(t, "not known yet")
		at = at.Add(2 * time.Second)
		count(9101)
		shows(t, "0.0 new connections per second")
		at = at.Add(2 * time.Second)
		count(9151)
		shows(t, "25.0 new connections per second")
	})
	t.Run("an error is told", func(t *testing.T) {
		at = at.Add(time.Hour)
		source.err = errors.New("read the map: no")
		if w := ask(http.MethodGet); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "read the map: no") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		source.err = nil
		shows(t, "<b>9\u202f151</b>")
	})
	t.Run("nobody changes anything", func(t *testing.T) {
		if w := ask(http.MethodPost); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
	})
	t.Run("a browser may load nothing else", func(t *testing.T) {
		if p := ask(http.MethodHead).Header().Get("Content-Security-Policy"); !strings.HasPrefix(p, "default-src 'none'; ") {
			t.Errorf("the policy is %q", p)
		}
	})
}
