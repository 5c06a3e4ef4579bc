// SPDX-License-Identifier: Apache-2.0

package upstream

import "fmt"

// Kind says at which point an exchange with a worker failed.
type Kind uint8

// The kinds.
const (
	Connect   Kind = iota + 1 // no connection: refused, timed out, no TLS
	Closed                    // ended without a byte of an answer
	Late                      // no byte of an answer within the time for the first
	Malformed                 // what came is no HTTP/1.1 answer, or a head over the limit
	Broken                    // ended within the answer
	Stalled                   // nothing came for the stall timeout, within the answer
	TooLarge                  // the body is over the caller's limit
	Canceled                  // the caller's context ended, or Abort was called
)

var kindNames = [...]string{
	"", "connect", "closed", "late", "malformed", "broken", "stalled", "too_large", "canceled",
}

// String returns the kind's name in logs and metrics.
func (k Kind) String() string { return kindNames[k] }

// Error is how an exchange with a worker failed.
type Error struct {
	Kind Kind
	URL  string // of the worker
	Err  error  // what the system or the parser said; may be nil
}

var kindTexts = [...]string{
	"",
	"cannot connect",
	"closed the connection without an answer",
	"no answer in time",
	"answered what is not HTTP/1.1",
	"broke off its answer",
	"stopped in the middle of its answer",
	"its answer is too large",
	"the request was given up",
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("worker %s: %s", e.URL, kindTexts[e.Kind])
	}
	return fmt.Sprintf("worker %s: %s: %v", e.URL, kindTexts[e.Kind], e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
