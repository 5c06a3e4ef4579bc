// SPDX-License-Identifier: Apache-2.0

// Before: whoever runs a gateway, who has the parts. After: place.go.

package route

import (
	"context"
	"log/slog"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
	"kindex/gateway/overlay"
	"kindex/gateway/policy"
	"kindex/internal/lookup"
)

// Fleet tells who serves what. The registry is one.
type Fleet interface {
	// Pool returns the pool of a model, or of an adapter's base model; nil: nobody
	// serves it.
	Pool(model string) *fleet.Pool
	// Models returns every name that can be asked for, with its pool.
	Models() map[string]*fleet.Pool
}

// Prompts finds a call's tokens. What it cannot find it says in p.
type Prompts interface {
	Resolve(ctx context.Context, pool *fleet.Pool, c *openai.Call, p *Prompt)
	// Confirm hears what the answer to a call says of its prompt.
	Confirm(c *openai.Call, p *Prompt, u openai.Usage)
}

// Index answers lookups within a deadline of its own. Its errors cost a request nothing
// but the knowledge: it counts them itself.
type Index interface {
	Lookup(ctx context.Context, q *lookup.Query, a *lookup.Answer) error
}

// Options are a router's parts. All but Fleet and Policy may be nil.
type Options struct {
	Fleet   Fleet
	Prompts Prompts
	Index   Index
	Overlay *overlay.Overlay
	Policy  policy.Policy
	// Plain places what has no prompt. nil: Policy does.
	Plain policy.Policy

	// Group and Tenant are what the index is asked for; "": the default ones.
	Group, Tenant string

	// Told hears how each try ended, before its lease is given back; any goroutine
	// calls it. nil: nobody does.
	Told func(h *fleet.Holder, o Outcome)

	Log *slog.Logger
}

// Router places requests.
//
// Concurrency: any goroutine.
type Router struct {
	o     Options
	stats counters
}

// New returns a router of these parts.
func New(o Options) *Router {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Plain == nil {
		o.Plain = o.Policy
	}
	return &Router{o: o}
}
