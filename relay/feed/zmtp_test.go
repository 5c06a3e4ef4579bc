// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

// appendFrame appends a frame as a publisher sends it.
func appendFrame(dst []byte, more bool, body []byte) []byte {
	var flags byte
	if more {
		flags = flagMore
	}
	if len(body) > 255 {
		dst = binary.BigEndian.AppendUint64(append(dst, flags|flagLong), uint64(len(body)))
	} else {
		dst = append(dst, flags, byte(len(body)))
	}
	return append(dst, body...)
}

func appendMessage(dst []byte, frames ...[]byte) []byte {
	for i, f := range frames {
		dst = appendFrame(dst, i < len(frames)-1, f)
	}
	return dst
}

// cutAll cuts a stream that comes in pieces of size bytes.
func cutAll(stream []byte, size int, limit uint64) (msgs []Message, f *framer, err error) {
	f = &framer{max: limit}
	for {
		for more := true; more; {
			if msgs, more, err = nextAll(f, msgs); err != nil {
				return msgs, f, err
			}
		}
		if len(stream) == 0 {
			return msgs, f, nil
		}
		n := copy(f.space(), stream[:min(size, len(stream))])
		f.read(n)
		stream = stream[n:]
	}
}

func nextAll(f *framer, msgs []Message) ([]Message, bool, error) {
	burst, more, err := f.next(nil)
	return append(msgs, burst...), more, err
}

// Messages come out as they went in, however the stream is cut into pieces, and
// none changes when later ones are read.
func TestFramer(t *testing.T) {
	var stream []byte
	var want []Message
	for i := range 300 {
		body := bytes.Repeat([]byte{byte(i)}, i*i%1000)
		if i%100 == 50 {
			body = bytes.Repeat([]byte{byte(i)}, 3*pageSize)
		}
		stream = appendMessage(stream, wire.MakeMessage("kv", uint64(i), body)...)
		want = append(want, Message{Seq: uint64(i), Payload: body})
		if i%7 == 0 {
			stream = appendCommand(stream, "PING", "\x00\x00hello")
		}
		if i%11 == 0 {
			stream = appendMessage(stream, []byte("one"), []byte("two"))
			want = append(want, Message{Bad: true})
		}
		if i%13 == 0 {
			stream = appendMessage(stream, bytes.Split([]byte("1 2 3 4 5 6 7 8 9"), []byte(" "))...)
			want = append(want, Message{Bad: true})
		}
	}
	for _, size := range []int{1, 2, 3, 7, 100, 4096, 1 << 30} {
		got, f, err := cutAll(stream, size, 1<<20)
		if err != nil || len(got) != len(want) {
			t.Fatalf("in pieces of %d: %d messages (%v), want %d", size, len(got), err, len(want))
		}
		for i := range want {
			if got[i].Bad != want[i].Bad || !want[i].Bad && (got[i].Seq != want[i].Seq || !bytes.Equal(got[i].Payload, want[i].Payload)) {
				t.Fatalf("in pieces of %d: message %d is %d with %d bytes, want %d with %d", size, i, got[i].Seq, len(got[i].Payload), want[i].Seq, len(want[i].Payload))
			}
		}
		if pongs := bytes.Count(f.pong, []byte("\x04PONGhello")); pongs != 43 {
			t.Errorf("in pieces of %d: %d answers to 43 pings", size, pongs)
		}
	}
}

// What no publisher sends ends the connection in one line.
func TestFramerRefuses(t *testing.T) {
	long := binary.BigEndian.AppendUint64([]byte{flagLong}, 1<<20+1)
	for name, stream := range map[string][]byte{
		"a frame past the limit":   long,
		"a frame of 2^63 bytes":    append([]byte{flagLong}, 0x80, 0, 0, 0, 0, 0, 0, 0),
		"unknown flags":            {0x80, 1, 1},
		"a command with more":      {flagCommand | flagMore, 1, 0},
		"a command without name":   {flagCommand, 0},
		"a command's name too far": {flagCommand, 2, 9, 'x'},
		"a long command":           binary.BigEndian.AppendUint64([]byte{flagCommand | flagLong}, maxCommand+1),
	} {
		if _, _, err := cutAll(stream, 1, 1<<20); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A command's name may have 255 bytes, the most that its length can say.
func TestLongestName(t *testing.T) {
	body := append([]byte{255}, bytes.Repeat([]byte{'x'}, 300)...)
	name, rest, ok := cut(body)
	if !ok || len(name) != 255 || len(rest) != 45 {
		t.Errorf("a name of %d bytes and %d more (%v), want 255 and 45", len(name), len(rest), ok)
	}
	stream := binary.BigEndian.AppendUint64([]byte{flagCommand | flagLong}, uint64(len(body)))
	if _, _, err := cutAll(append(stream, body...), 1<<30, 1<<20); err != nil {
		t.Errorf("a command that means nothing: %v", err)
	}
}

func FuzzFramer(f *testing.F) {
	f.Add(appendMessage(nil, wire.MakeMessage("kv", 7, []byte("payload"))...), uint8(3))
	f.Add(appendCommand(nil, "PING", "\x00\x00x"), uint8(1))
	f.Add(append([]byte{flagCommand | flagLong, 0, 0, 0, 0, 0, 0, 1, 44, 255}, make([]byte, 299)...), uint8(9))
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		whole, _, errWhole := cutAll(stream, 1<<30, 1<<12)
		pieces, _, errPieces := cutAll(stream, int(size)+1, 1<<12)
		if (errWhole == nil) != (errPieces == nil) || len(whole) != len(pieces) {
			t.Fatalf("whole: %d messages (%v), in pieces: %d (%v)", len(whole), errWhole, len(pieces), errPieces)
		}
		for i := range whole {
			if whole[i].Seq != pieces[i].Seq || !bytes.Equal(whole[i].Payload, pieces[i].Payload) {
				t.Fatalf("message %d differs", i)
			}
		}
	})
}

// greeted greets a peer that says so much and no more, and returns what comes of it.
func greeted(t *testing.T, says []byte) error {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_, _ = c.Write(says)
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
		_, _ = io.Copy(io.Discard, c)
	}()
	ours, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := ours.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	err = greet(ours)
	_ = ours.Close()
	<-ended
	return err
}

func greetingOf(major byte, mechanism string) []byte {
	g := make([]byte, greetingBytes)
	g[0], g[9], g[majorAt] = 0xff, 0x7f, major
	copy(g[mechanismAt:], mechanism)
	return g
}

// Peers that are no publishers of today are told apart.
func TestGreetRefuses(t *testing.T) {
	ready := func(kind string) []byte {
		body := "\x0bSocket-Type" + string(binary.BigEndian.AppendUint32(nil, uint32(len(kind)))) + kind
		return append(greetingOf(3, "NULL"), appendCommand(nil, "READY", body)...)
	}
	for _, c := range []struct {
		name string
		says []byte
		want error
		text string
	}{
		{"ZMTP 1", []byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0}, errOldPeer, ""},
		{"ZMTP 2", append(greetingOf(1, "")[:11], 1, 0, 0), errOldPeer, ""},
		{"a web server", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), errOldPeer, ""}, // libzmq says the rest
		{"the end at once", nil, errNotZMTP, ""},
		{"the end in the greeting", greetingOf(3, "NULL")[:20], errNotZMTP, ""},
		{"the end before READY", greetingOf(3, "NULL"), errNotZMTP, ""},
		{"another mechanism", greetingOf(3, "CURVE"), nil, `"CURVE"`},
		{"a refusal", append(greetingOf(3, "NULL"), appendCommand(nil, "ERROR", "\x04nope")...), nil, "nope"},
		{"a PULL socket", ready("PULL"), errNoPublisher, "PULL"},
		{"a message", append(greetingOf(3, "NULL"), 0, 1, 1), errNotZMTP, ""},
		{"no socket type", append(greetingOf(3, "NULL"), appendCommand(nil, "READY", "")...), errNoPublisher, ""},
		{"a value too far", append(greetingOf(3, "NULL"), appendCommand(nil, "READY", "\x01x\xff\xff\xff\xff")...), errNotZMTP, ""},
	} {
		err := greeted(t, c.says)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.want, c.text)
		}
	}
	if err := greeted(t, ready("XPUB")); err != nil {
		t.Errorf("an XPUB socket: %v", err)
	}
}

// sums is a sink that notes what was committed.
type sums struct {
	mu   sync.Mutex
	seqs []uint64
	news chan struct{}
}

func (*sums) Decodable([]byte) bool       { return true }
func (*sums) Lost(uint64, uint64, string) {}
func (*sums) Forget(Forget, *Faults)      {}
func (s *sums) Stage(b *Batch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seqs = append(s.seqs, b.Seq)
	return true
}
func (s *sums) Commit(*Faults) { s.tell() }
func (s *sums) tell() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

func (s *sums) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seqs)
}

// A libzmq publisher that comes late, goes and comes again, and one that asks
// whether we are there: nothing is lost while it is there.
func TestLiveOfLibzmq(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := "tcp://" + ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	src, err := NewZMQ(ZMQOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sink := &sums{news: make(chan struct{}, 1)}
	stream, err := Open(src, Config{Endpoint: endpoint}, sink, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		stream.Close()
		if err := src.Close(); err != nil {
			t.Error(err)
		}
	}()
	payload := wire.AppendBatch(nil, &kv.Batch{Timestamp: 1}, lossyLayout(t))
	seq := uint64(0)
	for life := range 3 {
		before := sink.count()
		pub := publishUntil(t, endpoint, payload, &seq, sink)
		if got := sink.count() - before; got < 100 {
			t.Errorf("life %d: %d batches", life, got)
		}
		if !stream.Status().Connected {
			t.Errorf("life %d: not connected", life)
		}
		pub()
	}
	if st := stream.Status(); st.Malformed != 0 || st.Restarts != 0 {
		t.Errorf("%d malformed, %d restarts, want none", st.Malformed, st.Restarts)
	}
	for i := 1; i < len(sink.seqs); i++ {
		if sink.seqs[i] <= sink.seqs[i-1] {
			t.Fatalf("batch %d after %d", sink.seqs[i], sink.seqs[i-1])
		}
	}
}

func lossyLayout(t *testing.T) *wire.Layout {
	t.Helper()
	l, err := wire.LayoutFor("vllm", "99")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// publishUntil binds a publisher that asks for a sign of life 50 times a second,
// and publishes until 100 batches have come. It returns what closes it.
func publishUntil(t *testing.T, endpoint string, payload []byte, seq *uint64, sink *sums) func() {
	t.Helper()
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	pub, err := ctx.NewSocket(zmq.PUB)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		pub.SetLinger(0), pub.SetHeartbeatIvl(20 * time.Millisecond), pub.SetHeartbeatTimeout(500 * time.Millisecond), pub.Bind(endpoint),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	goal := sink.count() + 100
	for end := time.Now().Add(20 * time.Second); sink.count() < goal; {
		if time.Now().After(end) {
			t.Fatalf("%d batches came, want %d", sink.count(), goal)
		}
		if _, err := pub.SendMessage("kv", binary.BigEndian.AppendUint64(nil, *seq), payload); err != nil {
			t.Fatal(err)
		}
		*seq++
		time.Sleep(time.Millisecond)
	}
	return func() {
		if err := errors.Join(pub.Close(), ctx.Term()); err != nil {
			t.Error(fmt.Errorf("closing the publisher: %w", err))
		}
	}
}
