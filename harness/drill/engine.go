// SPDX-License-Identifier: Apache-2.0

// Before: faults.go. After: a mock engine's process, which can be killed and frozen.

package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"kindex/harness/mockworker/engine"
	"kindex/harness/proc"
	"kindex/harness/publish"
	"kindex/internal/kv"
)

// The shape of the live engine and of its load: chosen so that blocks are evicted all
// the time.
const (
	engineName     = "w0" // within its process
	engineBlocks   = 1_024
	engineClients  = 8
	enginePrefixes = 60
	engineWarm     = 1500 * time.Millisecond
	frozenFor      = 8 * time.Second
	killedFor      = 5 * time.Second
	silentFor      = 3 * time.Second // a new process, before it is asked for anything
)

var engineDrills = []Drill{
	{
		"engine-killed",
		"a live engine is killed with -9 under load and started again 5 s later with nothing cached: the stream's state tells of it within 1 s at the sockets and behind a relay; while the new process has published nothing, no stream is active with what the old one held; exact within 3 s of its first requests' end",
		engineKilled,
	},
	{
		"engine-frozen",
		"a live engine is stopped for 8 s (SIGSTOP) under load and goes on: lookups are answered within 1 s meanwhile; exact within 500 ms of the end of the requests that it had, without gap or restart",
		engineFrozen,
	},
}

// liveEngine is a mock engine as a process of its own, and its load.
//
// Concurrency: any goroutine.
type liveEngine struct {
	e           *Env
	host        string // of its sockets and of OpenAI's API
	pub, replay int    // ports
	admin       string
	api         string // OpenAI's
	blocks      int    // of its cache
	pass        string // time of one
	http        http.Client

	mu       sync.Mutex
	proc     *proc.Process
	life     int
	stopLoad context.CancelFunc // nil: there is none
	load     sync.WaitGroup
}

// startEngine starts an engine that has cached something and is silent now.
func (e *Env) startEngine(ctx context.Context) (*liveEngine, error) {
	l, err := e.startEngineAt(ctx, "127.0.0.1", engineBlocks, "2ms")
	if err != nil {
		return nil, err
	}
	return l, l.serveFor(ctx, engineWarm)
}

// startEngineAt starts one that listens at a host of this machine, and has cached nothing.
func (e *Env) startEngineAt(ctx context.Context, host string, blocks int, pass string) (*liveEngine, error) {
	first, err := publish.FreePorts(4)
	if err != nil {
		return nil, err
	}
	l := &liveEngine{
		e: e, host: host, pub: first, replay: first + 1, admin: "127.0.0.1:" + strconv.Itoa(first+2), api: net.JoinHostPort(host, strconv.Itoa(first+3)),
		blocks: blocks, pass: pass, http: http.Client{Timeout: time.Minute}, life: -1,
	}
	if err := l.start(ctx); err != nil {
		return nil, err
	}
	e.later(func() error { l.SetRate(0); l.http.CloseIdleConnections(); return nil })
	return l, nil
}

// start starts the process, with an empty cache, where it always is.
func (l *liveEngine) start(ctx context.Context) error {
	p, err := l.e.start("mockworker", "--engine", engine.VLLM,
		"--pub", l.Pub(), "--replay", l.Replay(), "--admin", l.admin, "--http", l.api, "--model", modelName,
		"--blocks", strconv.Itoa(l.blocks), "--pass", l.pass)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.proc = p
	l.life++
	l.mu.Unlock()
	err = proc.Until(ctx, startTime, func() bool {
		return p.Ended() != nil || l.ask(ctx, http.MethodGet, l.admin+"/admin/health", nil, nil) == nil
	})
	if ended := p.Ended(); ended != nil {
		return ended
	}
	if err != nil {
		return fmt.Errorf("the engine does not answer: %w", err)
	}
	return nil
}

// serveFor has the engine serve for so long, and returns when it is silent.
func (l *liveEngine) serveFor(ctx context.Context, d time.Duration) error {
	l.SetRate(1)
	defer l.SetRate(0)
	return pause(ctx, d)
}

// Pub implements source.
func (l *liveEngine) Pub() string { return "tcp://" + net.JoinHostPort(l.host, strconv.Itoa(l.pub)) }

// Replay implements source.
func (l *liveEngine) Replay() string {
	return "tcp://" + net.JoinHostPort(l.host, strconv.Itoa(l.replay))
}

// Ranks implements source.
func (l *liveEngine) Ranks() int { return 1 }

// Block implements source.
func (l *liveEngine) Block() int { return 16 }

// Life implements truth: the number of the process.
func (l *liveEngine) Life() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.life
}

// SetRate begins the load, or ends it (0) and waits for its requests' end.
func (l *liveEngine) SetRate(rate int) {
	l.mu.Lock()
	running := l.stopLoad
	switch {
	case rate == 0 && running != nil:
		l.stopLoad = nil
		running()
		l.mu.Unlock()
		l.load.Wait()
		return
	case rate > 0 && running == nil:
		ctx, cancel := context.WithCancel(context.Background())
		l.stopLoad = cancel
		for i := range engineClients {
			rng := rand.New(rand.NewPCG(l.e.o.Seed, uint64(i))) //nolint:gosec // seeded on purpose
			l.load.Go(func() {
				for ctx.Err() == nil {
					q := map[string]any{"model": modelName, "prompt": l.prompt(rng), "max_tokens": 4}
					// Not ended with the load: a request that began is served.
					if l.ask(context.WithoutCancel(ctx), http.MethodPost, l.api+"/v1/completions", q, nil) != nil {
						_ = pause(ctx, watchEvery) // the process is gone
					}
				}
			})
		}
	}
	l.mu.Unlock()
}

// prompt draws a prompt: one of a few beginnings, and an end of its own at times.
func (l *liveEngine) prompt(rng *rand.Rand) []uint32 {
	which := uint64(rng.IntN(enginePrefixes))
	begin := rand.New(rand.NewPCG(l.e.o.Seed, 1000+which)) //nolint:gosec // seeded on purpose
	tokens := make([]uint32, 64+begin.IntN(900))
	for i := range tokens {
		tokens[i] = uint32(3 + begin.IntN(2_000))
	}
	for range rng.IntN(64) {
		tokens = append(tokens, uint32(3+rng.IntN(2_000)))
	}
	return tokens
}

// sample draws a prompt to look up, with the engine's own answer where that is quiet.
func (l *liveEngine) sample(rng *rand.Rand) (publish.Prompt, bool) {
	return publish.Prompt{Tokens: l.prompt(rng), Depth: []int{0}}, true
}

// ask makes one request at host:port/path.
func (l *liveEngine) ask(ctx context.Context, method, at string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+at, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := l.http.Do(req)
	if err != nil {
		return err
	}
	defer func() {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, at, resp.Status)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// truth asks for what the cache holds; nil where the process does not answer.
func (l *liveEngine) truth() *engine.Truth {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var all engine.CacheContent
	if l.ask(ctx, http.MethodGet, l.admin+"/admin/cache/"+engineName, nil, &all) != nil || len(all.Ranks) != 1 {
		return nil
	}
	return &all.Ranks[0]
}

// Newest implements source.
func (l *liveEngine) Newest(int) uint64 {
	if t := l.truth(); t != nil && t.Sequence != nil {
		return *t.Sequence + 1
	}
	return 0
}

// Record implements truth: only of the last batch, and only where nothing waits to be
// published, which is when the engine is silent.
func (l *liveEngine) Record(_, life int, seq uint64) (publish.Record, bool) {
	t := l.truth()
	if t == nil || t.Sequence == nil || *t.Sequence != seq || t.Pending > 0 || life != l.Life() {
		return publish.Record{}, false
	}
	return publish.Record{Truth: sumOf(t.Blocks)}, true
}

// sumOf returns the content's sum of an engine's blocks.
func sumOf(blocks []engine.Block) uint64 {
	below := map[kv.EngineHash][]engine.Block{}
	var c publish.Content
	var ready []engine.Block
	for _, b := range blocks {
		if b.Parent == nil {
			ready = append(ready, b)
		} else {
			below[*b.Parent] = append(below[*b.Parent], b)
		}
	}
	for len(ready) > 0 {
		b := ready[0]
		ready = append(ready[1:], below[b.Engine]...)
		ev := publish.Event{Kind: kv.KindStored, Seed: kv.ContentSeed("", ""), Engines: []kv.EngineHash{b.Engine}, Contents: []kv.ContentHash{b.Content}}
		if b.Parent != nil {
			ev.Parent, ev.HasParent = *b.Parent, true
		}
		for range b.Copies {
			c.Apply(&ev)
		}
	}
	return c.Sum()
}

// answers holds lookups against what the silent engine says that it would reuse.
func (l *liveEngine) answers(ctx context.Context, f *face, rng *rand.Rand) error {
	for range finalLookups {
		p := publish.Prompt{Tokens: l.prompt(rng), Depth: []int{0}}
		var found engine.TruthReuse
		if err := l.ask(ctx, http.MethodPost, l.admin+"/admin/truth/"+engineName, map[string]any{"prompt": p.Tokens}, &found); err != nil {
			return err
		}
		held := found.Workers[engineName].Held
		if len(held) != 1 {
			return fmt.Errorf("the engine's truth is of %d ranks", len(held))
		}
		depth, degraded, err := f.host().lookup(ctx, &p)
		if err != nil {
			return err
		}
		if want := held[0]; degraded || depth[0] != want {
			return fmt.Errorf("at the end: the engine has %d of a prompt's %d tokens, the index says %d (degraded: %v)", want, len(p.Tokens), depth[0], degraded)
		}
	}
	return nil
}

func engineKilled(ctx context.Context, e *Env) (string, error) {
	l, err := e.startEngine(ctx)
	if err != nil {
		return "", err
	}
	r, err := e.rigOf(ctx, l, nil)
	if err != nil {
		return "", err
	}
	l.SetRate(1)
	if err := pause(ctx, engineWarm); err != nil {
		return "", err
	}
	for _, f := range r.faces {
		f.watch.arm()
	}
	l.proc.Kill()
	told, terr := r.shown(ctx, map[string]time.Duration{"direct": tellTime, "relayed": tellTime})
	if err := pause(ctx, killedFor); err != nil {
		return "", err
	}
	l.SetRate(0)
	if err := l.start(ctx); err != nil {
		return "", err
	}
	claimed := r.each(func(f *face) error { return claimsNothing(ctx, f.host(), silentFor) })
	terr = errors.Join(terr, claimed)
	if err := l.serveFor(ctx, engineWarm/3); err != nil {
		return "", err
	}
	took, err := r.exact(ctx, time.Now(), e.within(redialTime))
	measured := fmt.Sprintf("told by the state after: %s; exact after the new process's first requests: %s", told, took)
	if err != nil {
		return measured, errors.Join(terr, err)
	}
	return r.finish(ctx, measured, terr)
}

// claimsNothing looks for a while at an index of an engine that has published nothing
// in its present life: what it holds, if anything, must not be called exact.
func claimsNothing(ctx context.Context, ob observer, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		seen, err := ob.observe(ctx)
		if err != nil {
			return err
		}
		for rank, o := range seen {
			if o.status == "active" && o.sum != 0 {
				return fmt.Errorf("rank %d is active and holds what an engine held that is gone", rank)
			}
		}
		if err := pause(ctx, watchEvery); err != nil {
			return err
		}
	}
	return nil
}

func engineFrozen(ctx context.Context, e *Env) (string, error) {
	l, err := e.startEngine(ctx)
	if err != nil {
		return "", err
	}
	r, err := e.rigOf(ctx, l, nil)
	if err != nil {
		return "", err
	}
	before, err := r.counts(ctx)
	if err != nil {
		return "", err
	}
	l.SetRate(1)
	if err := pause(ctx, engineWarm); err != nil {
		return "", err
	}
	if err := l.proc.Freeze(); err != nil {
		return "", err
	}
	// One that ends while it is stopped goes on to be ended.
	defer func() { _ = l.proc.Thaw() }()
	for end := time.Now().Add(frozenFor); time.Now().Before(end); {
		e.sayf("frozen, %d s to go", int(time.Until(end).Seconds()))
		if err := pause(ctx, min(time.Second, time.Until(end))); err != nil {
			return "", err
		}
	}
	if err := l.proc.Thaw(); err != nil {
		return "", err
	}
	l.SetRate(0)
	from := time.Now()
	took, err := r.exact(ctx, from, e.within(healTime))
	if err != nil {
		return "", err
	}
	after, err := r.counts(ctx)
	return r.finish(ctx, "exact after the end of its requests: "+took, errors.Join(err, r.untouched(before, after)))
}
