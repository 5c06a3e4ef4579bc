// SPDX-License-Identifier: Apache-2.0

// Before: an index host, over HTTP. After: judge.go.

package drill

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/internal/kv"
)

// What the index host knows the engine by.
const (
	instance  = "w0"
	modelName = "drill"
)

// maxLine bounds one line of a dump.
const maxLine = 16 << 20

// observation is one rank of the index host at one moment.
type observation struct {
	status string
	has    bool
	seq    uint64
	sum    uint64 // of the content at seq
}

// observer tells what an index holds, by rank.
type observer interface {
	observe(ctx context.Context) (map[int]observation, error)
}

// indexHost is one indexsrv.
type indexHost struct {
	proc  *proc.Process
	url   string
	http  http.Client
	plant plant
	lie   func(status string) string // what tests make of a status; nil: nothing
}

// plant spoils what is read of an index, so that tests can see a drill fail. It is given
// each step of a dump and drops it by returning false.
type plant func(rank int, e *publish.Event) bool

func (e *Env) startIndex(ctx context.Context) (*indexHost, error) { return e.startIndexIn(ctx, nil) }

// startIndexIn starts an index host in a network of its own, or beside this program
// where that is nil.
func (e *Env) startIndexIn(ctx context.Context, n *namespace) (*indexHost, error) {
	port, err := publish.FreePorts(1)
	if err != nil {
		return nil, err
	}
	addr := net.JoinHostPort(n.controlHost(), strconv.Itoa(port))
	h := &indexHost{url: "http://" + addr, http: http.Client{Timeout: 10 * time.Second}, lie: e.o.lie}
	// A network of its own is beyond loopback.
	if h.proc, err = e.startIn(n, "indexsrv", "--listen", addr, "--open-admin"); err != nil {
		return nil, err
	}
	e.later(func() error { h.http.CloseIdleConnections(); return nil })
	err = proc.Until(ctx, startTime, func() bool {
		return h.proc.Ended() != nil || h.call(ctx, http.MethodGet, "/health", nil, nil) == nil
	})
	if ended := h.proc.Ended(); ended != nil {
		return nil, ended
	}
	if err != nil {
		return nil, fmt.Errorf("the index host does not answer: %w", err)
	}
	return h, nil
}

// register makes the engine behind the link known to the host.
func (h *indexHost) register(ctx context.Context, r *relayed) error {
	return h.registerAs(ctx, registration(r.pub, r.link.Addr(), ""))
}

// registration is the body that makes an engine known: by its sockets, or by a relay
// where replay is empty.
func registration(s shape, endpoint, replay string) map[string]any {
	m := map[string]any{
		"instance_id": instance, "endpoint": endpoint, "engine": "vllm",
		"model_name": modelName, "block_size": s.Block(), "dp_size": s.Ranks(),
	}
	if replay == "" {
		m["source"] = "relay"
	} else {
		m["replay_endpoint"] = replay
	}
	return m
}

// shape is what a registration says of an engine beside its addresses.
type shape interface {
	Ranks() int
	Block() int
}

func (h *indexHost) registerAs(ctx context.Context, fields map[string]any) error {
	return h.call(ctx, http.MethodPost, "/register", fields, nil)
}

// call makes one request and hands the answer's body to read, unless that is nil.
func (h *indexHost) call(ctx context.Context, method, path string, in any, read func(io.Reader) error) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, h.url+path, body)
	if err != nil {
		return err
	}
	resp, err := h.http.Do(req)
	if err != nil {
		return err
	}
	defer func() {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}()
	if resp.StatusCode/100 != 2 {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b))
	}
	if read == nil {
		return nil
	}
	return read(resp.Body)
}

// observe implements [observer] for the one engine of a drill.
func (h *indexHost) observe(ctx context.Context) (map[int]observation, error) {
	return h.observeOf(ctx, instance)
}

// observeOf observes one of several engines. A status that was told before the content was read
// counts: a host that is not exact any more must not be taken for one.
func (h *indexHost) observeOf(ctx context.Context, id string) (map[int]observation, error) {
	listeners, err := h.listenersOf(ctx, id)
	if err != nil {
		return nil, err
	}
	out := map[int]observation{}
	content := map[int]*publish.Content{}
	err = h.call(ctx, http.MethodGet, "/dump?format=ndjson&model_name="+modelName+"&instance_id="+id, nil, func(r io.Reader) error {
		return h.readDump(r, out, content)
	})
	if err != nil {
		return nil, err
	}
	for rank, o := range out {
		if c := content[rank]; c != nil {
			o.sum = c.Sum()
		}
		o.status = listeners[rank].Status
		out[rank] = o
	}
	return out, nil
}

// listener is one rank's stream as the host tells it.
type listener struct {
	Status    string `json:"status"`
	Gaps      uint64 `json:"gaps"`
	Recovered uint64 `json:"recovered_batches"`
	Lost      uint64 `json:"lost_batches"`
	Restarts  uint64 `json:"restarts"`
	Error     string `json:"last_error"`
}

// listeners asks for the streams of the one engine of a drill, by rank.
func (h *indexHost) listeners(ctx context.Context) (map[int]listener, error) {
	return h.listenersOf(ctx, instance)
}

func (h *indexHost) listenersOf(ctx context.Context, id string) (map[int]listener, error) {
	var workers []struct {
		Instance  string              `json:"instance_id"`
		Listeners map[string]listener `json:"listeners"`
	}
	err := h.call(ctx, http.MethodGet, "/workers?model_name="+modelName, nil, func(r io.Reader) error { return json.NewDecoder(r).Decode(&workers) })
	if err != nil {
		return nil, err
	}
	out := map[int]listener{}
	for _, w := range workers {
		if w.Instance != id {
			continue
		}
		for name, l := range w.Listeners {
			rank, err := strconv.Atoi(name)
			if err != nil {
				return nil, fmt.Errorf("workers: rank %q", name)
			}
			if h.lie != nil {
				l.Status = h.lie(l.Status)
			}
			out[rank] = l
		}
	}
	return out, nil
}

// lookup asks how much of a prompt each rank of the one engine of a drill holds on its
// device, in tokens, and whether the host calls the answer degraded.
func (h *indexHost) lookup(ctx context.Context, p *publish.Prompt) (depth []int, degraded bool, err error) {
	return h.lookupOf(ctx, instance, p)
}

func (h *indexHost) lookupOf(ctx context.Context, id string, p *publish.Prompt) (depth []int, degraded bool, err error) {
	q := map[string]any{"model_name": modelName, "token_ids": p.Tokens}
	if p.LoRA != "" {
		q["lora_name"] = p.LoRA
	}
	var answer struct {
		Instances map[string]struct {
			Ranks    map[string]int `json:"dp"`
			Degraded bool           `json:"degraded"`
		} `json:"instances"`
	}
	err = h.call(ctx, http.MethodPost, "/query", q, func(r io.Reader) error { return json.NewDecoder(r).Decode(&answer) })
	w := answer.Instances[id]
	for rank := range p.Depth {
		depth = append(depth, w.Ranks[strconv.Itoa(rank)])
	}
	return depth, w.Degraded, err
}

// dumpLine is one line of a dump: the streams' cursors, or one event.
type dumpLine struct {
	Streams map[string]map[string]struct {
		LastSeq *uint64 `json:"last_seq"`
	} `json:"streams"`
	Tier  string `json:"storage_tier"`
	Event *struct {
		Rank int `json:"dp_rank"`
		Data struct {
			Stored  *dumpStored `json:"stored"`
			Removed *struct {
				Hashes []uint64 `json:"block_hashes"`
			} `json:"removed"`
		} `json:"data"`
	} `json:"event"`
}

type dumpStored struct {
	Parent *uint64 `json:"parent_hash"`
	Seed   *uint64 `json:"namespace_seed"`
	Group  uint8   `json:"group_idx"`
	Blocks []struct {
		Engine  uint64 `json:"block_hash"`
		Content uint64 `json:"tokens_hash"`
	} `json:"blocks"`
}

func (h *indexHost) readDump(r io.Reader, out map[int]observation, content map[int]*publish.Content) error {
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLine)
	for in.Scan() {
		var l dumpLine
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			return fmt.Errorf("dump: %w", err)
		}
		for _, ranks := range l.Streams {
			for name, c := range ranks {
				rank, err := strconv.Atoi(name)
				if err != nil {
					return fmt.Errorf("dump: rank %q", name)
				}
				o := observation{}
				if c.LastSeq != nil {
					o.has, o.seq = true, *c.LastSeq
				}
				out[rank] = o
			}
		}
		if l.Event == nil {
			continue
		}
		rank := l.Event.Rank
		if content[rank] == nil {
			content[rank] = &publish.Content{}
		}
		ev := l.event()
		if h.plant == nil || h.plant(rank, &ev) {
			content[rank].Apply(&ev)
		}
	}
	return in.Err()
}

// event returns a line's event as a step of content.
func (l *dumpLine) event() publish.Event {
	var ev publish.Event
	for t := range kv.Tier(kv.LocalTiers) {
		if t.String() == l.Tier {
			ev.Tier = t
		}
	}
	d := &l.Event.Data
	switch {
	case d.Stored != nil:
		ev.Kind, ev.Group, ev.Seed = kv.KindStored, d.Stored.Group, kv.HashSeed
		if d.Stored.Seed != nil {
			ev.Seed = *d.Stored.Seed
		}
		if d.Stored.Parent != nil {
			ev.Parent, ev.HasParent = kv.EngineHash(*d.Stored.Parent), true
		}
		for _, b := range d.Stored.Blocks {
			ev.Engines = append(ev.Engines, kv.EngineHash(b.Engine))
			ev.Contents = append(ev.Contents, kv.ContentHash(b.Content))
		}
	case d.Removed != nil:
		ev.Kind = kv.KindRemoved
		for _, e := range d.Removed.Hashes {
			ev.Engines = append(ev.Engines, kv.EngineHash(e))
		}
	}
	return ev
}
