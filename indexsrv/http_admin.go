// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/valyala/fasthttp"

	"kindex/internal/jsonscan"
	"kindex/internal/lookup"
	"kindex/relay/feed"
)

func (h *Host) serveRegister(ctx *fasthttp.RequestCtx, q *queryScratch) {
	a := requestActor(ctx)
	r, err := decodeRegistration(&q.scan, q.body)
	if err == nil {
		err = h.Register(withActor(context.Background(), a), r) // bounded by the cleanup timeout
	} else {
		h.auditRegistration(a, "register", &r, err)
	}
	if err != nil {
		refuseErr(ctx, err)
		return
	}
	replyJSON(ctx, fasthttp.StatusCreated, []byte(`{"status":"ok"}`))
}

func (h *Host) serveUnregister(ctx *fasthttp.RequestCtx, q *queryScratch) {
	a := requestActor(ctx)
	u, err := decodeUnregistration(&q.scan, q.body)
	if err == nil {
		err = h.unregister(withActor(context.Background(), a), &u) // bounded as above
	} else {
		h.auditUnregistration(a, &u, err)
	}
	if err != nil {
		refuseErr(ctx, err)
		return
	}
	replyJSON(ctx, fasthttp.StatusOK, []byte(`{"status":"ok"}`))
}

// decodeRegistration reads the body of /register.
func decodeRegistration(s *jsonscan.Scanner, body []byte) (Registration, error) {
	var r Registration
	s.Reset(body)
	err := s.Object([]jsonscan.Field{
		idInto(s, &r.Instance),
		textInto(s, "endpoint", true, &r.Endpoint),
		textInto(s, "replay_endpoint", false, &r.ReplayEndpoint),
		textInto(s, "model_name", true, &r.Model),
		intInto(s, "block_size", true, 1, maxBlockSize, &r.BlockSize),
		intInto(s, "dp_rank", false, 0, maxRank, &r.Rank),
		intInto(s, "dp_size", false, 1, maxRanks, &r.Ranks),
		textInto(s, "routing_group", false, &r.RoutingGroup),
		textInto(s, "tenant_id", false, &r.Tenant),
		textInto(s, "engine", false, &r.Engine),
		textInto(s, "source", false, &r.Source),
	})
	return r, err
}

// decodeUnregistration reads the body of /unregister.
func decodeUnregistration(s *jsonscan.Scanner, body []byte) (unregistration, error) {
	u := unregistration{rank: -1}
	s.Reset(body)
	err := s.Object([]jsonscan.Field{
		idInto(s, &u.instance),
		textInto(s, "model_name", true, &u.model),
		textInto(s, "routing_group", false, &u.group),
		textInto(s, "tenant_id", false, &u.tenant),
		intInto(s, "dp_rank", false, 0, maxRank, &u.rank),
	})
	u.oneRankOnly = u.rank >= 0
	return u, err
}

func idInto(s *jsonscan.Scanner, p *InstanceID) jsonscan.Field {
	return jsonscan.Field{Name: "instance_id", Required: true, Read: func(name string) error {
		id, number, err := s.IDField(name)
		*p = InstanceID{string(id), number}
		return err
	}}
}

func textInto(s *jsonscan.Scanner, name string, required bool, p *string) jsonscan.Field {
	return jsonscan.Field{Name: name, Required: required, Read: func(name string) error {
		t, err := s.TextField(name)
		*p = string(t)
		return err
	}}
}

func intInto(s *jsonscan.Scanner, name string, required bool, lo, hi uint64, p *int) jsonscan.Field {
	return jsonscan.Field{Name: name, Required: required, Read: func(name string) error {
		n, err := s.IntField(name, lo, hi)
		*p = int(n)
		return err
	}}
}

// Listener is one stream as /workers shows it.
type Listener struct {
	Endpoint    string            `json:"endpoint"`
	Status      string            `json:"status"`
	LastSeq     *uint64           `json:"last_seq"` // null until a batch was admitted
	Epoch       uint64            `json:"epoch"`
	Gaps        uint64            `json:"gaps"`
	Recovered   uint64            `json:"recovered_batches"`
	Lost        uint64            `json:"lost_batches"`
	Restarts    uint64            `json:"restarts"`
	Duplicates  uint64            `json:"duplicates"`
	Snapshots   uint64            `json:"snapshots,omitempty"`   // of a relay: contents applied whole
	Resets      uint64            `json:"resets,omitempty"`      // of a relay: contents taken back
	RelayRanks  int               `json:"relay_ranks,omitempty"` // that the relay has of this engine
	Resumed     uint64            `json:"resumed,omitempty"`     // 1: went on from a content loaded
	Cold        string            `json:"cold_start,omitempty"`  // why it could not
	Orphans     uint64            `json:"orphans"`
	Memberships uint64            `json:"memberships"`
	Dropped     map[string]uint64 `json:"dropped"`
	LastError   string            `json:"last_error"`
	Shard       int               `json:"shard"` // that its blocks are held in
	Node        int               `json:"node"`  // memory node of that shard
}

// Worker is one instance as /workers shows it.
type Worker struct {
	Instance  json.RawMessage     `json:"instance_id"` // as it was given
	Source    string              `json:"source"`
	Status    string              `json:"status"` // the worst of its listeners'
	Model     string              `json:"model_name"`
	Group     string              `json:"routing_group"`
	Tenant    string              `json:"tenant_id,omitempty"` // left out where it is the default
	BlockSize int                 `json:"block_size"`
	Endpoints map[string]string   `json:"endpoints"` // by rank
	Listeners map[string]Listener `json:"listeners"` // by rank
}

// Instances describes the registered instances as /workers does, in the order of
// registration: all of them, or those of one model, of one routing group.
func (h *Host) Instances(model, group string) []Worker {
	ws := h.reg.workers(chosen(lookup.Filter{Model: model, Group: group}))
	out := make([]Worker, 0, len(ws))
	for _, w := range ws {
		shown := w.show()
		out = append(out, describe(&shown))
	}
	return out
}

// describe returns w in the shape of /workers.
func describe(w *lookup.Worker) Worker {
	d := Worker{
		Instance: lookup.AppendJSONString(nil, w.Instance), Source: w.Source, Status: w.Status, Model: w.Model, Group: w.Group, BlockSize: w.BlockSize,
		Endpoints: map[string]string{}, Listeners: map[string]Listener{},
	}
	if w.Number {
		d.Instance = json.RawMessage(w.Instance)
	}
	if w.Tenant != defaultGroup {
		d.Tenant = w.Tenant
	}
	for i := range w.Ranks {
		r := &w.Ranks[i]
		l := Listener{
			Endpoint: r.Endpoint, Status: r.Status, Epoch: r.Epoch,
			Gaps: r.Gaps, Recovered: r.Recovered, Lost: r.Lost, Restarts: r.Restarts, Duplicates: r.Duplicates,
			Snapshots: r.Snapshots, Resets: r.Resets, RelayRanks: r.RelayRanks,
			Resumed: r.Resumed, Cold: r.Cold,
			Shard: r.Shard, Node: r.Node,
			Orphans: r.Orphans, Memberships: r.Memberships, Dropped: r.Dropped, LastError: r.LastError,
		}
		if r.HasSeq {
			l.LastSeq = &r.LastSeq
		}
		key := strconv.Itoa(r.Rank)
		d.Endpoints[key] = r.Endpoint
		d.Listeners[key] = l
	}
	return d
}

func (h *Host) serveWorkers(ctx *fasthttp.RequestCtx, _ *queryScratch) {
	args := ctx.QueryArgs()
	replyValue(ctx, fasthttp.StatusOK, h.Instances(string(args.Peek("model_name")), string(args.Peek("routing_group"))))
}

// replyValue answers with v as JSON.
func replyValue(ctx *fasthttp.RequestCtx, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: indexsrv: an answer is no JSON: " + err.Error())
	}
	replyJSON(ctx, status, b)
}

// maxUnready bounds the streams that an answer of /readyz names.
const maxUnready = 16

// Unready returns why the host is not ready, one line for each stream that is
// not exact and not given up on; nil: it is ready.
func (h *Host) Unready() []string {
	if h.draining.Load() {
		return []string{"draining"}
	}
	if b := h.beginning.Load(); b != nil {
		return []string{b.why}
	}
	if h.copies.Load() > 0 {
		return []string{"copying from a peer"}
	}
	var why []string
	for _, w := range h.reg.workers(nil) {
		for _, r := range *w.ranks.Load() {
			if r.stream.current() == feed.StateActive {
				continue
			}
			st := r.stream.status()
			if st.State == feed.StateActive || st.State == feed.StateFailed || st.State == feed.StateDegraded && !st.Repairing {
				continue
			}
			line := fmt.Sprintf("%s instance %s dp_rank %d: %s", w.model.name, w.id, r.number, st.State)
			if st.LastError != "" {
				line += ": " + st.LastError
			}
			why = append(why, line)
		}
	}
	return why
}

func (h *Host) serveReady(ctx *fasthttp.RequestCtx, _ *queryScratch) {
	why := h.Unready()
	if len(why) == 0 {
		replyJSON(ctx, fasthttp.StatusOK, []byte(`{"status":"ready"}`))
		return
	}
	text := "not ready: " + why[0]
	if len(why) > 1 {
		text = fmt.Sprintf("not ready: %d streams are not exact yet", len(why))
	}
	replyValue(ctx, fasthttp.StatusServiceUnavailable, struct {
		Error   string   `json:"error"`
		Streams []string `json:"streams"`
	}{text, slices.Clip(why[:min(len(why), maxUnready)])})
}
