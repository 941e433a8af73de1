package health

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	promodel "github.com/prometheus/common/model"
	"sigs.k8s.io/yaml"
)

// status gives a status server's handler with everything on.
func status(set func(*Status)) http.Handler {
	s := Status{
		Component: "kube-proxy", Version: "test", Emulation: "1.37", Started: time.Now().Add(-90 * time.Minute),
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") }),
		Config: func() any {
			return map[string]any{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables"}
		},
		Flags:        func() map[string]string { return map[string]string{"v": "2", "config": "/etc/x"} },
		Statusz:      true,
		SetVerbosity: func(string) (string, error) { return "", errors.New("not to be called") },
	}
	if set != nil {
		set(&s)
	}
	return s.Handler()
}

type reply struct {
	code   int
	header http.Header
	body   string
}

// ask sends a request to a real server.
func ask(t *testing.T, h http.Handler, method, path, accept, body string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, httptestServer(t, h)+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	response, err := http.DefaultTransport.RoundTrip(r) // does not follow redirects
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{response.StatusCode, response.Header, string(text)}
}

func TestA11StatusServerAnswersAtThePathsOfKubeProxy(t *testing.T) {
	for path, want := range map[string]struct{ mediaType, body string }{
		"/healthz":              {"text/plain; charset=utf-8", "ok"},
		"/healthz?verbose":      {"text/plain; charset=utf-8", "[+]ping ok\nhealthz check passed\n"},
		"/healthz?exclude=ping": {"text/plain; charset=utf-8", "ok"},
		"/healthz/ping":         {"text/plain; charset=utf-8", "ok"},
		"/metrics":              {"text/plain; charset=utf-8", "metrics"},
		"/proxyMode":            {"text/plain; charset=utf-8", "nftables"},
		"/configz": {"application/json",
			`{"kubeproxy.config.k8s.io":{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","mode":"nftables"}}`},
	} {
		t.Run(path, func(t *testing.T) {
			got := ask(t, status(nil), http.MethodGet, path, "", "")
			if got.code != 200 || got.header.Get("Content-Type") != want.mediaType || got.body != want.body {
				t.Errorf("%d %q %q, want 200 %q %q", got.code, got.header.Get("Content-Type"), got.body, want.mediaType, want.body)
			}
			if sniff := got.header.Get("X-Content-Type-Options"); path != "/metrics" && sniff != "nosniff" {
				t.Errorf("X-Content-Type-Options is %q, want nosniff", sniff)
			}
		})
	}
}

func TestThePageForPeopleIsThereIfItIsWanted(t *testing.T) {
	if got := ask(t, status(nil), http.MethodGet, "/ui", "", ""); got.code != 404 {
		t.Errorf("without one /ui is %d, want 404", got.code)
	}
	h := status(func(s *Status) {
		s.UI = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "page") })
	})
	if got := ask(t, h, http.MethodGet, "/ui", "", ""); got.code != 200 || got.body != "page" {
		t.Errorf("/ui is %d %q, want the page", got.code, got.body)
	}
}

func TestA11ConfigThatCannotBeSpelledIsAnError(t *testing.T) {
	h := status(func(s *Status) { s.Config = func() any { return func() {} } })
	if got := ask(t, h, http.MethodGet, "/configz", "", ""); got.code != 500 || !strings.Contains(got.body, "json") {
		t.Errorf("%d %q, want 500 and what is wrong", got.code, got.body)
	}
}

func TestA11ServiceLevelIndicatorsCountHealthChecks(t *testing.T) {
	h := status(nil)
	read := func() float64 {
		got := ask(t, h, http.MethodGet, "/metrics/slis", "", "")
		parser := expfmt.NewTextParser(promodel.LegacyValidation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(got.body))
		if err != nil || got.code != 200 {
			t.Fatalf("%d %v: %s", got.code, err, got.body)
		}
		for _, m := range families["kubernetes_healthchecks_total"].GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if cmp.Equal(labels, map[string]string{"name": "ping", "type": "healthz", "status": "success"}) {
				return m.GetCounter().GetValue()
			}
		}
		return 0
	}
	before := read()
	ask(t, h, http.MethodGet, "/healthz", "", "")
	ask(t, h, http.MethodGet, "/healthz?exclude=ping", "", "")
	if after := read(); after != before+1 {
		t.Errorf("from %v to %v, want one more", before, after)
	}
	ask(t, h, http.MethodDelete, "/metrics/slis", "", "")
	if after := read(); after != 0 {
		t.Errorf("after DELETE: %v, want 0", after)
	}
}

func TestA11PagesAreTextForPeople(t *testing.T) {
	for path, want := range map[string][]string{
		"/flagz":   {"\nkube-proxy flagz\nWarning: ", "\nconfig: /etc/x\nv: 2\n"},
		"/statusz": {"\nkube-proxy statusz\nWarning: ", "\nUp: 1h30m", "\nBinary version: test\n", "\nEmulation version: 1.37\n", "\nPaths: /configz /flagz /healthz /metrics /proxyMode\n"},
	} {
		for _, accept := range []string{"", "*/*", "text/plain", "text/html, text/*;q=0.5"} {
			got := ask(t, status(nil), http.MethodGet, path, accept, "")
			if got.code != 200 || got.header.Get("Content-Type") != "text/plain; charset=utf-8" {
				t.Errorf("%s, accepting %q: %d %v", path, accept, got.code, got.header)
			}
			for _, part := range want {
				if !strings.Contains(got.body, part) {
					t.Errorf("%s, accepting %q: no %q in %q", path, accept, part, got.body)
				}
			}
		}
	}
}

func TestA11PagesAreObjectsForPrograms(t *testing.T) {
	for _, c := range []struct {
		path, kind, version, mediaType string
		fields                         string
	}{
		{"/flagz", "Flagz", "v1beta1", "application/json", "apiVersion flags kind metadata"},
		{"/flagz", "Flagz", "v1alpha1", "application/yaml", "apiVersion flags kind metadata"},
		{"/statusz", "Statusz", "v1beta1", "application/yaml", "apiVersion binaryVersion emulationVersion goVersion kind metadata paths startTime uptimeSeconds"},
		{"/statusz", "Statusz", "v1alpha1", "application/json", "apiVersion binaryVersion emulationVersion goVersion kind metadata paths startTime uptimeSeconds"},
	} {
		accept := fmt.Sprintf("text/plain;q=0.1, %s;g=config.k8s.io;v=%s;as=%s", c.mediaType, c.version, c.kind)
		t.Run(c.path+" "+accept, func(t *testing.T) {
			got := ask(t, status(nil), http.MethodGet, c.path, accept, "")
			if got.code != 200 || got.header.Get("Content-Type") != c.mediaType {
				t.Fatalf("%d %v: %s", got.code, got.header, got.body)
			}
			if json := strings.HasPrefix(got.body, "{"); json != (c.mediaType == "application/json") {
				t.Errorf("it is written as %q", got.body)
			}
			var object map[string]any
			if err := yaml.Unmarshal([]byte(got.body), &object); err != nil {
				t.Fatal(err)
			}
			fields := map[string]bool{}
			for name := range object {
				fields[name] = true
			}
			want := map[string]bool{}
			for name := range strings.FieldsSeq(c.fields) {
				want[name] = true
			}
			if diff := cmp.Diff(want, fields); diff != "" {
				t.Errorf("fields (-want +got): %s", diff)
			}
			head := []any{object["apiVersion"], object["kind"], object["metadata"]}
			if diff := cmp.Diff([]any{"config.k8s.io/" + c.version, c.kind, map[string]any{"name": "kube-proxy"}}, head); diff != "" {
				t.Errorf("head (-want +got): %s", diff)
			}
			if warned := got.header.Get("Warning") != ""; warned != (c.version == "v1alpha1") {
				t.Errorf("Warning: %q", got.header.Get("Warning"))
			}
		})
	}
}

func TestA11PagesRefuseWhatTheyAreNotWrittenAs(t *testing.T) {
	for _, accept := range []string{
		"application/json", "text/html", "text/plain;q=0", "text/plain;as=Flagz", "bad;;",
		"application/json;g=config.k8s.io;v=v1;as=Flagz", "application/json;g=other;v=v1beta1;as=Flagz", "application/json;g=config.k8s.io;v=v1beta1;as=Statusz",
	} {
		got := ask(t, status(nil), http.MethodGet, "/flagz", accept, "")
		if got.code != 406 || !strings.Contains(got.body, "application/json;g=config.k8s.io;v=v1beta1;as=Flagz") {
			t.Errorf("accepting %q: %d %q, want 406 and what can be asked for", accept, got.code, got.body)
		}
	}
}

func TestA11PagesCanBeOff(t *testing.T) {
	h := status(func(s *Status) { s.Flags, s.Statusz = nil, false })
	for _, path := range []string{"/flagz", "/statusz", "/", "/debug/pprof/", "/debug/flags/v"} {
		if got := ask(t, h, http.MethodGet, path, "", ""); got.code != 404 {
			t.Errorf("%s: %d, want 404", path, got.code)
		}
	}
}

func TestA11ProfilesAreThereIfAskedFor(t *testing.T) {
	h := status(func(s *Status) { s.Profiling = true })
	for path, want := range map[string]string{
		"/debug/pprof/":                  "goroutine",
		"/debug/pprof/goroutine?debug=1": "goroutine profile: total",
		"/debug/pprof/heap?debug=1":      "heap profile",
		"/debug/pprof/symbol":            "num_symbols",
		"/debug/flags":                   "/debug/flags/v",
		"/debug/flags/":                  "/debug/flags/v",
	} {
		if got := ask(t, h, http.MethodGet, path, "", ""); got.code != 200 || !strings.Contains(got.body, want) {
			t.Errorf("%s: %d %.200q, want %q in it", path, got.code, got.body, want)
		}
	}
	if got := ask(t, h, http.MethodGet, "/debug/pprof", "", ""); got.code != 302 || got.header.Get("Location") != "/debug/pprof/" {
		t.Errorf("/debug/pprof: %d to %q, want 302 to /debug/pprof/", got.code, got.header.Get("Location"))
	}
	for _, path := range []string{"/debug/pprof/profile?seconds=1", "/debug/pprof/trace?seconds=0.01"} {
		if got := ask(t, h, http.MethodGet, path, "", ""); got.code != 200 || got.header.Get("Content-Type") != "application/octet-stream" {
			t.Errorf("%s: %d %v", path, got.code, got.header)
		}
	}
}

func TestA11VerbosityIsPut(t *testing.T) {
	level := "0"
	h := status(func(s *Status) {
		s.Profiling = true
		s.SetVerbosity = func(v string) (string, error) {
			if v == "loud" {
				return "", errors.New("no number: loud")
			}
			level = v
			return "the level is " + v, nil
		}
	})
	for _, c := range []struct {
		method, body string
		code         int
		said, level  string
	}{
		{http.MethodPut, "4\n", 200, "the level is 4", "4"},
		{http.MethodPut, "loud", 400, "no number: loud", "4"},
		{http.MethodPut, strings.Repeat("4", 2000), 400, "read the value", "4"},
		{http.MethodPost, "5", 406, "POST", "4"},
		{http.MethodGet, "", 406, "GET", "4"},
	} {
		got := ask(t, h, c.method, "/debug/flags/v", "", c.body)
		if got.code != c.code || !strings.Contains(got.body, c.said) || level != c.level {
			t.Errorf("%s %.10q: %d %q and the level %s, want %d %q and %s", c.method, c.body, got.code, got.body, level, c.code, c.said, c.level)
		}
	}
}
