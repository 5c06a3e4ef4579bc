// SPDX-License-Identifier: Apache-2.0

// Before: place.go, which took a lease. After: fleet's counts, health, the overlay.

package route

import (
	"sync/atomic"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/gateway/overlay"
	"kindex/gateway/policy"
)

// OutcomeKind says how a try ended.
type OutcomeKind uint8

// How a try can end.
const (
	OK            OutcomeKind = iota // answered
	ClientError                      // 4xx: the client's fault, the worker is well
	ClientGone                       // the client hung up
	BackPressure                     // 429, or 503 of an engine that is full: neither death nor a fault
	WorkerError                      // 5xx
	ConnectFailed                    // no connection
	Broken                           // the answer was cut
	Stalled                          // nothing came for too long

	outcomeKinds
)

// Outcomes is the number of kinds.
const Outcomes = int(outcomeKinds)

var outcomeNames = [outcomeKinds]string{"ok", "client_error", "client_gone", "back_pressure", "worker_error", "connect_failed", "broken", "stalled"}

// String returns the kind's name in metrics.
func (k OutcomeKind) String() string { return outcomeNames[k] }

// Outcome is how a try ended.
type Outcome struct {
	Kind         OutcomeKind
	Status       int // of HTTP; 0: none came
	Usage        openai.Usage
	SentToClient bool // something of the answer reached the client: no other try may follow
}

// A Placement is one try of a request on one holder.
type Placement struct {
	Holder   *fleet.Holder
	Pool     *fleet.Pool
	Lease    *fleet.Lease
	Decision policy.Decision
	Try      int // 1: the first

	// Marks by fleet.Now; 0: not yet. Of the goroutine that serves the request.
	SentAt, FirstByteAt, FirstTokenAt int64

	// Expected is how many of the prompt's blocks the holder was known to have, or
	// expected to by the time that it would need them.
	Expected uint32

	indexed, available uint32 // blocks: of the holder by the index alone, of the best one
	predicted          overlay.Prediction

	router  *Router
	request *Request
	done    atomic.Bool
}

// expect sets what the holder that was named is expected to have.
func (p *Placement) expect(q *Request) {
	p.Expected, p.indexed, p.available = 0, 0, 0
	if len(q.matches) == 0 {
		return
	}
	p.available = q.matches[0].Blocks
	p.Expected = overlay.Blocks(q.matches, p.Holder)
	p.indexed = q.view.Indexed(p.Holder, p.Expected)
}

// take gives p its lease, unless the worker takes no more.
func (p *Placement) take(q *Request) bool {
	w := fleet.Work{}
	if withPrompt(q.Call) {
		w = fleet.Work{Prompt: int64(len(q.Prompt.Tokens)), Cached: p.Decision.Cached, Stream: q.Call.Stream}
	}
	p.Lease = p.Holder.TryTake(w)
	return p.Lease != nil
}

// withdraw takes back what was said to come.
func (p *Placement) withdraw() {
	if o := p.router.o.Overlay; o != nil {
		o.Withdraw(p.predicted)
	}
}

// Sent notes that the request is on its way to the worker.
func (p *Placement) Sent() { p.SentAt = fleet.Now() }

// FirstByte notes the first byte of the answer.
func (p *Placement) FirstByte() {
	now := fleet.Now()
	p.FirstByteAt = now
	p.Holder.Worker.Contact(now)
}

// Token notes that a part of the answer came that carries output, at the time now by
// fleet.Now.
func (p *Placement) Token(now int64) {
	if p.FirstTokenAt == 0 {
		p.FirstTokenAt = now
	}
	p.Lease.Moved(now)
}

// Done ends the try: everybody is told, and the lease given back. Only the first call
// counts; it reports whether it was.
//
// Concurrency: any goroutine; not once the request is reset.
func (p *Placement) Done(o Outcome) bool {
	if p.done.Swap(true) {
		return false
	}
	p.router.stats.outcomes[o.Kind].Add(1)
	if told := p.router.o.Told; told != nil {
		told(p.Holder, o)
	}
	p.Lease.Release()
	if q := p.request; o.Kind == OK && q.resolved {
		p.router.o.Prompts.Confirm(q.Call, &q.Prompt, o.Usage)
	}
	p.learn(&o)
	return true
}

// learn tells the overlay what came of what it expected.
func (p *Placement) learn(o *Outcome) {
	q := p.request
	if p.router.o.Overlay == nil || len(q.hashes) == 0 && q.blockSize == 0 {
		return
	}
	if o.Kind != OK {
		if p.FirstTokenAt == 0 {
			p.withdraw() // it was not computed, or not to its end
		}
		return
	}
	if !o.Usage.CachedKnown || q.Call.Prompts > 1 || q.Call.N > 1 {
		return // several prompts' or answers' tokens in one figure
	}
	if q.Prompt.Partial {
		return // only its begin is known
	}
	if o.Usage.Prompt != int64(len(q.Prompt.Tokens)) {
		p.router.stats.otherTokens.Add(1) // the engine read another prompt than the gateway
		return
	}
	p.router.o.Overlay.Answered(&q.view, &overlay.Answer{
		Holder: p.Holder, Names: overlay.Names{Model: p.Pool.Weights(), LoRA: q.Prompt.LoRA, Salt: q.Prompt.Salt},
		Prompt: o.Usage.Prompt, Cached: o.Usage.Cached, BlockSize: q.blockSize,
		Indexed: p.indexed, Expected: p.Expected, Available: p.available,
	}, fleet.Now())
}
