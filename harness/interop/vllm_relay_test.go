// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

const (
	vllmRanks     = 2
	vllmRelayPort = 28500
)

// TestRealEngineRelay puts our relay between a real engine with two data-parallel
// ranks and our index host, and kills the relay in the middle of the work. In the
// end, and after the relay came back, the index must be what the engine's whole
// history says, read from its replay socket and rebuilt here: every rank, every
// block, every copy.
func TestRealEngineRelay(t *testing.T) {
	if !inNamespace(t, 25*time.Minute, func() {
		vllmEnv.install(t)
		build(t, "indexsrv", "relay")
	}) {
		return
	}
	began := time.Now()
	server := startVLLM(t, nil, "--skip-tokenizer-init", "--data-parallel-size", strconv.Itoa(vllmRanks))
	relay := startUnprimedRelay(t, "relay", vllmRelayPort,
		fmt.Sprintf("vllm=tcp://127.0.0.1:15557,replay=tcp://127.0.0.1:15657,ranks=%d", vllmRanks))
	host := startIndexsrv(t)
	host.must(t, http.StatusCreated, http.MethodPost, "/register", map[string]any{
		"instance_id": 1, "model_name": "tiny", "block_size": vllmBlock, "dp_size": vllmRanks, "source": "relay", "endpoint": relay.grpc, "engine": "vllm",
	}, nil)
	newRankClient(0).awaitUp(t, server, 18*time.Minute)
	t.Logf("engine up after %.0f s", time.Since(began).Seconds())

	work := newRankWork()
	hold := func(what string) {
		t.Helper()
		host.awaitContent(t, 30*time.Second, "tiny", what, func() content { return wholeHistory(t) })
	}
	work.serve(t, 60)
	hold("60 requests")

	// Killed while requests run, started again while they run, and in between the
	// engine answers some that no relay sees.
	var busy sync.WaitGroup
	busy.Go(func() { work.serve(t, 160) })
	work.await(t, 60+30)
	relay.kill()
	work.await(t, 60+30+50)
	relay.again(t)
	t.Logf("relay killed after 30 of 160 requests, back after %d", work.answered.Load()-60)
	busy.Wait()
	hold("relay killed and restarted under load")
	t.Log(host.listeners("tiny"))
	work.serve(t, 60)
	hold("60 requests more")
	var copies, blocks int
	for _, n := range wholeHistory(t) {
		blocks++
		if n > 1 {
			copies++
		}
	}
	t.Logf("%d blocks on %d ranks, %d of them in more than one copy", blocks, vllmRanks, copies)
	if blocks < vllmBlocks {
		t.Errorf("%d blocks on both ranks: the work shows little", blocks)
	}
	if err := host.server.stop(); err != nil {
		t.Errorf("indexsrv after SIGTERM: %v, want exit 0: %s", err, host.server.tail())
	}
}

// newRankClient returns a client whose requests run on one rank.
func newRankClient(rank int) *client {
	c := newClient(vllmPort)
	c.http.Timeout = 2 * time.Minute
	c.header = map[string]string{"X-data-parallel-rank": strconv.Itoa(rank)}
	return c
}

// rankWork makes both ranks busy, two clients each.
type rankWork struct {
	clients  []*rankClient
	answered atomic.Int64 // requests
}

type rankClient struct {
	api  *client
	talk *conversation
}

func newRankWork() *rankWork {
	w := &rankWork{}
	for i := range 2 * vllmRanks {
		// The clients of one rank have the same system prompts, so that both may
		// compute one of them at once.
		w.clients = append(w.clients, &rankClient{newRankClient(i % vllmRanks), newConversation(uint64(i % vllmRanks))})
	}
	return w
}

// serve has the engine answer n requests.
func (w *rankWork) serve(t *testing.T, n int) {
	t.Helper()
	var all sync.WaitGroup
	for _, c := range w.clients {
		all.Go(func() {
			for range n / len(w.clients) {
				req := c.talk.next()
				var resp struct {
					Choices []struct {
						Tokens []uint32 `json:"token_ids"`
					} `json:"choices"`
				}
				if _, err := c.api.call(http.MethodPost, "/v1/completions", req, &resp); err != nil || len(resp.Choices) != 1 {
					t.Errorf("the engine: %d choices: %v", len(resp.Choices), err)
					return
				}
				c.talk.answered(req, resp.Choices[0].Tokens)
				w.answered.Add(1)
			}
		})
	}
	all.Wait()
}

// await waits until n requests were answered.
func (w *rankWork) await(t *testing.T, n int64) {
	t.Helper()
	eventually(t, time.Minute, "the engine to answer", func() (bool, string) {
		got := w.answered.Load()
		return got >= n, fmt.Sprintf("%d of %d answers", got, n)
	})
}

// wholeHistory asks each rank of the engine for all it ever published and returns
// what it holds then.
func wholeHistory(t *testing.T) content {
	t.Helper()
	out := content{}
	for rank := range vllmRanks {
		l := newLedger(rank)
		var dec wire.Decoder
		for i, payload := range replayAll(t, fmt.Sprintf("tcp://127.0.0.1:%d", 15657+rank)) {
			var b kv.Batch
			err := dec.Decode(payload, &b)
			if err == nil {
				err = l.apply(&b)
			}
			if err != nil {
				t.Fatalf("batch %d of rank %d: %v", i, rank, err)
			}
		}
		l.add(out)
	}
	return out
}

// replayAll returns the payloads that a replay socket keeps, which must be all.
func replayAll(t *testing.T, endpoint string) [][]byte {
	t.Helper()
	s, err := zmq.NewSocket(zmq.DEALER)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for _, set := range []error{s.SetLinger(0), s.SetRcvtimeo(20 * time.Second), s.SetRcvhwm(0), s.Connect(endpoint)} {
		if set != nil {
			t.Fatal(set)
		}
	}
	if _, err := s.SendMessage(anys(wire.MakeReplayRequest(0))...); err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	for {
		parts, err := s.RecvMessageBytes(0)
		if err != nil {
			t.Fatalf("%s: %v", endpoint, err)
		}
		payload, seq, end, err := wire.ParseReplay(parts)
		switch {
		case err != nil:
			t.Fatal(err)
		case end:
			return out
		case seq != uint64(len(out)):
			t.Fatalf("%s: batch %d follows %d", endpoint, seq, len(out)-1)
		}
		out = append(out, payload)
	}
}
