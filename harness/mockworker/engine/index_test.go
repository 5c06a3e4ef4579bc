// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kindex/indexsrv"
	"kindex/internal/kv"
	"kindex/relay/wire"
	"kindex/shard"
)

// follower is our index, fed with what a publisher's socket has sent.
type follower struct {
	model  kv.ModelKey
	writer *indexsrv.Writer
	holder shard.Holder
	feed   *indexsrv.Feed
}

func follow(t *testing.T, p *Publisher, block int) *follower {
	t.Helper()
	idx, err := shard.New("reference", shard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{model: kv.MakeModelKey("", "mock", ""), writer: indexsrv.NewWriter(idx)}
	if f.holder, err = f.writer.AddHolder(f.model); err != nil {
		t.Fatal(err)
	}
	f.feed = indexsrv.NewFeed(indexsrv.StreamConfig{Endpoint: p.Live, ReplayEndpoint: p.Replay, Model: f.model, BlockSize: block}, f.writer, f.holder)
	f.feed.Connected(time.Now())
	for {
		req, ask, _ := f.feed.Next(time.Now())
		if !ask {
			return f
		}
		for i, payload := range payloads(t, p.Replay, req.Start) {
			f.feed.ReplayBatch(req.ID, req.Start+uint64(i), payload, time.Now())
		}
		f.feed.ReplayEnd(req.ID, time.Now())
	}
}

// indexed is one block of an index, or of the truth in an index's terms.
type indexed struct {
	Engine   kv.EngineHash
	Position Position
	Tier     string
}

// content returns what the index holds.
func (f *follower) content(t *testing.T) map[indexed]int {
	t.Helper()
	c, err := f.writer.Content(f.holder)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Orphans) > 0 {
		t.Fatalf("%d blocks wait for the ones before", len(c.Orphans))
	}
	out := map[indexed]int{}
	places := make([]Position, len(c.Hashes))
	for i, s := range c.Stretches {
		above := Root(f.model.Seed(s.Namespace))
		if s.Parent >= 0 {
			above = places[s.Parent]
		}
		for k := s.First; k < c.End(i); k++ {
			above = above.Below(c.Hashes[k])
			places[k] = above
			for _, copied := range c.CopiesOf(k) {
				out[indexed{copied.Engine, above, copied.Tier.String()}] += int(copied.Count)
			}
		}
	}
	return out
}

// known returns what of a truth an index can know: the main group, on tiers that are
// this machine's.
func known(truth *Truth, c *Config) map[indexed]int {
	out := map[indexed]int{}
	for _, b := range truth.Blocks {
		if b.Group == len(c.Windows) && b.Tier != TierRemote {
			out[indexed{b.Engine, b.Position, b.Tier}] = b.Copies
		}
	}
	return out
}

// TestIndexIsTruth has engines of every layout, and with all that a cache can have,
// answer random requests side by side: with salts, adapters, images, embeddings,
// sessions, as far as the release tells of them. Our index, fed from the socket, must
// hold exactly what the engine does, every copy in its place.
func TestIndexIsTruth(t *testing.T) {
	cases := map[string]Config{
		"windows":     {Engine: VLLM, Windows: []int{20, 20}},
		"dense":       {Engine: VLLM, Windows: []int{30}, Retention: -1},
		"window only": {Engine: VLLM, Windows: []int{20}, WindowOnly: true},
		"placeholder": {Engine: VLLM, HostBlocks: 100},
		"described":   {Engine: VLLM, HostBlocks: 100, Offload: OffloadDescribed},
		"simple":      {Engine: VLLM, HostBlocks: 60, Offload: OffloadSimple},
		"chunks":      {Engine: VLLM, HostBlocks: 60, Offload: OffloadDescribed, Chunk: 3},
		"disk":        {Engine: VLLM, HostBlocks: 30, DiskBlocks: 100, DiskOwner: "shelf", Offload: OffloadDescribed},
		"remote":      {Engine: VLLM, DiskBlocks: 100, DiskRemote: true, Offload: OffloadSimple},
		"both":        {Engine: VLLM, Windows: []int{20, 9}, HostBlocks: 90, Offload: OffloadDescribed},
		"lookahead":   {Engine: VLLM, Lookahead: 3, HostBlocks: 40, Offload: OffloadDescribed},
		"digests":     {Engine: VLLM, Digests: true, Lookahead: 1},
		"pickled":     {Engine: VLLM, Hash: "sha256"},
		"pairs":       {Engine: SGLang, Bigram: true},
		"through":     {Engine: SGLang, HostBlocks: 100},
		"selective":   {Engine: SGLang, HostBlocks: 100, HostPolicy: WriteSelected},
		"back":        {Engine: SGLang, HostBlocks: 100, HostPolicy: WriteBack, Bigram: true},
		"small back":  {Engine: SGLang, HostBlocks: 20, HostPolicy: WriteBack},
	}
	for _, l := range wire.Layouts() {
		cases[l.Engine+" "+l.Since] = Config{Engine: l.Engine, Version: l.Since}
	}
	for i, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) { indexIsTruth(t, cases[name], uint64(i)) })
	}
}

func indexIsTruth(t *testing.T, c Config, seed uint64) {
	t.Helper()
	c.Pub, c.Replay, c.BlockSize, c.Budget, c.Blocks, c.MaxRunning = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", 4, 64, 120, 8
	c.setDefaults()
	rng := rand.New(rand.NewPCG(seed, 5))
	if c.tells(wire.FieldLoRAName) && (c.Engine == SGLang || c.tells(wire.FieldExtraKeys)) {
		c.LoRA = []string{"one", "two"}
	}
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	salted := c.tells(wire.FieldExtraKeys) || c.tells(wire.FieldSalt)
	var last int
	for round := range 25 {
		var open []<-chan Output
		for range 1 + rng.IntN(6) {
			q := Request{ID: fmt.Sprint(len(open), "/", round), Tokens: tokensOf(rng, 1+rng.IntN(60)), MaxTokens: 1 + rng.IntN(20), Rank: -1}
			if len(c.LoRA) > 0 && rng.IntN(4) == 0 {
				q.LoRA = c.LoRA[rng.IntN(2)]
			}
			if salted && rng.IntN(4) == 0 {
				q.Salt = []string{"salt", "pepper"}[rng.IntN(2)]
			}
			if c.tells(wire.FieldSession) && rng.IntN(2) == 0 {
				q.Session = "session"
			}
			if c.Engine == VLLM && c.tells(wire.FieldExtraKeys) {
				decorate(&q, rng)
			}
			out, err := e.Submit(q)
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, out)
		}
		for _, out := range open {
			for range out { // to its end
			}
		}
		if round%9 == 8 {
			e.Reset()
		}
		truth := e.Truth()[0]
		if truth.Pending > 0 || round%4 != 0 {
			continue
		}
		want := known(&truth, &c)
		if diff := cmp.Diff(want, follow(t, e.Publishers()[0], c.BlockSize).content(t)); diff != "" {
			t.Fatalf("round %d (-truth +index):\n%.1500s", round, diff)
		}
		last = len(want)
	}
	if (last == 0) != c.WindowOnly {
		t.Errorf("%d blocks were compared last: it shows little", last)
	}
}

// TestIndexIsTruthAfterRestart begins new lives with empty caches while requests come:
// what a life holds, all of it, is told in that life.
func TestIndexIsTruthAfterRestart(t *testing.T) {
	for _, c := range []Config{{Engine: VLLM, Ranks: 2, HostBlocks: 20}, {Engine: SGLang, Ranks: 2}} {
		t.Run(c.Engine, func(t *testing.T) {
			c.Pub, c.Replay, c.BlockSize = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", 4
			c.setDefaults()
			fleet, err := OpenFleet(c, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer fleet.Close()
			w := fleet.Workers()[0]
			for round := range uint64(5) {
				done := make(chan struct{})
				stop := make(chan struct{})
				go func() {
					defer close(done)
					rng := rand.New(rand.NewPCG(round, 3))
					for last := false; !last; { // the last one tells what none told yet
						select {
						case <-stop:
							last = true
						default:
						}
						for r := range c.Ranks {
							out, err := w.Engine.Submit(Request{ID: "one", Tokens: tokensOf(rng, 9+rng.IntN(30)), MaxTokens: 2, Rank: r})
							if err != nil {
								t.Error(err)
								return
							}
							for range out { // to its end
							}
						}
					}
				}()
				if err := w.faults.restart(false); err != nil {
					t.Error(err)
				}
				close(stop)
				<-done
				for r, truth := range w.Engine.Truth() {
					if truth.Pending > 0 || len(truth.Blocks) == 0 {
						t.Fatalf("round %d: %d events wait, %d blocks", round, truth.Pending, len(truth.Blocks))
					}
					if diff := cmp.Diff(known(&truth, &c), follow(t, w.Engine.Publishers()[r], c.BlockSize).content(t)); diff != "" {
						t.Fatalf("round %d, rank %d (-truth +index):\n%.800s", round, r, diff)
					}
				}
			}
		})
	}
}

// decorate gives some prompts images or embeddings. None lies in a prompt's first
// block alone: in releases that tell an image by its name only it would look like a
// salt.
func decorate(q *Request, rng *rand.Rand) {
	switch n := len(q.Tokens); {
	case rng.IntN(6) == 0 && n > 8:
		for at := 4 + rng.IntN(4); at < n; {
			it := Item{[]string{"image", "sound"}[rng.IntN(2)], at, min(1+rng.IntN(9), n-at)}
			q.Items = append(q.Items, it)
			at += it.Length + rng.IntN(20)
		}
	case rng.IntN(12) == 0:
		q.Embeds = make([][]byte, n)
		for i := range q.Embeds {
			q.Embeds[i] = []byte{byte(q.Tokens[i]), 7}
		}
		clear(q.Tokens)
	}
}
