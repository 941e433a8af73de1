package docs_test

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A truth is all that there is to be named.
type truth struct {
	program  program
	objects  objects
	metrics  map[string]string
	alerts   map[string]string
	targets  map[string]bool // of make
	settings map[string]bool // of make
	built    map[string]bool // files that make builds
	bench    map[string]bool // strings of test/bench
	values   map[string]bool // of the chart, with dots between
	fields   map[string]bool // of Kubernetes' objects, and of kube-proxy's configuration
	said     map[string]bool // strings that the product holds, and their words
	applied  map[string]bool // names of objects of a cluster
	theirs   map[string]bool
	used     map[string]bool // of theirs
}

func theTruth(t *testing.T) *truth {
	t.Helper()
	makefile := readFile(t, filepath.Join(root, "Makefile"))
	theirs := map[string]bool{}
	for _, word := range wordsOfOthers() {
		theirs[word] = true
	}
	return &truth{
		program: oneruled(t), objects: ours(t), metrics: served(t), alerts: alerts(t),
		targets:  matches(makefile, `(?m)^([a-z][a-z0-9-]*):`),
		settings: matches(makefile, `(?:\$\(|(?m:^))([A-Z_]+)(?:\)| *\?=|,)`),
		built:    matches(makefile, `\b(bin/[\w.-]+)`),
		bench:    benchWords(t),
		values:   values(t),
		fields:   fields(),
		said:     said(t), applied: applied(t), theirs: theirs, used: map[string]bool{},
	}
}

func matches(text, pattern string) map[string]bool {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found[m[1]] = true
	}
	return found
}

// productDirs are the folders whose programs are the product.
func productDirs() []string {
	return []string{"bpf", "daemon", "install", "localproxy", "nft", "plugin"}
}

// product gives the files of the product that end so.
func product(t *testing.T, endings ...string) []string {
	t.Helper()
	var list []string
	for _, dir := range productDirs() {
		err := fs.WalkDir(os.DirFS(root), dir, func(p string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && slices.Contains(endings, path.Ext(p)) && !strings.HasSuffix(p, "_test.go") && !strings.Contains(p, "/testdata/") {
				list = append(list, filepath.Join(root, p))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// said gives the strings in the product's sources, and the files and the like that they name.
func said(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, file := range product(t, ".go", ".c") {
		text := []byte(readFile(t, file))
		var s scanner.Scanner
		set := token.NewFileSet()
		s.Init(set.AddFile(file, set.Base(), len(text)), text, nil, 0)
		for {
			_, kind, literal := s.Scan()
			if kind == token.EOF {
				break
			}
			if kind != token.STRING {
				continue
			}
			if unquoted, err := strconv.Unquote(literal); err == nil {
				found[unquoted] = true
				for _, word := range strings.FieldsFunc(unquoted, func(r rune) bool { return strings.ContainsRune(" \n\t\"'`=,;:()", r) }) {
					if strings.ContainsAny(word, "/._") {
						found[word] = true
					}
				}
			}
		}
	}
	return found
}

// applied gives the names of objects in what is applied to a cluster.
func applied(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "install", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, file := range files {
		maps.Copy(found, matches(readFile(t, file), `(?m)^\s+name: "?([a-z0-9-]+)"?$`))
	}
	return found
}

// wrong says what a piece of code names that there is not, or "".
func (w *truth) wrong(text string) string {
	first, rest, _ := strings.Cut(text, " ")
	switch {
	case w.theirs[text]:
		w.used[text] = true
		return ""
	case regexp.MustCompile(`^--?[a-z]`).MatchString(text):
		return w.program.wrongFlag(strings.Fields(text))
	case regexp.MustCompile(`^(onerule|kubeproxy)_`).MatchString(text):
		name, _, _ := strings.Cut(first, "{")
		if _, ok := w.metrics[name]; !ok {
			return "there is no metric " + name
		}
		return ""
	case regexp.MustCompile(`^Onerule[A-Z]`).MatchString(text) && !w.said[text]:
		if _, ok := w.alerts[text]; !ok {
			return "there is no alert " + text
		}
		return ""
	case w.objects.has(text), w.objects.counts(text), w.said[text], w.program[text] != nil, w.fields[text], w.applied[text], w.values[text], w.built[text]:
		return ""
	}
	if field, _, ok := strings.Cut(text, ": "); ok && w.fields[field] {
		return ""
	}
	if rest != "" || knownProgram(first) {
		return w.wrongCommand(text)
	}
	if regexp.MustCompile(`^[A-Z_]+=`).MatchString(text) {
		name, _, _ := strings.Cut(text, "=")
		if !w.said[name] && !w.settings[name] && !w.environment(name) {
			return "nobody reads " + name
		}
		return ""
	}
	if strings.Contains(text, "/") || strings.Contains(text, ".") {
		return w.wrongPath(text)
	}
	return text + " is nothing that there is, and no known word of others"
}

// environment says whether a test reads a variable.
func (w *truth) environment(name string) bool {
	for _, dir := range append(productDirs(), "test") {
		found := false
		_ = fs.WalkDir(os.DirFS(root), dir, func(p string, d fs.DirEntry, err error) error {
			if err == nil && path.Ext(p) == ".go" && p != "test/docs" && !found {
				text, err := os.ReadFile(filepath.Join(root, p))
				found = err == nil && strings.Contains(string(text), strconv.Quote(name))
			}
			return nil
		})
		if found {
			return true
		}
	}
	return false
}

// benchWords gives what test/bench may be asked for.
func benchWords(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "test", "bench", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, file := range files {
		maps.Copy(found, matches(readFile(t, file), `"([a-z]+)"`))
	}
	return found
}

// wrongPath is for files: of the repository, or of a node.
func (w *truth) wrongPath(text string) string {
	if strings.HasPrefix(text, "/") {
		for said := range w.said {
			if said == text || strings.HasPrefix(said, text+"/") {
				return ""
			}
		}
		// Where a name is put together from a folder that is said and a name that is.
		if dir, name := path.Split(text); w.said[strings.TrimSuffix(dir, "/")] && w.said[name] {
			return ""
		}
		return "nothing of ours names the file " + text
	}
	if _, err := os.Stat(filepath.Join(root, strings.TrimSuffix(text, "/"))); err != nil {
		return "there is no file " + text
	}
	return ""
}

func TestEverythingThatIsNamedIsThere(t *testing.T) {
	w := theTruth(t)
	for _, p := range pages(t) {
		for _, s := range p.spans() {
			if wrong := w.wrong(s.text); wrong != "" {
				t.Errorf("%s:%d: `%s`: %s", p.path, s.number, s.text, wrong)
			}
		}
		for _, l := range p.code {
			for _, wrong := range w.objects.wrong(strings.TrimPrefix(l.text, "$ ")) {
				t.Errorf("%s:%d: %s: %s", p.path, l.number, l.text, wrong)
			}
		}
		for _, message := range p.messages() {
			if !w.said[message.text] {
				t.Errorf("%s:%d: nothing of ours logs %q", p.path, message.number, message.text)
			}
		}
		for _, c := range p.commands() {
			if wrong := w.wrongCommand(c.text); wrong != "" {
				t.Errorf("%s:%d: %s: %s", p.path, c.number, c.text, wrong)
			}
		}
	}
	for word := range w.theirs {
		if !w.used[word] {
			t.Errorf("no page has the word %s of others", word)
		}
	}
}

func TestWhatIsNotThereIsNotKnown(t *testing.T) {
	w := theTruth(t)
	for _, text := range []string{
		"--pod-networks", "onerule_services", "OneruleDown", "services-ips", "ip onerule-nat", "lb-icmp-2",
		"oneruled show", "oneruled top --all", "make everything", "make bench NOTHING=1", "install/nothing.yaml", "/run/onerule/other.sock",
		"kubectl apply -f install/nothing.yaml", "nft list map ip onerule nothing", "ONERULE_NOTHING=1", "KubeProxyRunsAhead",
		"bpftool map dump pinned /sys/fs/bpf/onerule/nothing", "--endpoint-metrics=everything", "-o yaml", "ip onerules", "make e2f",
		"nft delete table ip onerul", "kubectl -n default get pods", "kubectl create configmap onerule-api", "make bench BENCHFLAGS=\"--only nothing\"",
		"kubectl -n kube-system rollout status daemonset/nothing", "unheard-of",
		"goto nothing", "onerule show-nothing", "helm install onerule install/chart --set podNetwork.nothing=1", "spec.nothing", "bin/nothing.tar",
	} {
		if w.wrong(text) == "" {
			t.Errorf("%s is taken for something that there is", text)
		}
	}
	for _, text := range []string{
		"--pod-network", "--endpoint-metrics=off", "onerule_rules{ip_family}", "OneruleNotSynced", "service-ips", "ip6 onerule-guard", "skeleton-…",
		"oneruled top -n 1", "make test PKG=./nft/...", "install/rbac.yaml", "bpf/", "/run/onerule/oneruled.sock", "ONERULE_SOAK=1", "KubeProxyRunsBeside",
		"bpftool map dump pinned /sys/fs/bpf/onerule/endpoint_hits", "/etc/cni/net.d/10-onerule.conflist",
	} {
		if wrong := w.wrong(text); wrong != "" {
			t.Errorf("%s: %s", text, wrong)
		}
	}
}
