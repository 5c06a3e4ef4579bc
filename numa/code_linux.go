// SPDX-License-Identifier: Apache-2.0

//go:build linux

package numa

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ForgetCode gives back the pages of the program's files, its own and its libraries',
// that this process has mapped: code and constants that nobody wrote to. They stay in
// the system's page cache; what is used again is mapped again, a minor fault for every
// few pages. Most of what a start touches is never touched again, and counts as the
// process's resident memory until then.
//
// Errors: the kernel's. What could be given back was.
// Cost: about a millisecond, and the faults; for a process with nothing else to do.
func ForgetCode() error {
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	found := cleanFiles(smaps)
	errs := []error{smaps.Close()}
	for _, m := range found {
		// The range is a mapping of this process: nothing of Go's heap lies there.
		if _, _, e := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); e != 0 {
			errs = append(errs, e)
		}
	}
	return errors.Join(errs...)
}

// mapping is a range of addresses.
type mapping struct{ from, to uintptr }

// cleanFiles returns the private mappings of files in an smaps text that cannot be
// written and of which no page was: what they hold can be read from their files again.
// A page that was written before its mapping was made read-only, as a library's
// relocations are, is counted there as anonymous: those mappings are left out.
func cleanFiles(smaps io.Reader) []mapping {
	var found []mapping
	var is mapping
	wanted := false
	s := bufio.NewScanner(smaps)
	for s.Scan() {
		f := bytes.Fields(s.Bytes())
		switch {
		case len(f) >= 5 && !bytes.HasSuffix(f[0], []byte(":")):
			from, to, ok := bytes.Cut(f[0], []byte("-"))
			a, err1 := strconv.ParseUint(string(from), 16, 64)
			b, err2 := strconv.ParseUint(string(to), 16, 64)
			is = mapping{uintptr(a), uintptr(b)}
			perms := string(f[1])
			wanted = ok && err1 == nil && err2 == nil && len(f) >= 6 && f[5][0] == '/' && (perms == "r-xp" || perms == "r--p")
		case wanted && len(f) == 3 && string(f[0]) == "Anonymous:" && string(f[1]) == "0":
			found = append(found, is)
			wanted = false
		}
	}
	return found
}
