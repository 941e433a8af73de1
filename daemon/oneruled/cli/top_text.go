package cli

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"onerule/daemon/inspect"
)

// What moves a terminal: home, the rest of a line, and of the screen.
const (
	home      = "\x1b[H"
	wipe      = "\x1b[2J"
	restLine  = "\x1b[K"
	restBelow = "\x1b[J"
)

// write shows a reading: on a terminal in place of the one before.
func (t topOptions) write(s screen, r inspect.Reading, first bool) {
	var text bytes.Buffer
	t.writeText(screen{Writer: &text, colours: s.colours}, r)
	if !s.terminal || t.readings == 1 {
		if !first {
			fmt.Fprintln(s)
		}
		_, _ = s.Write(text.Bytes())
		return
	}
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	if s.rows > 1 && len(lines) > s.rows-1 {
		lines = lines[:s.rows-1]
	}
	begin := home
	if first {
		begin = wipe + home
	}
	// In one write, so that nothing flickers.
	_, _ = fmt.Fprint(s, begin+strings.Join(lines, restLine+"\n")+restLine+"\n"+restBelow)
}

func (t topOptions) writeText(s screen, r inspect.Reading) {
	sum := 0.0
	for _, service := range r.Services {
		sum += service.Rate
	}
	s.line(bold, "%s  %.1f new connections per second, in %s, by %s", r.At.Format(time.TimeOnly), sum, took(r.Seconds), t.sort)
	if len(r.Services) == 0 {
		s.line(plain, "no endpoint is counted yet")
		return
	}
	shown := table{head: []string{"SERVICE", "PORT", "ENDPOINT", "PER SECOND", "SHARE", "TOTAL"}}
	for i, service := range r.Services {
		if t.limit > 0 && i == t.limit {
			break
		}
		shown.add(text("%s/%s", service.Namespace, service.Service).in(cyan), text("%s", service.PortWord()), text("%s", count(service.Serving(), "endpoint")),
			number("%.1f", service.Rate).in(bold), number(""), number("%d", service.Total).in(bold))
		if t.services {
			continue
		}
		for _, e := range service.Endpoints {
			address := text("%s", e.Address)
			if e.Address == "" {
				address = text("(gone)").in(dim)
			}
			shown.add(cell{}, cell{}, address, number("%.1f", e.Rate), number("%.1f%%", 100*e.Share), number("%d", e.Total))
		}
	}
	shown.write(s)
}
