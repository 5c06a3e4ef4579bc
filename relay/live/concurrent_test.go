// SPDX-License-Identifier: Apache-2.0

package live

import (
	"sync"
	"testing"

	"kindex/internal/livedigest"
	"kindex/relay/normal"
	"kindex/shard"
)

// Snapshots are encoded by several subscribers while the stream goes on; each
// equals the state at its cut.
func TestCutsWhileApplying(t *testing.T) {
	var mu sync.Mutex // the rank's lock
	s, l := New(Options{}), newLoad(4000)
	raw := newHolder(t, shard.Options{})
	var fx Effects
	step := func() {
		mu.Lock()
		defer mu.Unlock()
		b, ops := l.step()
		raw.ops(ops)
		s.Apply(b, ops, &fx)
	}
	for range 600 {
		step()
	}
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for k := range 3 {
		readers.Go(func() {
			for range 4 {
				mu.Lock()
				cut, err := s.Cut()
				want, digest := raw.content(), raw.digest()
				mu.Unlock()
				if err != nil {
					t.Error(err)
					return
				}
				if k == 0 {
					checkPeer(t, cut, manyNumbers, want)
				} else {
					checkOwn(t, cut, want, digest)
				}
				cut.Close()
			}
		})
	}
	go func() { readers.Wait(); close(stop) }()
	for {
		select {
		case <-stop:
			checkInvariants(t, s)
			return
		default:
			step()
		}
	}
}

// A book takes what a batch does, without a relay's state, to the same digest.
func TestBookOfRawOps(t *testing.T) {
	l, raw := newLoad(4000), newHolder(t, shard.Options{})
	var book livedigest.Book
	for range 1200 {
		_, ops := l.step()
		raw.ops(ops)
		for _, op := range ops {
			if op.Kind == normal.Remove {
				book.Remove(op.Tier, op.Group, op.Engines)
				continue
			}
			book.Store(&livedigest.Store{
				Tier: op.Tier, Group: op.Group, Parent: op.Parent, HasParent: op.HasParent, Seed: op.Seed, Engines: op.Engines, Contents: op.Contents,
			})
		}
	}
	if got, want := book.Sum(), raw.digest(); got != want {
		t.Errorf("the book's digest is %x, want %x", got, want)
	}
}
