// The runtime would look for a limit of processors, which main sets: that is one part in
// twenty of a short call.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command onerule is a CNI plugin; the package plugin says what it does.
package main

import (
	"os"
	"runtime"
	"time"

	"onerule/plugin"
)

// version is set by the linker.
var version = "unknown"

func main() {
	// One thing is done after the other. More threads only wake each other: an ADD had
	// three times as many context switches, and took a tenth more of the processors.
	runtime.GOMAXPROCS(1)
	p := plugin.Process{Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Now: time.Now, Version: version}
	os.Exit(p.Command(os.Args[1:]))
}
