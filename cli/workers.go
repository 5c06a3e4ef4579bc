// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"kindex/internal/lookup"
)

func workersCommand() *command {
	return &command{
		name: "workers", summary: "the workers a host follows, and how each stream stands",
		flags: slices.Concat(hostFlags, chooseFlags, []string{"instance"}),
		run:   runWorkers,
	}
}

// workerJSON is a worker in kindex's JSON.
type workerJSON struct {
	Instance  lookup.ExplainedID `json:"instance_id"`
	Model     string             `json:"model_name"`
	Group     string             `json:"routing_group"`
	Tenant    string             `json:"tenant_id"`
	BlockSize int                `json:"block_size"`
	Source    string             `json:"source"`
	Status    string             `json:"status"`
	Ranks     []rankJSON         `json:"ranks"`
}

type rankJSON struct {
	Rank        int               `json:"dp_rank"`
	Endpoint    string            `json:"endpoint"`
	Replay      string            `json:"replay_endpoint,omitempty"`
	Status      string            `json:"status"`
	LastError   string            `json:"last_error,omitempty"`
	Epoch       uint64            `json:"epoch"`
	LastSeq     *uint64           `json:"last_seq"`
	Gaps        uint64            `json:"gaps"`
	Recovered   uint64            `json:"recovered_batches"`
	Lost        uint64            `json:"lost_batches"`
	Restarts    uint64            `json:"restarts"`
	Duplicates  uint64            `json:"duplicates"`
	Held        uint64            `json:"held_batches"`
	Orphans     uint64            `json:"orphans"`
	Memberships uint64            `json:"memberships"`
	Dropped     map[string]uint64 `json:"dropped"`
	Idle        *float64          `json:"idle_seconds"`
	Lag         *float64          `json:"lag_seconds"`
	Node        int               `json:"node"`
}

func showWorkers(ws []lookup.Worker, now time.Time) []workerJSON {
	out := []workerJSON{}
	for i := range ws {
		w := &ws[i]
		d := workerJSON{
			Instance: lookup.ExplainedID{Text: w.Instance, Number: w.Number}, Model: w.Model, Group: w.Group, Tenant: w.Tenant,
			BlockSize: w.BlockSize, Source: w.Source, Status: w.Status, Ranks: []rankJSON{},
		}
		for k := range w.Ranks {
			r := &w.Ranks[k]
			s := rankJSON{
				Rank: r.Rank, Endpoint: r.Endpoint, Replay: r.ReplayEndpoint, Status: r.Status, LastError: r.LastError, Epoch: r.Epoch,
				Gaps: r.Gaps, Recovered: r.Recovered, Lost: r.Lost, Restarts: r.Restarts, Duplicates: r.Duplicates, Held: r.Held,
				Orphans: r.Orphans, Memberships: r.Memberships, Dropped: map[string]uint64{}, Node: r.Node,
			}
			if r.HasSeq {
				s.LastSeq = &r.LastSeq
			}
			for why, n := range r.Dropped {
				if n > 0 {
					s.Dropped[why] = n
				}
			}
			if idle, ok := idleOf(r, now); ok {
				s.Idle = &idle
			}
			if lag, ok := lagOf(r); ok {
				s.Lag = &lag
			}
			d.Ranks = append(d.Ranks, s)
		}
		out = append(out, d)
	}
	return out
}

// idleOf is how long ago r's newest batch was admitted, seconds; both clocks'
// difference included.
func idleOf(r *lookup.Rank, now time.Time) (float64, bool) {
	return max(0, float64(now.UnixNano())/1e9-r.LastBatch), r.LastBatch > 0
}

// lagOf is how long after the engine stamped it that batch was admitted.
func lagOf(r *lookup.Rank) (float64, bool) {
	return r.LastBatch - r.EngineTime, r.LastBatch > 0 && r.EngineTime > 0
}

func runWorkers(ctx context.Context, c *call) error {
	all, ctx, done, err := c.hosts(ctx)
	if err != nil {
		return err
	}
	defer done()
	ws, err := workersOf(ctx, all, c.selection())
	if err != nil {
		return err
	}
	now := time.Now()
	if c.json {
		err = c.writeJSON(showWorkers(ws, now))
	} else {
		err = workersTable(ws).write(c.Out, c.width())
	}
	if err == nil && len(ws) == 0 && (c.model != "" || c.instance != "") {
		return errNo
	}
	return err
}

// modelOf is the model of w as people read it.
func modelOf(tenant, model, group string) string {
	if tenant == lookup.DefaultName && group == lookup.DefaultName {
		return model
	}
	return lookup.ModelLabel(tenant, model, group)
}

func workersTable(ws []lookup.Worker) *table {
	t := newTable("INSTANCE", ">RANK", "MODEL", ">BLOCK", "SOURCE", "STATUS", ">EPOCH", ">SEQ", ">GAPS", ">LOST", ">ORPHANS", ">BLOCKS HELD", "ENDPOINT", "WHY")
	for i := range ws {
		w := &ws[i]
		for k := range w.Ranks {
			r := &w.Ranks[k]
			t.add(w.Instance, strconv.Itoa(r.Rank), modelOf(w.Tenant, w.Model, w.Group), strconv.Itoa(w.BlockSize), w.Source, r.Status,
				strconv.FormatUint(r.Epoch, 10), seqOf(r), grouped(r.Gaps), grouped(r.Lost), grouped(r.Orphans), grouped(r.Memberships),
				r.Endpoint, strings.ReplaceAll(r.LastError, "\n", " "))
		}
	}
	return t
}

func seqOf(r *lookup.Rank) string {
	if !r.HasSeq {
		return "-"
	}
	return strconv.FormatUint(r.LastSeq, 10)
}
