// SPDX-License-Identifier: Apache-2.0

// Before: a recording. After: sockets.go, and whoever reads the report.

package mockworker

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"kindex/harness/record"
	"kindex/relay/wire"
)

// maxSilence is the longest pause that is played, at speed 1. A recorded engine
// may have been idle for minutes.
const maxSilence = 2 * time.Second

// gateWait is how long a request waits for its line before it is sent anyhow.
const gateWait = 2 * time.Second

// player plays one recording.
type player struct {
	cfg    Config
	f      *record.File
	out    *sockets
	report io.Writer       // nil: nobody listens
	gate   <-chan struct{} // nil: never wait

	life     int
	history  map[int][]kept // by rank: what a replay shows from before the recording
	restart  map[int]bool   // lines before which the recorded engine began a new life
	previous float64        // t of the line before
}

// kept is one batch in a replay buffer.
type kept struct {
	seq     uint64
	payload []byte
}

// newPlayer looks through the recording once.
func newPlayer(cfg Config, f *record.File, out *sockets, report io.Writer, gate <-chan struct{}) *player {
	p := &player{cfg: cfg, f: f, out: out, report: report, gate: gate, history: map[int][]kept{}, restart: map[int]bool{}}
	first, last := map[int]uint64{}, map[int]uint64{}
	for i := range f.Lines {
		l := &f.Lines[i]
		rank, seq, _, ok := message(l)
		if !ok {
			continue
		}
		if _, seen := first[rank]; !seen {
			first[rank] = seq
		} else if seq <= last[rank] {
			p.restart[l.N] = true
		}
		last[rank] = seq
	}
	for i := range f.Lines {
		r := f.Lines[i].Replay
		if r == nil {
			continue
		}
		rank, ok := record.ReplayRank(r.Src)
		if !ok || len(p.restart) > 0 {
			continue
		}
		for _, frames := range r.Messages {
			payload, seq, end, err := wire.ParseReplay(frames)
			old := p.history[rank]
			if err == nil && !end && seq < first[rank] && (len(old) == 0 || old[len(old)-1].seq < seq) {
				p.history[rank] = append(old, kept{seq, payload})
			}
		}
	}
	return p
}

// message returns the rank, number and payload of a line that is a message of
// an event socket.
func message(l *record.Line) (rank int, seq uint64, payload []byte, ok bool) {
	if l.Msg == nil {
		return 0, 0, nil, false
	}
	rank, ok = record.PubRank(l.Msg.Src)
	if !ok {
		return 0, 0, nil, false
	}
	_, payload, seq, err := wire.ParseMessage(l.Msg.Frames)
	return rank, seq, payload, err == nil
}

// play plays the recording until it ends, or, looping, until ctx does.
func (p *player) play(ctx context.Context) error {
	if err := p.tell(reportReady(p)); err != nil {
		return err
	}
	if p.gate != nil && p.wait(ctx, time.Hour, p.gate) != nil {
		return nil //nolint:nilerr // told to stop: a clean end
	}
	for {
		if err := p.once(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		if !p.cfg.Loop {
			if err := p.tell(map[string]any{"k": "end", "life": p.life}); err != nil {
				return err
			}
			// An engine outlives its last request: what it kept can be asked for.
			_ = p.wait(ctx, math.MaxInt64, nil)
			return nil
		}
	}
}

// once plays the recording through.
func (p *player) once(ctx context.Context) error {
	p.begin()
	if err := p.tell(map[string]any{"k": "life", "life": p.life}); err != nil {
		return err
	}
	for rank, old := range p.history {
		for _, b := range old {
			p.out.keep(rank, b.seq, restamped(b.payload, now()))
		}
	}
	p.previous = 0
	for i := range p.f.Lines {
		l := &p.f.Lines[i]
		if err := p.wait(ctx, p.pause(l.T), nil); err != nil {
			return nil //nolint:nilerr // told to stop: a clean end
		}
		if err := p.line(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// begin starts a new life of the publisher.
func (p *player) begin() {
	p.life++
	p.out.forget()
}

// pause returns how long to wait before a line recorded at t.
func (p *player) pause(t float64) time.Duration {
	if p.previous == 0 || t <= p.previous {
		p.previous = math.Max(t, p.previous)
		return 0
	}
	gap := time.Duration((t - p.previous) * float64(time.Second))
	p.previous = t
	return time.Duration(float64(min(gap, maxSilence)) / p.cfg.Speed)
}

// wait serves replays for d, or until a line comes through gate.
func (p *player) wait(ctx context.Context, d time.Duration, gate <-chan struct{}) error {
	return p.out.serve(ctx, d, gate)
}

// line plays one line.
func (p *player) line(ctx context.Context, l *record.Line) error {
	switch {
	case l.Msg != nil:
		rank, seq, payload, ok := message(l)
		if !ok {
			return nil
		}
		if p.restart[l.N] {
			p.begin()
			if err := p.tell(map[string]any{"k": "life", "life": p.life}); err != nil {
				return err
			}
		}
		return p.out.publish(rank, string(l.Msg.Frames[0]), seq, restamped(payload, now()))
	case l.Req != nil:
		select {
		case <-p.gate: // came too late for the request before
		default:
		}
		if err := p.tell(p.request(l.Req)); err != nil {
			return err
		}
		if p.gate != nil && p.report != nil {
			if err := p.wait(ctx, gateWait, p.gate); err != nil {
				return nil //nolint:nilerr // told to stop: a clean end
			}
		}
	case l.Resp != nil && l.Resp.Cached != nil:
		return p.tell(map[string]any{
			"k": "resp", "id": l.Resp.ID, "life": p.life,
			"prompt_tokens": l.Resp.PromptTokens, "cached_tokens": *l.Resp.Cached,
		})
	}
	return nil
}

// Ready is the first line of a report.
type Ready struct {
	K         string   `json:"k"` // ready
	Engine    string   `json:"engine"`
	Version   string   `json:"version"`
	BlockSize int      `json:"block_size"` // tokens
	Ranks     []int    `json:"ranks"`
	Pub       []string `json:"pub"`    // endpoint by rank
	Replay    []string `json:"replay"` // the same; empty: none
}

func reportReady(p *player) Ready {
	return Ready{"ready", p.f.Header.Engine, p.f.Header.Version, p.f.Header.MainBlockSize(), p.out.ranks, p.out.pubs, p.out.replays}
}

// Request is one request of a report, as an index is asked for it.
type Request struct {
	K         string            `json:"k"` // req
	ID        string            `json:"id"`
	Life      int               `json:"life"`
	Rank      *int              `json:"rank"` // asked for; null: the engine chose
	Tokens    []uint32          `json:"token_ids"`
	Salt      string            `json:"cache_salt,omitempty"`
	LoRA      string            `json:"lora_name,omitempty"`
	ExtraKeys [][]any           `json:"extra_keys,omitempty"`
	Published map[string]uint64 `json:"published"` // last number by rank, before this request
}

// Response is the engine's answer of a report.
type Response struct {
	K      string `json:"k"` // resp
	ID     string `json:"id"`
	Life   int    `json:"life"`
	Prompt int    `json:"prompt_tokens"`
	Cached int    `json:"cached_tokens"`
}

func (p *player) request(q *record.Req) Request {
	r := Request{
		K: "req", ID: q.ID, Life: p.life, Rank: q.Rank, Tokens: q.Prompt, Salt: q.Salt,
		ExtraKeys: extraKeys(q, p.f.Header.MainBlockSize()), Published: p.out.published(),
	}
	if q.LoRA != nil {
		r.LoRA = q.LoRA.Name
	}
	return r
}

// extraKeys returns a request's extra keys per block in the events' own shape,
// nil when no block has any.
func extraKeys(q *record.Req, size int) [][]any {
	if len(q.MM) == 0 || size <= 0 {
		return nil
	}
	out := make([][]any, len(q.Prompt)/size)
	for i := range out {
		for _, m := range q.MM {
			if m.Offset < (i+1)*size && m.Offset+m.Length > i*size {
				out[i] = append(out[i], []any{m.ID, m.Offset - i*size})
			}
		}
	}
	return out
}

// tell writes one line of the report.
func (p *player) tell(v any) error {
	if p.report == nil {
		return nil
	}
	b, err := json.Marshal(v)
	if err == nil {
		_, err = p.report.Write(append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func now() float64 { return float64(time.Now().UnixNano()) / 1e9 }

// restamped returns payload with the batch's timestamp, the first element of its
// array, set to t. A payload that does not begin so is returned as it is.
func restamped(payload []byte, t float64) []byte {
	const float64Tag = 0xcb
	if len(payload) < 10 || payload[0]&0xf0 != 0x90 || payload[1] != float64Tag {
		return payload
	}
	out := append([]byte(nil), payload...)
	binary.BigEndian.PutUint64(out[2:], math.Float64bits(t))
	return out
}
