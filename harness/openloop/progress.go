// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"fmt"
	"io"
	"os"
	"time"
)

// sayEvery is between two lines where nobody watches a terminal.
const sayEvery = 10 * time.Second

// progress says how far a replay is: redrawn in place on a terminal, else a line now
// and then.
//
// Concurrency: one goroutine.
type progress struct {
	w        io.Writer
	terminal bool
	drawn    bool
	last     time.Time
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, last: time.Now()}
	if f, ok := w.(*os.File); ok {
		if st, err := f.Stat(); err == nil {
			p.terminal = st.Mode()&os.ModeCharDevice != 0
		}
	}
	return p
}

func (p *progress) sayf(format string, args ...any) {
	switch {
	case p.w == nil:
	case p.terminal:
		p.drawn = true
		fmt.Fprintf(p.w, "\r\x1b[K"+format, args...)
	case time.Since(p.last) >= sayEvery:
		p.last = time.Now()
		fmt.Fprintf(p.w, "harness replay: "+format+"\n", args...)
	}
}

// end takes the line off the terminal again.
func (p *progress) end() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
