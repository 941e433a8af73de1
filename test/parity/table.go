package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"onerule/test/conformance"
)

// A line is a row with its proofs.
type line struct {
	conformance.Item
	proofs []proof
	word   string // the result as it is shown
	bad    bool
}

// lines joins the list with what tests told.
func lines(rows []conformance.Item, proofs map[string][]proof) []line {
	var all []line
	for _, r := range rows {
		l := line{Item: r, proofs: joined(proofs[r.ID])}
		if len(l.proofs) == 0 {
			l.word, l.bad = owing(r.When), r.When == conformance.Now
		} else {
			worst := slices.MaxFunc(l.proofs, func(a, b proof) int { return cmp.Compare(a.result, b.result) }).result
			l.word, l.bad = worst.String(), worst == fail
		}
		all = append(all, l)
	}
	return all
}

// joined makes one of proofs of the same name, as sub-tests have with the same IDs,
// with what counts most of their results.
func joined(proofs []proof) []proof {
	var all []proof
	for _, p := range proofs {
		i := slices.IndexFunc(all, func(q proof) bool { return q.dir == p.dir && q.name == p.name })
		if i < 0 {
			all = append(all, p)
		} else {
			all[i].result = max(all[i].result, p.result)
		}
	}
	return all
}

// A look is how the table is shown.
type look struct{ colour, missingOnly bool }

// writeTable writes the table and its summary: ID, result, what is owed, and the tests.
func writeTable(out io.Writer, all []line, as look) {
	id, word, sees := 0, 0, 0
	for _, l := range all {
		id, word, sees = max(id, len(l.ID)), max(word, len(l.word)), max(sees, utf8.RuneCountInString(l.text()))
	}
	for _, l := range all {
		if as.missingOnly && !l.bad {
			continue
		}
		shown := fmt.Sprintf("%-*s", word, l.word)
		if as.colour {
			shown = l.colour() + shown + "\x1b[0m"
		}
		text := fmt.Sprintf("%-*s  %s  %-*s  %s", id, l.ID, shown, sees, l.text(), l.tests())
		fmt.Fprintln(out, strings.TrimRight(text, " "))
	}
	fmt.Fprintln(out, summary(all))
}

// text is what is owed, with the report of a fault.
func (l line) text() string {
	if l.Report == "" {
		return l.Says
	}
	return l.Says + " (" + l.Report + ")"
}

// tests names the proofs, each with its result where that is not the row's.
func (l line) tests() string {
	var names []string
	for _, p := range l.proofs {
		name := p.dir + " " + p.name
		if p.result.String() != l.word {
			name += " (" + p.result.String() + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, "; ")
}

func (l line) colour() string {
	switch {
	case l.bad:
		return "\x1b[31m"
	case l.word == pass.String():
		return "\x1b[32m"
	}
	return "\x1b[33m"
}

// summary counts the lines by their result.
func summary(all []line) string {
	counts := map[string]int{}
	for _, l := range all {
		counts[l.word]++
	}
	parts := []string{fmt.Sprintf("%d rows", len(all))}
	for _, word := range []string{pass.String(), fail.String(), skip.String(), unrun.String(), owing(conformance.Now), owing(conformance.Later), owing(conformance.Never)} {
		always := word == pass.String() || word == fail.String() || word == owing(conformance.Now)
		if counts[word] > 0 || always {
			parts = append(parts, fmt.Sprintf("%d %s", counts[word], strings.ToLower(word)))
		}
	}
	return parts[0] + ": " + strings.Join(parts[1:], ", ")
}
