// SPDX-License-Identifier: Apache-2.0

package lookup

// Filter chooses workers. An empty name chooses all; all are UTF-8.
type Filter struct {
	Model, Group, Tenant string
}

// Worker is one registered instance of one model.
type Worker struct {
	Instance string // its id as an object key
	Number   bool   // the id was given as an integer
	Model    string
	Group    string
	Tenant   string

	BlockSize int    // tokens
	Source    string // "zmq": the engine's own sockets, "relay"
	Status    string // the worst of its ranks'
	Ranks     []Rank // ascending
}

// WorkerName tells a worker from all others of a host.
type WorkerName struct {
	Instance, Model, Group, Tenant string
}

// Name returns w's name.
func (w *Worker) Name() WorkerName { return WorkerName{w.Instance, w.Model, w.Group, w.Tenant} }

// Rank is one stream of a worker.
type Rank struct {
	Rank           int
	Endpoint       string
	ReplayEndpoint string // "": none

	Status    string // "pending", "active" (exact), "degraded", "failed"
	LastError string

	Epoch   uint64 // lives of the publisher so far
	HasSeq  bool   // a batch was admitted
	LastSeq uint64 // the newest one's

	Gaps, Recovered, Lost, Restarts, Duplicates uint64
	Snapshots, Resets                           uint64            // of a relay only
	RelayRanks                                  int               // that the relay has of this engine; 0: not said
	Resumed                                     uint64            // 1: it went on from a content loaded at the start
	Cold                                        string            // why it could not; "" where it did, or had none
	Orphans, Memberships                        uint64            // blocks
	Dropped                                     map[string]uint64 // events left out, by reason

	Shard, Node int // where its blocks are held

	Held       uint64  // live batches that wait behind a gap
	LastBatch  float64 // when the newest batch was admitted, Unix seconds of the host's clock; 0: never
	EngineTime float64 // that batch's own, the engine's clock; 0: none
}

// Update is one step of a watch: the whole table first, then what changed. A worker
// changes when its ranks do, or the status of one does; figures alone are no change.
type Update struct {
	// Epoch names the life of the table: another one after a restart of its host.
	Epoch uint64
	// Version grows with each change of the table, within one epoch.
	Version uint64
	// Whole: Workers is all there is; what was known before is void.
	Whole   bool
	Workers []Worker // new or changed, in the order of their registration
	Gone    []WorkerName
}
