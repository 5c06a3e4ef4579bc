// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"fmt"
	"testing"
	"time"
)

func nothing(context.Context) ([]Reading, error) { return nil, nil }

func meter(t *testing.T, cfg Config) *Meter {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// pacing drives one pacer by a script of times in ms.
type pacing struct {
	t *testing.T
	m *Meter
	p *Pacer
	r Reading
}

func newPacing(t *testing.T) *pacing {
	m := meter(t, Config{Engine: "sglang", Ranks: 1, Ask: nothing})
	return &pacing{t: t, m: m, p: m.Source(0).Pace(), r: Reading{Running: Some(uint32(1)), Throughput: Some(1000.0), Usage: Some(0.5)}}
}

func (f *pacing) at(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }

// read takes a reading that change changes.
func (f *pacing) read(ms int, change func(r *Reading)) {
	if change != nil {
		change(&f.r)
	}
	r := f.r
	r.Taken = f.at(ms)
	f.m.took([]Reading{r})
}

// alone asks whether a record goes alone.
func (f *pacing) alone(ms int) bool {
	b, next := f.p.Alone(nil, f.at(ms))
	if !next.IsZero() && !next.After(f.at(ms)) {
		f.t.Errorf("at %d ms: to be asked again at %v, which is not later", ms, next.Sub(t0))
	}
	if len(b) > 0 && !decodeRecord(f.t, b).GetLoadOnly() {
		f.t.Errorf("at %d ms: a record alone that does not say so", ms)
	}
	return len(b) > 0
}

func TestPacerBeats(t *testing.T) {
	f := newPacing(t)
	if f.alone(0) || len(f.p.WithBatch(nil, t0)) > 0 {
		t.Error("a record before any reading")
	}
	f.read(0, nil)
	var sent []int
	for ms := 50; ms <= 20_000; ms += 50 {
		if ms%250 == 0 {
			f.read(ms, nil)
		}
		if f.alone(ms) {
			sent = append(sent, ms)
		}
	}
	// The first; two heartbeats of a second; then one every five.
	if got, want := fmt.Sprint(sent), "[50 1050 2050 7050 12050 17050]"; got != want {
		t.Errorf("sent at %s ms, want %s", got, want)
	}
	f.p.WithBatch(nil, f.at(20_100))
	if !f.alone(21_100) {
		t.Error("no heartbeat a second after a batch")
	}
}

// TestPacerNext: asked only when it said, and at each reading, a pacer sends the
// same as one that is asked all the time.
func TestPacerNext(t *testing.T) {
	f := newPacing(t)
	f.r.ReportsSteps, f.r.totals.generated = true, Some(1.0)
	f.read(0, nil)
	often, seldom := f.m.Source(0).Pace(), f.m.Source(0).Pace()
	_, next := seldom.Alone(nil, t0)
	often.Alone(nil, t0)
	n := 0
	for ms := 1; ms <= 30_000; ms++ {
		now := f.at(ms)
		if ms == 5_000 || ms == 5_020 || ms == 17_000 {
			f.read(ms, func(r *Reading) { r.Running.Value++; r.totals.generated.Value++ })
			next = now
		}
		a, _ := often.Alone(nil, now)
		var b []byte
		if !now.Before(next) {
			b, next = seldom.Alone(nil, now)
		}
		if string(a) != string(b) {
			t.Fatalf("at %d ms: %x, asked often %x", ms, b, a)
		}
		if len(a) > 0 {
			n++
		}
	}
	if n < 25 {
		t.Errorf("%d records, want one for every second of silence at least", n)
	}
}

func TestPacerMoved(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(r *Reading)
		want   bool
	}{
		{"nothing", nil, false},
		{"running", func(r *Reading) { r.Running.Value++ }, true},
		{"waiting", func(r *Reading) { r.Waiting = Some(uint32(1)) }, true},
		{"queued tokens known to be 0", func(r *Reading) { r.WaitingUncached = Some(uint32(0)) }, true},
		{"max running", func(r *Reading) { r.MaxRunning = Some(uint32(8)) }, true},
		{"pending tokens", func(r *Reading) { r.PrefillPending = Some(uint32(8)) }, true},
		{"usage a little", func(r *Reading) { r.Usage.Value += 0.004 }, false},
		{"usage", func(r *Reading) { r.Usage.Value += 0.006 }, true},
		{"active usage", func(r *Reading) { r.ActiveUsage = Some(0.1) }, true},
		{"throughput by 5 %", func(r *Reading) { r.Throughput.Value -= 50 }, false},
		{"throughput by 51", func(r *Reading) { r.Throughput.Value += 51 }, true},
		{"hit rate", func(r *Reading) { r.HitRate = Some(0.1) }, false},
	} {
		f := newPacing(t)
		notes := 0
		f.m.Source(0).Notify(func() { notes++ })
		f.read(0, nil)
		f.alone(0)
		f.read(40, c.change)
		if f.alone(50) {
			t.Errorf("%s: a record 50 ms after the last", c.name)
		}
		if got := f.alone(100); got != c.want {
			t.Errorf("%s: sent %v, want %v", c.name, got, c.want)
		}
		if c.want && notes != 2 {
			t.Errorf("%s: notified %d times, want twice", c.name, notes)
		}
	}
}

func TestPacerSmallThroughput(t *testing.T) {
	f := newPacing(t)
	f.r.Throughput.Value = 100
	f.read(0, nil)
	f.alone(0)
	f.read(150, func(r *Reading) { r.Throughput.Value = 104 })
	if f.alone(200) {
		t.Error("4 % of a small throughput moved the record")
	}
	f.read(250, func(r *Reading) { r.Throughput.Value = 106 })
	if !f.alone(300) {
		t.Error("6 % of a small throughput did not move the record")
	}
}

// TestPacerTelemetry: what describes comes first and alone, not with every batch.
func TestPacerTelemetry(t *testing.T) {
	f := newPacing(t)
	f.read(0, func(r *Reading) { r.MaxTokens = Some(int32(9)) })
	for i, want := range []bool{true, false, false} {
		l := decodeRecord(t, f.p.WithBatch(nil, f.at(i)))
		if got := l.MaxTotalNumTokens != nil; got != want || l.GetLoadOnly() {
			t.Errorf("batch %d: telemetry %v, load only %v, want %v, false", i, got, l.GetLoadOnly(), want)
		}
	}
	b, _ := f.p.Alone(nil, f.at(1500))
	if l := decodeRecord(t, b); l.MaxTotalNumTokens == nil || l.GetAgeMs() != 1500 {
		t.Errorf("a record alone without telemetry, or of another age than 1500: %v", l)
	}
}
