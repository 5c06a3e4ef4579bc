// SPDX-License-Identifier: Apache-2.0

package lookups

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"kindex/harness/publish"
	"kindex/indexsrv"
	"kindex/internal/kv"
	"kindex/relay/wire"
)

var quiet = slog.New(slog.DiscardHandler)

// patience is how long anything here may take. It is no measure of anything.
const patience = 60 * time.Second

// until waits until ok returns "", and fails the test with its last word else.
func until(t *testing.T, what string, ok func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		why := ok()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %s", what, why)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

const (
	blockSize = 4
	branches  = 3  // children of a prompt's position
	maxDepth  = 14 // blocks
)

// space is one namespace in which streams store and queries ask.
type space struct{ lora, salt string }

var spaces = [...]space{{"", ""}, {"ad", ""}, {"", "s"}, {"ad", "s"}}

// path is a prompt: the branch taken at each block.
type path []uint8

func randomPath(rng *rand.Rand) path {
	p := make(path, 1+rng.IntN(maxDepth))
	for i := range p {
		p[i] = uint8(rng.IntN(branches))
		if rng.IntN(3) > 0 { // most prompts are alike
			p[i] = 0
		}
	}
	return p
}

// tokens of p's blocks.
func (p path) tokens() []uint32 {
	var ts []uint32
	for i, b := range p {
		for k := range blockSize {
			ts = append(ts, uint32(i*100+int(b)*10+k+1))
		}
	}
	return ts
}

// items are the extra keys of p's blocks: each second branch shows an image.
func (p path) items() [][]kv.ExtraKey {
	keys := make([][]kv.ExtraKey, len(p))
	for i, b := range p {
		if b == 2 {
			keys[i] = []kv.ExtraKey{{Kind: kv.ExtraItem, ID: "img", Offset: int64(-i)}}
		}
	}
	return keys
}

// engine is one stream: it stores and removes blocks at random and says so.
type engine struct {
	socket *zmq4.Socket
	layout *wire.Layout
	rng    *rand.Rand
	id     uint64
	seq    uint64
	held   map[string]uint64 // engine hash by namespace and path
	names  []string          // of held
	next   uint64
}

// batch sends one.
func (e *engine) batch() error {
	s := e.rng.IntN(len(spaces))
	p := randomPath(e.rng)
	key := func(n int) string { return string(append([]byte{byte(s)}, p[:n]...)) }
	from := len(p)
	for from > 0 && e.held[key(from)] == 0 {
		from--
	}
	medium := "GPU"
	if e.rng.IntN(4) == 0 {
		medium = "CPU"
	}
	var events []kv.Event
	if from < len(p) {
		ev := kv.Event{Kind: kv.KindStored, BlockSize: blockSize, Medium: medium, LoRAName: spaces[s].lora, HasExtra: true}
		if spaces[s].lora != "" {
			ev.LoRAID, ev.HasLoRAID = 1, true
		}
		if from > 0 {
			ev.Parent, ev.HasParent = kv.EngineHash(e.held[key(from)]), true
		}
		items := p.items()
		for n := from + 1; n <= len(p); n++ {
			e.next++
			h := e.id<<32 + e.next
			e.held[key(n)] = h
			e.names = append(e.names, key(n)+"/"+medium)
			ev.Hashes = append(ev.Hashes, kv.EngineHash(h))
			keys := items[n-1]
			if spaces[s].lora != "" {
				keys = append([]kv.ExtraKey{{Kind: kv.ExtraString, ID: spaces[s].lora}}, keys...)
			}
			if n == 1 && spaces[s].salt != "" {
				keys = append(keys, kv.ExtraKey{Kind: kv.ExtraString, ID: spaces[s].salt})
			}
			ev.Extra = append(ev.Extra, keys)
		}
		ev.Tokens = p.tokens()[from*blockSize:]
		events = append(events, ev)
	}
	for len(e.names) > 150 {
		i := e.rng.IntN(len(e.names))
		name, medium, _ := strings.Cut(e.names[i], "/")
		e.names[i] = e.names[len(e.names)-1]
		e.names = e.names[:len(e.names)-1]
		events = append(events, kv.Event{Kind: kv.KindRemoved, Medium: medium, Hashes: []kv.EngineHash{kv.EngineHash(e.held[name])}})
		delete(e.held, name)
	}
	b := kv.Batch{Timestamp: float64(time.Now().UnixNano()) / 1e9, Events: events}
	var seq [8]byte
	binary.BigEndian.PutUint64(seq[:], e.seq)
	e.seq++
	_, err := e.socket.SendMessage("", seq[:], wire.AppendBatch(nil, &b, e.layout))
	return err
}

// fleet is streams that write.
type fleet struct {
	engines []*engine
	first   int // port
	stop    context.CancelFunc
	done    sync.WaitGroup
	sent    atomic.Uint64
}

// ranks of each instance of the fleet, eight streams in all.
var ranks = []struct {
	id    indexsrv.InstanceID
	ranks int
}{{indexsrv.NumberID(1), 2}, {indexsrv.TextID("x"), 1}, {indexsrv.NumberID(7), 3}, {indexsrv.TextID("y"), 2}}

func startFleet(t *testing.T, h *indexsrv.Host) *fleet {
	t.Helper()
	layout, err := wire.LayoutFor("vllm", "0.32.0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{}
	if f.first, err = publish.FreePorts(8); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		s, err := zmq4.NewSocket(zmq4.PUB)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		if err := s.Bind(fmt.Sprintf("tcp://127.0.0.1:%d", f.first+i)); err != nil {
			t.Fatal(err)
		}
		f.engines = append(f.engines, &engine{
			socket: s, layout: layout, rng: rand.New(rand.NewPCG(uint64(i), 9)), id: uint64(i + 1), held: map[string]uint64{},
		})
	}
	port := f.first
	for _, r := range ranks {
		reg := indexsrv.Registration{Instance: r.id, Model: "m", BlockSize: blockSize, Ranks: r.ranks, Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", port)}
		if err := h.Register(t.Context(), reg); err != nil {
			t.Fatal(err)
		}
		port += r.ranks
	}
	until(t, "the streams", func() string { return strings.Join(h.Unready(), "; ") })
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	for _, e := range f.engines {
		f.done.Go(func() {
			tick := time.NewTicker(15 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if err := e.batch(); err != nil {
					t.Error(err)
					return
				}
				f.sent.Add(1)
			}
		})
	}
	t.Cleanup(func() {
		f.end()
		for _, e := range f.engines {
			_ = e.socket.Close() // not before: a stream without its engine is not exact
		}
	})
	return f
}

// end stops the writing.
func (f *fleet) end() {
	f.stop()
	f.done.Wait()
}

// startHost runs a host with gRPC in this process.
func startHost(t *testing.T, change func(*indexsrv.Config)) *indexsrv.Host {
	t.Helper()
	cfg := indexsrv.DefaultConfig()
	cfg.Listen, cfg.GRPCListen = "127.0.0.1:0", "127.0.0.1:0"
	change(&cfg)
	h, err := indexsrv.New(cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("index host: %v", err)
		}
	})
	return h
}

// post asks over HTTP.
func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}
