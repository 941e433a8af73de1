// Command count runs go test -json and shows it to people: a line for each
// package as it ends, failures in full, skips with their reason, and how many
// tests there were as the last line.
//
//	count [-tier PACKAGES] [-summary FILE] go test -json ./...
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
)

func main() {
	tier := flag.String("tier", "", "comma-separated packages that need privilege: none of their tests may be missing for the lack of it")
	summary := flag.String("summary", "", "write the last line to this file too")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "count: no command given, such as: go test -json ./...")
		os.Exit(2)
	}
	t := newTally(os.Stdout)
	err := run(flag.Args(), t.read)
	t.finish(err, tierOf(*tier))
	if *summary != "" {
		if err := os.WriteFile(*summary, []byte(t.line()+"\n"), 0o644); err != nil {
			fmt.Fprintf(os.Stderr, "count: write summary: %v\n", err)
			os.Exit(1)
		}
	}
	if t.failed > 0 {
		os.Exit(1)
	}
}

func tierOf(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

// run starts the command and gives what it prints to read. An interrupt from the
// terminal reaches the command as well: we wait for its end.
func run(command []string, read func(io.Reader) error) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	defer signal.Stop(signals)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("pipe from %s: %w", command[0], err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	readErr := read(out)
	if err := cmd.Wait(); err != nil {
		return errors.Join(readErr, fmt.Errorf("%s: %w", command[0], err))
	}
	return readErr
}

// An event is a line of go test -json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // instead of Package in the output of a build
	Test        string
	Output      string
	Elapsed     float64 // seconds
	FailedBuild string
}

// read takes events until the end. A line that is none is shown as it is: go
// prints some of its own errors that way.
func (t *tally) read(r io.Reader) error {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil {
				t.take(e)
			} else {
				fmt.Fprintf(t.out, "%s\n", strings.TrimSuffix(string(line), "\n"))
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
	}
}
