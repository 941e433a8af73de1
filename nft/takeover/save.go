package takeover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// removeLegacy removes kube-proxy's chains from a table of iptables-legacy, which only
// its own tools write well. A table is written in one step.
func removeLegacy(ctx context.Context, family Family, name string) error {
	tools, err := findTools(ctx, family)
	if err != nil {
		return err
	}
	saved, err := run(ctx, "", tools.save, "-t", name)
	if err != nil {
		return err
	}
	r := parseSaved(name, saved).removal()
	if r.empty() {
		return nil
	}
	// -w: another program may be writing.
	_, err = run(ctx, r.restore(name), tools.restore, "-w", "5", "--noflush", "-T", name)
	return err
}

// tools are the programs of iptables-legacy.
type tools struct{ save, restore string }

// findTools finds the programs for a family. What is called iptables is asked which
// variant it is.
func findTools(ctx context.Context, family Family) (tools, error) {
	base := "iptables"
	if family == IPv6 {
		base = "ip6tables"
	}
	if save, err := exec.LookPath(base + "-legacy-save"); err == nil {
		if restore, err := exec.LookPath(base + "-legacy-restore"); err == nil {
			return tools{save, restore}, nil
		}
	}
	version, err := run(ctx, "", base, "--version")
	if err != nil || strings.Contains(version, "nf_tables") {
		return tools{}, fmt.Errorf("no %s-legacy-save and %s-legacy-restore in PATH: they alone can change this table", base, base)
	}
	return tools{base + "-save", base + "-restore"}, nil
}

// run runs a program and gives what it printed. Its error ends with what it said.
func run(ctx context.Context, input, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(input)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		text := strings.Join(strings.Fields(said.String()), " ")
		return "", errors.Join(ctx.Err(), fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, text))
	}
	return out.String(), nil
}

// restore spells a removal for iptables-restore. To name a chain empties it.
func (r removal) restore(table string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n", table)
	for _, names := range [][]string{r.flush, r.delete} {
		for _, name := range names {
			fmt.Fprintf(&b, ":%s - [0:0]\n", name)
		}
	}
	for _, j := range r.jumps {
		fmt.Fprintf(&b, "-D %s %s\n", j.chain, strings.Join(j.spec, " "))
	}
	for _, name := range r.delete {
		fmt.Fprintf(&b, "-X %s\n", name)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// parseSaved reads what iptables-save printed of a table.
func parseSaved(name, saved string) table {
	t := table{chains: map[string]chain{}}
	builtIn := map[string]bool{}
	for line := range strings.Lines(saved) {
		words := quotedFields(strings.TrimSpace(line))
		switch {
		case len(words) == 0:
		case strings.HasPrefix(words[0], ":"):
			chainName := words[0][1:]
			builtIn[chainName] = len(words) > 1 && words[1] != "-"
			if isProxyChain(name, chainName) {
				t.chains[chainName] = chain{}
			}
		case words[0] == "-A" && len(words) > 2:
			t.take(rule{chain: words[1], builtIn: builtIn[words[1]], spec: words[2:]})
		}
	}
	return t
}

// take counts a rule of kube-proxy's chains, and keeps one that leads to them.
func (t *table) take(r rule) {
	if c, ours := t.chains[r.chain]; ours {
		t.chains[r.chain] = chain{rules: c.rules + 1}
		return
	}
	for i, word := range r.spec[:len(r.spec)-1] {
		switch word {
		case "-j", "-g":
			r.target = r.spec[i+1]
		case "--comment":
			r.comment = unquote(r.spec[i+1])
		}
	}
	if _, leads := t.chains[r.target]; leads {
		t.jumps = append(t.jumps, r)
	}
}

// quotedFields splits a line of iptables-save into words, which keep their quotes.
func quotedFields(line string) []string {
	var words []string
	var word strings.Builder
	quoted, escaped := false, false
	for _, c := range line {
		if c == ' ' && !quoted {
			if word.Len() > 0 {
				words = append(words, word.String())
			}
			word.Reset()
			continue
		}
		if c == '"' && !escaped {
			quoted = !quoted
		}
		escaped = c == '\\' && !escaped
		word.WriteRune(c)
	}
	if word.Len() > 0 {
		words = append(words, word.String())
	}
	return words
}

func unquote(word string) string {
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(strings.TrimSuffix(strings.TrimPrefix(word, `"`), `"`))
}
