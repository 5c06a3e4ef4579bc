// SPDX-License-Identifier: Apache-2.0

// Before: state.go, with a state or registrations. After: the state directory.

package indexsrv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"kindex/internal/dirlock"
)

// Files of a state directory: KIND-NUMBER.kdx, the numbers of both kinds in one row,
// so that of two files the one with the greater number knows better. A file is
// written under another name first.
const (
	stateFile         = "state"         // everything
	registrationsFile = "registrations" // without streams
	stateSuffix       = ".kdx"
	unfinished        = ".tmp"
	keptFiles         = 2 // of a kind
)

// kept is one file of a state directory.
type kept struct {
	path   string
	number uint64
}

// files lists the finished files of a kind, the newest first.
func files(dir, kind string) []kept {
	entries, _ := os.ReadDir(dir) // none where it cannot be read; whoever writes is told
	var all []kept
	for _, e := range entries {
		if n, ok := fileNumber(e.Name(), kind, stateSuffix); ok {
			all = append(all, kept{filepath.Join(dir, e.Name()), n})
		}
	}
	slices.SortFunc(all, func(a, b kept) int {
		if a.number > b.number {
			return -1
		}
		return 1
	})
	return all
}

// fileNumber takes KIND-NUMBER.SUFFIX apart.
func fileNumber(name, kind, suffix string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, kind+"-")
	if ok {
		digits, ok = strings.CutSuffix(digits, suffix)
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, ok && err == nil && strconv.FormatUint(n, 10) == digits
}

// tidy removes what an earlier life of the host left unfinished, and returns the
// greatest number there is.
func (k *keeper) tidy() (last uint64) {
	entries, _ := os.ReadDir(k.dir) // as files
	for _, e := range entries {
		for _, kind := range []string{stateFile, registrationsFile} {
			if _, ok := fileNumber(e.Name(), kind, stateSuffix+unfinished); ok {
				if err := os.Remove(filepath.Join(k.dir, e.Name())); err != nil {
					k.log.Warn("an unfinished file stays in the state directory", "error", err)
				}
			}
			if n, ok := fileNumber(e.Name(), kind, stateSuffix); ok {
				last = max(last, n)
			}
		}
	}
	return last
}

// writeFile writes the next file of a kind: under another name, made durable, then
// renamed; older ones than the newest two go.
func (k *keeper) writeFile(ctx context.Context, kind string, write func(io.Writer) error) error {
	if err := k.locked(); err != nil {
		return err
	}
	// The number is taken before anything is looked at: what changes later is in a
	// file with a greater one.
	k.mu.Lock()
	k.last++
	number := k.last
	k.mu.Unlock()
	path := filepath.Join(k.dir, fmt.Sprintf("%s-%d%s", kind, number, stateSuffix))
	if err := writeDurable(ctx, path+unfinished, write); err != nil {
		return errors.Join(err, removeIfThere(path+unfinished))
	}
	if err := os.Rename(path+unfinished, path); err != nil {
		return errors.Join(err, removeIfThere(path+unfinished))
	}
	if err := syncDir(k.dir); err != nil {
		return err
	}
	for i, f := range files(k.dir, kind) {
		if i >= keptFiles {
			if err := removeIfThere(f.path); err != nil {
				return err
			}
		}
	}
	return nil
}

// locked makes sure that the directory is this host's: at the start it may have been
// one that could not be written.
func (k *keeper) locked() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lock != nil {
		return nil
	}
	lock, err := dirlock.Take(k.dir)
	if err == nil {
		k.lock = lock
		delete(k.alarms, alarmLock) // whoever writes now says how that goes
	}
	return err
}

func writeDurable(ctx context.Context, path string, write func(io.Writer) error) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b := bufio.NewWriterSize(&untilDone{ctx, f}, 1<<20)
	if err := write(b); err != nil {
		return err
	}
	if err := b.Flush(); err != nil {
		return err
	}
	return f.Sync()
}

// untilDone writes until its context ends.
type untilDone struct {
	ctx context.Context
	w   io.Writer
}

// Write implements io.Writer.
func (u *untilDone) Write(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.w.Write(b)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
