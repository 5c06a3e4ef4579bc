// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ReexecOn puts this whole process on node id of t: all threads on its CPUs, all
// memory near them where there is room. Threads that run already would stay where
// they are, so it starts the program anew in this process, with the same
// arguments and environment, under the mask that every thread then inherits. It
// returns when the process is on the node: at once in the new life, and where it
// was put there from outside. Call it first in a program, before there is
// anything to lose.
//
// Errors: id has no CPUs or is not there; the kernel refuses the mask or the
// program. Then all is as before.
func ReexecOn(t *Topology, id int) error {
	n, ok := t.Node(id)
	if !ok || len(n.CPUs) == 0 {
		return t.noPlace(id)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := affinity()
	if err != nil {
		return err
	}
	if before.within(n.CPUs) {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("numa: start anew on node %d: %w", id, err)
	}
	if err := setAffinity(n.CPUs); err != nil {
		return err
	}
	// Where a container forbids it, memory is taken near its thread all the same,
	// which is the kernel's default.
	_ = setProcessPolicy(unix.MPOL_PREFERRED, []int{n.Home})
	if err = unix.Exec(self, os.Args, os.Environ()); errors.Is(err, unix.ENOENT) {
		// The file was replaced meanwhile; the program itself is still to be had.
		err = unix.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	_ = setProcessPolicy(unix.MPOL_DEFAULT, nil)
	if undo := setAffinity(before); undo != nil {
		runtime.LockOSThread() // the mask must not reach other threads: keep this one
	}
	return fmt.Errorf("numa: start %s anew on node %d: %w", self, id, err)
}
