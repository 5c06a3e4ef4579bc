// SPDX-License-Identifier: Apache-2.0

// Before: Client. After: whoever keeps the content: an index, a drill's set.

package client

// Handler is told one rank's content, in its publisher's order.
//
// Between Begin and End come chunks of a snapshot and nothing else but Reset and
// Disconnected. Slices are valid until the call returns.
//
// Concurrency: calls of one [Client] are made one at a time, on its goroutine;
// none comes after [Client.Close] has returned. A handler must not call back into
// the client, [Client.Status] aside. Nothing is received while it runs.
type Handler interface {
	// Connected tells that a stream stands. What follows continues what was told
	// before, unless Reset or Begin comes first.
	Connected(c Contract)
	// Disconnected tells that there is no stream, and why. It is called again when
	// the reason changes.
	Disconnected(why string)

	// Reset takes back all that was told: the rank is empty. epoch is the life that
	// follows.
	Reset(epoch uint64, why string)
	// Begin takes back all that was told; the chunks of s follow.
	Begin(s *Snapshot)
	// Chunk is a part of a snapshot.
	Chunk(ops []Op)
	// End tells that the snapshot is whole and right: the rank holds what the
	// engine held after batch s.Through.
	End(s *Snapshot)

	// Batch is the next batch.
	Batch(b *Batch)
	// Hole tells that batches will never come; the next one does not follow the
	// last.
	Hole(h *Hole)

	// Standing tells how far the content can be trusted now: on change, and always
	// after Connected, Reset and Begin, behind which nothing is exact until then.
	Standing(s Standing)
}

// LoadHandler is a [Handler] that wants the engine's load.
type LoadHandler interface {
	// Load is told every record, before what came with it.
	Load(l *Load)
}

// ResumeHandler is a [Handler] that wants to know what became of the content that
// its rank began with (see [Config].Start).
type ResumeHandler interface {
	// Resumed tells, once, that the rank goes on from it, or why it does not: Reset or
	// Begin follows then.
	Resumed(why string)
}

// Batch is one batch of a rank.
type Batch struct {
	Epoch     uint64
	Sequence  uint64
	Timestamp float64 // seconds, the engine's clock
	Events    int     // as the engine sent them, where that is known; else len(Ops)
	Ops       []Op
}

// Snapshot is a whole content, as of one batch.
type Snapshot struct {
	Epoch         uint64
	Through       uint64 // the last batch that it takes in
	Blocks        uint64 // physical copies
	UnknownBefore uint64 // batches up to Through that nobody had; 0: complete
}

// Hole is a run of batches that will never come, both ends included.
type Hole struct {
	From, To uint64
	Why      string
}

// Standing says how far a rank's content can be trusted.
type Standing struct {
	Exact bool
	// Repairing: it is not exact, but what is missing is on its way.
	Repairing bool
	Why       string // what keeps it from being exact; "" when it is
}
