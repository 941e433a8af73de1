package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// A table is printed for people, or as Markdown.
type table struct {
	title  string
	header []string
	rows   [][]string
	notes  []string
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// print writes the table with its columns below each other.
func (t *table) print(w io.Writer, markdown bool) {
	lines := t.rows
	if len(t.header) > 0 {
		lines = append([][]string{t.header}, t.rows...)
	}
	var widths []int
	for _, line := range lines {
		for i, cell := range line {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	left, between, right := "  ", "  ", ""
	if markdown {
		left, between, right = "| ", " | ", " |"
		fmt.Fprintf(w, "### %s\n\n", t.title)
	} else {
		fmt.Fprintf(w, "%s\n\n", t.title)
	}
	for n, line := range lines {
		cells := make([]string, len(widths))
		for i := range cells {
			cell := ""
			if i < len(line) {
				cell = line[i]
			}
			cells[i] = cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
		}
		fmt.Fprintln(w, strings.TrimRight(left+strings.Join(cells, between)+right, " "))
		if n == 0 && markdown {
			rule := make([]string, len(widths))
			for i, width := range widths {
				rule[i] = strings.Repeat("-", max(width, 3))
			}
			fmt.Fprintln(w, left+strings.Join(rule, between)+right)
		}
	}
	fmt.Fprintln(w)
	for _, n := range t.notes {
		if markdown {
			fmt.Fprintf(w, "- %s\n", n)
		} else {
			fmt.Fprintf(w, "  %s\n", n)
		}
	}
	if len(t.notes) > 0 {
		fmt.Fprintln(w)
	}
}

// short gives a duration with three digits at most.
func short(d time.Duration) string {
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}} {
		if d < unit.size {
			continue
		}
		v := float64(d) / float64(unit.size)
		switch {
		case v < 10:
			return fmt.Sprintf("%.2f %s", v, unit.name)
		case v < 100:
			return fmt.Sprintf("%.1f %s", v, unit.name)
		}
		return fmt.Sprintf("%.0f %s", v, unit.name)
	}
	return fmt.Sprintf("%d ns", d.Nanoseconds())
}

// megabytes are those of a million bytes.
func megabytes(n int64) string { return fmt.Sprintf("%.0f MB", float64(n)/1e6) }

// count gives a number with commas.
func count(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// verdict says whether a goal was reached.
func verdict(reached bool) string {
	if reached {
		return "reached"
	}
	return "MISSED"
}
