// SPDX-License-Identifier: Apache-2.0

// Before: Rank's history. After: the servers of the contracts.

package relay

import "context"

// Subscription reads the ranks of one engine for one subscriber.
//
// Concurrency: Next by one goroutine at a time; Close by any, once or more.
type Subscription struct {
	engine *Engine
	req    SubscribeRequest
}

// Subscribe begins a subscription. The error is an [*EndError]. Close must be
// called in the end.
func (e *Engine) Subscribe(req SubscribeRequest) (*Subscription, error) {
	return &Subscription{engine: e, req: req}, nil
}

// Next returns the next thing to tell, waiting for it until ctx ends. The error
// is ctx's, or an [*EndError], after which there is nothing more. Ranks take
// turns: one that has much to tell does not keep the others waiting.
func (s *Subscription) Next(ctx context.Context) (*Item, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Close ends the subscription.
func (s *Subscription) Close() {}
