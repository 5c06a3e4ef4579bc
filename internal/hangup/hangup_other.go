// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package hangup

import "net"

// Watcher watches nothing on this system.
type Watcher struct{}

// New returns [ErrUnsupported].
func New() (*Watcher, error) { return nil, ErrUnsupported }

// Close does nothing.
func (*Watcher) Close() error { return nil }

// Watch returns [ErrUnsupported].
func (*Watcher) Watch(net.Conn) (*Mark, error) { return nil, ErrUnsupported }

// Forget does nothing.
func (*Watcher) Forget(*Mark) {}

// Watched returns 0.
func (*Watcher) Watched() int { return 0 }
