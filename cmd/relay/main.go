// SPDX-License-Identifier: Apache-2.0

// Command relay reads engines' event sockets without ever pushing back and serves
// what they say, complete and in order, to any number of subscribers. relay --help
// says the rest.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"kindex/relay"
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	os.Exit(relay.Run(os.Args[1:], os.Stdout, os.Stderr, signals))
}
