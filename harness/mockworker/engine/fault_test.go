// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kindex/internal/kv"
	"kindex/numa"
	"kindex/proto/peer/vllm"
	"kindex/relay/wire"
)

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// listener is a subscriber of one rank's live socket.
type listener struct {
	socket *zmq.Socket
	dec    wire.Decoder
}

func listen(t *testing.T, endpoint string) *listener {
	t.Helper()
	socket, err := zmq.NewSocket(zmq.SUB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	for _, err := range []error{
		socket.SetLinger(0), socket.SetRcvtimeo(patience), socket.SetReconnectIvl(10 * time.Millisecond),
		socket.SetSubscribe(""), socket.Connect(endpoint),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return &listener{socket: socket}
}

// next returns the number of the next batch, and whether it could be read.
func (l *listener) next(t *testing.T) (seq uint64, whole bool) {
	t.Helper()
	frames, err := l.socket.RecvMessageBytes(0)
	if err != nil {
		t.Fatal(err)
	}
	_, payload, seq, err := wire.ParseMessage(frames)
	if err != nil {
		t.Fatal(err)
	}
	var b kv.Batch
	return seq, l.dec.Decode(payload, &b) == nil
}

// reach asks for answers until the listener hears of one: its subscription has no
// answer to wait for. It returns the number of the last batch.
func (l *listener) reach(t *testing.T, s *started, token *uint32) uint64 {
	t.Helper()
	if err := l.socket.SetRcvtimeo(100 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		s.batch(t, token)
		if _, err := l.socket.RecvMessageBytes(0); err == nil {
			break
		}
	}
	for {
		if _, err := l.socket.RecvMessageBytes(0); err != nil {
			break
		}
	}
	if err := l.socket.SetRcvtimeo(patience); err != nil {
		t.Fatal(err)
	}
	return *s.truth(t)[0].Sequence
}

// batch has the engine publish one batch.
func (s *started) batch(t *testing.T, token *uint32) {
	t.Helper()
	*token += 4
	s.complete(t, []uint32{*token, *token, *token, *token}, 1)
}

// fault sets a fault of the first worker.
func (s *started) fault(t *testing.T, what string) {
	t.Helper()
	var said struct{ Message string }
	if code := s.post(t, "/admin/fault/w0/"+what, nil, &said); code != http.StatusOK {
		t.Fatalf("%s: %d %s", what, code, said.Message)
	}
}

// state returns how a fault stands.
func (s *started) state(t *testing.T, kind string) FaultState {
	t.Helper()
	var all map[string]map[string]FaultState
	s.get(t, "/admin/faults", &all)
	f, ok := all["w0"][kind]
	if !ok {
		t.Fatalf("%s: not in %v", kind, all)
	}
	return f
}

// TestFaultBatches drops, delays and corrupts batches, as a subscriber sees it, and
// then no more.
func TestFaultBatches(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 100")
	sub := listen(t, s.Pub[0])
	token := uint32(0)
	n := sub.reach(t, s, &token)
	expect := func(what string, seq uint64, whole bool) {
		t.Helper()
		if got, ok := sub.next(t); got != seq || ok != whole {
			t.Fatalf("%s: batch %d, whole: %v; want %d, whole: %v", what, got, ok, seq, whole)
		}
	}

	s.fault(t, "drop?batches=2&keep=1")
	for range 3 {
		s.batch(t, &token)
	}
	expect("after two that were dropped", n+3, true)
	if f := s.state(t, FaultDrop); f != (FaultState{0, 2, 0}) {
		t.Errorf("drop: %+v", f)
	}
	if all := payloads(t, s.Replay[0], n+1); len(all) != 3 {
		t.Errorf("%d batches can be asked for, 3 were kept", len(all))
	}
	s.fault(t, "drop?batches=5")
	s.fault(t, "drop?batches=0")
	s.batch(t, &token)
	expect("after dropping was undone", n+4, true)

	s.fault(t, "corrupt?frames=2")
	for range 3 {
		s.batch(t, &token)
	}
	expect("corrupted", n+5, false)
	expect("corrupted", n+6, false)
	expect("after two that were corrupted", n+7, true)
	if f := s.state(t, FaultCorrupt); f != (FaultState{0, 2, 0}) {
		t.Errorf("corrupt: %+v", f)
	}

	s.fault(t, "delay?ms=600000")
	s.batch(t, &token)
	s.batch(t, &token)
	if err := sub.socket.SetRcvtimeo(200 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if _, err := sub.socket.RecvMessageBytes(0); err == nil {
		t.Error("a delayed batch came at once")
	}
	if _, last := replayed(t, s.Replay[0]); last != n+7 {
		t.Errorf("batch %d can be asked for, though it is delayed", last)
	}
	if f := s.state(t, FaultDelay); f != (FaultState{600_000, 2, 0}) {
		t.Errorf("delay: %+v", f)
	}
	if err := sub.socket.SetRcvtimeo(patience); err != nil {
		t.Fatal(err)
	}
	s.fault(t, "clear")
	expect("after the delay was undone", n+8, true)
	expect("after the delay was undone", n+9, true)
	s.fault(t, "delay?ms=50")
	s.batch(t, &token)
	expect("delayed a little", n+10, true)
}

// TestFaultSettings refuses settings by naming the one that is wrong.
func TestFaultSettings(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 100")
	for what, want := range map[string]string{
		"drop":                    "batches: missing: must be a whole number from 0 to 1048576",
		"drop?batchs=1":           "batchs: no such setting: known are batches, keep, rank",
		"drop?batches=1.5":        `batches: "1.5": must be a whole number`,
		"drop?batches=NaN":        `batches: "NaN": must be a whole number`,
		"delay?ms=-1":             `ms: "-1": must be a number from 0 to 3600000`,
		"starve":                  "share: missing: must be a number from 0 to 0.999",
		"refuse?on=2":             `on: "2": must be a whole number from 0 to 1`,
		"stall?after_tokens=":     "after_tokens: missing",
		"fail?status=503":         "",
		"fail?status=503&count=x": `count: "x": must be a whole number from -1 to`,
		"restart-publisher?a=1":   "a: no such setting: known are cache",
	} {
		var said struct{ Message string }
		code := s.post(t, "/admin/fault/w0/"+what, nil, &said)
		if want == "" && code != http.StatusOK || want != "" && (code != http.StatusBadRequest || !strings.HasPrefix(said.Message, want)) {
			t.Errorf("%s: %d %q, want %q", what, code, said.Message, want)
		}
	}
}

// TestFaultRestart begins another life of the events, with the cache kept and
// emptied.
func TestFaultRestart(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 100")
	sub := listen(t, s.Pub[0])
	token := uint32(0)
	sub.reach(t, s, &token)
	prompt := []uint32{7, 7, 7, 7, 7}
	s.complete(t, prompt, 1)
	sub.next(t)
	s.fault(t, "restart-publisher?cache=kept")
	if _, cached := s.complete(t, prompt, 1); cached != 4 {
		t.Errorf("%d tokens cached, the cache was kept", cached)
	}
	sub.again(t, s, &token, "kept")
	if f := s.state(t, FaultRestart); f.Effects != 1 {
		t.Errorf("restarts: %+v", f)
	}
	s.fault(t, "restart-publisher?cache=emptied")
	if _, cached := s.complete(t, prompt, 1); cached != 0 {
		t.Errorf("%d tokens cached, the cache was emptied", cached)
	}
	sub.again(t, s, &token, "emptied")
}

// again holds that batches count from 0 again, for the subscriber that was there and
// for who asks for them.
func (l *listener) again(t *testing.T, s *started, token *uint32, what string) {
	t.Helper()
	l.reach(t, s, token)
	s.batch(t, token)
	seq, whole := l.next(t)
	_, last := replayed(t, s.Replay[0]) // fails unless it begins at 0
	if seq != last || !whole {
		t.Errorf("%s: batch %d came live, %d can be asked for", what, seq, last)
	}
}

// TestConnecting publishes to who binds, as an engine does that is given a host's name;
// after a restart again.
func TestConnecting(t *testing.T) {
	socket, err := zmq.NewSocket(zmq.SUB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	for _, err := range []error{socket.SetLinger(0), socket.SetRcvtimeo(patience), socket.SetSubscribe(""), socket.Bind("tcp://127.0.0.1:*")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	at, err := socket.GetLastEndpoint()
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, "--engine vllm --block 4 --blocks 100 --connect", "--pub", at)
	sub := &listener{socket: socket}
	token := uint32(0)
	for range 2 {
		n := sub.reach(t, s, &token)
		s.batch(t, &token)
		if seq, whole := sub.next(t); seq != n+1 || !whole {
			t.Errorf("batch %d, want %d", seq, n+1)
		}
		s.fault(t, "restart-publisher?cache=kept")
	}
}

// TestFaultPause stops passes; health goes on answering.
func TestFaultPause(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 100")
	s.fault(t, "pause")
	done := make(chan int, 1)
	go func() {
		_, n := s.complete(t, []uint32{1, 2, 3}, 2)
		done <- n
	}()
	s.await(t, func(l *Load) bool { return l.Waiting == 1 })
	if code, _ := sent(t, s.HTTP, "/health", ""); code != http.StatusOK {
		t.Errorf("health: %d", code)
	}
	if f := s.state(t, FaultPause); f != (FaultState{1, 1, 0}) {
		t.Errorf("pause: %+v", f)
	}
	select {
	case <-done:
		t.Error("a paused engine answered")
	case <-time.After(50 * time.Millisecond):
	}
	s.fault(t, "resume")
	<-done
	if f := s.state(t, FaultPause); f != (FaultState{0, 1, 0}) {
		t.Errorf("pause: %+v", f)
	}
}

// TestFaultRefuse closes the fronts' ports: who is connected is cut, who connects is
// refused, and later neither.
func TestFaultRefuse(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 100 --pass 5ms")
	c := vllm.NewVllmEngineClient(s.conn)
	s.complete(t, []uint32{1}, 1)
	cut := make(chan error, 1)
	go func() {
		_, _, err := generate(t.Context(), c, request("a", []uint32{1, 2, 3}, 300))
		cut <- err
	}()
	s.await(t, func(l *Load) bool { return l.Running == 1 })
	s.fault(t, "refuse?on=1")
	if err := <-cut; status.Code(err) != codes.Unavailable {
		t.Errorf("who was connected: %v, want Unavailable", err)
	}
	s.await(t, func(l *Load) bool { return l.Running == 0 })
	if conn, err := net.Dial("tcp", s.HTTP); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("who connects: %v, %v, want a refusal", conn, err)
	}
	if f := s.state(t, FaultRefuse); f.Active != 1 || f.Effects < 2 {
		t.Errorf("refuse: %+v: want at least two connections cut", f)
	}
	s.fault(t, "refuse?on=0")
	s.complete(t, []uint32{1}, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, end, err := generate(ctx, c, request("b", []uint32{1}, 1))
		if err == nil && end.GetFinishReason() == filled {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("after the ports were opened: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestFaultStall holds streams back after some tokens, and lets them go on.
func TestFaultStall(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 100")
	s.fault(t, "stall?after_tokens=3")
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		resp, err := http.Post("http://"+s.HTTP+"/v1/completions", "application/json", strings.NewReader(`{"prompt":[1,2],"max_tokens":8,"stream":true}`))
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		for r := bufio.NewReader(resp.Body); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if strings.HasPrefix(line, "data: {") {
				lines <- line
			}
		}
	}()
	for range 3 {
		<-lines
	}
	s.await(t, func(l *Load) bool { return l.Ended == 1 }) // the engine is done: it is the front that holds back
	select {
	case line := <-lines:
		t.Errorf("a fourth token came: %s", line)
	case <-time.After(100 * time.Millisecond):
	}
	if f := s.state(t, FaultStall); f != (FaultState{1, 1, 0}) {
		t.Errorf("stall: %+v", f)
	}
	s.fault(t, "clear")
	more := 0
	for range lines {
		more++
	}
	if more != 5 {
		t.Errorf("%d tokens after the stall, want 5", more)
	}
}

// TestFaultFail answers with a status: so many requests, so long, until told, on
// both fronts.
func TestFaultFail(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 100")
	ask := func() int {
		t.Helper()
		code, _ := sent(t, s.HTTP, "/v1/completions", `{"prompt":[1,2],"max_tokens":1}`)
		return code
	}
	s.fault(t, "fail?status=503&count=2")
	if a, b, c := ask(), ask(), ask(); a != 503 || b != 503 || c != 200 {
		t.Errorf("two to fail: %d %d %d", a, b, c)
	}
	s.fault(t, "fail?status=429")
	if a, b := ask(), ask(); a != 429 || b != 429 {
		t.Errorf("all to fail: %d %d", a, b)
	}
	c := vllm.NewVllmEngineClient(s.conn)
	if _, _, err := generate(t.Context(), c, request("a", []uint32{1}, 1)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("by gRPC: %v", err)
	}
	if f := s.state(t, FaultFail); f != (FaultState{429, 5, 0}) {
		t.Errorf("fail: %+v", f)
	}
	s.fault(t, "fail?status=0")
	if a := ask(); a != 200 {
		t.Errorf("after it was undone: %d", a)
	}
	s.fault(t, "fail?status=500&secs=0.05")
	for end := time.Now().Add(patience); ask() != 200; {
		if time.Now().After(end) {
			t.Fatal("it never ends")
		}
	}
	if f := s.state(t, FaultFail); f.Active != 0 {
		t.Errorf("after its time: %+v", f)
	}
}

// TestFaultAdmission lets requests in late, and one by one: much later than the test
// waits, until that is undone.
func TestFaultAdmission(t *testing.T) {
	for _, test := range []struct {
		what, kind string
		active     float64
		free       int // requests that are let in all the same
	}{{"admit-delay?ms=3600000", FaultAdmitWait, 3_600_000, 0}, {"admit-rate?per_sec=0.001", FaultAdmitRate, 0.001, 1}} {
		s := start(t, "--engine vllm --block 4 --blocks 100")
		s.fault(t, test.what)
		for range test.free {
			s.complete(t, []uint32{1}, 1)
		}
		done := make(chan bool)
		for range 2 {
			go func() {
				s.complete(t, []uint32{1}, 1)
				done <- true
			}()
		}
		s.await(t, func(l *Load) bool { return l.Waiting == 2 && l.Running == 0 && l.Ended == uint64(test.free) })
		if f := s.state(t, test.kind); f != (FaultState{test.active, uint64(2 + test.free), 0}) {
			t.Errorf("%s: %+v", test.kind, f)
		}
		s.fault(t, "clear")
		<-done
		<-done
		s.complete(t, []uint32{1}, 1)
		if f := s.state(t, test.kind); f != (FaultState{0, uint64(2 + test.free), 0}) {
			t.Errorf("%s: after it was undone: %+v", test.kind, f)
		}
	}
}

// TestFaultStarve takes time from passes: each takes as many times as long. And it
// takes processors: threads of this process burn them, and none does afterwards.
func TestFaultStarve(t *testing.T) {
	s := start(t, "--engine vllm --block 4 --blocks 100 --pass 2ms")
	s.fault(t, "starve?share=0.9")
	s.complete(t, []uint32{1}, 3)
	if f := s.state(t, FaultStarve); f.Active != 0.9 || f.Effects != 3 {
		t.Errorf("starve: %+v", f)
	}
	if numa.ThreadCPU() == 0 {
		t.Log("threads' times are not read here")
	} else {
		eventually := time.Now().Add(patience)
		for s.state(t, FaultStarve).CPU < 0.05 {
			if time.Now().After(eventually) {
				t.Fatalf("nothing is burned: %+v", s.state(t, FaultStarve))
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	var page RequestsPage
	for range 1_000 {
		if s.get(t, "/admin/requests", &page); page.Requests[0].Ended > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if r := page.Requests[0]; r.Ended-r.Arrived < 0.06 {
		t.Errorf("three passes took %v s, each had 20 ms to take", r.Ended-r.Arrived)
	}
	s.fault(t, "starve?share=0")
	burned := s.state(t, FaultStarve).CPU
	s.complete(t, []uint32{1}, 3)
	if f := s.state(t, FaultStarve); f != (FaultState{0, 3, burned}) {
		t.Errorf("after it was undone: %+v, %v s were burned then", f, burned)
	}
}

// TestFleet starts three workers of two ranks: each at its own ports, one truth for
// all, and the best of them.
func TestFleet(t *testing.T) {
	s := start(t, "--engine vllm --fleet 3 --ranks 2 --block 4 --blocks 100")
	if len(s.Workers) != 3 || s.Workers[1].HTTP == s.HTTP || len(s.Workers[2].Pub) != 2 {
		t.Fatalf("ready: %+v", s.Ready)
	}
	prompt := `{"prompt":[1,2,3,4,5,6,7,8,9],"max_tokens":1}`
	for _, w := range []int{1, 1, 2} {
		if code, text := sent(t, s.Workers[w].HTTP, "/v1/completions", prompt); code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
	}
	var page RequestsPage
	for range 1_000 {
		if s.get(t, "/admin/requests", &page); len(page.Requests) == 3 && page.Requests[2].Ended > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	got := ""
	for _, r := range page.Requests {
		got += fmt.Sprintf("%d %s cached %d best %d %s; ", r.N, r.Worker, r.Cached, r.Best, r.Finish)
	}
	if want := "1 w1 cached 0 best 0 length; 2 w1 cached 8 best 8 length; 3 w2 cached 0 best 8 length; "; got != want {
		t.Errorf("requests %s\nwant %s", got, want)
	}
	var reuse TruthReuse
	s.post(t, "/admin/truth", map[string]any{"prompt": []int{1, 2, 3, 4, 5, 6, 7, 8}}, &reuse)
	if fmt.Sprint(reuse.Workers) != "map[w0:{[0 0] [0 0]} w1:{[4 0] [8 0]} w2:{[4 0] [8 0]}]" {
		t.Errorf("truth %v", reuse)
	}
	var digests struct{ Workers map[string][]TruthDigest }
	s.get(t, "/admin/truth", &digests)
	d := digests.Workers
	if len(d) != 3 || d["w0"][0].Blocks != 0 || d["w1"][0].Blocks != 2 || d["w1"][0].Digest != d["w2"][0].Digest || d["w1"][0].Digest == d["w1"][1].Digest {
		t.Errorf("digests %+v", d)
	}
	_, port, _ := strings.Cut(s.Workers[2].HTTP, ":")
	for path, want := range map[string]int{"/admin/cache/http:" + port: 200, "/admin/truth/w3": 404, "/admin/cache/x": 404, "/admin/nothing": 404, "/admin/reset/w1": 200} {
		method := http.MethodGet
		if strings.HasPrefix(path, "/admin/reset") {
			method = http.MethodPost
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Admin+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if _ = resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
	s.get(t, "/admin/truth", &digests)
	if digests.Workers["w1"][0].Blocks != 0 || digests.Workers["w2"][0].Blocks != 2 {
		t.Errorf("after w1's reset: %+v", digests)
	}
	if code := s.post(t, "/admin/reset", nil, nil); code != http.StatusOK {
		t.Errorf("reset: %d", code)
	}
	if s.get(t, "/admin/requests", &page); len(page.Requests) != 0 || page.Next != 0 {
		t.Errorf("after a reset: %+v", page)
	}
}
