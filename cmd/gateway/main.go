// SPDX-License-Identifier: Apache-2.0

// Command gateway is an OpenAI-compatible proxy before a fleet of engines: each
// request goes where its prompt is cached, as far as load and liveness let it. gateway
// --help says the rest.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"kindex/gateway"
)

func main() {
	signals, reload := make(chan os.Signal, 2), make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	signal.Notify(reload, syscall.SIGHUP)
	os.Exit(gateway.Run(os.Args[1:], os.Stdout, os.Stderr, signals, reload))
}
