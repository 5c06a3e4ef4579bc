// SPDX-License-Identifier: Apache-2.0

// Before: subscriptions and RPCs that are passed through. After: the scheduler.

package relay

import (
	"os"
	"runtime"
	"sync"
	"time"
)

// How much one processor is given to. Chosen: ranks from what it takes, some ten
// thousand batches a second; the rest so that few change nothing.
const (
	ranksPerProcessor = 8
	subsPerProcessor  = 64
	rpcsPerProcessor  = 8 // passed through
)

// quietTime is how long less work lasts before there are fewer processors.
const quietTime = 10 * time.Second

// processors has the program run on few processors while it has little to do.
//
// A batch is little work, done in turn by goroutines that wake one another. With
// processors to spare the scheduler looks for more work on each of them whenever
// one wakes, which on a quiet machine costs several times the work itself.
//
// Concurrency: any goroutine. A nil one does nothing.
type processors struct {
	least, most int
	set         func(int)

	mu        sync.Mutex // guards what follows
	subs      int
	rpcs      int
	now       int
	lowering  *time.Timer // runs while lowered is true
	lowered   bool
	quietTime time.Duration
}

// limitProcessors limits the program's, unless GOMAXPROCS is set: then it is nil.
func limitProcessors(cfg *Config) *processors {
	if os.Getenv("GOMAXPROCS") != "" {
		return nil
	}
	ranks := 0
	for i := range cfg.Engines {
		ranks += max(cfg.Engines[i].Ranks, 1)
	}
	return newProcessors(ranks, runtime.NumCPU(), func(n int) { runtime.GOMAXPROCS(n) })
}

func newProcessors(ranks, most int, set func(int)) *processors {
	least := min(most, 1+(ranks-1)/ranksPerProcessor)
	set(least)
	return &processors{least: least, most: most, set: set, now: least, quietTime: quietTime}
}

// subscribed and passing count those that begin, 1, or end, -1.
func (p *processors) subscribed(d int) { p.count(d, 0) }
func (p *processors) passing(d int)    { p.count(0, d) }

func (p *processors) count(subs, rpcs int) {
	if p == nil || p.least == p.most {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subs += subs
	p.rpcs += rpcs
	switch want := p.want(); {
	case want > p.now:
		p.now = want
		p.set(want)
	case want < p.now && !p.lowered:
		p.lowered = true
		if p.lowering == nil {
			p.lowering = time.AfterFunc(p.quietTime, p.lower)
		} else {
			p.lowering.Reset(p.quietTime)
		}
	}
}

// want returns how many the work is for. mu is held.
func (p *processors) want() int {
	return min(p.most, p.least+p.subs/subsPerProcessor+p.rpcs/rpcsPerProcessor)
}

// lower takes back what is not needed any more.
func (p *processors) lower() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lowered = false
	if want := p.want(); want < p.now {
		p.now = want
		p.set(want)
	}
}

func (p *processors) close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lowering != nil {
		p.lowering.Stop()
	}
}
