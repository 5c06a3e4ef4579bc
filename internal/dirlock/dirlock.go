// SPDX-License-Identifier: Apache-2.0

package dirlock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Name is the lock's file within its directory. Its content, the number of the
// process, is for people; what counts is the kernel's lock on it, which goes with the
// process, however that ends.
const Name = "lock"

// ErrTaken is that another process has the directory.
var ErrTaken = errors.New("in use by another process")

// Lock is the right to a directory.
//
// Concurrency: one goroutine.
type Lock struct{ f *os.File }

// Take takes dir, which exists. It does not wait.
//
// Errors: ErrTaken; whatever keeps the file from being made or locked.
func Take(dir string) (*Lock, error) {
	f, err := os.OpenFile(filepath.Join(dir, Name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", f.Name(), err), f.Close())
	}
	// Who reads it wants to know; nobody depends on it.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &Lock{f}, nil
}

// Give gives the directory back. The file stays: another process may have it open
// already, to wait for the lock.
func (l *Lock) Give() error { return l.f.Close() }
