// SPDX-License-Identifier: Apache-2.0

// Before: content.go. After: the indexes' live sockets.

package decide

import (
	"context"
	"errors"
	"fmt"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/harness/corpus"
	"kindex/internal/kv"
	"kindex/relay/wire"
)

// subscribeTime bounds how long indexes may take to subscribe to one worker.
const subscribeTime = 30 * time.Second

// perBatch is how many events one carries.
const perBatch = 32

// feed is one publisher a worker.
type feed struct {
	ctx     *zmq.Context
	sockets []*zmq.Socket
	at      []string // endpoints, by worker
	layout  *wire.Layout
}

func newFeed(workers int) (*feed, error) {
	layout, err := wire.LayoutFor("vllm", "0.32.0")
	if err != nil {
		return nil, err
	}
	ctx, err := zmq.NewContext()
	if err == nil {
		err = ctx.SetMaxSockets(2*workers + 16)
	}
	if err != nil {
		return nil, fmt.Errorf("libzmq: %w", err)
	}
	f := &feed{ctx: ctx, layout: layout}
	for range workers {
		s, err := ctx.NewSocket(zmq.XPUB) // it sees who subscribes
		if err == nil {
			f.sockets = append(f.sockets, s)
			err = errors.Join(s.SetLinger(0), s.SetSndhwm(0), s.SetXpubVerbose(1), s.SetRcvtimeo(subscribeTime), s.Bind("tcp://127.0.0.1:*"))
		}
		var at string
		if err == nil {
			at, err = s.GetLastEndpoint()
		}
		if err != nil {
			f.close()
			return nil, fmt.Errorf("libzmq: %w", err)
		}
		f.at = append(f.at, at)
	}
	return f, nil
}

func (f *feed) close() {
	for _, s := range f.sockets {
		_ = s.Close()
	}
	_ = f.ctx.Term()
}

// subscribed waits until n indexes listen to every worker.
func (f *feed) subscribed(ctx context.Context, n int) error {
	for i, s := range f.sockets {
		for got := 0; got < n; {
			if err := ctx.Err(); err != nil {
				return err
			}
			m, err := s.RecvBytes(0)
			if err != nil {
				return fmt.Errorf("%d of %d indexes subscribed to %s: %w", got, n, f.at[i], err)
			}
			if len(m) > 0 && m[0] == 1 {
				got++
			}
		}
	}
	return nil
}

// announce sends all of w once.
func (f *feed) announce(ctx context.Context, w *world) error {
	_, engines := w.corpus.Hashes()
	for i, has := range w.held {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f.one(i, w, has, engines); err != nil {
			return err
		}
	}
	return nil
}

// one sends what one worker has: a chain of blocks each event, parents first.
func (f *feed) one(i int, w *world, has bits, engines []kv.EngineHash) error {
	seq := uint64(0)
	b := kv.Batch{HasRank: true}
	send := func() error {
		b.Timestamp = float64(time.Now().UnixMicro()) / 1e6
		_, err := f.sockets[i].SendMessage(wire.MakeMessage("", seq, wire.AppendBatch(nil, &b, f.layout)))
		seq++
		b.Events = b.Events[:0]
		return err
	}
	last := corpus.NoNode
	for x, p := range w.corpus.Parents {
		if !has.is(uint32(x)) {
			continue
		}
		if p != last || p == corpus.NoNode || len(b.Events) == 0 {
			if len(b.Events) == perBatch {
				if err := send(); err != nil {
					return err
				}
			}
			e := kv.Event{Kind: kv.KindStored, BlockSize: blockTokens, Medium: "GPU"}
			if p != corpus.NoNode {
				e.Parent, e.HasParent = engines[p], true
			}
			b.Events = append(b.Events, e)
		}
		e := &b.Events[len(b.Events)-1]
		e.Hashes = append(e.Hashes, engines[x])
		e.Tokens = tokensOf(w.corpus.Contents[x], e.Tokens)
		last = uint32(x)
	}
	return send()
}
