package docs_test

import (
	"maps"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"onerule/test/rig"
)

// A program is oneruled, as its --help shows it: what is said of each flag of each command;
// those of the daemon stand under "".
type program map[string]map[string]string

// oneruled asks the real program.
func oneruled(t *testing.T) program {
	t.Helper()
	bin := rig.Binary(t, "oneruled", "onerule/daemon/oneruled")
	help := func(args ...string) string {
		out, err := exec.Command(bin, append(args, "--help")...).CombinedOutput()
		if err != nil {
			t.Fatalf("oneruled %s --help: %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	main := help()
	p := program{"": flagsIn(main)}
	_, list, _ := strings.Cut(main, "\nCommands")
	list, _, _ = strings.Cut(list, "\n\n")
	for _, found := range regexp.MustCompile(`(?m)^  (\w+)  `).FindAllStringSubmatch(list, -1) {
		p[found[1]] = flagsIn(help(found[1]))
	}
	if len(p) < 8 || len(p[""]) < 50 {
		t.Fatalf("oneruled --help shows %d commands and %d flags: it can't be read", len(p)-1, len(p[""]))
	}
	// As its help says: all flags of the daemon count.
	maps.Copy(p["diff"], p[""])
	return p
}

// flagsIn gives the flags that a help lists, with their dashes, and what it says of each.
func flagsIn(help string) map[string]string {
	found := map[string]string{}
	flag := regexp.MustCompile(`(?m)^ +(?:(-\w), )?(--[a-z-]+)`)
	for rest := help; ; {
		at := flag.FindStringSubmatchIndex(rest)
		if at == nil {
			return found
		}
		names := flag.FindStringSubmatch(rest)
		rest = rest[at[1]:]
		text := rest
		if next := flag.FindStringIndex(rest); next != nil {
			text = rest[:next[0]]
		}
		found[names[2]] = text
		if names[1] != "" {
			found[names[1]] = text
		}
	}
}

// wrongFlag says what is wrong with a flag that stands alone: no command has it, or its help
// does not name the word that it is given.
func (p program) wrongFlag(words []string) string {
	wrong := "oneruled has no flag " + words[0]
	for command, flags := range p {
		if _, ok := flags[strings.SplitN(words[0], "=", 2)[0]]; ok {
			if wrong = p.wrongWords(command, words); wrong == "" {
				return ""
			}
		}
	}
	return wrong
}

// wrong says what is wrong with a command line of oneruled, without its name.
func (p program) wrong(words []string) string {
	command := ""
	if len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		command = words[0]
	}
	if command == "COMMAND" {
		return ""
	}
	if p[command] == nil {
		return "oneruled has no command " + command
	}
	return p.wrongWords(command, words)
}

// wrongWords looks at flags, and at values that are plain words: the help names them.
func (p program) wrongWords(command string, words []string) string {
	for i, w := range words {
		flag, value, given := strings.Cut(w, "=")
		if !regexp.MustCompile(`^--?[a-z]`).MatchString(flag) {
			continue
		}
		said, ok := p[command][flag]
		if !ok {
			return strings.TrimSpace("oneruled "+command) + " has no flag " + flag
		}
		if !given && i+1 < len(words) {
			value = words[i+1]
		}
		if regexp.MustCompile(`^[a-z]+$`).MatchString(value) && value != "true" && value != "false" && !regexp.MustCompile(`\b`+value+`\b`).MatchString(said) {
			return "the help of " + flag + " does not name " + value
		}
	}
	return ""
}

func TestCommandLinesOfOneruledAreRead(t *testing.T) {
	p := oneruled(t)
	for text, want := range map[string]string{
		"explain FROM TO:PORT/PROTO --in eth0":  "",
		"diff --manifests DIR --cluster-cidr X": "",
		"top -n 1":                              "",
		"--endpoint-metrics=off":                "",
		"--endpoint-metrics all":                "the help of --endpoint-metrics does not name all",
		"-v 2":                                  "",
		"tops":                                  "oneruled has no command tops",
		"top --fast":                            "oneruled top has no flag --fast",
		"status --every=1s":                     "oneruled status has no flag --every",
		"--pod-networks":                        "oneruled has no flag --pod-networks",
	} {
		if got := p.wrong(strings.Fields(text)); got != want {
			t.Errorf("oneruled %s: got %q, want %q", text, got, want)
		}
	}
}
