// SPDX-License-Identifier: Apache-2.0

package relaybench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/harness/trial"
)

// How long things may take, and how long is waited before something is measured.
const (
	startTime = 30 * time.Second
	arriveAll = 60 * time.Second
	idleFrom  = 2 * time.Second
	idleFor   = 2 * time.Second
	settle    = 2 * time.Second
	snapTimes = 3
	rollRate  = 500 // batches a second
	warmEvery = 50 * time.Millisecond
)

// AtRate is what one rate showed.
type AtRate struct {
	Rate    int     `json:"rate"`
	CPU     float64 `json:"cpu_us_per_batch"`
	P50     float64 `json:"latency_p50_us"`
	P99     float64 `json:"latency_p99_us"`
	Batches int     `json:"batches"`
}

// Snapshot is what one subscription from nothing showed.
type Snapshot struct {
	CPUMs   float64 `json:"cpu_ms"`
	WallMs  float64 `json:"wall_ms"`
	FirstMs float64 `json:"first_chunk_ms"`
	Chunks  int     `json:"chunks"`
	Blocks  int     `json:"blocks"`
	Bytes   int     `json:"bytes"`
}

// Run is one arm of one round.
type Run struct {
	Arm      string     `json:"arm"`
	IdleCPU  float64    `json:"idle_cpu_ms_per_s"`
	IdleRSS  uint64     `json:"idle_rss_bytes"`
	Rates    []AtRate   `json:"rates"`
	Live     int        `json:"live_blocks"`
	StateRSS uint64     `json:"state_rss_bytes"`
	PerBlock float64    `json:"rss_bytes_per_live_block"`
	Snaps    []Snapshot `json:"snapshots"`
	Foreign  float64    `json:"foreign_cpus"`
}

// one measures one arm: the rates with one fresh process, the state with another.
func one(ctx context.Context, o *Options, p *programs, arm string) (*Run, error) {
	run := &Run{Arm: arm}
	before := trial.CPUs()
	var used time.Duration
	for _, phase := range []struct {
		history int
		measure func(*meter, context.Context, *reader) error
	}{{defaultHistory, (*meter).rates}, {smallHistory, (*meter).state}} {
		if o.State == 0 && phase.history == smallHistory {
			continue
		}
		cpu, err := phaseOf(ctx, o, p, run, phase.history, phase.measure)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", arm, err)
		}
		used += cpu
	}
	run.Foreign = before.Foreign(trial.CPUs(), used.Seconds())
	return run, nil
}

// phaseOf runs one phase beside a relay with so long a history, and returns what that
// used.
func phaseOf(ctx context.Context, o *Options, p *programs, run *Run, history int, measure func(*meter, context.Context, *reader) error) (cpu time.Duration, err error) {
	raw, err := publish.OpenRaw(defaultHistory)
	if err != nil {
		return 0, err
	}
	defer raw.Close()
	pub, replay := raw.Ports()
	child, addr, err := p.start(run.Arm, pub, replay, history)
	if err != nil {
		return 0, err
	}
	defer func() {
		if ended := child.Ended(); ended != nil && err != nil {
			err = fmt.Errorf("%w; %w", err, ended)
		}
		child.Kill()
	}()
	l, err := newLoad(raw, o.Blocks, o.Seed)
	if err != nil {
		return 0, err
	}
	m := &meter{o: o, child: child, load: l, addr: addr, contract: contractOf(run.Arm), run: run}
	r, err := follow(addr, m.contract)
	if err != nil {
		return 0, err
	}
	defer r.close()
	if err := m.warm(ctx, r); err != nil {
		return 0, err
	}
	if err := measure(m, ctx, r); err != nil {
		return 0, err
	}
	cost, err := proc.CostOf(child.PID())
	return cost.CPU, err
}

// meter measures one relay.
type meter struct {
	o        *Options
	child    *proc.Process
	load     *load
	addr     string
	contract *contract
	run      *Run
}

func (m *meter) rates(ctx context.Context, r *reader) error {
	for _, rate := range m.o.Rates {
		if err := m.rate(ctx, r, rate); err != nil {
			return err
		}
	}
	return nil
}

func (m *meter) state(ctx context.Context, r *reader) error {
	if err := m.idle(ctx); err != nil {
		return err
	}
	if err := m.load.fill(ctx, m.o.State, func() error { return m.arrived(ctx, r) }); err != nil {
		return err
	}
	// The history is to hold batches of the usual size, not the large ones.
	if err := m.load.run(ctx, smallHistory, rollRate); err != nil {
		return err
	}
	if err := m.arrived(ctx, r); err != nil {
		return err
	}
	return m.snapshots(ctx)
}

// warm sends batches until one comes through.
func (m *meter) warm(ctx context.Context, r *reader) error {
	last := time.Now().Add(-warmEvery)
	var sent error
	err := proc.Until(ctx, startTime, func() bool {
		if m.child.Ended() != nil || sent != nil || r.at(0) {
			return true
		}
		if time.Since(last) >= warmEvery {
			last = time.Now()
			sent = m.load.send(m.load.payload(m.load.blocks, false))
		}
		return false
	})
	return errors.Join(err, sent, m.child.Ended(), r.fault())
}

// arrived waits until the subscriber has all that was sent.
func (m *meter) arrived(ctx context.Context, r *reader) error {
	err := proc.Until(ctx, arriveAll, func() bool { return m.child.Ended() != nil || r.at(int64(m.load.seq)-1) })
	if err != nil {
		err = fmt.Errorf("batch %d did not come: %w", m.load.seq-1, err)
	}
	return errors.Join(err, m.child.Ended(), r.fault())
}

// idle measures the relay with a subscriber and a silent engine.
func (m *meter) idle(ctx context.Context) error {
	if err := wait(ctx, idleFrom); err != nil {
		return err
	}
	before, err := proc.CostOf(m.child.PID())
	if err != nil {
		return err
	}
	if err := wait(ctx, idleFor); err != nil {
		return err
	}
	after, err := proc.CostOf(m.child.PID())
	m.run.IdleCPU = ms(after.CPU-before.CPU) / idleFor.Seconds()
	m.run.IdleRSS = after.RSS
	return err
}

// rate measures a steady stream.
func (m *meter) rate(ctx context.Context, r *reader, rate int) error {
	r.take()
	n := rate * m.o.Seconds
	before, err := proc.CostOf(m.child.PID())
	if err != nil {
		return err
	}
	if err := m.load.run(ctx, n, rate); err != nil {
		return err
	}
	if err := m.arrived(ctx, r); err != nil {
		return err
	}
	after, err := proc.CostOf(m.child.PID())
	if err != nil {
		return err
	}
	late := r.take()
	if len(late) != n {
		return fmt.Errorf("%d of %d batches came", len(late), n)
	}
	q := trial.NewLatency(late)
	m.run.Rates = append(m.run.Rates, AtRate{
		Rate: rate, Batches: n, CPU: float64((after.CPU - before.CPU).Nanoseconds()) / 1e3 / float64(n),
		P50: float64(q.P50) / 1e3, P99: float64(q.P99) / 1e3,
	})
	return nil
}

// snapshots measures the state: what it takes and what it costs to serve.
func (m *meter) snapshots(ctx context.Context) error {
	if err := wait(ctx, settle); err != nil {
		return err
	}
	c, err := proc.CostOf(m.child.PID())
	if err != nil {
		return err
	}
	m.run.Live, m.run.StateRSS = m.load.stored, c.RSS
	m.run.PerBlock = (float64(c.RSS) - float64(m.run.IdleRSS)) / float64(m.load.stored)
	for range snapTimes {
		before, err := proc.CostOf(m.child.PID())
		if err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, arriveAll)
		s, err := snapshot(limited, m.addr, m.contract)
		cancel()
		if err != nil {
			return err
		}
		after, err := proc.CostOf(m.child.PID())
		if err != nil {
			return err
		}
		s.CPUMs = ms(after.CPU - before.CPU)
		if s.Blocks != m.load.stored {
			return fmt.Errorf("a snapshot of %d blocks, %d are live", s.Blocks, m.load.stored)
		}
		m.run.Snaps = append(m.run.Snaps, s)
		if err := wait(ctx, settle/4); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for d or ctx's end.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
