package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// A document is one YAML or JSON value of a file.
type document struct {
	line int    // of the file, where it begins
	text []byte // as it stands in the file
	err  error  // why it can't be told from the rest of the file
}

// documents takes a file apart. Errors come with the line of the file.
func documents(file string, data []byte) []document {
	if isJSON(file) {
		return jsonDocuments(data)
	}
	return yamlDocuments(data)
}

func isJSON(file string) bool { return filepath.Ext(file) == ".json" }

// json gives the value of a document, nil if it holds none.
func (d document) json(file string) ([]byte, error) {
	if d.err != nil || isJSON(file) {
		return d.text, d.err
	}
	value, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return nil, atLine(err, d.line-1)
	}
	if bytes.Equal(value, []byte("null")) {
		return nil, nil
	}
	return value, nil
}

func jsonDocuments(data []byte) []document {
	var docs []document
	d := json.NewDecoder(bytes.NewReader(data))
	for pos := (position{data: data, line: 1}); ; {
		rest := data[d.InputOffset():]
		line := pos.lineAt(len(data) - len(bytes.TrimLeft(rest, " \t\r\n")))
		var raw json.RawMessage
		err := d.Decode(&raw)
		var syntax *json.SyntaxError
		switch {
		case err == nil && bytes.Equal(raw, []byte("null")):
		case err == nil:
			docs = append(docs, document{line: line, text: raw})
		case errors.Is(err, io.EOF):
			return docs
		case errors.Is(err, io.ErrUnexpectedEOF):
			err = fmt.Errorf("line %d: ends in the middle of a value", pos.lineAt(len(data)))
			return append(docs, document{line: line, err: err})
		case errors.As(err, &syntax):
			err = fmt.Errorf("line %d: %w", pos.lineAt(int(syntax.Offset)), err)
			return append(docs, document{line: line, err: err})
		default:
			return append(docs, document{line: line, err: err})
		}
	}
}

// A position counts lines on the way through a file.
type position struct {
	data []byte
	at   int
	line int // of at, from 1
}

// lineAt goes on to an offset, which lies behind the last one.
func (p *position) lineAt(offset int) int {
	offset = max(p.at, min(offset, len(p.data)))
	p.line += bytes.Count(p.data[p.at:offset], []byte("\n"))
	p.at = offset
	return p.line
}

// yamlDocuments only looks for the lines between documents, so that each is parsed
// by itself: a fault in one leaves the others readable, and what did not change need
// not be parsed again.
func yamlDocuments(data []byte) []document {
	var docs []document
	first, line := 1, 1
	start, at := 0, 0
	for text := range bytes.Lines(data) {
		if separates(text) {
			docs = append(docs, document{line: first, text: data[start:at]})
			// What stands behind the dashes belongs to the next document.
			start, first = at, line
			if bytes.HasPrefix(text, []byte("...")) {
				start, first = at+len(text), line+1
			}
		}
		at += len(text)
		line++
	}
	return append(docs, document{line: first, text: data[start:]})
}

// separates says whether a line ends a document: three dashes or dots in its first
// column, alone or before white space.
func separates(line []byte) bool {
	if !bytes.HasPrefix(line, []byte("---")) && !bytes.HasPrefix(line, []byte("...")) {
		return false
	}
	return len(line) == 3 || strings.ContainsRune(" \t\r\n", rune(line[3]))
}

// atLine moves the line numbers in an error of the YAML parser from the document to
// the file. Errors of a first line have none.
func atLine(err error, before int) error {
	text := strings.Join(strings.Fields(err.Error()), " ") // several lines into one
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	numbered := regexp.MustCompile(`\bline (\d+)`)
	if !numbered.MatchString(text) {
		return fmt.Errorf("line %d: %s", before+1, text)
	}
	text = numbered.ReplaceAllStringFunc(text, func(m string) string {
		n, err := strconv.Atoi(m[len("line "):])
		if err != nil {
			return m
		}
		return fmt.Sprintf("line %d", n+before)
	})
	return errors.New(text)
}
