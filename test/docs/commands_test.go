package docs_test

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// programs are those whose command lines the pages show, beside oneruled and make. Of nft and
// bpftool what they name is looked for, of kubectl and the like which files and objects.
func programs() []string {
	return []string{"oneruled", "onerule", "make", "nft", "bpftool", "kubectl", "helm", "kind", "docker", "ctr", "ip", "bridge", "tcpdump", "conntrack",
		"curl", "ls", "iptables", "sysctl", "systemctl", "sudo", "sh", "kubeadm", "cp", "mount", "cat", "journalctl"}
}

func knownProgram(word string) bool { return slices.Contains(programs(), path.Base(word)) }

// wrongCommand says what a command line names that there is not.
func (w *truth) wrongCommand(text string) string {
	words := strings.Fields(text)
	for len(words) > 1 && words[0] == "sudo" {
		words = words[1:]
	}
	if wrong := w.objects.wrong(text); len(wrong) > 0 {
		return wrong[0]
	}
	switch name := path.Base(words[0]); name {
	case "oneruled":
		return w.program.wrong(words[1:])
	case "onerule": // what it takes beside the runtime's environment
		if len(words) > 1 && !w.said[words[1]] {
			return "onerule has no command " + words[1]
		}
		return ""
	case "make":
		return w.wrongMake(words[1:])
	case "goto", "jump":
		return ""
	default:
		if !slices.Contains(programs(), name) {
			return name + " is no program that the pages know"
		}
	}
	if path.Base(words[0]) == "ip" && (len(words) < 2 || !slices.Contains([]string{"route", "link", "-d", "neigh", "addr"}, words[1])) {
		return "ip is not asked for " + text
	}
	if wrong := w.wrongWords(words[1:]); wrong != "" {
		return wrong
	}
	if inside := regexp.MustCompile(`-- (oneruled .*)$`).FindStringSubmatch(text); inside != nil { // kubectl exec
		return w.wrongCommand(inside[1])
	}
	return ""
}

func (w *truth) wrongMake(words []string) string {
	for _, word := range words {
		name, value, set := strings.Cut(word, "=")
		switch {
		case name == "PKG" && w.wrongPath(strings.TrimSuffix(value, "/...")) != "":
			return "there is no package " + value
		case set && !w.settings[name]:
			return "the Makefile has no " + name
		case set && name == "BENCHFLAGS":
			return w.wrongBench(strings.Join(words, " "))
		case !set && !w.targets[word] && regexp.MustCompile(`^[a-z][a-z0-9-]*$`).MatchString(word):
			return "the Makefile has no target " + word
		}
	}
	return ""
}

// wrongBench looks at what make bench is asked for.
func (w *truth) wrongBench(text string) string {
	_, flags, _ := strings.Cut(text, "BENCHFLAGS=")
	for _, word := range regexp.MustCompile(`[a-z]+`).FindAllString(flags, -1) {
		if !w.bench[word] {
			return "test/bench does not know " + word
		}
	}
	return ""
}

// wrongObject looks at names of objects in a command of kubectl or helm.
func (w *truth) wrongObject(words []string, i int) string {
	kinds := regexp.MustCompile(`^(daemonset|configmap|serviceaccount|clusterrole|clusterrolebinding)$`)
	kind, name, ok := strings.Cut(words[i], "/")
	switch {
	case i > 0 && (words[i-1] == "-n" || words[i-1] == "--namespace"):
		if words[i] != "kube-system" && words[i] != "k8s.io" {
			return "nothing of ours is in the namespace " + words[i]
		}
		return ""
	case !ok && i > 0:
		kind, name = words[i-1], words[i]
	}
	if kinds.MatchString(kind) && name != "kube-proxy" && !w.applied[name] {
		return "nothing of ours has the name " + name
	}
	return ""
}

// wrongWords looks at the files and objects that a command of others names.
func (w *truth) wrongWords(words []string) string {
	for i, word := range words {
		if wrong := w.wrongObject(words, i); wrong != "" {
			return wrong
		}
		if key, _, ok := strings.Cut(word, "="); ok && words[max(i-1, 0)] == "--set" && !w.values[key] && !strings.HasPrefix(key, "nodeSelector.") {
			return "the chart has no value " + key
		}
		ours := strings.HasPrefix(word, "install/") || strings.HasPrefix(word, "bin/") || strings.HasPrefix(word, "/") || strings.Contains(word, "/onerule") && !strings.HasPrefix(word, "daemonset/")
		if ours && !strings.Contains(word, ":") && !w.built[word] {
			if wrong := w.wrongPath(word); wrong != "" {
				return wrong
			}
		}
	}
	return ""
}
