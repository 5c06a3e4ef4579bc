// SPDX-License-Identifier: Apache-2.0

// Before: the collector (metrics.go). After: Rank's counters.

package relay

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kindex/relay/hashcheck"
)

// rankMetric is one number of a rank; their labels are bounded by the
// configuration.
type rankMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*RankStats, time.Time) (v float64, known bool)
}

func rankDesc(name, help string, more ...string) *prometheus.Desc {
	return desc(name, help, append([]string{"engine", "dp_rank"}, more...)...)
}

func rankCounter(name, help string, v func(*RankStats) uint64) rankMetric {
	return rankMetric{rankDesc(name, help), prometheus.CounterValue, func(s *RankStats, _ time.Time) (float64, bool) {
		return float64(v(s)), true
	}}
}

func rankGauge(name, help string, v func(*RankStats) uint64) rankMetric {
	m := rankCounter(name, help, v)
	m.kind = prometheus.GaugeValue
	return m
}

var (
	descDropped = rankDesc("dropped_events_total", "What was left out, by reason.", "reason")
	descHashNot = rankDesc("hash_unverifiable_total", "Blocks whose engine hash cannot be checked, by why.", "reason")
	descLoadAge = rankDesc("load_age_seconds", "How old the newest reading of the rank's load is; absent before the first.")
)

var rankMetrics = [...]rankMetric{
	{
		rankDesc("last_sequence", "Number of the last batch; absent before the first of an epoch."), prometheus.GaugeValue,
		func(s *RankStats, _ time.Time) (float64, bool) { return float64(s.Sequence), s.Has },
	},
	{
		rankDesc("age_seconds", "Time since the last batch; absent before the first of an epoch."), prometheus.GaugeValue,
		func(s *RankStats, now time.Time) (float64, bool) {
			return age(s.LastBatch, now).Seconds(), !s.LastBatch.IsZero()
		},
	},
	{
		rankDesc("receive_lag_seconds", "How long after the engine stamped it the last batch was received; both clocks' difference included."), prometheus.GaugeValue,
		func(s *RankStats, _ time.Time) (float64, bool) {
			return float64(s.LastBatch.UnixNano())/1e9 - s.EngineTime, !s.LastBatch.IsZero() && s.EngineTime > 0
		},
	},
	{
		rankDesc("primed", "1 when what the engine could replay has been read, else 0."), prometheus.GaugeValue,
		func(s *RankStats, _ time.Time) (float64, bool) { return fromBool(s.Standing.Primed), true },
	},
	{
		rankDesc("exact", "1 while the content is the engine's, else 0."), prometheus.GaugeValue,
		func(s *RankStats, _ time.Time) (float64, bool) { return fromBool(s.Standing.Exact), true },
	},
	{
		rankDesc("connected", "1 while the engine's event socket is connected, else 0."), prometheus.GaugeValue,
		func(s *RankStats, _ time.Time) (float64, bool) { return fromBool(s.Feed.Connected), true },
	},
	rankCounter("batches_total", "Batches admitted.", func(s *RankStats) uint64 { return s.Batches }),
	rankCounter("events_total", "Events decoded.", func(s *RankStats) uint64 { return s.Events }),
	rankCounter("gaps_total", "Runs of batches that were missing when a later one came live.", func(s *RankStats) uint64 { return s.Feed.Gaps }),
	rankCounter("recovered_batches_total", "Batches that came through replay.", func(s *RankStats) uint64 { return s.Feed.Recovered }),
	rankCounter("holes_total", "Runs of batches that never came.", func(s *RankStats) uint64 { return s.Holes }),
	rankCounter("lost_batches_total", "Batches that never came.", func(s *RankStats) uint64 { return s.Lost }),
	rankCounter("restarts_total", "Restarts of the publisher.", func(s *RankStats) uint64 { return s.Restarts }),
	rankCounter("resyncs_total", "Times the content was read again from the engine's replay.", func(s *RankStats) uint64 { return s.Resyncs }),
	rankCounter("duplicate_batches_total", "Batches that came again.", func(s *RankStats) uint64 { return s.Feed.Duplicates }),
	rankCounter("rank_mismatches_total", "Batches that name another data-parallel rank.", func(s *RankStats) uint64 { return s.RankMismatches }),
	rankGauge("held_batches", "Live batches that wait behind a gap.", func(s *RankStats) uint64 { return s.Feed.HeldBatches }),
	rankGauge("held_bytes", "Memory of the live batches that wait behind a gap.", func(s *RankStats) uint64 { return s.Feed.HeldBytes }),
	rankGauge("history_batches", "Batches and holes in the history.", func(s *RankStats) uint64 { return uint64(s.HistoryBatches) }),
	rankGauge("history_lag_bytes", "Memory kept beside a small history for subscribers that lag.", func(s *RankStats) uint64 { return uint64(s.LagBytes) }),
	rankGauge("history_bytes", "Memory of the history.", func(s *RankStats) uint64 { return uint64(s.HistoryBytes) }),
	rankGauge("live_blocks", "Blocks that the engine holds.", func(s *RankStats) uint64 { return s.Live.Blocks }),
	rankGauge("live_copies", "Copies of those blocks.", func(s *RankStats) uint64 { return s.Live.Copies }),
	rankGauge("live_bytes", "Memory of the record of those blocks.", func(s *RankStats) uint64 { return s.Live.Bytes.Total() }),
	rankGauge("orphans", "Blocks that wait for their parent.", func(s *RankStats) uint64 { return s.Live.Orphans }),
	rankGauge("orphan_bytes", "Memory of the blocks that wait for their parent.", func(s *RankStats) uint64 { return s.Live.OrphanBytes }),
	rankGauge("block_size_tokens", "Tokens of a block; 0 until the stream tells.", func(s *RankStats) uint64 { return uint64(s.BlockSize) }),
	rankGauge("readers", "Subscriptions that read the rank.", func(s *RankStats) uint64 { return uint64(s.Subscribers) }),
	rankGauge("reader_lag_batches", "How many batches behind the newest the slowest of them is.", func(s *RankStats) uint64 { return s.MaxLag }),
	rankCounter("readers_fell_behind_total", "Readers that fell out of the history.", func(s *RankStats) uint64 { return s.FellBehind }),
	rankCounter("hash_checked_total", "Blocks whose engine hash was computed again.", func(s *RankStats) uint64 { return s.Hash.Checked }),
	rankCounter("hash_mismatches_total", "Blocks of those whose engine hash was another one.", func(s *RankStats) uint64 { return s.Hash.Mismatched }),
	rankCounter("hash_skipped_total", "Blocks not checked because there were too many in a second.", func(s *RankStats) uint64 { return s.Hash.Skipped }),
	{
		rankDesc("hash_mismatch_ratio", "Share of the checked blocks whose engine hash was another one; absent while none was checked."), prometheus.GaugeValue,
		func(s *RankStats, _ time.Time) (float64, bool) { return s.Hash.Rate(), s.Hash.Checked > 0 },
	},
	rankCounter("snapshots_cut_total", "Snapshots cut for subscribers.", func(s *RankStats) uint64 { return s.Snapshots }),
	rankCounter("snapshots_shared_total", "Subscribers served from a snapshot that was there.", func(s *RankStats) uint64 { return s.SnapshotsShared }),
}

func collectRank(ch chan<- prometheus.Metric, e *served, r *Rank, now time.Time) {
	st := r.Stats()
	labels := []string{e.engine.Name(), strconv.Itoa(st.Rank)}
	for i := range rankMetrics {
		m := &rankMetrics[i]
		if v, known := m.value(&st, now); known {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
		}
	}
	for reason, n := range st.Dropped {
		ch <- counter(descDropped, n, append(labels[:2:2], reason)...)
	}
	for _, r := range hashcheck.Reasons() {
		ch <- counter(descHashNot, st.Hash.Unverifiable[r], append(labels[:2:2], r.String())...)
	}
	if l := e.meter.Rank(st.Rank); l != nil {
		ch <- gauge(descLoadAge, l.Age(now).Seconds(), labels...)
	}
}
