// SPDX-License-Identifier: Apache-2.0

// Before: a mock worker's report. After: table.go.

package live

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"kindex/harness/mockworker"
	"kindex/harness/proc"
	"kindex/harness/record"
	"kindex/harness/verify"
)

// maxReportLine bounds one line of a mock worker's report.
const maxReportLine = 16 << 20

// engine is one mock worker and what was asked about it.
type engine struct {
	id, model string
	recording string
	block     int
	device    bool // the engine counts what lies on the device only
	rules     map[string]verify.Judged
	proc      *proc.Process
	client    *client

	open  map[string]asked // requests not answered yet; by the reading goroutine alone
	ready chan mockworker.Ready

	mu     sync.Mutex
	counts counts
	sample *query // the last request that hit something, to try
	last   string // the last answer, in words
}

// asked is a request whose answer is waited for.
type asked struct {
	life, predicted int
	fresh           bool // nothing of this life was published yet
	late            bool // the host had not applied all that was published
	err             error
}

// counts are what came of an engine's requests.
type counts struct {
	asked, exact, explained, wrong int
	predicted, cached              int // tokens
	rules                          map[string]int
}

// startEngine starts a mock worker that plays path.
func startEngine(c *Config, id, model, path string, cl *client) (*engine, error) {
	f, err := record.Read(path)
	if err != nil {
		return nil, err
	}
	r, err := verify.File(f, verify.Options{})
	if err != nil {
		return nil, err
	}
	e := &engine{
		id: id, model: model, recording: path, block: f.Header.MainBlockSize(), device: f.Header.Engine != "sglang",
		rules: map[string]verify.Judged{}, client: cl, open: map[string]asked{}, ready: make(chan mockworker.Ready, 1),
	}
	e.counts.rules = map[string]int{}
	for _, j := range r.Judged {
		e.rules[j.ID] = j
	}
	if len(f.Ranks()) != 1 {
		return nil, fmt.Errorf("%s: %d ranks: a run plays recordings of one", path, len(f.Ranks()))
	}
	e.proc, err = proc.Talk(filepath.Join(c.Bin, "mockworker"), "--recording", path, "--loop", "--report", "--gate",
		"--speed", fmt.Sprint(c.Speed), "--pub", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0")
	return e, err
}

// follow reads the report until it ends.
func (e *engine) follow(ctx context.Context) {
	defer e.proc.Wait()
	in := bufio.NewScanner(e.proc.Out)
	in.Buffer(nil, maxReportLine)
	for in.Scan() {
		if err := e.told(ctx, in.Bytes()); err != nil {
			e.mu.Lock()
			e.last = err.Error()
			e.mu.Unlock()
		}
	}
	_, _ = io.Copy(io.Discard, e.proc.Out) // a line too long: the program must still be able to end
}

// told takes one line of the report.
func (e *engine) told(ctx context.Context, line []byte) error {
	var head struct{ K string }
	if err := json.Unmarshal(line, &head); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	switch head.K {
	case "ready":
		var r mockworker.Ready
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("report: %w", err)
		}
		e.ready <- r
	case "req":
		var q mockworker.Request
		if err := json.Unmarshal(line, &q); err != nil {
			return fmt.Errorf("report: %w", err)
		}
		if a := e.ask(ctx, &q); ctx.Err() == nil { // else it was cut off, which says nothing
			e.open[q.ID] = a
		}
		return e.next()
	case "resp":
		var r mockworker.Response
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("report: %w", err)
		}
		if a, ok := e.open[r.ID]; ok {
			delete(e.open, r.ID)
			e.judge(&r, a)
		}
	}
	return nil
}

// next lets the engine go on.
func (e *engine) next() error {
	if _, err := io.WriteString(e.proc.Stdin, "\n"); err != nil {
		return fmt.Errorf("mock worker: %w", err)
	}
	return nil
}

// register makes the engine known to the host and waits until its streams are exact.
func (e *engine) register(ctx context.Context, r mockworker.Ready) error {
	err := e.client.call(ctx, "POST", "/register", registration{
		ID: e.id, Endpoint: r.Pub[0], Replay: r.Replay[0], Model: e.model,
		BlockSize: e.block, Ranks: 1, Engine: r.Engine,
	}, nil)
	if err != nil {
		return err
	}
	return proc.Until(ctx, 10*time.Second, func() bool {
		l, ok := e.listener(ctx)
		return ok && l.Status == "active"
	})
}

func (e *engine) listener(ctx context.Context) (listener, bool) {
	all, err := e.client.workers(ctx)
	if err != nil {
		return listener{}, false
	}
	for i := range all {
		if all[i].name() == e.id && all[i].Model == e.model {
			l, ok := all[i].Listeners["0"]
			return l, ok
		}
	}
	return listener{}, false
}

// ask asks the index what it knows of a request's prompt, once all is applied
// that the engine published before.
func (e *engine) ask(ctx context.Context, q *mockworker.Request) asked {
	a := asked{life: q.Life}
	want, published := q.Published["0"]
	a.fresh = !published
	if published {
		a.late = nil != proc.Until(ctx, time.Second, func() bool {
			l, ok := e.listener(ctx)
			return ok && l.LastSeq != nil && *l.LastSeq >= want && l.Epoch >= uint64(q.Life)
		})
	}
	body := query{Tokens: q.Tokens, Model: e.model, Salt: q.Salt, LoRA: q.LoRA, ExtraKeys: q.ExtraKeys, Instances: []string{e.id}}
	got, err := e.client.ask(ctx, body)
	if err != nil {
		a.err = err
		return a
	}
	tokens := got.Instances[e.id].Longest
	if e.device {
		tokens = got.Scores[e.id]["0"]
	}
	a.predicted = min(tokens, (len(q.Tokens)-1)/e.block*e.block)
	if a.predicted > 0 && q.ExtraKeys == nil {
		// The beginning of a prefix outlives its end.
		body.Tokens = q.Tokens[:min(a.predicted, 2*e.block)]
		e.mu.Lock()
		e.sample = &body
		e.mu.Unlock()
	}
	return a
}

// judge compares the engine's number with the prediction.
func (e *engine) judge(r *mockworker.Response, a asked) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := &e.counts
	c.asked++
	c.predicted += a.predicted
	c.cached += r.Cached
	known := e.rules[r.ID]
	var how string
	switch {
	case a.err != nil:
		c.wrong++
		how = a.err.Error()
	case a.predicted == r.Cached:
		c.exact++
		how = "exact"
	case a.fresh && a.life > 1 && r.Cached == 0:
		// The engine was restarted and has said nothing yet that would show it.
		c.explained++
		c.rules["restart"]++
		how = "explained: restart"
	case a.late && known.OK:
		// Asked on time, it would have been what the replay predicts and explains.
		c.explained++
		c.rules["message_race"]++
		how = "explained: message_race"
	case known.OK && known.Rule != "" && known.Predicted == a.predicted:
		c.explained++
		c.rules[known.Rule]++
		how = "explained: " + known.Rule
	default:
		c.wrong++
		how = "WRONG"
	}
	e.last = fmt.Sprintf("%s: predicted %d, cached %d (%s)", r.ID, a.predicted, r.Cached, how)
}
