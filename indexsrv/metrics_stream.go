// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kindex/relay/feed"
)

// streamLabels name one stream; their values are bounded by the number of
// streams and by MetricsMaxStreams.
var streamLabels = []string{"model_name", "routing_group", "tenant_id", "instance_id", "dp_rank"}

// otherStreams is the instance_id of the streams that share one set of series.
const otherStreams = "_other"

func streamDesc(name, help string, more ...string) *prometheus.Desc {
	return desc("stream_"+name, help, append(append([]string(nil), streamLabels...), more...)...)
}

// streamMetric is one number of a stream. Numbers of several streams are added
// up, or their greatest is taken.
type streamMetric struct {
	desc    *prometheus.Desc
	kind    prometheus.ValueType
	greater bool // of several streams the greatest counts, not the sum
	value   func(*StreamStatus, time.Time) (v float64, known bool)
}

func streamCounter(name, help string, v func(*StreamStatus) uint64) streamMetric {
	return streamMetric{
		streamDesc(name, help), prometheus.CounterValue, false,
		func(st *StreamStatus, _ time.Time) (float64, bool) { return float64(v(st)), true },
	}
}

func streamGauge(name, help string, v func(*StreamStatus) uint64) streamMetric {
	m := streamCounter(name, help, v)
	m.kind = prometheus.GaugeValue
	return m
}

var descDropped = streamDesc("dropped_events_total", "What was left out of the index, by reason.", "reason")

var streamMetrics = [...]streamMetric{
	streamCounter("batches_total", "Batches admitted.", func(s *StreamStatus) uint64 { return s.Batches }),
	streamCounter("events_total", "Events decoded.", func(s *StreamStatus) uint64 { return s.Events }),
	streamCounter("gaps_total", "Runs of batches that were missing when a later one came live.", func(s *StreamStatus) uint64 { return s.Gaps }),
	streamCounter("recovered_batches_total", "Batches that came through replay.", func(s *StreamStatus) uint64 { return s.Recovered }),
	streamCounter("lost_batches_total", "Batches that never came.", func(s *StreamStatus) uint64 { return s.Lost }),
	streamCounter("restarts_total", "Restarts of the publisher.", func(s *StreamStatus) uint64 { return s.Restarts }),
	streamCounter("duplicates_total", "Batches that came again.", func(s *StreamStatus) uint64 { return s.Duplicates }),
	streamCounter("snapshots_total", "Whole contents applied from a relay's snapshots.", func(s *StreamStatus) uint64 { return s.Snapshots }),
	streamCounter("resets_total", "Contents that a relay took back.", func(s *StreamStatus) uint64 { return s.Resets }),
	streamCounter("resumed_total", "Streams that went on from a content loaded at the start.", func(s *StreamStatus) uint64 { return s.Resumed }),
	streamCounter("rank_mismatches_total", "Batches that name another data-parallel rank than the stream's.", func(s *StreamStatus) uint64 { return s.RankMismatches }),
	streamGauge("epoch", "The publisher's life, from 1.", func(s *StreamStatus) uint64 { return s.Epoch }),
	streamGauge("memberships", "Blocks the stream's holder holds.", func(s *StreamStatus) uint64 { return s.Memberships }),
	streamGauge("second_copies", "Copies of blocks beyond the first of a tier.", func(s *StreamStatus) uint64 { return s.SecondCopies }),
	streamGauge("orphans", "Blocks that wait for their parent.", func(s *StreamStatus) uint64 { return s.Orphans }),
	streamGauge("orphan_bytes", "Memory of the blocks that wait for their parent.", func(s *StreamStatus) uint64 { return s.OrphanBytes }),
	streamGauge("held_batches", "Live batches that wait behind a gap.", func(s *StreamStatus) uint64 { return s.HeldBatches }),
	streamGauge("held_bytes", "Memory of the live batches that wait behind a gap.", func(s *StreamStatus) uint64 { return s.HeldBytes }),
	{
		streamDesc("exact", "1 while the stream's content is exact, else 0."), prometheus.GaugeValue, false,
		func(s *StreamStatus, _ time.Time) (float64, bool) { return fromBool(s.State == feed.StateActive), true },
	},
	{
		streamDesc("connected", "1 while the live socket is connected, else 0."), prometheus.GaugeValue, false,
		func(s *StreamStatus, _ time.Time) (float64, bool) { return fromBool(s.Connected), true },
	},
	{
		streamDesc("last_sequence", "Number of the last admitted batch; absent before the first of an epoch."), prometheus.GaugeValue, true,
		func(s *StreamStatus, _ time.Time) (float64, bool) { return float64(s.LastSeq), s.HasSeq },
	},
	{
		streamDesc("age_seconds", "Time since the last batch was admitted; absent before the first."), prometheus.GaugeValue, true,
		func(s *StreamStatus, now time.Time) (float64, bool) {
			return now.Sub(s.LastBatch).Seconds(), !s.LastBatch.IsZero()
		},
	},
	{
		streamDesc("apply_lag_seconds", "How long after the engine stamped it the last batch was applied; both clocks' difference included."), prometheus.GaugeValue, true,
		func(s *StreamStatus, _ time.Time) (float64, bool) {
			return float64(s.LastBatch.UnixNano())/1e9 - s.EngineTime, !s.LastBatch.IsZero() && s.EngineTime > 0
		},
	},
}

func fromBool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// series is the state of one set of stream series.
type series struct {
	labels  []string
	values  [len(streamMetrics)]float64
	known   [len(streamMetrics)]bool
	dropped map[string]uint64
}

func (s *series) add(st *StreamStatus, now time.Time) {
	for i := range streamMetrics {
		v, known := streamMetrics[i].value(st, now)
		switch {
		case !known:
		case streamMetrics[i].greater && s.known[i]:
			s.values[i] = max(s.values[i], v)
		case streamMetrics[i].greater:
			s.values[i] = v
		default:
			s.values[i] += v
		}
		s.known[i] = s.known[i] || known
	}
	if s.dropped == nil {
		s.dropped = map[string]uint64{}
	}
	for reason, n := range st.Dropped {
		s.dropped[reason] += n
	}
}

func (s *series) emit(ch chan<- prometheus.Metric) {
	for i := range streamMetrics {
		if s.known[i] {
			ch <- prometheus.MustNewConstMetric(streamMetrics[i].desc, streamMetrics[i].kind, s.values[i], s.labels...)
		}
	}
	for reason, n := range s.dropped {
		ch <- counter(descDropped, n, append(append([]string(nil), s.labels...), reason)...)
	}
}

// streams emits one set of series for each of the first streams, and one for
// all others together.
func (c *collector) streams(ch chan<- prometheus.Metric) {
	now := time.Now()
	byState := map[feed.State]int{feed.StateActive: 0, feed.StatePending: 0, feed.StateDegraded: 0, feed.StateFailed: 0}
	workers := c.h.reg.workers(nil)
	ch <- gauge(descWorkers, float64(len(workers)))
	n := 0
	var others *series
	for _, w := range workers {
		for _, r := range *w.ranks.Load() {
			st := r.stream.status()
			byState[st.State]++
			if n++; n > c.h.cfg.MetricsMaxStreams {
				if others == nil {
					others = &series{labels: []string{"", "", "", otherStreams, ""}}
				}
				others.add(&st, now)
				continue
			}
			name := w.model.name
			s := series{labels: []string{name.model, name.group, name.tenant, w.id.text, strconv.Itoa(r.number)}}
			s.add(&st, now)
			s.emit(ch)
		}
	}
	if others != nil {
		others.emit(ch)
	}
	for state, n := range byState {
		ch <- gauge(descStreams, float64(n), state.String())
	}
}
