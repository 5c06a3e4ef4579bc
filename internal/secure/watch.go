// SPDX-License-Identifier: Apache-2.0

package secure

import (
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// watchPeriod is how often files are looked at, when somebody asks.
const watchPeriod = time.Second

// watched is what some files say. They are looked at when it is asked for, once a
// second at most, and read again when one has changed. What cannot be read leaves
// what was there in force.
//
// Concurrency: any goroutine.
type watched[T any] struct {
	paths []string
	load  func() (*T, error)
	told  func(error) // of a reload: nil when it was good

	value atomic.Pointer[T]
	next  atomic.Int64 // when to look again, Unix ns

	mu    sync.Mutex // guards stamp
	stamp []os.FileInfo
}

func newWatched[T any](paths []string, load func() (*T, error), told func(error)) (*watched[T], error) {
	w := &watched[T]{paths: paths, load: load, told: told}
	w.stamp = w.stamps() // before what they stand for: a change between the two is seen later
	v, err := load()
	if err != nil {
		return nil, err
	}
	w.value.Store(v)
	w.next.Store(time.Now().Add(watchPeriod).UnixNano())
	return w, nil
}

// stamps returns what tells one state of the files from another; a file that is
// not there has a nil one.
func (w *watched[T]) stamps() []os.FileInfo {
	stamps := make([]os.FileInfo, len(w.paths))
	for i, path := range w.paths {
		if info, err := os.Stat(path); err == nil {
			stamps[i] = info
		}
	}
	return stamps
}

// sameStamp reports whether two states are one: the same file (a directory of
// secrets is often swapped whole behind a link), of the same length, not written
// since.
func sameStamp(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// get returns what the files say.
func (w *watched[T]) get() *T {
	now := time.Now()
	next := w.next.Load()
	if now.UnixNano() >= next && w.next.CompareAndSwap(next, now.Add(watchPeriod).UnixNano()) {
		w.reload()
	}
	return w.value.Load()
}

func (w *watched[T]) reload() {
	w.mu.Lock()
	defer w.mu.Unlock()
	stamp := w.stamps()
	same := true
	for i := range stamp {
		same = same && sameStamp(stamp[i], w.stamp[i])
	}
	if same {
		return
	}
	v, err := w.load()
	if err == nil {
		w.value.Store(v)
	}
	w.stamp = stamp
	w.told(err)
}
