package daemon

import (
	"os"
	"runtime/debug"
)

// collectAt is the growth of the heap, in percent, after which Go collects. A node
// pays for its daemon's memory all the time, and for collections only while much
// changes. Go's default is 100; with 50 a full load took 15 MB more at its peak.
const collectAt = 30

// SpareMemory makes Go collect garbage earlier, unless GOGC says when. It concerns the
// whole process, so the program calls it, not New.
func SpareMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
}

// giveBack returns what a full load needed for a while to the system.
func giveBack() { debug.FreeOSMemory() }
