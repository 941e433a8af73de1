package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// A progress reads what ginkgo prints, keeps it in a log, and prints a line for each
// test that has ended. (The tests' own --progress-report-url tells of none, as of
// 1.37.)
type progress struct {
	log, out     io.Writer
	begin        time.Time
	total        int
	done, failed int

	part  []byte // of a line, until its end comes
	state string // of the test whose name is on the next line
}

// endLine is how ginkgo begins what it prints of a test that has ended.
var endLine = regexp.MustCompile(`^(•|S|P|!)(?: \[([A-Z]+)\])?(?: in \[[^]]*\].*)? \[\d+\.\d+ seconds\]$`)

// labels are what stands behind a test's name.
var labels = regexp.MustCompile(` \[[^][]*\]$`)

// Write takes some output of ginkgo.
func (p *progress) Write(text []byte) (int, error) {
	p.part = append(p.part, text...)
	for {
		end := bytes.IndexByte(p.part, '\n')
		if end < 0 {
			break
		}
		p.line(strings.TrimRight(string(p.part[:end]), "\r"))
		p.part = p.part[end+1:]
	}
	return p.log.Write(text)
}

func (p *progress) line(text string) {
	if p.state != "" {
		// Of what failed, it says in which kind of node: " [It] ".
		p.ended(p.state, strings.Replace(labels.ReplaceAllString(strings.TrimSpace(text), ""), " [It] ", " ", 1))
		p.state = ""
		return
	}
	m := endLine.FindStringSubmatch(text)
	switch {
	case m == nil:
	case m[1] == "S" || m[1] == "P":
		p.state = "skipped"
	case m[2] != "":
		p.state = "failed"
	default:
		p.state = "passed"
	}
}

func (p *progress) ended(state, name string) {
	p.done++
	if state == "failed" {
		p.failed++
	}
	failed := ""
	if p.failed > 0 {
		failed = fmt.Sprintf(", %d failed", p.failed)
	}
	fmt.Fprintf(p.out, "%6s  %3d of %d%s  %s  %s\n", time.Since(p.begin).Round(time.Second), p.done, p.total, failed,
		state, strings.TrimPrefix(name, "[sig-network] "))
}
