// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kindex/harness/mockworker/engine"
	"kindex/internal/kv"
)

const (
	fleetBlock   = 16 // tokens
	fleetPubs    = 27100
	fleetRelays  = 28100
	fleetHistory = 10 // batches of a relay: whoever comes later needs a snapshot
)

// fleetEngines are the kinds of the engines, their ranks and the blocks of each. The
// prompts need more than the small ones have, so that they evict; what the large one
// holds makes several chunks of a snapshot.
var fleetEngines = []struct {
	kind   string
	ranks  int
	blocks int
}{{engine.VLLM, 2, 500}, {engine.SGLang, 1, 700}, {engine.VLLM, 1, 6_000}}

// fleet is mock engines, each with our relay beside it, behind the peer's
// gateways.
type fleet struct {
	engines  []*mockEngine
	relays   []*relayProcess
	urls     []string // of the relays, as the gateway writes them
	rng      *rand.Rand
	heads    [][]uint32 // shared beginnings of prompts
	requests int
	hits     int // of those put one by one, for which some engine held blocks
}

// TestPeerGateway has the peer's released gateway route by events through our
// relays, each of which is a whole worker to it: every request that some engine
// holds blocks for goes to one that holds most, none fails, its index is each
// engine's truth, block for block, after whole histories, after snapshots that
// rolled histories force, and after a relay was killed; and it counts no gap.
func TestPeerGateway(t *testing.T) {
	if !inNamespace(t, 10*time.Minute, func() {
		smgEnv.install(t)
		build(t, "mockworker", "relay")
	}) {
		return
	}
	tokenizer := writeTokenizer(t)
	f := startFleet(t, tokenizer)
	first := startSMG(t, "gateway", 28300, tokenizer, f.urls)

	f.oneByOne(t, first, 100)
	f.sideBySide(t, first, 120)
	f.oneByOne(t, first, 40)
	f.holdIndex(t, first)
	for range 150 {
		f.engines[2].generate(t, f.tokens(500), 1, 0)
	}
	f.holdIndex(t, first)

	// One that comes late finds the histories rolled.
	late := startSMG(t, "late gateway", 28310, tokenizer, f.urls)
	f.holdIndex(t, late)
	for i, url := range f.urls {
		chunks := total(late.counters(t), "smg_kv_event_batches_total", `disposition="snapshot"`, fmt.Sprintf("worker=%q", url))
		want := 0
		for _, rank := range f.engines[i].truth(t) {
			want += (len(rank.Blocks) + 2_047) / 2_048
		}
		if int(chunks) < want {
			t.Errorf("the late gateway applied %v chunks of engine %d's snapshots, want %d or more", chunks, i, want)
		}
	}
	f.oneByOne(t, late, 60)
	f.holdIndex(t, late)
	f.holdIndex(t, first)

	// A relay dies, its engine goes on, and the relay comes back: it has read the
	// engine's whole history and keeps the end of it only.
	f.relays[0].kill()
	for i := range 6 * fleetHistory {
		f.engines[0].generate(t, f.prompt(), 4, i%2)
	}
	f.relays[0].again(t)
	for _, g := range []*smgGateway{first, late} {
		g.awaitWorkers(t, len(fleetEngines))
		f.holdIndex(t, g)
		f.oneByOne(t, g, 40)
		f.holdIndex(t, g)
	}

	for _, g := range []*smgGateway{first, late} {
		f.report(t, g)
	}
	t.Logf("%d requests, for %d of which some engine held blocks", f.requests, f.hits)
	if f.hits < f.requests/2 || f.hits == f.requests {
		t.Errorf("%d of %d requests had a holder: the workload shows little", f.hits, f.requests)
	}
}

func startFleet(t *testing.T, tokenizer string) *fleet {
	t.Helper()
	f := &fleet{rng: rand.New(rand.NewPCG(1, 3))}
	for i, e := range fleetEngines {
		m := startMock(t, fmt.Sprintf("engine%d", i), e.kind, "--block", fmt.Sprint(fleetBlock), "--blocks", fmt.Sprint(e.blocks),
			"--pub", fmt.Sprintf("tcp://127.0.0.1:%d", fleetPubs+10*i), "--replay", fmt.Sprintf("tcp://127.0.0.1:%d", fleetPubs+100+10*i),
			"--ranks", fmt.Sprint(e.ranks), "--vocabulary", fmt.Sprint(mockVocab), "--model-path", tokenizer, "--seed", fmt.Sprint(i))
		f.engines = append(f.engines, m)
		r := startRelay(t, fmt.Sprintf("relay%d", i), fleetRelays+i,
			fmt.Sprintf("%s=%s,replay=%s,grpc=%s,ranks=%d", e.kind, m.Pub[0], m.Replay[0], m.GRPC, e.ranks), "--history-batches", fmt.Sprint(fleetHistory))
		f.relays = append(f.relays, r)
		f.urls = append(f.urls, "grpc://"+r.grpc)
	}
	for range 12 {
		f.heads = append(f.heads, f.tokens(200+f.rng.IntN(800)))
	}
	return f
}

func (f *fleet) tokens(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = 3 + f.rng.Uint32N(mockVocab-3)
	}
	return out
}

// prompt makes the next prompt: mostly a shared beginning, whole or cut, and
// something new; at times a stranger.
func (f *fleet) prompt() []uint32 {
	if f.rng.IntN(8) == 0 {
		return f.tokens(1 + f.rng.IntN(300))
	}
	head := f.heads[f.rng.IntN(len(f.heads))]
	if f.rng.IntN(4) == 0 {
		head = head[:1+f.rng.IntN(len(head))]
	}
	return append(slices.Clone(head), f.tokens(f.rng.IntN(120))...)
}

// oneByOne puts requests to a gateway whose index is up to date each time, and
// holds its choices against what the engines hold.
func (f *fleet) oneByOne(t *testing.T, g *smgGateway, n int) {
	t.Helper()
	for range n {
		f.await(t, g)
		prompt := f.prompt()
		held := make([]int, len(f.engines)) // tokens, of the gateway's view, which pools ranks
		used := make([][]int, len(f.engines))
		for i, m := range f.engines {
			r := m.reuse(t, prompt)
			held[i], used[i] = slices.Max(r.Held), r.Ranks
		}
		most := slices.Max(held)
		a, err := g.ask(prompt, 1+f.rng.IntN(20), f.rng.IntN(2) == 0)
		if err != nil {
			t.Errorf("request %d of %s: %v", f.requests, g.name, err)
			continue
		}
		f.requests++
		if most > 0 {
			f.hits++
		}
		i := slices.Index(f.urls, a.worker)
		switch {
		case i < 0:
			t.Errorf("request %d of %s: routed to %q", f.requests, g.name, a.worker)
		case held[i] != most:
			t.Errorf("request %d of %s: routed to engine %d, which held %d tokens of %d; another held %d",
				f.requests, g.name, i, held[i], len(prompt), most)
		case !slices.Contains(used[i], a.cached):
			t.Errorf("request %d of %s: %d tokens cached, engine %d's ranks held %v", f.requests, g.name, a.cached, i, used[i])
		}
	}
}

// sideBySide puts requests to a gateway, eight at a time, half of them streamed.
func (f *fleet) sideBySide(t *testing.T, g *smgGateway, n int) {
	t.Helper()
	prompts := make(chan []uint32, n)
	for range n {
		prompts <- f.prompt()
	}
	close(prompts)
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			for prompt := range prompts {
				if _, err := g.ask(prompt, 1+len(prompt)%20, i%2 == 0); err != nil {
					t.Errorf("side by side: %v", err)
				}
			}
		})
	}
	clients.Wait()
	f.requests += n
}

// await waits until a gateway has applied all that the engines published: as many
// blocks as they hold, those of several ranks counted once.
func (f *fleet) await(t *testing.T, g *smgGateway) {
	t.Helper()
	want := make([]float64, len(f.engines))
	for i, m := range f.engines {
		names := map[kv.EngineHash]bool{}
		for _, rank := range m.truth(t) {
			for _, b := range rank.Blocks {
				names[b.Engine] = true
			}
		}
		want[i] = float64(len(names))
	}
	eventually(t, 20*time.Second, g.name+" to hold the truth", func() (bool, string) {
		counters := g.counters(t)
		for i := range want {
			if got := total(counters, "smg_kv_index_blocks", fmt.Sprintf("worker=%q", f.urls[i])); got != want[i] {
				return false, fmt.Sprintf("%v blocks of engine %d, which holds %v: %s", got, i, want[i], f.relays[i].tail())
			}
		}
		return true, ""
	})
}

// holdIndex holds a gateway's index against the engines' truth, and its view of
// the streams: nothing missed, nothing without its parent.
func (f *fleet) holdIndex(t *testing.T, g *smgGateway) {
	t.Helper()
	f.await(t, g)
	counters := g.counters(t)
	for _, name := range []string{
		"smg_kv_event_gaps_total", "smg_kv_event_missed_batches_total", "smg_kv_event_degraded_ranks", "smg_kv_event_parentless_blocks_total",
		"smg_kv_event_subscription_failures_total", "smg_kv_events_unavailable",
	} {
		if n := total(counters, name); n != 0 {
			t.Errorf("%s: %s is %v, want 0", g.name, name, n)
		}
	}
}

// report prints what a gateway counted, and holds it against what was asked.
func (f *fleet) report(t *testing.T, g *smgGateway) {
	t.Helper()
	counters := g.counters(t)
	var lines []string
	for key, v := range counters {
		for _, name := range []string{
			"smg_kv_event_batches_total", "smg_kv_event_gaps_total", "smg_kv_event_resyncs_total", "smg_kv_event_missed_batches_total",
			"smg_cache_aware_policy_branch_total", "smg_kv_index_blocks{",
		} {
			if strings.HasPrefix(key, name) && (v != 0 || name == "smg_kv_event_gaps_total") {
				lines = append(lines, fmt.Sprintf("%s %v", key, v))
			}
		}
	}
	slices.Sort(lines)
	t.Logf("%s:\n  %s", g.name, strings.Join(lines, "\n  "))
	for _, disposition := range []string{"applied", "snapshot"} {
		if n := total(counters, "smg_kv_event_batches_total", fmt.Sprintf("disposition=%q", disposition)); n == 0 {
			t.Errorf("%s: no batch %s", g.name, disposition)
		}
	}
	if n := total(counters, "smg_cache_aware_policy_branch_total", `branch="event_hit"`); n == 0 {
		t.Errorf("%s: no request routed by events", g.name)
	}
}
