// SPDX-License-Identifier: Apache-2.0

// Before: the file system. After: reload.go.

package gateway

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"kindex/internal/settings"
)

// Times of a watched file. Chosen, not measured.
const (
	settle    = 100 * time.Millisecond // after the first sign, so that a file is whole
	lookAgain = 5 * time.Second        // whatever is told: a directory that was replaced tells nothing
)

// watchFile calls changed each time that the file at path says something else than
// before, until ctx ends. It watches the directories, of the path and of what it is a
// link to: an editor puts another file in the place of the old one, and a mounted
// configuration is a chain of links of which one in the middle is swapped.
func watchFile(ctx context.Context, path string, log *slog.Logger, changed func()) {
	w := fileWatch{path: path}
	w.seen = w.sum()
	events := make(chan fsnotify.Event)
	faults := make(chan error)
	n, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("changes of the configuration are looked for, not told", "period", lookAgain.String(), "error", err)
	} else {
		defer func() { _ = n.Close() }() // nothing to lose
		events, faults = n.Events, n.Errors
		w.notify = n
		w.follow()
	}
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	wait := time.NewTimer(0)
	<-wait.C
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			wait.Reset(settle)
		case <-faults: //nolint:errcheck // whatever it is, events were lost
			wait.Reset(settle)
		case <-tick.C:
			w.look(changed)
		case <-wait.C:
			w.look(changed)
		}
	}
}

type fileWatch struct {
	path   string
	notify *fsnotify.Watcher // nil: there is none
	dirs   []string          // watched
	seen   [sha256.Size]byte
}

// look calls changed where the file is another one.
func (w *fileWatch) look(changed func()) {
	w.follow()
	if sum := w.sum(); sum != w.seen && sum != ([sha256.Size]byte{}) {
		w.seen = sum
		changed()
	}
}

// sum is of what the file says; zero: it is not there.
func (w *fileWatch) sum() (sum [sha256.Size]byte) {
	text, err := os.ReadFile(w.path)
	if err != nil || len(text) > settings.MaxFile {
		return sum
	}
	return sha256.Sum256(text)
}

// follow watches the directories in which a change of the file can show.
func (w *fileWatch) follow() {
	if w.notify == nil {
		return
	}
	var dirs []string
	at := w.path
	for range 8 { // links of links
		if dir := filepath.Dir(at); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		to, err := os.Readlink(at)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(at), to)
		}
		at = to
	}
	if whole, err := filepath.EvalSymlinks(w.path); err == nil && !slices.Contains(dirs, filepath.Dir(whole)) {
		dirs = append(dirs, filepath.Dir(whole))
	}
	for _, dir := range w.dirs {
		if !slices.Contains(dirs, dir) {
			_ = w.notify.Remove(dir) // it may be gone
		}
	}
	for _, dir := range dirs {
		_ = w.notify.Add(dir) // again is no fault; one that cannot be watched is looked at
	}
	w.dirs = dirs
}
