// Command onerule is a CNI plugin; the package plugin says what it does.
package main

import (
	"os"
	"time"

	"onerule/plugin"
)

// version is set by the linker.
var version = "unknown"

func main() {
	p := plugin.Process{Getenv: os.Getenv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Now: time.Now, Version: version}
	os.Exit(p.Run())
}
