// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"kindex/harness/mockworker/engine"
)

const (
	peerRelayPort    = 28400
	peerRelayHistory = 20 // batches
	peerRelayBlock   = 16 // tokens
)

// hostPeerRelay runs the peer's released relay: its server of a vLLM engine, with
// an engine that never comes.
const hostPeerRelay = `
import signal, sys, tempfile
from smg.servicer import VllmGrpcServer, init_servicer_tracing
init_servicer_tracing("warn")
listen, model, live, replay, block = sys.argv[1:6]
nowhere = tempfile.mkdtemp()
server = VllmGrpcServer(listen, f"ipc://{nowhere}/engine", f"ipc://{nowhere}/handshake", model,
    kv_events_endpoint=live, kv_events_replay_endpoint=replay, block_size=int(block), max_num_seqs=64)
signal.pause()
`

// peerRelay is the peer's relay over one engine.
type peerRelay struct {
	*process
	args []string
}

func startPeerRelay(t *testing.T, tokenizer string, p *engine.Publisher) *peerRelay {
	t.Helper()
	r := &peerRelay{args: []string{
		smgEnv.python(t), "-c", hostPeerRelay, "127.0.0.1:" + strconv.Itoa(peerRelayPort), tokenizer, p.Live, p.Replay, strconv.Itoa(peerRelayBlock),
	}}
	r.again(t)
	return r
}

// again starts the relay, also after its end.
func (r *peerRelay) again(t *testing.T) {
	t.Helper()
	r.process = start(t, "peer-relay", []string{fmt.Sprintf("SMG_KV_EVENT_HISTORY_BATCHES=%d", peerRelayHistory)}, r.args...)
}

// mockLoad makes an in-process engine busy.
type mockLoad struct {
	engine *engine.Engine
	rng    *rand.Rand
	heads  [][]uint32
	n      int
}

func newMockLoad(t *testing.T, c engine.Config) *mockLoad {
	t.Helper()
	e, err := engine.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	l := &mockLoad{engine: e, rng: rand.New(rand.NewPCG(2, 5))}
	for range 8 {
		l.heads = append(l.heads, l.tokens(100+l.rng.IntN(300)))
	}
	return l
}

func (l *mockLoad) tokens(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = 3 + l.rng.Uint32N(mockVocab-3)
	}
	return out
}

// serve has the engine answer n requests, four at a time, and waits for them.
func (l *mockLoad) serve(t *testing.T, n int) {
	t.Helper()
	for n > 0 {
		var open []<-chan engine.Output
		for range min(n, 4) {
			prompt := append(slices.Clone(l.heads[l.rng.IntN(len(l.heads))]), l.tokens(l.rng.IntN(60))...)
			out, err := l.engine.Submit(engine.Request{ID: strconv.Itoa(l.n), Tokens: prompt, MaxTokens: 1 + l.rng.IntN(40), Rank: -1})
			if err != nil {
				t.Fatal(err)
			}
			l.n++
			n--
			open = append(open, out)
		}
		for _, out := range open {
			for range out { // to its end
			}
		}
	}
}

// batches serves until n more batches are out.
func (l *mockLoad) batches(t *testing.T, n uint64) {
	t.Helper()
	published := func() uint64 {
		last, some := l.engine.Publishers()[0].Published()
		if !some {
			return 0
		}
		return last + 1
	}
	for end := published() + n; published() < end; {
		l.serve(t, 1)
	}
}

func (l *mockLoad) truth() content { return truthContent(l.engine.Truth(), 0) }

// TestIndexOverPeerRelay has our index host subscribe to the peer's released relay:
// its content must be the publisher's truth, block for block, through a whole
// history, a snapshot, a gap that the relay fills, cursors below its window, its
// death, and the engine's restart.
func TestIndexOverPeerRelay(t *testing.T) {
	if !inNamespace(t, 5*time.Minute, func() {
		smgEnv.install(t)
		buildIndexsrv(t)
	}) {
		return
	}
	l := newMockLoad(t, engine.Config{
		Engine: engine.VLLM, Version: "0.32.0", Pub: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Topic: "kv",
		BlockSize: peerRelayBlock, Blocks: 400, Vocabulary: mockVocab,
	})
	p := l.engine.Publishers()[0]
	l.batches(t, peerRelayHistory/2)
	relay := startPeerRelay(t, writeTokenizer(t), p)
	host := startIndexsrv(t)
	reg := map[string]any{
		"instance_id": 1, "model_name": "peer", "block_size": peerRelayBlock, "source": "relay",
		"endpoint": "127.0.0.1:" + strconv.Itoa(peerRelayPort), "engine": "vllm",
	}
	register := func() { host.must(t, http.StatusCreated, http.MethodPost, "/register", reg, nil) }
	unregister := func() {
		host.must(t, http.StatusOK, http.MethodPost, "/unregister", map[string]any{"instance_id": 1, "model_name": "peer"}, nil)
	}
	hold := func(what string) {
		t.Helper()
		host.awaitContent(t, 30*time.Second, "peer", what, l.truth)
		if relay.exited() {
			t.Fatalf("the peer's relay ended: %s", relay.tail())
		}
	}

	register()
	hold("whole history")
	l.serve(t, 100)
	hold("live, after evictions")

	unregister()
	l.batches(t, 3*peerRelayHistory)
	register()
	hold("snapshot")
	l.serve(t, 50)
	hold("live after the snapshot")

	p.Drop(5, true)
	l.batches(t, 20)
	hold("5 batches lost on the wire, which the relay asks for")

	relay.kill()
	l.batches(t, peerRelayHistory/4)
	relay.again(t)
	hold("relay killed, cursor in its window")
	relay.kill()
	l.batches(t, 3*peerRelayHistory)
	relay.again(t)
	hold("relay killed, cursor below its window")
	l.serve(t, 20)
	hold("live again")

	l.engine.Restart()
	l.serve(t, 10)
	hold("engine restarted")
	l.serve(t, 100)
	hold("live in the new life")
	if !l.engine.Reset() {
		t.Fatal("the engine is busy")
	}
	l.serve(t, 1)
	hold("cache cleared")

	// What nobody has any more is missing. The peer's relay tells a subscriber of the
	// gap, and then gives it a snapshot that claims to be complete and is not: only
	// the engine's next clear makes an index over it right again.
	l.serve(t, 20)
	hold("before the loss")
	p.Drop(3, false)
	l.batches(t, 10)
	l.engine.Reset()
	l.serve(t, 5)
	hold("cleared after the loss")
}
