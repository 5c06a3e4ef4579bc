// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

// freePorts returns the first of n consecutive ports that nobody listens on.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for range 50 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		first := l.Addr().(*net.TCPAddr).Port
		ok := first+n <= 65535
		_ = l.Close()
		for i := 1; ok && i < n; i++ {
			next, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+i))
			if ok = err == nil; ok {
				_ = next.Close()
			}
		}
		if ok {
			return first
		}
	}
	t.Fatal("no ports")
	return 0
}

func publisher(t *testing.T, how func(s *zmq.Socket) error) *zmq.Socket {
	t.Helper()
	s, err := zmq.NewSocket(zmq.PUB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if err := how(s); err != nil {
		t.Fatal(err)
	}
	return s
}

func publish(t *testing.T, s *zmq.Socket, payload []byte) {
	t.Helper()
	if _, err := s.SendMessage("load", binary.BigEndian.AppendUint64(nil, 0), payload); err != nil {
		t.Fatal(err)
	}
}

func TestSocket(t *testing.T) {
	port := freePorts(t, 2)
	m := run(t, Config{Engine: "sglang", Ranks: 2, Loads: fmt.Sprintf("tcp://127.0.0.1:%d", port)})
	for r := range 2 {
		s := publisher(t, func(s *zmq.Socket) error { return s.Bind(fmt.Sprintf("tcp://127.0.0.1:%d", port+r)) })
		l := kv.Load{Running: 4, Waiting: 2, UsedTokens: 30, MaxTokens: 120, Rank: int64(r), WaitingUncachedTokens: 9, MaxRunning: 64, Fields: 10}
		eventually(t, "a reading", func() bool {
			publish(t, s, wire.AppendLoad(nil, &l))
			time.Sleep(5 * time.Millisecond)
			return running(m, r) == "4/2"
		})
		got := m.Rank(r)
		if got.Usage != Some(0.25) || got.WaitingUncached != Some(uint32(9)) || got.MaxRunning != Some(uint32(64)) || got.Throughput.Known {
			t.Errorf("rank %d: %+v", r, got)
		}
		publish(t, s, []byte{0xc0})
		eventually(t, "garbage counted", func() bool { return m.Stats().Failures[FailSocket] == uint64(r+1) })
		l.Fields, l.Running = 5, 7
		publish(t, s, wire.AppendLoad(nil, &l))
		eventually(t, "the old shape", func() bool {
			return running(m, r) == "7/2" && !m.Rank(r).WaitingUncached.Known && !m.Rank(r).MaxRunning.Known
		})
		l.Fields, l.Running, l.Nils = 6, 8, 1<<5
		publish(t, s, wire.AppendLoad(nil, &l))
		eventually(t, "an unsaid figure", func() bool { return running(m, r) == "8/2" && !m.Rank(r).WaitingUncached.Known })
	}
}

// TestSocketBinds: an engine that connects meets a socket that is bound.
func TestSocketBinds(t *testing.T) {
	port := freePorts(t, 1)
	m := run(t, Config{Engine: "sglang", Ranks: 1, Loads: fmt.Sprintf("tcp://*:%d", port)})
	s := publisher(t, func(s *zmq.Socket) error { return s.Connect(fmt.Sprintf("tcp://127.0.0.1:%d", port)) })
	eventually(t, "a reading", func() bool {
		publish(t, s, wire.AppendLoad(nil, &kv.Load{Running: 3, Fields: 5}))
		time.Sleep(5 * time.Millisecond)
		return running(m, 0) == "3/0"
	})
}

// TestSocketTaken: an address that another has bound is tried again.
func TestSocketTaken(t *testing.T) {
	port := freePorts(t, 1)
	endpoint := fmt.Sprintf("tcp://*:%d", port)
	other := publisher(t, func(s *zmq.Socket) error { return s.Bind(endpoint) })
	m := run(t, Config{Engine: "sglang", Ranks: 1, Loads: endpoint})
	eventually(t, "a failure", func() bool { return m.Stats().Failures[FailSocket] > 0 && m.Stats().LastErr != "" })
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	// Not before it is gone: libzmq gives up an address where another publisher is.
	eventually(t, "the address free", func() bool {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = l.Close()
		}
		return err == nil || m.Stats().Failures[FailSocket] > 1
	})
	s := publisher(t, func(s *zmq.Socket) error { return s.Connect(fmt.Sprintf("tcp://127.0.0.1:%d", port)) })
	eventually(t, "a reading", func() bool {
		publish(t, s, wire.AppendLoad(nil, &kv.Load{Running: 3, Fields: 5}))
		time.Sleep(5 * time.Millisecond)
		return running(m, 0) == "3/0"
	})
}

// TestSocketRejoins: something else had the engine's port before it.
func TestSocketRejoins(t *testing.T) {
	port := freePorts(t, 1)
	endpoint := fmt.Sprintf("tcp://127.0.0.1:%d", port)
	other, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	m := meter(t, Config{Engine: "sglang", Ranks: 1, Loads: endpoint})
	m.push.silence = 200 * time.Millisecond
	start(t, m)
	conn, err := other.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write([]byte("SSH-2.0-not a publisher of anything at all, and long enough\r\n"))
	_ = other.Close()
	eventually(t, "the silence counted", func() bool { return m.Stats().Failures[FailSocket] > 0 })
	_ = conn.Close()
	s := publisher(t, func(s *zmq.Socket) error { return s.Bind(endpoint) })
	eventually(t, "a reading", func() bool {
		publish(t, s, wire.AppendLoad(nil, &kv.Load{Running: 3, Fields: 5}))
		time.Sleep(5 * time.Millisecond)
		return running(m, 0) == "3/0"
	})
}

// TestSocketAndHTTP: what the socket does not say is the HTTP server's.
func TestSocketAndHTTP(t *testing.T) {
	port := freePorts(t, 1)
	e := newEngine(t, serves("/v1/loads", `{"loads":[{"dp_rank":0,"num_running_reqs":1,"num_waiting_reqs":1,"gen_throughput":50.5,"token_usage":0.5}]}`))
	m := run(t, Config{Engine: "sglang", Ranks: 1, Metrics: e.URL, Loads: fmt.Sprintf("tcp://127.0.0.1:%d", port)})
	s := publisher(t, func(s *zmq.Socket) error { return s.Bind(fmt.Sprintf("tcp://127.0.0.1:%d", port)) })
	eventually(t, "both in one reading", func() bool {
		publish(t, s, wire.AppendLoad(nil, &kv.Load{Running: 6, Waiting: 5, UsedTokens: 1, MaxTokens: 4, WaitingUncachedTokens: 3, Fields: 10}))
		time.Sleep(time.Millisecond)
		r := m.Rank(0)
		return r != nil && running(m, 0) == "6/5" && r.Throughput == Some(50.5) && r.Usage == Some(0.25)
	})
}

func TestSocketMessages(t *testing.T) {
	m := meter(t, Config{Engine: "sglang", Ranks: 1, Ask: nothing})
	m.pushed(0, [][]byte{{}, {}}, t0)
	m.pushed(0, [][]byte{{}, {}, {0x90}}, t0)
	if n := m.Stats().Failures[FailSocket]; n != 2 || m.Rank(0) != nil {
		t.Errorf("%d failures, want 2", n)
	}
	// A rank beyond ours is the socket's own.
	m.pushed(0, [][]byte{{}, {}, wire.AppendLoad(nil, &kv.Load{Running: 1, Rank: 7, Fields: 10})}, t0)
	if running(m, 0) != "1/0" {
		t.Errorf("rank 0 is %s, want 1/0", running(m, 0))
	}
}
