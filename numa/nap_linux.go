// SPDX-License-Identifier: Apache-2.0

package numa

import "golang.org/x/sys/unix"

// Nap makes the calling thread sleep for so many nanoseconds, as exactly as the kernel
// can (some 50 us late): the runtime's timers sleep whole milliseconds. It may return
// early, on a signal. The thread is held meanwhile.
func Nap(nanos int64) {
	if nanos <= 0 {
		return
	}
	ts := unix.NsecToTimespec(nanos)
	_ = unix.Nanosleep(&ts, nil)
}
