// SPDX-License-Identifier: Apache-2.0

// Command mockworker stands in for an engine: it plays a recording of one over
// real ZMQ sockets, or is a small live one.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"kindex/harness/mockworker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := mockworker.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
