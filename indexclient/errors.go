// SPDX-License-Identifier: Apache-2.0

package indexclient

import (
	"context"
	"errors"

	"kindex/internal/lookup"
)

// A HostError is the error of one host.
type HostError struct {
	Target string // the host, as the target of Dial names it
	Kind   error  // ErrInvalid and so on; nil: a fault within the host
	Err    error  // what it said, or what kept it from saying anything
}

// Error implements error.
func (e *HostError) Error() string { return e.Target + ": " + e.Err.Error() }

// Unwrap lets errors.Is find the kind.
func (e *HostError) Unwrap() error { return e.Err }

// hostError returns err as name's. That the caller cancelled is nobody's error.
func hostError(name string, err error) error {
	if err == nil || canceled(err) {
		return err
	}
	return &HostError{Target: name, Kind: lookup.KindOf(err), Err: err}
}

// canceled reports whether err is the caller's doing.
func canceled(err error) bool {
	return errors.Is(err, context.Canceled) && lookup.KindOf(err) == nil
}

// ofRequest reports whether err is about the request, so that another replica
// would say the same.
func ofRequest(err error) bool {
	return errors.Is(err, ErrInvalid) || errors.Is(err, ErrConflict)
}
