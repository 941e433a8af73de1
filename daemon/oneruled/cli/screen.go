// Package cli has the commands of oneruled for a person on the node: they ask the running
// daemon, and show what it answers.
package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// A screen is what is written to: a terminal, with colours, or anything else.
type screen struct {
	io.Writer
	colours bool
	// rows is the height of a terminal, 0 if it is none, or not known.
	rows     int
	terminal bool
}

// screenOf looks what a writer is. NO_COLOR and TERM=dumb ask for a terminal without
// colours.
func screenOf(w io.Writer) screen {
	s := screen{Writer: w}
	f, ok := w.(*os.File)
	if !ok {
		return s
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return s
	}
	s.terminal, s.rows = true, int(size.Row)
	s.colours = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return s
}

// A colour is the number of an ANSI sequence.
type colour int

const (
	plain  colour = 0
	bold   colour = 1
	dim    colour = 2
	red    colour = 31
	green  colour = 32
	yellow colour = 33
	cyan   colour = 36
)

// A cell is a text in a colour.
type cell struct {
	text string
	colour
	right bool // of its column
}

func text(format string, args ...any) cell { return cell{text: fmt.Sprintf(format, args...)} }

func (c cell) in(colour colour) cell {
	c.colour = colour
	return c
}

// number is a cell that stands on the right of its column.
func number(format string, args ...any) cell {
	c := text(format, args...)
	c.right = true
	return c
}

// paint gives a text in a colour, where there are colours.
func (s screen) paint(c colour, format string, args ...any) string {
	t := fmt.Sprintf(format, args...)
	if !s.colours || c == plain || t == "" {
		return t
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", c, t)
}

// line writes one line.
func (s screen) line(c colour, format string, args ...any) {
	fmt.Fprintln(s, s.paint(c, format, args...))
}

// A table is rows in columns, each as wide as what is in it, after an indent.
type table struct {
	indent string
	head   []string
	rows   [][]cell
}

func (t *table) add(row ...cell) { t.rows = append(t.rows, row) }

// write writes the table. Nothing stands behind the last text of a line.
func (t *table) write(s screen) {
	rows := t.rows
	if len(t.head) > 0 {
		head := make([]cell, len(t.head))
		for i, h := range t.head {
			head[i] = cell{text: h, colour: bold, right: i < len(t.head) && t.isRight(i)}
		}
		rows = append([][]cell{head}, rows...)
	}
	widths := widthsOf(rows)
	for _, row := range rows {
		var b strings.Builder
		gap := 0
		for i, c := range row {
			pad := widths[i] - utf8.RuneCountInString(c.text)
			before, after := 0, pad
			if c.right {
				before, after = pad, 0
			}
			if c.text == "" {
				before, after = 0, widths[i]
			} else {
				b.WriteString(strings.Repeat(" ", gap+before))
				b.WriteString(s.paint(c.colour, "%s", c.text))
				gap = 0
			}
			gap += after + 2
		}
		fmt.Fprintln(s, strings.TrimRight(t.indent+b.String(), " "))
	}
}

// isRight says whether the cells of a column stand on its right.
func (t *table) isRight(column int) bool {
	for _, row := range t.rows {
		if column < len(row) && row[column].text != "" {
			return row[column].right
		}
	}
	return false
}

func widthsOf(rows [][]cell) []int {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	return widths
}
