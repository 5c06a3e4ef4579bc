// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
)

// ErrMalformed marks what cannot be read as a whole: a payload that is no
// msgpack batch, or a message with wrong frames. It is always wrapped with the
// place and the cause.
var ErrMalformed = errors.New("malformed")

// Reason says why one event of a batch was left out.
type Reason uint8

// The reasons, all there are.
const (
	// UnknownEvent is a well-formed event of a kind this version does not know.
	UnknownEvent Reason = iota
	// BadEvent is something in the place of an event that is none: no array and
	// no map, or one without a tag.
	BadEvent
	// MissingField is an event without a field that every release sends.
	MissingField
	// BadField is a field of a wrong type, out of its range, or of another
	// length than it must have.
	BadField

	// NumReasons is the number of reasons.
	NumReasons
)

var reasonNames = [NumReasons]string{
	UnknownEvent: "unknown_event",
	BadEvent:     "bad_event",
	MissingField: "missing_field",
	BadField:     "bad_field",
}

// String returns the reason as metrics label it.
func (r Reason) String() string {
	if r < NumReasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// Drops counts left-out events by reason.
type Drops [NumReasons]uint64

// Total returns the sum over all reasons.
func (d *Drops) Total() uint64 {
	var n uint64
	for _, v := range d {
		n += v
	}
	return n
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}
