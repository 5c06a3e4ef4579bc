// SPDX-License-Identifier: Apache-2.0

// Before: the registry and its streams, frozen one after the other. After: files in
// the state directory (state_files.go), in the form of package state.

package indexsrv

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"kindex/indexsrv/state"
	"kindex/internal/dirlock"
	"kindex/shard"
)

// keeper writes a host's state into its directory: all of it now and then, and
// registrations as they change. A directory that cannot be written is told and tried
// again; the host goes on.
//
// Concurrency: any goroutine.
type keeper struct {
	h   *Host
	log *slog.Logger
	dir string

	lock  *dirlock.Lock // nil: it could not be had; guarded by mu
	stats *stateStats

	// begun: there is something that may be written. Each loop has its end.
	begun               atomic.Bool
	stopState, stopRegs context.CancelFunc
	stateLoop, regsLoop sync.WaitGroup
	writing             sync.Mutex // one state file at a time

	mu     sync.Mutex // guards what follows, and the numbers of files
	last   uint64     // number of the last file
	wanted uint64     // changes of the registrations that were noted
	saved  uint64     // of those, how many are in a file, or were tried
	news   chan struct{}
	done   chan struct{} // closed, and another one made, when saved goes up
	alarms map[string]bool
}

// stateStats are what metrics tell of kept and copied states.
type stateStats struct {
	writes, failures, refused atomic.Uint64
	bytes, seconds, written   atomic.Uint64 // of the last state; seconds and Unix time in ns
	restored, memberships     atomic.Uint64
	loadSeconds               atomic.Uint64 // ns
	peerCopies, peerFailures  atomic.Uint64
	registrationWrites        atomic.Uint64
}

func newKeeper(h *Host) *keeper {
	return &keeper{
		h: h, stats: &h.stateStats, log: h.log.With("state_dir", h.cfg.StateDir), dir: h.cfg.StateDir,
		news: make(chan struct{}, 1), done: make(chan struct{}), alarms: map[string]bool{},
	}
}

// open takes the directory.
//
// Errors: what makes it nobody's state directory. One that cannot be written now is
// an alarm only.
func (k *keeper) open() error {
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return fmt.Errorf("state-dir: %w", err)
	}
	var err error
	if k.lock, err = dirlock.Take(k.dir); errors.Is(err, dirlock.ErrTaken) {
		return fmt.Errorf("state-dir: %w: each host needs one of its own", err)
	}
	if err != nil {
		if info, statErr := os.Stat(k.dir); statErr != nil || !info.IsDir() {
			return fmt.Errorf("state-dir: %w", err)
		}
		k.alarm(alarmLock, err)
	}
	k.last = k.tidy()
	return nil
}

// begin has the state written from now on.
func (k *keeper) begin() {
	var states, regs context.Context
	states, k.stopState = context.WithCancel(context.Background())
	regs, k.stopRegs = context.WithCancel(context.Background())
	k.begun.Store(true)
	k.regsLoop.Go(func() { k.keepRegistrations(regs) })
	if k.h.cfg.StateInterval > 0 {
		k.stateLoop.Go(func() { k.keepState(states) })
	}
	k.note()
}

// end writes a last state, no longer than ctx. Registrations are kept on until close.
// Where nothing was begun, what is there stays.
func (k *keeper) end(ctx context.Context) {
	if !k.begun.Load() {
		return
	}
	k.stopState()
	k.stateLoop.Wait()
	if err := k.write(ctx); err != nil {
		k.alarm(alarmState, err)
	}
}

// close ends all writing and gives the directory back.
func (k *keeper) close() {
	if k.begun.Swap(false) {
		k.stopState()
		k.stopRegs()
		k.stateLoop.Wait()
		k.regsLoop.Wait()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lock != nil {
		if err := k.lock.Give(); err != nil {
			k.log.Warn("state directory not given back", "error", err)
		}
		k.lock = nil
	}
}

// keepState writes the state each interval, unless it is as it was.
func (k *keeper) keepState(ctx context.Context) {
	t := time.NewTicker(k.h.cfg.StateInterval)
	defer t.Stop()
	var last uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := k.h.reg.fingerprint(k.h.peers.list())
		if now == last {
			continue
		}
		if err := k.write(ctx); err == nil {
			last = now
		} else if ctx.Err() == nil {
			k.alarm(alarmState, err)
		}
	}
}

// note says that the registrations have changed.
func (k *keeper) note() {
	k.mu.Lock()
	k.wanted++
	k.mu.Unlock()
	select {
	case k.news <- struct{}{}:
	default:
	}
}

// wait waits until all changes noted so far are in a file, or could not be written,
// or ctx ends. Where nothing is written, by a host that does not serve, it returns.
func (k *keeper) wait(ctx context.Context) {
	if !k.begun.Load() {
		return
	}
	k.mu.Lock()
	until := k.wanted
	for k.saved < until {
		done := k.done
		k.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
		k.mu.Lock()
	}
	k.mu.Unlock()
}

// keepRegistrations writes the registrations whenever they have changed; changes that
// come meanwhile share the next file.
func (k *keeper) keepRegistrations(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.news:
		}
		k.mu.Lock()
		upTo := k.wanted
		k.mu.Unlock()
		err := k.writeFile(ctx, registrationsFile, func(w io.Writer) error {
			regs, _ := k.h.reg.registrations()
			s := state.NewWriter(w, k.head())
			s.Registrations(regs)
			s.Peers(k.h.peers.list())
			return s.Close()
		})
		if err != nil {
			k.alarm(alarmRegistrations, err)
		} else {
			k.stats.registrationWrites.Add(1)
			k.calm(alarmRegistrations)
		}
		k.mu.Lock()
		k.saved = upTo
		close(k.done)
		k.done = make(chan struct{})
		k.mu.Unlock()
	}
}

// write writes the whole state.
func (k *keeper) write(ctx context.Context) error {
	k.writing.Lock()
	defer k.writing.Unlock()
	begun := time.Now()
	var bytes, memberships uint64
	err := k.writeFile(ctx, stateFile, func(w io.Writer) (err error) {
		bytes, memberships, err = k.h.writeState(ctx, w)
		return err
	})
	if err != nil {
		return err
	}
	took := time.Since(begun)
	k.stats.writes.Add(1)
	k.stats.bytes.Store(bytes)
	k.stats.seconds.Store(uint64(took))
	k.stats.written.Store(uint64(begun.UnixNano()))
	k.calm(alarmState)
	k.log.Debug("state written", "bytes", bytes, "memberships", memberships, "took", took)
	return nil
}

func (k *keeper) head() state.Head { return state.Head{Written: time.Now(), Host: k.h.epoch} }

// What an alarm may be about.
const (
	alarmLock          = "lock"
	alarmState         = "state"
	alarmRegistrations = "registrations"
)

// alarm tells, once until it is calm again, that something could not be written.
func (k *keeper) alarm(what string, err error) {
	k.stats.failures.Add(1)
	k.mu.Lock()
	told := k.alarms[what]
	k.alarms[what] = true
	k.mu.Unlock()
	if !told {
		k.log.Error("state cannot be kept: after a restart what is lost now begins cold", "what", what, "error", err)
	}
}

func (k *keeper) calm(what string) {
	k.mu.Lock()
	told := k.alarms[what]
	delete(k.alarms, what)
	k.mu.Unlock()
	if told {
		k.log.Info("state is kept again", "what", what)
	}
}

// failing reports whether the last try of anything failed.
func (k *keeper) failing() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.alarms) > 0
}

// writeState writes the whole state to w: each stream as it stands between two of its
// batches, one after the other.
//
// Errors: w's, or ctx's.
func (h *Host) writeState(ctx context.Context, w io.Writer) (bytes, memberships uint64, err error) {
	regs, ranks := h.reg.registrations()
	s := state.NewWriter(w, state.Head{Written: time.Now(), Host: h.epoch})
	s.Registrations(regs)
	s.Peers(h.peers.list())
	for _, at := range ranks {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		snap, err := at.rank.snapshot(h.idx)
		if errors.Is(err, shard.ErrUnknownHolder) || err == nil && snap.at == nil {
			continue // unregistered meanwhile; nothing to go on from
		}
		if err != nil {
			return 0, 0, err
		}
		st := &state.Stream{
			Registration: at.registration, Rank: at.rank.number,
			Position: snap.at.Position, Memory: snap.at.Memory, Relay: snap.at.Relay, Content: *snap.content,
		}
		model := at.rank.cfg.Model
		rebase(&st.Content, model.Seed)
		memberships += snap.status.Memberships
		if err := s.Stream(st); err != nil {
			return 0, 0, err
		}
	}
	err = s.Close()
	return s.Bytes(), memberships, err
}

// fingerprint is another number when the state would be another one, as far as that
// is quickly said.
func (g *registry) fingerprint(peers []string) uint64 {
	sum := xxh3.New()
	var b [8]byte
	put := func(n uint64) {
		binary.LittleEndian.PutUint64(b[:], n)
		_, _ = sum.Write(b[:]) // a hash takes everything
	}
	for _, p := range peers {
		_, _ = sum.WriteString(p)
	}
	_, ranks := g.registrations()
	for _, at := range ranks {
		st := at.rank.stream.status()
		put(uint64(at.rank.holder))
		put(uint64(at.registration))
		for _, n := range []uint64{st.Epoch, st.LastSeq, st.Batches, st.Lost, st.Snapshots, st.Resets, st.Memberships, uint64(st.State)} {
			put(n)
		}
	}
	return sum.Sum64()
}
