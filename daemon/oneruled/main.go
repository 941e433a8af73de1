// Command oneruled is the node daemon: it translates Service addresses with
// nftables, from the objects of an API server or from manifest files.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// version is set by the build.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := command(version).ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "oneruled: %v\n", err)
		os.Exit(1)
	}
}
