// SPDX-License-Identifier: Apache-2.0

package series

import (
	"slices"

	"kindex/harness/mooncake"
	"kindex/harness/peers"
	"kindex/harness/replay"
	"kindex/harness/trial"
)

// figures are the rows of a report. Less is better in all.
var figures = []struct{ mode, name, text string }{
	{"bare", "events_ns", "bare index, events: CPU ns a block"},
	{"bare", "mix_ns", "bare index, lookups inline: CPU ns a block operation"},
	{"write", "cpu_ns", "write: lane CPU ns a block"},
	{"mixed", "cpu_ns", "mixed: CPU ns of all threads a block operation"},
	{"mixed", "p50_ns", "mixed: lookup p50, ns"},
	{"mixed", "p99_ns", "mixed: lookup p99, ns"},
	{"lookup", "half_cpu_ns", "lookup, half loaded: CPU ns (peers: into a result map)"},
	{"lookup", "half_cpu_bare_ns", "lookup, half loaded: CPU ns into a caller's buffer"},
	{"lookup", "half_cpu_grouped_ns", "lookup, half loaded: CPU ns, answered by sets of holders"},
	{"lookup", "half_cpu_batched_ns", "lookup, half loaded: CPU ns, 32 at a time"},
	{"lookup", "half_p50_ns", "lookup, half loaded: p50, ns"},
	{"lookup", "half_p99_ns", "lookup, half loaded: p99, ns"},
	{"lookup", "full_cpu_ns", "lookup, full: CPU ns (peers: into a result map)"},
	{"lookup", "full_cpu_bare_ns", "lookup, full: CPU ns into a caller's buffer"},
	{"lookup", "full_cpu_grouped_ns", "lookup, full: CPU ns, answered by sets of holders"},
	{"lookup", "full_cpu_batched_ns", "lookup, full: CPU ns, 32 at a time"},
	{"lookup", "full_p50_ns", "lookup, full: p50, ns"},
	{"lookup", "full_p99_ns", "lookup, full: p99, ns"},
	{"contend", "lookup_cpu_ns", "lookup under a flat-out writer: CPU ns"},
	{"contend", "p50_ns", "lookup under a flat-out writer: p50, ns"},
	{"contend", "p99_ns", "lookup under a flat-out writer: p99, ns"},
	{"contend", "write_cpu_ns", "the writer meanwhile: lane CPU ns a block"},
	{memoryMode, "per_membership", "bytes a membership"},
	{memoryMode, "per_block", "bytes a distinct block"},
	{memoryMode, "swept_per_membership", "bytes a membership after the index's own cleanup"},
	{memoryMode, "swept_per_block", "bytes a distinct block after the index's own cleanup"},
}

// memoryMode repeats exactly: one round is enough.
const memoryMode = "memory"

// Modes are what a series can measure.
var Modes = append(slices.Clone(DefaultModes), memoryMode)

// DefaultModes are those that take time, and so take many rounds.
var DefaultModes = []string{"bare", "write", "mixed", "lookup", "contend"}

// ourFigures reads a trial of this program.
func ourFigures(mode string, r *mooncake.Result) Figures {
	f := Figures{}
	switch mode {
	case memoryMode:
		f["per_membership"], f["per_block"] = r.PerMembership, r.PerBlock
		f["swept_per_membership"], f["swept_per_block"] = r.PerMembership, r.PerBlock // needs none
	case "bare":
		f["events_ns"], f["mix_ns"] = r.BareEvents.PerBlock(), r.BareMix.PerBlock()
	case "write":
		f["cpu_ns"] = r.CPUPerBlockOp
	case "mixed":
		f["cpu_ns"] = r.CPUPerBlockOp
		f.times("", r.Lookup)
	case "lookup":
		for prefix, l := range map[string]*replay.Looked{"half_": r.Half, "full_": r.Full} {
			f[prefix+"cpu_ns"], f[prefix+"cpu_bare_ns"] = l.CPU, l.CPU
			f[prefix+"cpu_grouped_ns"], f[prefix+"cpu_batched_ns"] = l.Grouped, l.Batched
			f.times(prefix, l.Latency)
		}
	case "contend":
		f["lookup_cpu_ns"], f["write_cpu_ns"] = r.CPUPerLookup, r.CPUPerBlockOp
		f.times("", r.Lookup)
	}
	return f
}

func (f Figures) times(prefix string, l *trial.Latency) {
	if l != nil {
		f[prefix+"p50_ns"], f[prefix+"p99_ns"] = float64(l.P50), float64(l.P99)
	}
}

// peerFigures reads a trial of a peer: its last run.
func peerFigures(mode string, o *peers.Output) Figures {
	f, r := Figures{}, o.Last()
	switch mode {
	case memoryMode:
		f.peerMemory(r)
	case "write":
		f["cpu_ns"] = r.CPUPerBlock
	case "mixed":
		f["cpu_ns"] = inverse(r.PerCPU)
		f.peerTimes("", r.Latency)
	case "lookup":
		for prefix, l := range map[string]*peers.Looked{"half_": r.Half, "full_": r.Full} {
			if l == nil {
				continue
			}
			f[prefix+"cpu_ns"] = l.CPU
			if l.CPUNoMap != nil {
				f[prefix+"cpu_bare_ns"] = *l.CPUNoMap
			}
			f.peerTimes(prefix, l.Latency)
		}
	case "contend":
		f["lookup_cpu_ns"], f["write_cpu_ns"] = r.CPUPerLookup, inverse(r.WritePerCPU)
		f.peerTimes("", r.Latency)
	}
	return f
}

func (f Figures) peerMemory(r *peers.Run) {
	if r.Loaded == nil {
		return
	}
	f["per_membership"], f["per_block"] = r.Loaded.PerMembership, r.Loaded.PerBlock
	swept := r.Swept
	if swept == nil { // it has no cleanup and needs none
		swept = r.Loaded
	}
	f["swept_per_membership"], f["swept_per_block"] = swept.PerMembership, swept.PerBlock
}

func (f Figures) peerTimes(prefix string, t *peers.Times) {
	if t != nil {
		f[prefix+"p50_ns"], f[prefix+"p99_ns"] = float64(t.P50), float64(t.P99)
	}
}

// inverse turns operations a second into nanoseconds an operation.
func inverse(perSecond float64) float64 {
	if perSecond <= 0 {
		return 0
	}
	return 1e9 / perSecond
}
