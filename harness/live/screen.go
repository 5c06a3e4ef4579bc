// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"
)

// redraw is the period of a table on a terminal.
const redraw = 250 * time.Millisecond

// Screen shows a table: on a terminal redrawn in place, elsewhere one after the other.
//
// Concurrency: one goroutine.
type Screen struct {
	Terminal bool
	out      io.Writer
	shown    int // lines of the table now on the terminal
}

// NewScreen returns one that writes to out.
func NewScreen(out io.Writer) *Screen { return &Screen{Terminal: isTerminal(out), out: out} }

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// Period is the time between two tables, where the caller wants every so often elsewhere
// than on a terminal.
func (s *Screen) Period(every time.Duration) time.Duration {
	if s.Terminal {
		return redraw
	}
	return every
}

// Printf writes lines that stay, above the table.
func (s *Screen) Printf(format string, args ...any) {
	s.erase()
	s.write(fmt.Appendf(nil, format, args...))
}

// Draw shows a table of whole lines in place of the one before.
func (s *Screen) Draw(table []byte) {
	s.erase()
	if s.Terminal {
		s.shown = bytes.Count(table, []byte{'\n'})
		// A narrow terminal cuts lines: one that wrapped would not be erased.
		s.write(fmt.Appendf(nil, "\x1b[?7l%s\x1b[?7h", table))
		return
	}
	s.write(table)
}

// erase takes the table off the terminal again.
func (s *Screen) erase() {
	if s.shown > 0 {
		s.write(fmt.Appendf(nil, "\x1b[%dA\x1b[J", s.shown))
		s.shown = 0
	}
}

func (s *Screen) write(b []byte) {
	_, _ = s.out.Write(b) // a closed terminal shows itself as a signal
}
