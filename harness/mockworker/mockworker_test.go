// SPDX-License-Identifier: Apache-2.0

package mockworker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

const fixture = "../testdata/fixtures/given/"

func TestUsage(t *testing.T) {
	rec := fixture + "vllm032_replay.jsonl.gz"
	tests := []struct {
		args []string
		code int
		want string // in the one line of standard error, or in standard output
	}{
		{[]string{"--help"}, 0, "--recording FILE"},
		{nil, 2, "--recording: missing"},
		{[]string{"--recording", rec, "--speed", "0"}, 2, "--speed 0: must be above 0"},
		{[]string{"--recording", rec, "--speed", "x"}, 2, `invalid value "x" for flag -speed`},
		{[]string{"--recording", rec, "--pub", "http://a"}, 2, `"http://a" must be tcp://host:port`},
		{[]string{"--recording", rec, "--replay", "tcp://a:99999"}, 2, "--replay:"},
		{[]string{"--recording", rec, "--buffer", "-1"}, 2, "--buffer -1"},
		{[]string{"--recording", rec, "extra"}, 2, `unexpected argument "extra"`},
		{[]string{"--nonsense"}, 2, "-nonsense"},
		{[]string{"--recording", "no/such/file"}, 2, "no/such/file: no such file"},
		{[]string{"--recording", fixture + "hash_vectors.json"}, 2, "hash_vectors.json:1:"},
		{[]string{"--recording", rec, "--pub", "tcp://192.0.2.1:5557"}, 1, "--pub: tcp://192.0.2.1:5557"},
		{[]string{"--recording", fixture + "sglang0523_load_pub.jsonl.gz"}, 1, "no message of an event socket"},
	}
	for _, test := range tests {
		var out, errs bytes.Buffer
		code := Main(t.Context(), test.args, strings.NewReader(""), &out, &errs)
		text := errs.String()
		if test.code == 0 {
			text = out.String()
		} else if strings.Count(text, "\n") != 1 {
			t.Errorf("%v: %d lines, want one: %s", test.args, strings.Count(text, "\n"), text)
		}
		if code != test.code || !strings.Contains(text, test.want) {
			t.Errorf("%v: exit %d and %q, want %d and %q", test.args, code, text, test.code, test.want)
		}
	}
}

// running is a mock worker on free ports.
type running struct {
	ready Ready
	lines *bufio.Scanner
	gate  *io.PipeWriter
	code  chan int
	stop  context.CancelFunc
}

func start(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	outR, outW := io.Pipe()
	inR, inW := io.Pipe()
	m := &running{lines: bufio.NewScanner(outR), gate: inW, code: make(chan int, 1), stop: stop}
	m.lines.Buffer(nil, 1<<24)
	args = append([]string{"--pub", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0", "--report", "--gate"}, args...)
	go func() {
		m.code <- Main(ctx, args, inR, outW, io.Discard)
		_ = outW.Close()
	}()
	t.Cleanup(func() { stop(); _ = outR.Close(); _ = inW.Close() })
	if !m.lines.Scan() {
		t.Fatal("no report")
	}
	if err := json.Unmarshal(m.lines.Bytes(), &m.ready); err != nil {
		t.Fatal(err)
	}
	return m
}

func socket(t *testing.T, kind zmq.Type, endpoint string) *zmq.Socket {
	t.Helper()
	s, err := zmq.NewSocket(kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for _, err := range []error{s.SetLinger(0), s.SetRcvtimeo(10 * time.Second), s.Connect(endpoint)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// ask asks a replay socket and returns the batches of the answer.
func ask(t *testing.T, s *zmq.Socket, start uint64) (seqs []uint64, payloads [][]byte) {
	t.Helper()
	if _, err := s.SendMessage(wire.MakeReplayRequest(start)); err != nil {
		t.Fatal(err)
	}
	for {
		frames, err := s.RecvMessageBytes(0)
		if err != nil {
			t.Fatal(err)
		}
		payload, seq, end, err := wire.ParseReplay(frames)
		if err != nil {
			t.Fatal(err)
		}
		if end {
			return seqs, payloads
		}
		seqs, payloads = append(seqs, seq), append(payloads, payload)
	}
}

// TestPlays plays a recording twice over real sockets: numbers from 0 in each
// life, whole batches, timestamps of now.
func TestPlays(t *testing.T) {
	m := start(t, "--recording", fixture+"vllm032_replay.jsonl.gz", "--speed", "1000", "--loop")
	if m.ready.Engine != "vllm" || m.ready.BlockSize != 32 || len(m.ready.Pub) != 1 {
		t.Fatalf("ready: %+v", m.ready)
	}
	sub := socket(t, zmq.SUB, m.ready.Pub[0])
	if err := sub.SetSubscribe("kv"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // the subscription has no answer to wait for
	go func() {                        // nobody asks anything
		for {
			if _, err := io.WriteString(m.gate, "\n"); err != nil {
				return
			}
		}
	}()
	told := make(chan map[string]int, 1)
	go func() {
		n := map[string]int{}
		for m.lines.Scan() {
			var l struct{ K string }
			if json.Unmarshal(m.lines.Bytes(), &l) == nil {
				n[l.K]++
			}
		}
		told <- n
	}()
	var dec wire.Decoder
	var b kv.Batch
	began := float64(time.Now().UnixNano()) / 1e9
	for life := range 2 {
		for want := range uint64(22) {
			frames, err := sub.RecvMessageBytes(0)
			if err != nil {
				t.Fatalf("life %d, batch %d: %v", life, want, err)
			}
			topic, payload, seq, err := wire.ParseMessage(frames)
			if err != nil || string(topic) != "kv-events" || seq != want {
				t.Fatalf("life %d: topic %q, number %d: %v; want kv-events, %d", life, topic, seq, err, want)
			}
			if err := dec.Decode(payload, &b); err != nil || len(b.Events) == 0 || b.Timestamp < began {
				t.Fatalf("life %d, batch %d: %d events, time %v: %v", life, want, len(b.Events), b.Timestamp, err)
			}
		}
	}
	m.stop()
	if code := <-m.code; code != 0 {
		t.Errorf("exit %d, want 0", code)
	}
	if n := <-told; n["life"] < 2 || n["req"] < 2*23-2 || n["resp"] < 2*23-2 {
		t.Errorf("told %v, want two lives of 23 requests and answers", n)
	}
}

// TestReplay asks for what was published: the recorded buffer's depth, a start
// within it, one past its end, and a request without delimiter, which gets nothing.
func TestReplay(t *testing.T) {
	m := start(t, "--recording", fixture+"vllm032_replay.jsonl.gz", "--speed", "100000")
	go func() {
		for {
			if _, err := io.WriteString(m.gate, "\n"); err != nil {
				return
			}
		}
	}()
	for m.lines.Scan() && !strings.Contains(m.lines.Text(), `"k":"end"`) {
	}
	dealer := socket(t, zmq.DEALER, m.ready.Replay[0])
	for _, test := range []struct{ start, first, n uint64 }{{0, 10, 12}, {20, 20, 2}, {22, 0, 0}, {1<<64 - 1, 0, 0}} {
		seqs, _ := ask(t, dealer, test.start)
		if uint64(len(seqs)) != test.n || test.n > 0 && seqs[0] != test.first {
			t.Errorf("from %d: %v, want %d from %d", test.start, seqs, test.n, test.first)
		}
	}
	if _, err := dealer.SendMessage([]byte("no delimiter")); err != nil {
		t.Fatal(err)
	}
	if seqs, _ := ask(t, dealer, 21); len(seqs) != 1 {
		t.Errorf("after a malformed request: %v, want one batch", seqs)
	}
	m.stop()
	if code := <-m.code; code != 0 {
		t.Errorf("exit %d, want 0", code)
	}
}

// TestHistory plays a recording that begins on a warm engine: what came before
// is in the replay buffer from the start.
func TestHistory(t *testing.T) {
	m := start(t, "--recording", fixture+"vllm032_http_dp2_latejoin.jsonl.gz", "--speed", "100000")
	if len(m.ready.Pub) != 2 || len(m.ready.Replay) != 2 {
		t.Fatalf("ready: %+v, want two ranks", m.ready)
	}
	if _, err := io.WriteString(m.gate, "\n"); err != nil { // begins, and waits at its first request
		t.Fatal(err)
	}
	for m.lines.Scan() && !strings.Contains(m.lines.Text(), `"k":"req"`) {
	}
	var q Request
	if err := json.Unmarshal(m.lines.Bytes(), &q); err != nil || len(q.Tokens) != 100 || q.Published["0"] != 59 || q.Published["1"] != 62 {
		t.Errorf("first request: %d tokens, published %v: %v; want 100, 59 and 62", len(q.Tokens), q.Published, err)
	}
	for rank, want := range []int{60, 63} {
		seqs, _ := ask(t, socket(t, zmq.DEALER, m.ready.Replay[rank]), 0)
		if len(seqs) != want || seqs[0] != 0 {
			t.Errorf("rank %d: %d batches of history, want %d from 0", rank, len(seqs), want)
		}
	}
	m.stop()
	<-m.code
}
