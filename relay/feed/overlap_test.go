// SPDX-License-Identifier: Apache-2.0

package feed

import "testing"

// TestOverlaps: what visibly is one address, in all its forms, and what is not.
func TestOverlaps(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"tcp://h:1", "tcp://h:1", true},
		{"tcp://H:1", "tcp://h:1", true},
		{"tcp://h:1", "tcp://h:2", false},
		{"tcp://h:1", "tcp://g:1", false},
		{"tcp://localhost:1", "tcp://127.0.0.1:1", true},
		{"tcp://[::1]:1", "tcp://localhost:1", true},
		{"tcp://[::1]:1", "tcp://127.0.0.1:1", false},
		{"tcp://127.0.0.2:1", "tcp://127.0.0.1:1", false},
		{"tcp://127.0.0.2:1", "tcp://localhost:1", false},
		{"tcp://[::ffff:127.0.0.1]:1", "tcp://127.0.0.1:1", true},
		{"tcp://*:1", "tcp://*:1", true},
		{"tcp://*:1", "tcp://0.0.0.0:1", true},
		{"tcp://*:1", "tcp://[::1]:1", true},
		{"tcp://0.0.0.0:1", "tcp://127.0.0.2:1", true},
		{"tcp://*:1", "tcp://10.0.0.1:1", false},
		{"tcp://*:1", "tcp://h:1", false},
		{"ipc://x", "ipc://x", true},
		{"ipc://x", "ipc://y", false},
		{"nothing", "nothing", false},
	} {
		for _, uses := range [][]Use{{{Endpoint: c.a}, {Endpoint: c.b}}, {{Endpoint: c.b}, {Endpoint: c.a}}} {
			got := false
			Overlaps(uses, func(first, second int) { got = first == 0 && second == 1 })
			if got != c.want {
				t.Errorf("%s with %s: %v, want %v", uses[0].Endpoint, uses[1].Endpoint, got, c.want)
			}
		}
	}
}
