// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package numa

// Place leaves mem where it comes to lie.
func Place(_ []byte, p Placement) (Placed, error) {
	return Placed{Want: p, Why: "this system's memory is placed nowhere"}, nil
}

// PagesOf knows nothing here.
func PagesOf([]byte, int) ([]NodePages, error) { return nil, nil }
