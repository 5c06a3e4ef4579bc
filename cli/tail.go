// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/relay/client"
	"kindex/relay/feed"
	"kindex/relay/normal"
	"kindex/relay/wire"
)

func tailCommand() *command {
	return &command{
		name: "tail", summary: "the events of a stream as they come",
		flags: []string{"engine", "relay", "relay-engine", "rank", "from-start", "count", "show-tokens", "json", "timeout", "token-file", "tls-ca", "tls-cert", "tls-key"},
		help: `One of
  --engine SPEC   the engine's own socket; --from-start needs replay= in it
  --relay ADDR    one engine of a relay; what it has comes first
Token ids, salts and extra keys are not shown unless --show-tokens is given. It
ends with a signal, after --count batches, or with status 3 where nothing is
reached within --timeout.
`,
		run: runTail,
	}
}

// tailEvent is one event in kindex's JSON. Content comes as it does: of an engine
// token counts, of a relay content hashes.
type tailEvent struct {
	Seq       *uint64  `json:"seq,omitempty"`  // absent: of a snapshot
	Time      float64  `json:"time,omitempty"` // the batch's own, seconds
	Rank      int      `json:"dp_rank"`
	Event     string   `json:"event"` // BlockStored, BlockRemoved, AllBlocksCleared; or what became of the stream
	Blocks    int      `json:"blocks,omitempty"`
	Hashes    []uint64 `json:"block_hashes,omitempty"`
	Parent    *uint64  `json:"parent_block_hash,omitempty"`
	Contents  []uint64 `json:"tokens_hashes,omitempty"`
	BlockSize int      `json:"block_size,omitempty"`
	Tokens    int      `json:"tokens,omitempty"` // how many
	TokenIDs  []uint32 `json:"token_ids,omitempty"`
	Tier      string   `json:"tier,omitempty"`
	Medium    string   `json:"medium,omitempty"`
	Group     *int     `json:"group_idx,omitempty"`
	Spec      string   `json:"spec_kind,omitempty"`
	LoRA      string   `json:"lora_name,omitempty"`
	Salt      string   `json:"cache_salt,omitempty"`
	Keyed     int      `json:"keyed_blocks,omitempty"` // blocks with extra keys
	Note      string   `json:"note,omitempty"`
}

// tailer writes events.
//
// Concurrency: any goroutine.
type tailer struct {
	*call
	stop context.CancelFunc

	mu      sync.Mutex
	batches int
	heard   bool
	reached bool
	ended   bool
	why     string // nothing is reached
	err     error
}

// batch writes the events of one batch, the last one of --count included.
func (t *tailer) batch(events []tailEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.write(events)
	t.heard = true
	if t.batches++; t.count > 0 && t.batches >= t.count {
		t.ended = true
		t.stop()
	}
}

// note writes what became of the stream.
func (t *tailer) note(what, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.write([]tailEvent{{Rank: t.rank, Event: what, Note: fmt.Sprintf(format, args...)}})
}

// write writes events. mu is held.
func (t *tailer) write(events []tailEvent) {
	if t.ended || t.err != nil {
		return
	}
	var b strings.Builder
	for i := range events {
		if !t.json {
			events[i].line(&b)
			continue
		}
		text, err := json.Marshal(&events[i])
		if err != nil {
			t.err = fmt.Errorf("BUG: cli: an event is no JSON: %w", err)
			break
		}
		b.Write(append(text, '\n'))
	}
	if _, err := io.WriteString(t.Out, b.String()); err != nil {
		t.err = err
	}
	if t.err != nil {
		t.stop()
	}
}

// connection notes whether the source is reached, and why not.
func (t *tailer) connection(reached bool, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reached = t.reached || reached
	if why != "" && why != t.why {
		t.why = why
		if t.heard {
			fmt.Fprintln(t.Err, "kindex: "+strings.ReplaceAll(why, "\n", " "))
		}
	}
}

// maxHashes is how many hashes a line for people has.
const maxHashes = 4

// line writes e for people.
func (e *tailEvent) line(b *strings.Builder) {
	at := "-"
	if e.Seq != nil {
		at = strconv.FormatUint(*e.Seq, 10)
	}
	stamp := strings.Repeat(" ", len("15:04:05.000"))
	if e.Time > 0 && e.Time < 1e11 {
		whole, part := math.Modf(e.Time)
		stamp = time.Unix(int64(whole), int64(part*1e9)).Format("15:04:05.000")
	}
	fmt.Fprintf(b, "%s  batch %-8s rank %d  ", stamp, at, e.Rank)
	switch e.Event {
	case kv.KindStored.String():
		fmt.Fprintf(b, "stored %s", counted(uint64(e.Blocks), "block"))
		if e.BlockSize > 0 {
			fmt.Fprintf(b, " of %d", e.BlockSize)
		}
		if e.Parent != nil {
			fmt.Fprintf(b, " below %d", *e.Parent)
		} else if e.Tokens > 0 || len(e.Contents) > 0 {
			b.WriteString(" at a root")
		}
	case kv.KindRemoved.String():
		fmt.Fprintf(b, "removed %s", counted(uint64(e.Blocks), "block"))
	case kv.KindCleared.String():
		b.WriteString("cleared all")
	default:
		b.WriteString(e.Event)
	}
	for _, x := range []struct{ name, text string }{{"", e.Tier}, {"lora ", e.LoRA}, {"salt ", e.Salt}, {"", e.Spec}} {
		if x.text != "" {
			b.WriteString(", " + x.name + printable(x.text))
		}
	}
	if e.Group != nil {
		fmt.Fprintf(b, ", group %d", *e.Group)
	}
	if e.Keyed > 0 {
		fmt.Fprintf(b, ", %s with keys", counted(uint64(e.Keyed), "block"))
	}
	if len(e.Hashes) > 0 {
		b.WriteString(": " + listed(e.Hashes, maxHashes))
	}
	if e.Note != "" {
		b.WriteString(": " + printable(e.Note))
	}
	if len(e.TokenIDs) > 0 {
		b.WriteString("\n    tokens " + listed(e.TokenIDs, len(e.TokenIDs)))
	}
	b.WriteByte('\n')
}

func listed[N uint32 | uint64](ns []N, most int) string {
	var b strings.Builder
	for i, n := range ns[:min(len(ns), most)] {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.FormatUint(uint64(n), 10))
	}
	if len(ns) > most {
		b.WriteString(" ...")
	}
	return b.String()
}

func runTail(ctx context.Context, c *call) error {
	if (c.engine == "") == (c.relay == "") {
		return usagef("tail: must have --engine or --relay")
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	t := &tailer{call: c, stop: stop, why: "no connection"}
	var end func()
	var err error
	if c.engine != "" {
		end, err = t.tailEngine()
	} else {
		end, err = t.tailRelay()
	}
	if err != nil {
		return err
	}
	late := time.After(c.timeout)
	for {
		select {
		case <-ctx.Done():
			end()
			return t.err
		case <-late:
			t.mu.Lock()
			reached, why := t.reached || t.heard, t.why
			t.mu.Unlock()
			if !reached {
				end()
				return lookup.Refuse(lookup.ErrUnavailable, "%s", why)
			}
			late = nil
		}
	}
}

// engineTail is a feed's sink that writes what comes.
type engineTail struct {
	*tailer
	dec, probe wire.Decoder
	batch      kv.Batch
	seq        uint64
}

var _ feed.Sink = (*engineTail)(nil)

func (t *tailer) tailEngine() (end func(), err error) {
	cfg, _, err := parseEngine(t.engine, t.rank)
	if err != nil {
		return nil, err
	}
	if t.fromStart && cfg.ReplayEndpoint == "" {
		return nil, usagef("--from-start: needs replay=ENDPOINT in --engine: %s", engineForm)
	}
	if !t.fromStart {
		cfg.ReplayEndpoint = ""
	}
	zmq, err := feed.NewZMQ(feed.ZMQOptions{})
	if err != nil {
		return nil, lookup.Refuse(lookup.ErrUnavailable, "--engine: %v", err)
	}
	s := &engineTail{tailer: t}
	stream, err := feed.Open(zmq, cfg, s, feed.Hooks{
		Changed: func(_, now feed.State, why string) {
			t.connection(now == feed.StateActive || now == feed.StateDegraded, why)
		},
	})
	if err != nil {
		return nil, errors.Join(lookup.Refuse(lookup.ErrUnavailable, "--engine: %v", err), zmq.Close())
	}
	// What keeps it from connecting is told by its status alone.
	looking, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-looking:
				return
			case <-tick.C:
				st := stream.Status()
				t.connection(st.Connected, st.LastError)
			}
		}
	}()
	return func() {
		close(looking)
		<-done
		stream.Close()
		_ = zmq.Close() // its only tap is closed
	}, nil
}

// Decodable implements feed.Sink.
func (s *engineTail) Decodable(payload []byte) bool {
	var b kv.Batch
	return s.probe.Decode(payload, &b) == nil
}

// Stage implements feed.Sink.
func (s *engineTail) Stage(b *feed.Batch) bool {
	s.seq = b.Seq
	return s.dec.Decode(b.Payload, &s.batch) == nil
}

// Commit implements feed.Sink.
func (s *engineTail) Commit(*feed.Faults) {
	events := make([]tailEvent, 0, len(s.batch.Events))
	for i := range s.batch.Events {
		events = append(events, s.event(&s.batch.Events[i]))
	}
	if len(events) == 0 {
		seq := s.seq
		events = append(events, tailEvent{Seq: &seq, Time: s.batch.Timestamp, Rank: s.rank, Event: "empty"})
	}
	s.tailer.batch(events)
}

// event is ev as it is written.
func (s *engineTail) event(ev *kv.Event) tailEvent {
	seq := s.seq
	e := tailEvent{
		Seq: &seq, Time: s.batch.Timestamp, Rank: s.rank, Event: ev.Kind.String(), Blocks: len(ev.Hashes),
		BlockSize: ev.BlockSize, Tokens: len(ev.Tokens), Medium: ev.Medium, Spec: ev.SpecName, LoRA: ev.LoRAName,
	}
	if ev.Kind == kv.KindCleared {
		return e
	}
	e.Tier = ev.Tier.String()
	for _, h := range ev.Hashes {
		e.Hashes = append(e.Hashes, uint64(h))
	}
	if ev.HasParent {
		parent := uint64(ev.Parent)
		e.Parent = &parent
	}
	if ev.HasGroup {
		group := ev.Group
		e.Group = &group
	}
	for _, keys := range ev.Extra {
		if len(keys) > 0 {
			e.Keyed++
		}
	}
	if s.showTokens {
		e.TokenIDs, e.Salt = slices.Clone(ev.Tokens), ev.Salt
	}
	return e
}

// Lost implements feed.Sink.
func (s *engineTail) Lost(from, to uint64, why string) {
	s.note("lost", "batches %d to %d: %s", from, to, why)
}

// Forget implements feed.Sink.
func (s *engineTail) Forget(why feed.Forget, _ *feed.Faults) {
	if why == feed.ForgetRestart {
		s.note("restarted", "the publisher begins another life")
		return
	}
	s.note("again", "the whole content follows once more")
}

// relayTail is a relay's handler that writes what comes.
type relayTail struct{ *tailer }

var _ client.Handler = relayTail{}

func (t *tailer) tailRelay() (end func(), err error) {
	cl, err := t.openRelay(0, func() client.Handler { return relayTail{t} })
	if err != nil {
		return nil, err
	}
	return cl.Close, nil
}

// Connected implements client.Handler.
func (r relayTail) Connected(client.Contract) { r.connection(true, "") }

// Disconnected implements client.Handler.
func (r relayTail) Disconnected(why string) { r.connection(false, why) }

// Reset implements client.Handler.
func (r relayTail) Reset(_ uint64, why string) { r.note("reset", "%s", why) }

// Begin implements client.Handler.
func (r relayTail) Begin(s *client.Snapshot) {
	r.note("snapshot", "%s as of batch %d", counted(s.Blocks, "copy"), s.Through)
}

// Chunk implements client.Handler: a snapshot's content, with --from-start.
func (r relayTail) Chunk(ops []client.Op) {
	if !r.fromStart {
		return
	}
	events := r.events(ops, nil, 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(events)
}

// End implements client.Handler.
func (r relayTail) End(s *client.Snapshot) { r.note("snapshot ends", "batch %d", s.Through) }

// Batch implements client.Handler.
func (r relayTail) Batch(b *client.Batch) {
	seq := b.Sequence
	events := r.events(b.Ops, &seq, b.Timestamp)
	if len(events) == 0 {
		events = append(events, tailEvent{Seq: &seq, Time: b.Timestamp, Rank: r.rank, Event: "empty"})
	}
	r.batch(events)
}

// Hole implements client.Handler.
func (r relayTail) Hole(h *client.Hole) {
	r.note("lost", "batches %d to %d: %s", h.From, h.To, h.Why)
}

// Standing implements client.Handler.
func (r relayTail) Standing(s client.Standing) {
	if !s.Exact {
		r.connection(true, s.Why)
	}
}

// events are ops as they are written.
func (r relayTail) events(ops []client.Op, seq *uint64, at float64) []tailEvent {
	kinds := map[normal.Kind]kv.Kind{normal.Store: kv.KindStored, normal.Remove: kv.KindRemoved, normal.Clear: kv.KindCleared}
	events := make([]tailEvent, 0, len(ops))
	for i := range ops {
		op := &ops[i]
		kind, ok := kinds[op.Kind]
		if !ok {
			continue
		}
		e := tailEvent{Seq: seq, Time: at, Rank: r.rank, Event: kind.String(), Blocks: len(op.Engines), LoRA: op.LoRA}
		for _, h := range op.Engines {
			e.Hashes = append(e.Hashes, uint64(h))
		}
		for _, h := range op.Contents {
			e.Contents = append(e.Contents, uint64(h))
		}
		if kind != kv.KindCleared {
			e.Tier = op.Tier.String()
		}
		if op.HasParent {
			parent := uint64(op.Parent)
			e.Parent = &parent
		}
		if op.Group != 0 {
			group := int(op.Group)
			e.Group = &group
		}
		if r.showTokens {
			e.Salt, e.TokenIDs = op.Salt, slices.Clone(op.Blocks.Tokens)
		}
		events = append(events, e)
	}
	return events
}
