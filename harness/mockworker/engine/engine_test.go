// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"kindex/internal/kv"
	"kindex/proto/peer/common"
	"kindex/proto/peer/sglang"
	"kindex/proto/peer/vllm"
	"kindex/relay/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		args string
		code int
		want string // in the one line of standard error, or in standard output
	}{
		{"--engine vllm --help", 0, "usage: mockworker --engine"},
		{"--engine trtllm", 2, `--engine "trtllm": must be vllm, sglang or tokenspeed`},
		{"--engine vllm --block 0", 2, "--block 0: must be at least 1"},
		{"--engine vllm --blocks -3", 2, "--blocks -3: must be 1 to"},
		{"--engine vllm --ranks 65", 2, "--ranks 65: must be 1 to 64"},
		{"--engine vllm --vocabulary 3", 2, "--vocabulary 3"},
		{"--engine vllm --pass -1s", 2, "--pass -1s"},
		{"--engine vllm --version 0.1", 2, "--version: vllm 0.1: the oldest known release is"},
		{"--engine vllm --hash md5", 2, `--hash "md5": must be one of [sha256 sha256_cbor xxhash xxhash_cbor]`},
		{"--engine vllm --hash sglang", 2, `--hash "sglang"`},
		{"--engine vllm --pub http://a", 2, `--pub: "http://a" must be tcp://host:port`},
		{"--engine vllm --replay tcp://a:65535 --ranks 2", 2, "--replay:"},
		{"--engine vllm --grpc nonsense", 2, `--grpc "nonsense": must be host:port`},
		{"--engine vllm --pub tcp://127.0.0.1:0 --grpc 192.0.2.1:1", 1, "--grpc: listen tcp 192.0.2.1:1"},
		{"--engine vllm --pub tcp://192.0.2.1:1", 1, "--pub: tcp://192.0.2.1:1"},
		{"--engine vllm --pub tcp://127.0.0.1:0 --admin 192.0.2.1:1", 1, "--admin: listen tcp"},
		{"--engine vllm extra", 2, `unexpected argument "extra"`},
		{"--engine vllm --colour red", 2, "-colour"},
	} {
		var out, errs bytes.Buffer
		code := Main(t.Context(), strings.Fields(test.args), &out, &errs)
		text := errs.String()
		if test.code == 0 {
			text = out.String()
		} else if strings.Count(text, "\n") != 1 {
			t.Errorf("%s: %d lines, want one: %s", test.args, strings.Count(text, "\n"), text)
		}
		if code != test.code || !strings.Contains(text, test.want) {
			t.Errorf("%s: exit %d and %q, want %d and %q", test.args, code, text, test.code, test.want)
		}
	}
}

// started is an engine run by Main on free ports.
type started struct {
	Ready
	conn *grpc.ClientConn
}

func start(t *testing.T, args string, more ...string) *started {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	outR, outW := io.Pipe()
	code := make(chan int, 1)
	if !strings.Contains(args, "--pass") && !strings.Contains(args, "--speed") {
		args += " --pass 0s"
	}
	args += " --pub tcp://127.0.0.1:0 --replay tcp://127.0.0.1:0 --grpc 127.0.0.1:0 --http 127.0.0.1:0 --admin 127.0.0.1:0"
	var errs bytes.Buffer
	go func() {
		code <- Main(ctx, append(strings.Fields(args), more...), outW, &errs)
		_ = outW.Close()
	}()
	s := &started{}
	if err := json.NewDecoder(outR).Decode(&s.Ready); err != nil {
		stop()
		t.Fatalf("%v: %s", err, &errs)
	}
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	s.conn = conn
	t.Cleanup(func() {
		_ = conn.Close()
		http.DefaultClient.CloseIdleConnections()
		stop()
		if got := <-code; got != 0 {
			t.Errorf("exit %d, want 0: %s", got, &errs)
		}
	})
	return s
}

// post puts body to the admin and decodes its answer.
func (s *started) post(t *testing.T, path string, body, into any) int {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post("http://"+s.Admin+path, "application/json", bytes.NewReader(b))
	return decoded(t, path, resp, err, into)
}

func (s *started) get(t *testing.T, path string, into any) {
	t.Helper()
	resp, err := http.Get("http://" + s.Admin + path)
	if code := decoded(t, path, resp, err, into); code != http.StatusOK {
		t.Fatalf("%s: %d", path, code)
	}
}

func decoded(t *testing.T, path string, resp *http.Response, err error, into any) int {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if into != nil {
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return resp.StatusCode
}

// generate asks for an answer and returns its tokens and its end.
func generate(ctx context.Context, c vllm.VllmEngineClient, q *vllm.GenerateRequest) (tokens []uint32, end *vllm.GenerateComplete, err error) {
	stream, err := c.Generate(ctx, q)
	if err != nil {
		return nil, nil, err
	}
	for {
		r, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return tokens, end, nil
		case err != nil:
			return tokens, end, err
		case end != nil:
			return tokens, end, errors.New("an answer goes on after its end")
		}
		tokens = append(tokens, r.GetChunk().GetTokenIds()...)
		end = r.GetComplete()
	}
}

func request(id string, prompt []uint32, most uint32) *vllm.GenerateRequest {
	return &vllm.GenerateRequest{
		RequestId: id, Stream: true, Input: &vllm.GenerateRequest_Tokenized{Tokenized: &vllm.TokenizedInput{InputIds: prompt}},
		SamplingParams: &vllm.SamplingParams{MaxTokens: &most},
	}
}

// payloads asks a rank for its history from start on.
func payloads(t *testing.T, endpoint string, start uint64) (all [][]byte) {
	t.Helper()
	s, err := zmq.NewSocket(zmq.DEALER)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, err := range []error{s.SetLinger(0), s.SetRcvtimeo(10 * time.Second), s.Connect(endpoint)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.SendMessage(wire.MakeReplayRequest(start)); err != nil {
		t.Fatal(err)
	}
	for want := start; ; want++ {
		frames, err := s.RecvMessageBytes(0)
		if err != nil {
			t.Fatal(err)
		}
		payload, seq, end, err := wire.ParseReplay(frames)
		if err != nil {
			t.Fatal(err)
		}
		if end {
			return all
		}
		if seq != want {
			t.Fatalf("batch %d, want %d", seq, want)
		}
		all = append(all, payload)
	}
}

// replayed asks a rank for its whole history.
func replayed(t *testing.T, endpoint string) (events []kv.Event, last uint64) {
	t.Helper()
	var dec wire.Decoder
	for seq, payload := range payloads(t, endpoint, 0) {
		var b kv.Batch
		if err := dec.Decode(payload, &b); err != nil {
			t.Fatalf("batch %d: %v", seq, err)
		}
		events, last = append(events, b.Events...), uint64(seq)
	}
	return events, last
}

// TestVLLM puts concurrent requests to two ranks: answers are whole, what each
// rank published is what its cache holds, and a repeated prompt finds what the
// truth foretells.
func TestVLLM(t *testing.T) {
	s := start(t, "--engine vllm --version 0.32.0 --ranks 2 --blocks 300 --block 4 --seed 5 --topic kv")
	c := vllm.NewVllmEngineClient(s.conn)
	info, err := c.GetServerInfo(t.Context(), &vllm.GetServerInfoRequest{})
	if err != nil || info.GetDataParallelSize() != 2 || info.GetBlockSize() != 4 {
		t.Fatalf("server info: %v: %v", info, err)
	}
	if model, err := c.GetModelInfo(t.Context(), &vllm.GetModelInfoRequest{}); err != nil || model.GetServedModelName() != "mock" || !model.GetIsGeneration() {
		t.Fatalf("model info: %v: %v", model, err)
	}
	if h, err := c.HealthCheck(t.Context(), &vllm.HealthCheckRequest{}); err != nil || !h.GetHealthy() {
		t.Fatalf("health: %v: %v", h, err)
	}

	for _, at := range [][]string{s.Pub, s.Replay} {
		if above, err := Endpoint(at[0], 1); err != nil || at[1] != above {
			t.Errorf("rank 1 is at %s, want %s, above rank 0: %v", at[1], above, err)
		}
	}

	rng := rand.New(rand.NewPCG(1, 2))
	var prompts [][]uint32
	for range 60 {
		prompts = append(prompts, tokensOf(rng, 1+rng.IntN(200)))
	}
	var all sync.WaitGroup
	for i, prompt := range prompts {
		all.Go(func() {
			q := request(fmt.Sprint(i), prompt, 1+uint32(i)%20)
			q.Stream = i%3 != 0
			tokens, end, err := generate(t.Context(), c, q)
			switch {
			case err != nil:
				t.Errorf("request %d: %v", i, err)
			case end.GetFinishReason() != "length" || end.GetPromptTokens() != uint32(len(prompt)) || int(end.GetCompletionTokens()) != 1+i%20:
				t.Errorf("request %d ended with %v", i, end)
			case q.Stream && !slices.Equal(tokens, end.GetOutputIds()):
				t.Errorf("request %d: streamed %v, answered %v", i, tokens, end.GetOutputIds())
			case !q.Stream && tokens != nil:
				t.Errorf("request %d: %v streamed, nobody asked for that", i, tokens)
			}
		})
	}
	all.Wait()

	for i, prompt := range prompts[:20] {
		var reuse TruthReuse
		s.post(t, "/admin/truth", map[string]any{"prompt": prompt}, &reuse)
		rank := int32(i % 2)
		q := request("again", prompt, 1)
		q.DataParallelRank = &rank
		_, end, err := generate(t.Context(), c, q)
		if err != nil || int(end.GetCachedTokens()) != reuse.Workers["w0"].Ranks[rank] {
			t.Errorf("prompt %d again: %d tokens cached, %v were foretold: %v", i, end.GetCachedTokens(), reuse, err)
		}
	}
	s.holdTruth(t, 2)
	loads, err := c.GetLoads(t.Context(), &vllm.GetLoadsRequest{})
	if err != nil || len(loads.GetLoads()) != 2 || loads.GetLoads()[1].GetDpRank() != 1 || loads.GetLoads()[0].GetMaxTotalNumTokens() != 1200 {
		t.Errorf("loads %v: %v", loads, err)
	}
}

// truth returns what each rank of the first worker holds.
func (s *started) truth(t *testing.T) []Truth {
	t.Helper()
	var out CacheContent
	s.get(t, "/admin/cache/w0", &out)
	return out.Ranks
}

// complete asks the OpenAI front for an answer.
func (s *started) complete(t *testing.T, prompt []uint32, most int) (tokens []uint32, cached int) {
	t.Helper()
	var out struct {
		Choices []wholeChoice `json:"choices"`
		Usage   usage         `json:"usage"`
	}
	b, err := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": most, "return_token_ids": true})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post("http://"+s.HTTP+"/v1/completions", "application/json", bytes.NewReader(b))
	if code := decoded(t, "/v1/completions", resp, err, &out); code != http.StatusOK || len(out.Choices) != 1 {
		t.Fatalf("status %d, %+v", code, out)
	}
	return out.Choices[0].Tokens, out.Usage.Details.Cached
}

// holdTruth holds each rank's replayed history against its truth.
func (s *started) holdTruth(t *testing.T, ranks int) {
	t.Helper()
	truth := s.truth(t)
	if len(truth) != ranks {
		t.Fatalf("the truth of %d ranks, want %d", len(truth), ranks)
	}
	for r := range truth {
		events, last := replayed(t, s.Replay[r])
		m := mirror{}
		m.apply(t, events)
		m.equal(t, truth[r].Blocks, fmt.Sprintf("rank %d", r), true)
		if truth[r].Sequence == nil || *truth[r].Sequence != last || len(truth[r].Blocks) == 0 {
			t.Errorf("rank %d: batch %v published, %d replayed last, %d blocks", r, truth[r].Sequence, last, len(truth[r].Blocks))
		}
	}
}

// TestRefusals asks for what cannot be.
func TestRefusals(t *testing.T) {
	s := start(t, "--engine vllm --blocks 10 --block 4 --context 100")
	c := vllm.NewVllmEngineClient(s.conn)
	far := int32(3)
	other := request("rank", []uint32{1, 2}, 1)
	other.DataParallelRank = &far
	for name, q := range map[string]*vllm.GenerateRequest{
		"no tokens": request("a", nil, 4), "too long for the cache": request("b", make([]uint32, 39), 4),
		"too long for the context": request("c", make([]uint32, 99), 2), "nothing to generate": request("d", []uint32{1}, 0), "a rank too many": other,
		"text": {RequestId: "t", Input: &vllm.GenerateRequest_Text{Text: "hello"}},
	} {
		if _, _, err := generate(t.Context(), c, q); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
	for path, body := range map[string]any{
		"/admin/truth": map[string]any{"prompt": 1}, "/admin/truth#2": map[string]any{"tokens": []int{}}, "/admin/truth#3": "no object",
		"/admin/fault/w0/drop?batches=1&rank=1": nil, "/admin/fault/w0/drop?batches=-1": nil, "/admin/fault/w0/drop": nil, "/admin/fault/w0/drown": nil,
		"/admin/fault/w0/fail?status=200": nil, "/admin/fault/w0/pause?ms=3": nil, "/admin/fault/w0/restart-publisher?cache=lost": nil,
	} {
		path, _, _ := strings.Cut(path, "#")
		var said map[string]string
		if code := s.post(t, path, body, &said); code != http.StatusBadRequest || said["message"] == "" {
			t.Errorf("%s %v: %d %v, want 400 and a reason", path, body, code, said)
		}
	}
}

// TestAbort ends requests that run and that wait: by the call, and by the
// client's leaving. Nothing stays behind.
func TestAbort(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 100 --pass 5ms --max-running 1")
	c := vllm.NewVllmEngineClient(s.conn)
	ends := make(chan *vllm.GenerateComplete, 2)
	var asked sync.WaitGroup
	for _, id := range []string{"first", "second"} {
		asked.Go(func() {
			_, end, err := generate(t.Context(), c, request(id, []uint32{1, 2, 3, 4, 5}, 350))
			if err != nil {
				t.Errorf("%s: %v", id, err)
			}
			ends <- end
		})
		s.await(t, func(l *Load) bool { return l.Running+l.Waiting > 0 && (id == "first" || l.Waiting == 1) })
	}
	if _, _, err := generate(t.Context(), c, request("first", []uint32{1}, 1)); status.Code(err) != codes.AlreadyExists {
		t.Errorf("an id that runs: %v, want AlreadyExists", err)
	}
	ctx, leave := context.WithCancel(t.Context())
	asked.Go(func() {
		if _, _, err := generate(ctx, c, request("third", []uint32{1}, 300)); status.Code(err) != codes.Canceled {
			t.Errorf("a client that left: %v, want Canceled", err)
		}
	})
	s.await(t, func(l *Load) bool { return l.Waiting == 2 && l.WaitingUncached > 0 })
	if code := s.post(t, "/admin/reset", nil, nil); code != http.StatusConflict {
		t.Errorf("reset while something runs: %d, want 409", code)
	}
	leave()
	s.await(t, func(l *Load) bool { return l.Waiting == 1 })
	if _, err := c.Abort(t.Context(), &vllm.AbortRequest{RequestIds: []string{"second", "first", "nobody"}}); err != nil {
		t.Fatal(err)
	}
	asked.Wait()
	for range 2 {
		if end := <-ends; end.GetFinishReason() != "abort" || int(end.GetCompletionTokens()) != len(end.GetOutputIds()) {
			t.Errorf("ended with %v, want abort", end)
		}
	}
	s.await(t, func(l *Load) bool { return l.Running == 0 && l.Waiting == 0 && l.UsedTokens == 0 })
}

// await polls the only rank's load.
func (s *started) await(t *testing.T, ok func(*Load) bool) {
	t.Helper()
	var fleet FleetStatus
	for range 1_000 {
		s.get(t, "/admin/fleet", &fleet)
		if ok(&fleet.Workers[0].Loads[0]) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("never: %+v", fleet)
}

// TestLives resets and restarts: a reset is told with the next pass only, a
// restart counts from 0 again.
func TestLives(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 100")
	prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	first, cached := s.complete(t, prompt, 2)
	second, again := s.complete(t, prompt, 2)
	if cached != 0 || again != 8 || !slices.Equal(first, second) || len(first) != 2 {
		t.Errorf("answers %v and %v, %d and %d tokens cached: want 0, then 8, and the same tokens", first, second, cached, again)
	}
	if code := s.post(t, "/admin/reset", nil, nil); code != http.StatusOK {
		t.Fatalf("reset: %d", code)
	}
	truth := s.truth(t)
	if truth[0].Pending != 1 || len(truth[0].Blocks) != 0 {
		t.Errorf("after a reset: %+v, want nothing held and one event to come", truth[0])
	}
	if _, cached := s.complete(t, prompt, 2); cached != 0 {
		t.Errorf("after a reset %d tokens cached", cached)
	}
	s.holdTruth(t, 1)
	if events, last := replayed(t, s.Replay[0]); events[len(events)-2].Kind != kv.KindCleared || last != 1 {
		t.Errorf("the last batch is number %d, its events %+v: want 1, a clear and a store", last, events)
	}
	if code := s.post(t, "/admin/fault/w0/drop?batches=1", nil, nil); code != http.StatusOK {
		t.Fatalf("drop: %d", code)
	}
	s.complete(t, []uint32{9, 9, 9, 9, 9}, 1)
	truth = s.truth(t)
	if _, last := replayed(t, s.Replay[0]); last != 1 || *truth[0].Sequence != 2 {
		t.Errorf("batch %d can be asked for and %d is published; want 1, and 2 which was to be lost", last, *truth[0].Sequence)
	}
	s.post(t, "/admin/fault/w0/restart-publisher?cache=emptied", nil, nil)
	truth = s.truth(t)
	if truth[0].Sequence != nil || len(truth[0].Blocks) != 0 {
		t.Errorf("after a restart: %+v, want nothing", truth[0])
	}
	_, cached = s.complete(t, prompt, 2)
	if _, last := replayed(t, s.Replay[0]); cached != 0 || last != 0 {
		t.Errorf("after a restart %d tokens cached, batch %d, want 0 and 0", cached, last)
	}
}

// TestDrop loses batches, such that can be asked for and such that cannot.
func TestDrop(t *testing.T) {
	e, err := New(Config{Engine: VLLM, Pub: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", BlockSize: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	p := e.Publishers()[0]
	sub, err := zmq.NewSocket(zmq.SUB)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	for _, err := range []error{sub.SetLinger(0), sub.SetRcvtimeo(10 * time.Second), sub.Connect(p.Live), sub.SetSubscribe("")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(200 * time.Millisecond) // the subscription has no answer to wait for
	publish := func() {
		t.Helper()
		if _, err := p.Publish([]kv.Event{{Kind: kv.KindCleared}}); err != nil {
			t.Fatal(err)
		}
	}
	p.Drop(2, true)
	for range 3 {
		publish()
	}
	p.Drop(1, false)
	publish()
	publish()
	for _, want := range []uint64{2, 4} {
		frames, err := sub.RecvMessageBytes(0)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, seq, err := wire.ParseMessage(frames); err != nil || seq != want {
			t.Errorf("live: %d, want %d: %v", seq, want, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var kept []uint64
	for _, b := range p.buffer {
		kept = append(kept, b.seq)
	}
	if !slices.Equal(kept, []uint64{0, 1, 2, 4}) {
		t.Errorf("kept %v, want all but 3", kept)
	}
}

// TestSGLang talks SGLang's contract and reads its events.
func TestSGLang(t *testing.T) {
	s := start(t, "--engine sglang --block 4 --blocks 100")
	c := sglang.NewSglangSchedulerClient(s.conn)
	ask := func(prompt []uint32) *sglang.GenerateComplete {
		t.Helper()
		most := uint32(3)
		stream, err := c.Generate(t.Context(), &sglang.GenerateRequest{
			RequestId: "r", Stream: true, Tokenized: &sglang.TokenizedInput{InputIds: prompt}, SamplingParams: &sglang.SamplingParams{MaxNewTokens: &most},
		})
		if err != nil {
			t.Fatal(err)
		}
		var end *sglang.GenerateComplete
		for {
			r, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return end
			}
			if err != nil {
				t.Fatal(err)
			}
			end = r.GetComplete()
		}
	}
	prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	if end := ask(prompt); end.GetCachedTokens() != 0 || end.GetCompletionTokens() != 3 {
		t.Errorf("first: %v", end)
	}
	if end := ask(prompt); end.GetCachedTokens() != 4 {
		t.Errorf("again: %v, want 4 tokens cached: the last block is computed anew", end)
	}
	s.holdTruth(t, 1)
	events, _ := replayed(t, s.Replay[0])
	if events[0].Kind != kv.KindCleared || events[1].Form != kv.FormSigned && events[1].Hashes[0]>>63 == 1 {
		t.Errorf("events %+v: want a clear first", events)
	}
	info, err := c.GetServerInfo(t.Context(), &sglang.GetServerInfoRequest{})
	if err != nil || info.GetMaxTotalNumTokens() != 400 {
		t.Errorf("server info %v: %v", info, err)
	}
	if loads, err := c.GetLoads(t.Context(), &sglang.GetLoadsRequest{}); err != nil || len(loads.GetLoads()) != 1 {
		t.Errorf("loads %v: %v", loads, err)
	}
	if model, err := c.GetModelInfo(t.Context(), &sglang.GetModelInfoRequest{}); err != nil || model.GetVocabSize() != 2048 {
		t.Errorf("model %v: %v", model, err)
	}
	if r, err := c.Abort(t.Context(), &sglang.AbortRequest{RequestId: "nobody"}); err != nil || r.GetSuccess() {
		t.Errorf("abort of nobody: %v: %v", r, err)
	}
	if r, err := c.FlushCache(t.Context(), &common.FlushCacheRequest{}); err != nil || !r.GetSuccess() {
		t.Errorf("flush: %v: %v", r, err)
	}
	// SGLang tells a clear as soon as it is idle.
	for range 1_000 {
		if events, _ = replayed(t, s.Replay[0]); events[len(events)-1].Kind == kv.KindCleared {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Error("the clear was never published")
}
