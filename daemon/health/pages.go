package health

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// The pages are those of Kubernetes' components: text for people, and objects of this
// group for programs that ask for them by name. They are spelled here, because what
// spells them elsewhere comes with the whole API server.
const (
	pageGroup  = "config.k8s.io"
	deprecated = "v1alpha1"
)

func pageVersions() []string { return []string{"v1beta1", deprecated} }

// A page answers with text, or with the object of a kind.
type page struct {
	component, kind string
	// content gives the object but for its header, and the text.
	content func() (object map[string]any, text string)
}

// A format is how a page is written: an empty version stands for text.
type format struct{ version, mediaType string }

func (p page) answer(w http.ResponseWriter, r *http.Request) {
	f, ok := p.accepted(strings.Join(r.Header.Values("Accept"), ","))
	switch {
	case !ok:
		writeText(w, http.StatusNotAcceptable, p.offers())
	case f.version == "":
		_, text := p.content()
		writeText(w, http.StatusOK, fmt.Sprintf("\n%s %s\nWarning: made for people and for debugging; the format may change at any time.\n\n%s",
			p.component, strings.ToLower(p.kind), text))
	default:
		p.object(w, f)
	}
}

func (p page) object(w http.ResponseWriter, f format) {
	object, _ := p.content()
	object["kind"], object["apiVersion"] = p.kind, pageGroup+"/"+f.version
	object["metadata"] = map[string]any{"name": p.component}
	if f.version == deprecated {
		w.Header().Set("Warning", fmt.Sprintf("299 - %q", fmt.Sprintf("version %s of this page is deprecated, ask for %s", f.version, pageVersions()[0])))
	}
	marshal := json.Marshal
	if f.mediaType == "application/yaml" {
		marshal = yaml.Marshal
	}
	body, err := marshal(object)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", f.mediaType)
	_, _ = w.Write(body)
}

// offers says what can be asked for.
func (p page) offers() string {
	lines := []string{"this page is written as:", "text/plain"}
	for _, version := range pageVersions() {
		for _, mediaType := range []string{"application/json", "application/yaml"} {
			lines = append(lines, fmt.Sprintf("%s;g=%s;v=%s;as=%s", mediaType, pageGroup, version, p.kind))
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// accepted chooses the format that a client likes best, of what it accepts.
func (p page) accepted(accept string) (format, bool) {
	if strings.TrimSpace(accept) == "" {
		return format{}, true
	}
	var best format
	likes := 0.0
	for clause := range strings.SplitSeq(accept, ",") {
		mediaType, params, err := mime.ParseMediaType(strings.TrimSpace(clause))
		if err != nil {
			continue
		}
		quality := 1.0
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil {
			quality = q
		}
		if f, ok := p.offer(mediaType, params); ok && quality > likes {
			best, likes = f, quality
		}
	}
	return best, likes > 0
}

// offer gives the format that a media type asks for.
func (p page) offer(mediaType string, params map[string]string) (format, bool) {
	group, version, kind := params["g"], params["v"], params["as"]
	named := group != "" || version != "" || kind != ""
	switch mediaType {
	case "text/plain", "text/*", "*/*":
		return format{}, !named
	case "application/json", "application/yaml":
		return format{version, mediaType}, group == pageGroup && kind == p.kind && slices.Contains(pageVersions(), version)
	}
	return format{}, false
}

func (s Status) flagz() (map[string]any, string) {
	flags := s.Flags()
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		fmt.Fprintf(&text, "%s: %s\n", name, flags[name])
	}
	return map[string]any{"flags": flags}, text.String()
}

func (s Status) statusz() (map[string]any, string) {
	up := max(0, time.Since(s.Started)).Truncate(time.Second)
	object := map[string]any{
		"startTime":     s.Started.UTC().Format(time.RFC3339),
		"uptimeSeconds": int64(up / time.Second),
		"goVersion":     runtime.Version(),
		"binaryVersion": s.Version,
		"paths":         s.paths(),
	}
	text := fmt.Sprintf("Started: %s\nUp: %s\nGo version: %s\nBinary version: %s\n", s.Started.Format(time.UnixDate), up, runtime.Version(), s.Version)
	if s.Emulation != "" {
		object["emulationVersion"] = s.Emulation
		text += "Emulation version: " + s.Emulation + "\n"
	}
	return object, text + "Paths: " + strings.Join(s.paths(), " ") + "\n"
}
