// SPDX-License-Identifier: Apache-2.0

package fdwait

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Exhausted reports whether a connection failed for want of something on this side:
// descriptors, memory, ports. It says nothing of the other side.
func Exhausted(err error) bool {
	for _, e := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
