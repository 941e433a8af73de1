// Command keeper is what holds a machine of a test's cluster together: the first
// process in its namespaces, and the way into them.
//
//	keeper first control NAME FOLDER      be the first process of the control plane
//	keeper node NAME FOLDER CGROUPS       go into the cgroups and run the next one
//	keeper first node NAME FOLDER         be the first process of a node
//	keeper enter WHICH PID CGROUPS CMD    run a command in the namespaces of PID
//	keeper become CMD                     run a command that dies with its parent
//
// FOLDER holds the machine's state. CGROUPS is a file with the folders of a machine's
// cgroups, one a line; it may be missing.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

func main() {
	err := run(os.Args[1:])
	var ended *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &ended) && ended.ExitCode() >= 0:
		os.Exit(ended.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, "keeper:", err)
		os.Exit(125)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 4 && args[0] == "first":
		return first(args[1] == "node", args[2], args[3])
	case len(args) == 4 && args[0] == "node":
		return node(args[1], args[2], args[3])
	case len(args) >= 5 && args[0] == "enter":
		return enter(args[1], args[2], args[3], args[4:])
	case len(args) >= 2 && args[0] == "become":
		return become(args[1:])
	}
	return fmt.Errorf("no such order: %q", args)
}
