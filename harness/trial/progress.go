// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progressEvery is the least time between two progress lines.
const progressEvery = 5 * time.Second

// Progress prints what is going on, at most a line in 5 s; nothing for what ends
// sooner.
//
// Concurrency: any goroutine.
type Progress struct {
	mu   sync.Mutex
	w    io.Writer
	name string
	last time.Time
}

// NewProgress returns a progress line of the command name on w; nil w: silent.
func NewProgress(w io.Writer, name string) *Progress {
	return &Progress{w: w, name: name, last: time.Now()}
}

// Sayf prints a line if the last one is long enough ago.
func (p *Progress) Sayf(format string, args ...any) { p.say(false, format, args...) }

// Alwaysf prints a line.
func (p *Progress) Alwaysf(format string, args ...any) { p.say(true, format, args...) }

func (p *Progress) say(always bool, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w == nil || !always && time.Since(p.last) < progressEvery {
		return
	}
	p.last = time.Now()
	fmt.Fprintf(p.w, "harness %s: %s\n", p.name, fmt.Sprintf(format, args...))
}
