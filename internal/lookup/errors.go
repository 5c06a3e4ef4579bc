// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"context"
	"errors"
	"fmt"
)

// Kinds of refusals; errors.Is tells them apart.
var (
	ErrInvalid     = errors.New("invalid")     // the request cannot be right
	ErrNotFound    = errors.New("not found")   // it names what is not there
	ErrConflict    = errors.New("conflict")    // it contradicts what is there
	ErrUnavailable = errors.New("unavailable") // not now: full, busy, stopping, not reached
	ErrDenied      = errors.New("denied")      // the caller may not
	ErrDeadline    = errors.New("deadline")    // no answer within the caller's time
)

// Kinds are all kinds, in the order of their definition.
func Kinds() []error {
	return []error{ErrInvalid, ErrNotFound, ErrConflict, ErrUnavailable, ErrDenied, ErrDeadline}
}

// A Refusal is an error for whoever asked: one line that names the field and what
// it must be.
//
//nolint:errname // the word that the contracts have
type Refusal struct {
	Kind error // one of the above
	Text string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Text }

// Unwrap lets errors.Is find the kind.
func (r *Refusal) Unwrap() error { return r.Kind }

// Refuse returns a [Refusal] of that kind.
func Refuse(kind error, format string, args ...any) error {
	return &Refusal{kind, fmt.Sprintf(format, args...)}
}

// KindOf returns err's kind, or nil where it has none. A context's end is
// ErrDeadline where its time was over; a cancelled one has no kind: the caller did
// it himself.
func KindOf(err error) error {
	for _, k := range Kinds() {
		if errors.Is(err, k) {
			return k
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrDeadline
	}
	return nil
}

// OfContext returns why a call ended that ctx ended: ErrOverdue where its time was
// over, or the context's own error. nil where ctx goes on.
func OfContext(ctx context.Context) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrOverdue
	}
	return err
}

// ErrOverdue is the end of a call's time, of kind ErrDeadline; errors.Is also finds it
// to be context.DeadlineExceeded.
var ErrOverdue error = overdue{}

type overdue struct{}

func (overdue) Error() string { return "deadline: no answer within the time given" }

func (overdue) Unwrap() []error { return []error{ErrDeadline, context.DeadlineExceeded} }
