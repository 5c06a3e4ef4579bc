// SPDX-License-Identifier: Apache-2.0

// Before: a relay, through gRPC. After: measure.go.

package relaybench

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"kindex/harness/subscribe"
)

// A reader takes messages as bytes and reads the few fields that it needs, so that a
// subscriber costs little and the same for every arm.

// bytesCodec hands messages through; requests are *[]byte, too.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) ([]byte, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	return *b, nil
}

func (bytesCodec) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	*b = append((*b)[:0], data...)
	return nil
}

// message is what a reader wants to know of one.
type message struct {
	kind         messageKind
	seq          uint64
	timestamp    float64 // seconds
	index, count uint64  // of a chunk
	blocks       uint64  // of the whole snapshot
	bytes        int
}

type messageKind uint8

const (
	kindOther messageKind = iota // a load, a standing
	kindBatch
	kindChunk
)

// contract is how one contract is asked and read.
type contract struct {
	method  string
	request []byte
	read    func([]byte) message
}

var (
	peerContract = contract{"/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", nil, readPeer}
	ownContract  = contract{"/kindex.relay.v1.RelayService/Subscribe", nil, readOwn}
)

// fields calls fn for each field of an encoded message.
func fields(b []byte, fn func(n int, t protowire.Type, number uint64, bytes []byte)) {
	for len(b) > 0 {
		n, t, k := protowire.ConsumeTag(b)
		if k < 0 {
			return
		}
		b = b[k:]
		var number uint64
		var bytes []byte
		switch t {
		case protowire.VarintType:
			number, k = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			number, k = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			bytes, k = protowire.ConsumeBytes(b)
		case protowire.Fixed32Type, protowire.StartGroupType, protowire.EndGroupType:
			k = protowire.ConsumeFieldValue(n, t, b)
		}
		if k < 0 {
			return
		}
		fn(int(n), t, number, bytes)
		b = b[k:]
	}
}

// readPeer reads a KvEventBatch of the peer's contract.
func readPeer(b []byte) message {
	m := message{kind: kindBatch, bytes: len(b)}
	fields(b, func(n int, _ protowire.Type, number uint64, bytes []byte) {
		switch n {
		case 1:
			m.seq = number
		case 2:
			m.timestamp = math.Float64frombits(number)
		case 7:
			m.kind = kindChunk
			m.chunk(bytes)
		case 8:
			fields(bytes, func(n int, _ protowire.Type, number uint64, _ []byte) {
				if n == 9 && number != 0 { // load_only
					m.kind = kindOther
				}
			})
		}
	})
	return m
}

// readOwn reads a SubscribeResponse of our contract.
func readOwn(b []byte) message {
	m := message{kind: kindOther, bytes: len(b)}
	fields(b, func(n int, _ protowire.Type, _ uint64, bytes []byte) {
		switch n {
		case 3:
			m.kind = kindBatch
			fields(bytes, func(n int, _ protowire.Type, number uint64, _ []byte) {
				switch n {
				case 1:
					m.seq = number
				case 3:
					m.timestamp = math.Float64frombits(number)
				}
			})
		case 4:
			m.kind = kindChunk
			m.chunk(bytes)
		}
	})
	return m
}

// chunk reads what both contracts say of a chunk under the same numbers.
func (m *message) chunk(b []byte) {
	fields(b, func(n int, t protowire.Type, number uint64, _ []byte) {
		switch {
		case n == 1 && t == protowire.VarintType:
			m.index = number
		case n == 2:
			m.count = number
		case n == 3:
			m.blocks = number
		}
	})
}

// open begins one subscription.
func (c *contract) open(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, c.method, grpc.ForceCodec(bytesCodec{}), grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	req := c.request
	if err := s.SendMsg(&req); err != nil {
		return nil, err
	}
	return s, s.CloseSend()
}

// reader is the one subscriber beside which figures are taken.
type reader struct {
	conn   *grpc.ClientConn
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	seen   int   // batches
	newest int64 // last number; -1: none
	late   []uint32
	err    error
}

// follow subscribes at addr until close.
func follow(addr string, c *contract) (*reader, error) {
	conn, err := subscribe.Dial(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &reader{conn: conn, cancel: cancel, newest: -1}
	r.done.Go(func() { r.read(ctx, c) })
	return r, nil
}

func (r *reader) read(ctx context.Context, c *contract) {
	s, err := c.open(ctx, r.conn)
	var b []byte
	for err == nil {
		if err = s.RecvMsg(&b); err != nil {
			break
		}
		now := time.Now()
		m := c.read(b)
		if m.kind != kindBatch {
			continue
		}
		r.mu.Lock()
		r.seen++
		r.newest = int64(m.seq)
		r.late = append(r.late, uint32(min(max(0, float64(now.UnixNano())-m.timestamp*1e9), math.MaxUint32)))
		r.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// take returns the latencies so far, in ns, and begins anew.
func (r *reader) take() []uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	late := r.late
	r.late, r.seen = nil, 0
	return late
}

// at reports whether the batch of that number has come.
func (r *reader) at(seq int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.newest >= seq || r.err != nil
}

func (r *reader) fault() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *reader) close() {
	r.cancel()
	r.done.Wait()
	_ = r.conn.Close()
}

// snapshot subscribes from nothing and reads one whole snapshot.
func snapshot(ctx context.Context, addr string, c *contract) (Snapshot, error) {
	conn, err := subscribe.Dial(addr)
	if err != nil {
		return Snapshot{}, err
	}
	defer func() { _ = conn.Close() }()
	// Not the connection's making is measured.
	conn.Connect()
	for s := conn.GetState(); s.String() != "READY"; s = conn.GetState() {
		if !conn.WaitForStateChange(ctx, s) {
			return Snapshot{}, ctx.Err()
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	s, err := c.open(ctx, conn)
	if err != nil {
		return Snapshot{}, err
	}
	var out Snapshot
	for {
		var b []byte
		if err := s.RecvMsg(&b); err != nil {
			return out, fmt.Errorf("snapshot: %w", err)
		}
		m := c.read(b)
		switch m.kind {
		case kindOther:
			continue
		case kindBatch:
			return out, fmt.Errorf("snapshot: batch %d came instead", m.seq)
		case kindChunk:
		}
		out.Chunks++
		out.Bytes += m.bytes
		out.Blocks = int(m.blocks)
		if m.index == 0 {
			out.FirstMs = ms(time.Since(began))
		}
		if m.index+1 == m.count {
			out.WallMs = ms(time.Since(began))
			return out, nil
		}
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
