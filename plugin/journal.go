package plugin

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// journalSize is when a journal is renamed and a new one begun, so that the two are
// never more than twice as much.
const journalSize = 256 << 10

// noteIn gives a function that tells people what a runtime may not show: it keeps
// stderr of failures only. Nothing waits for the journal and nothing fails with it.
func (p Process) noteIn(journal string) func(string, ...any) {
	return func(format string, args ...any) {
		p.warn(format, args...)
		if info, err := os.Stat(journal); err == nil && info.Size() > journalSize {
			_ = os.Rename(journal, journal+".old")
		}
		f, err := os.OpenFile(journal, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return
		}
		defer f.Close()
		_, _ = fmt.Fprintf(f, "%s %s: %s\n", p.Now().UTC().Format(time.RFC3339Nano), p.verb, fmt.Sprintf(format, args...))
	}
}
