package main

import (
	"regexp"
	"slices"
	"strings"
)

// A reader finds IDs in names of tests. The name of a function begins with them, one
// after the other and with an underscore for the point: TestA9_2R36AnyRequest. In the
// name of a sub-test they stand anywhere, as words: "A5.1, A5.2: ...".
type reader struct{ section, numbered *regexp.Regexp }

func newReader() *reader {
	return &reader{
		section:  regexp.MustCompile(`^A14[._-][A-Z]`),
		numbered: regexp.MustCompile(`^(A[0-9]+([._][0-9]+)?|[RF][0-9]+)`),
	}
}

// newCNIReader finds those of the list about the plugin: C44, TestD10MACs.
func newCNIReader() *reader {
	return &reader{section: regexp.MustCompile(`^$`), numbered: regexp.MustCompile(`^[CD][0-9]{1,2}`)}
}

// ofFunction gives the IDs of a test function, and how long the name is with them.
func (r *reader) ofFunction(name string) (ids []string, end int) {
	rest, ok := strings.CutPrefix(name, "Test")
	if !ok {
		return nil, 0
	}
	for {
		id := r.section.FindString(rest)
		if id == "" || letter(rest, len(id)) && !capital(rest, len(id)) {
			id = r.numbered.FindString(rest)
		}
		if id == "" || letter(rest, len(id)) && !capital(rest, len(id)) {
			return ids, len(name) - len(rest)
		}
		ids = append(ids, spelled(id))
		rest = rest[len(id):]
	}
}

// inWords gives the IDs that are words of a text, and where the last one ends.
func (r *reader) inWords(text string) (ids []string, end int) {
	for i := 0; i < len(text); i++ {
		if i > 0 && (letter(text, i-1) || digit(text, i-1)) {
			continue
		}
		id := r.word(text[i:])
		if id == "" {
			continue
		}
		if !slices.Contains(ids, spelled(id)) {
			ids = append(ids, spelled(id))
		}
		end = i + len(id)
		i = end - 1
	}
	return ids, end
}

// word gives the ID that is the first word of a text. In A2_2nd, which go test makes
// of "A2 2nd", that is A2.
func (r *reader) word(text string) string {
	short, _, _ := strings.Cut(r.numbered.FindString(text), "_")
	for _, id := range []string{r.section.FindString(text), r.numbered.FindString(text), short} {
		if id != "" && !letter(text, len(id)) && !digit(text, len(id)) {
			return id
		}
	}
	return ""
}

// spelled gives an ID as the list has it.
func spelled(id string) string {
	if part, ok := strings.CutPrefix(id, "A14"); ok && part != "" && !digit(part, 1) {
		return "A14-" + part[1:]
	}
	return strings.ReplaceAll(id, "_", ".")
}

func capital(s string, i int) bool { return i < len(s) && s[i] >= 'A' && s[i] <= 'Z' }

func letter(s string, i int) bool { return capital(s, i) || i < len(s) && s[i] >= 'a' && s[i] <= 'z' }

func digit(s string, i int) bool { return i < len(s) && s[i] >= '0' && s[i] <= '9' }
