// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"kindex/harness/trial"
)

// trials is what the commands have in common that take each trial in a fresh process.
type trials struct {
	name   string
	runs   int
	one    bool
	asJSON bool
}

func (t *trials) flags(fs *flag.FlagSet, seed *uint64) {
	fs.Uint64Var(seed, "seed", *seed, "of the workload")
	fs.IntVar(&t.runs, "runs", 1, "trials, each in a fresh process")
	fs.BoolVar(&t.one, "one", false, "one trial in this process (what the others start)")
	fs.BoolVar(&t.asJSON, "json", false, "print one JSON object")
}

// refuse prints what cannot be right about the flags, if anything is.
func (t *trials) refuse(err error, rest []string, stderr io.Writer) (code int, bad bool) {
	switch {
	case len(rest) > 0:
		err = fmt.Errorf("unexpected argument %q: everything is a flag", rest[0])
	case t.runs < 1 || t.runs > 1000:
		err = fmt.Errorf("--runs %d: must be 1 to 1000", t.runs)
	}
	if err == nil {
		return exitOK, false
	}
	fmt.Fprintf(stderr, "harness %s: %v\n", t.name, err)
	return exitUsage, true
}

// table is what a command prints.
type table interface {
	WriteJSON(w io.Writer) error
	WriteText(w io.Writer) error
}

func (t *trials) write(x table, w io.Writer) error {
	if t.asJSON {
		return x.WriteJSON(w)
	}
	return x.WriteText(w)
}

// end prints why a command failed, if it did.
func (t *trials) end(err error, stderr io.Writer) int {
	if err == nil {
		return exitOK
	}
	// A child's line already says who speaks.
	fmt.Fprintf(stderr, "harness %s: %s\n", t.name, strings.TrimPrefix(err.Error(), "harness "+t.name+": "))
	return exitDiffers
}

// wrongs is an error where answers were wrong.
func wrongs(e *trial.Exact) error {
	if e != nil && e.Wrong > 0 {
		return fmt.Errorf("%d of %d lookups are wrong", e.Wrong, e.Lookups)
	}
	return nil
}
