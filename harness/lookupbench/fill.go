// SPDX-License-Identifier: Apache-2.0

// Before: content.go. After: the hosts' live sockets.

package lookupbench

import (
	"errors"
	"fmt"
	"time"

	zmq "github.com/pebbe/zmq4"

	"kindex/internal/kv"
	"kindex/relay/wire"
)

// subscribeTime bounds how long hosts may take to subscribe.
const subscribeTime = 30 * time.Second

// perBatch is how many events one carries.
const perBatch = 16

// fleet is one publisher an instance.
type fleet struct {
	ctx     *zmq.Context
	sockets []*zmq.Socket
	at      []string // endpoints, by instance
	layout  *wire.Layout
}

func newFleet(instances int) (*fleet, error) {
	layout, err := wire.LayoutFor("vllm", "0.32.0")
	if err != nil {
		return nil, err
	}
	ctx, err := zmq.NewContext()
	if err != nil {
		return nil, fmt.Errorf("libzmq: %w", err)
	}
	f := &fleet{ctx: ctx, layout: layout}
	for range instances {
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

func (f *fleet) close() {
	for _, s := range f.sockets {
		_ = s.Close()
	}
	_ = f.ctx.Term()
}

// subscribed waits until n hosts listen to every instance.
func (f *fleet) subscribed(n int) error {
	for i, s := range f.sockets {
		for got := 0; got < n; {
			m, err := s.RecvBytes(0)
			if err != nil {
				return fmt.Errorf("%d of %d hosts subscribed to %s: %w", got, n, f.at[i], err)
			}
			if len(m) > 0 && m[0] == 1 {
				got++
			}
		}
	}
	return nil
}

// announce sends all of w once.
func (f *fleet) announce(w *world) error {
	batches := make([]kv.Batch, len(f.sockets))
	seqs := make([]uint64, len(f.sockets))
	send := func(i int) error {
		b := &batches[i]
		// The peer does not read a batch without a rank.
		b.Timestamp, b.HasRank = float64(time.Now().UnixMicro())/1e6, true
		_, err := f.sockets[i].SendMessage(wire.MakeMessage("", seqs[i], wire.AppendBatch(nil, b, f.layout)))
		seqs[i]++
		b.Events = b.Events[:0]
		return err
	}
	for k := range w.groups {
		g := &w.groups[k]
		for h, i := range g.holders {
			batches[i].Events = events(batches[i].Events, g, h)
			if len(batches[i].Events) >= perBatch {
				if err := send(i); err != nil {
					return err
				}
			}
		}
	}
	for i := range batches {
		if err := send(i); err != nil {
			return err
		}
	}
	return nil
}

// events appends what the group's holder h stored: the common blocks once, as far as it
// has them, then what is each prompt's own.
func events(dst []kv.Event, g *group, h int) []kv.Event {
	dst = append(dst, stored(&g.prompts[0], 0, g.beginning(h)))
	for i := range g.prompts {
		if d := g.prompts[i].depth[h]; d > sharedBlocks {
			dst = append(dst, stored(&g.prompts[i], sharedBlocks, d))
		}
	}
	return dst
}

// stored returns one event for p's blocks [from, to).
func stored(p *prompt, from, to int) kv.Event {
	e := kv.Event{
		Kind: kv.KindStored, BlockSize: blockTokens, Medium: "GPU",
		Hashes: p.engines[from:to], Tokens: p.tokens[from*blockTokens : to*blockTokens],
	}
	if from > 0 {
		e.Parent, e.HasParent = p.engines[from-1], true
	}
	return e
}
