package install

import (
	"encoding/json"
	"fmt"
	"io"
)

// A Verdict says how bad something is.
type Verdict string

// The verdicts.
const (
	OK   Verdict = "OK"
	Warn Verdict = "WARN" // it works, less well or not for all
	Fail Verdict = "FAIL" // it does not work
)

// A Check is one thing that a node was looked at for.
type Check struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`
	Remedy  string  `json:"remedy,omitempty"` // what to do about it
}

// A Report is what a node has, and what it lacks.
type Report []Check

// Failed counts what keeps the node from being served.
func (r Report) Failed() int {
	count := 0
	for _, c := range r {
		if c.Verdict == Fail {
			count++
		}
	}
	return count
}

// WriteText writes a line for each check, and one for each remedy.
func (r Report) WriteText(w io.Writer) error {
	for _, c := range r {
		text := fmt.Sprintf("%-4s  %-14s  %s\n", c.Verdict, c.Name, c.Found)
		if c.Remedy != "" {
			text += fmt.Sprintf("%-4s  %-14s  -> %s\n", "", "", c.Remedy)
		}
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
	}
	return nil
}

// WriteJSON writes the report for programs.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(struct {
		Failed int    `json:"failed"`
		Checks Report `json:"checks"`
	}{r.Failed(), r})
}

func ok(name, found string) Check             { return Check{name, OK, found, ""} }
func warn(name, found, remedy string) Check   { return Check{name, Warn, found, remedy} }
func failed(name, found, remedy string) Check { return Check{name, Fail, found, remedy} }
