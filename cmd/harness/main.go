// SPDX-License-Identifier: Apache-2.0

// Command harness proves, shows and measures kindex.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"kindex/harness"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := harness.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
