package health

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"k8s.io/component-base/metrics/prometheus/slis"
)

// A Status is what the status server tells people and monitoring, at the paths that
// kube-proxy has.
type Status struct {
	// Component is what the pages call the program.
	Component string
	// Version is that of the program, Emulation the "major.minor" of the Kubernetes
	// that it behaves like; both are for /statusz.
	Version, Emulation string
	Started            time.Time
	Metrics            http.Handler // answers /metrics
	// UI answers /ui, for people with a browser; nil: there is none.
	UI http.Handler
	// Config gives the configuration in force, which encoding/json can spell. It is
	// called from any goroutine.
	Config func() any
	// Flags gives the command line flags by name, from any goroutine; nil: there is
	// no /flagz.
	Flags func() map[string]string
	// Statusz says whether there is a /statusz.
	Statusz bool
	// Profiling opens /debug/pprof and /debug/flags.
	Profiling bool
	// SetVerbosity sets how much is logged, and gives a line for who asked.
	SetVerbosity func(string) (string, error)
}

// proxyMode is kube-proxy's word for how we work.
const proxyMode = "nftables"

// Handler answers on the status server. A Status that differs needs another one.
func (s Status) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", healthz)
	mux.HandleFunc("/healthz/ping", ping)
	mux.Handle("/metrics", s.Metrics)
	if s.UI != nil {
		mux.Handle("/ui", s.UI)
	}
	slis.SLIMetricsWithReset{}.Install(mux)
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, proxyMode) })
	mux.HandleFunc("/configz", s.configz)
	if s.Flags != nil {
		mux.HandleFunc("/flagz", page{s.Component, "Flagz", s.flagz}.answer)
	}
	if s.Statusz {
		mux.HandleFunc("/statusz", page{s.Component, "Statusz", s.statusz}.answer)
	}
	if s.Profiling {
		s.debug(mux)
	}
	return mux
}

// paths lists what there is to read, for /statusz.
func (s Status) paths() []string {
	list := []string{"/configz", "/healthz", "/metrics", "/proxyMode"}
	if s.Flags != nil {
		list = append(list, "/flagz")
	}
	slices.Sort(list)
	return list
}

// healthz says that the process answers; with ?verbose it says what it looked at, as
// the health pages of other components do.
func healthz(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	line := "[+]ping ok\n"
	if excluded := query["exclude"]; slices.Contains(excluded, "ping") {
		line = "[+]ping excluded: ok\n"
	} else {
		// It can't fail: the check is that an answer goes out.
		_ = slis.ObserveHealthcheck(r.Context(), "ping", "healthz", slis.Success)
	}
	text := "ok"
	if query.Has("verbose") {
		text = line + "healthz check passed\n"
	}
	writeText(w, http.StatusOK, text)
}

func ping(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok") }

// configz answers with the configuration, under the group that it belongs to.
func (s Status) configz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"kubeproxy.config.k8s.io": s.Config()}, json.Marshal)
}

// debug adds what costs something to answer.
func (s Status) debug(mux *http.ServeMux) {
	mux.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	flags := func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "PUT a number to /debug/flags/v to set how much is logged.\n")
	}
	mux.HandleFunc("/debug/flags", flags)
	mux.HandleFunc("/debug/flags/", flags)
	mux.HandleFunc("/debug/flags/v", s.verbosity)
}

// verbosity sets how much is logged.
func (s Status) verbosity(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		writeText(w, http.StatusNotAcceptable, fmt.Sprintf("method %s: only PUT sets the flag\n", r.Method))
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<10))
	if err != nil {
		writeText(w, http.StatusBadRequest, fmt.Sprintf("read the value of the flag: %v\n", err))
		return
	}
	said, err := s.SetVerbosity(strings.TrimSpace(string(body)))
	if err != nil {
		writeText(w, http.StatusBadRequest, fmt.Sprintf("set the flag v: %v\n", err))
		return
	}
	writeText(w, http.StatusOK, said+"\n")
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // a client that went away needs no answer
}
