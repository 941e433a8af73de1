// Command oneruled is the node daemon: it translates Service addresses with
// nftables, from the objects of an API server or from manifest files.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"onerule/daemon/oneruled/cli"
)

// version is set by the build.
var version = "devel"

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	defer klog.Flush()
	if err := command(version, actions{start: start, initialize: initialize, cleanup: cleanup, preview: preview}).ExecuteContext(ctx); err != nil {
		code, tell := cli.ExitCode(err)
		if tell {
			klog.Flush()
			fmt.Fprintf(os.Stderr, "oneruled: %v\n", err)
		}
		return code
	}
	return 0
}
