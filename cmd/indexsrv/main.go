// SPDX-License-Identifier: Apache-2.0

// Command indexsrv is the index host: engines' event streams in, exact answers
// about who holds how much of a prompt out. indexsrv --help says the rest.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"kindex/indexsrv"
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	os.Exit(indexsrv.Run(os.Args[1:], os.Stdout, os.Stderr, signals))
}
