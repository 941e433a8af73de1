package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	textWidth = 88
	fileWidth = 94 // with its edge no more than 98
	barWidth  = 40
)

// Styles, as parameters of the escape sequence that sets them.
const (
	bold  = "1"
	dim   = "2"
	red   = "31;1"
	green = "32"
	blue  = "34;1"
)

// A screen prints what is shown, and keeps account of what was claimed.
type screen struct {
	out    io.Writer
	colour bool
	start  time.Time
	empty  bool // the last line was
	scenes int
	held   int
	broken []string
}

func newScreen(out io.Writer, colour bool) *screen {
	return &screen{out: out, colour: colour, start: time.Now()}
}

// colourful says whether a file is a terminal that wants colour.
func colourful(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

func (s *screen) paint(style, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// line prints a line, but never a second empty one.
func (s *screen) line(text string) {
	if text == "" && s.empty {
		return
	}
	s.empty = text == ""
	fmt.Fprintln(s.out, strings.TrimRight(text, " "))
}

// title begins the whole.
func (s *screen) title(name, text string) {
	s.line("")
	s.line("  " + s.paint(bold, name) + "  " + text)
	s.line("")
}

// progress shows on a terminal how far something is. The last step takes it away.
func (s *screen) progress(n, of int) {
	switch {
	case !s.colour:
	case n < of:
		fmt.Fprintf(s.out, "\r    %d of %d ", n, of)
	default:
		fmt.Fprint(s.out, "\r\x1b[K")
	}
}

// scene begins a scene.
func (s *screen) scene(headline string) {
	s.scenes++
	head := fmt.Sprintf("%d  %s ", s.scenes, headline)
	rule := strings.Repeat("─", max(3, textWidth-utf8.RuneCountInString(head)-1))
	s.line("")
	s.line("  " + s.paint(blue, strings.TrimRight(head, " ")) + " " + s.paint(dim, rule))
	s.line("")
}

// say prints a paragraph.
func (s *screen) say(format string, args ...any) {
	for _, l := range wrap(fmt.Sprintf(format, args...), textWidth) {
		s.line("  " + l)
	}
	s.line("")
}

// file shows what a file says, or a part of it.
func (s *screen) file(name, text string) {
	edge := "┌ "
	for _, l := range hang(name) {
		s.line("  " + s.paint(dim, edge) + s.paint(bold, l))
		edge = "│ "
	}
	for line := range strings.Lines(text) {
		for _, l := range hang(strings.TrimRight(line, "\n")) {
			s.line("  " + s.paint(dim, edge) + l)
		}
	}
	s.line("")
}

// table prints rows in columns; the first row is the head.
func (s *screen) table(rows ...[]string) {
	for i, row := range columns(rows) {
		if i == 0 {
			row = s.paint(dim, strings.TrimRight(row, " "))
		}
		s.line("    " + row)
	}
	s.line("")
}

// columns pads cells to the width of their column.
func columns(rows [][]string) []string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	lines := make([]string, len(rows))
	for i, row := range rows {
		var b strings.Builder
		for j, cell := range row {
			b.WriteString(pad(cell, widths[j]+3))
		}
		lines[i] = b.String()
	}
	return lines
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

// bar shows a number as a part of a whole.
func (s *screen) bar(label string, n, of int) {
	full := 0
	if of > 0 {
		full = min(barWidth, (n*barWidth+of/2)/of)
	}
	filled := s.paint(green, strings.Repeat("█", full))
	rest := s.paint(dim, strings.Repeat("░", barWidth-full))
	s.line(fmt.Sprintf("    %s %s%s %6d", pad(label, 12), filled, rest, n))
}

// gap ends a group of bars.
func (s *screen) gap() { s.line("") }

// claim prints what is said to hold, and whether it does.
func (s *screen) claim(holds bool, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	mark := s.paint(green, "✓")
	if holds {
		s.held++
	} else {
		s.broken = append(s.broken, text)
		mark = s.paint(red, "✗")
		text = "DOES NOT HOLD: " + text
	}
	for i, l := range wrap(text, textWidth-2) {
		if i == 0 {
			s.line("  " + mark + " " + l)
		} else {
			s.line("    " + l)
		}
	}
}

// end prints how the claims fared, and says whether all held.
func (s *screen) end() bool {
	took := time.Since(s.start)
	s.line("")
	if len(s.broken) == 0 && s.held > 0 {
		s.line("  " + s.paint(green, fmt.Sprintf("All %d claims held, in %.1f s.", s.held, took.Seconds())) +
			" Everything was in namespaces, and is gone.")
		s.line("")
		return true
	}
	s.line("  " + s.paint(red, fmt.Sprintf("%d of %d claims did not hold:", len(s.broken), s.held+len(s.broken))))
	for _, b := range s.broken {
		s.line("  - " + b)
	}
	s.line("")
	return false
}

// hang breaks a line that is too wide, and indents what follows.
func hang(line string) []string {
	text := strings.TrimLeft(line, " ")
	indent := line[:len(line)-len(text)]
	if utf8.RuneCountInString(line) <= fileWidth {
		return []string{line}
	}
	lines := wrap(text, fileWidth-len(indent)-4)
	for i, l := range lines {
		lines[i] = indent + l
		if i > 0 {
			lines[i] = indent + "    " + l
		}
	}
	return lines
}

// wrap breaks a text into lines of at most so many characters, between words.
func wrap(text string, width int) []string {
	var lines []string
	var line string
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// figures gives a duration as a person compares it.
func figures(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	default:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
}
