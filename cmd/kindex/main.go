// SPDX-License-Identifier: Apache-2.0

// Command kindex asks index hosts, relays and engines: who holds what, why, and
// whether it is right. kindex --help says the rest.
package main

import (
	"os"
	"syscall"

	"golang.org/x/term"

	"kindex/cli"
)

func main() {
	out := int(os.Stdout.Fd())
	os.Exit(cli.Run(os.Args[1:], &cli.Env{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv,
		Screen: func() (width, height int, ok bool) {
			width, height, err := term.GetSize(out)
			return width, height, err == nil && term.IsTerminal(out)
		},
	}, os.Interrupt, syscall.SIGTERM))
}
