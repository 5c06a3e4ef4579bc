// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"kindex/internal/lookup"
)

// streamDigest is a stream's digest and the cursor that it is of.
type streamDigest struct {
	streamHead
	digest uint64
}

// digester is a host that tells digests with their cursors; of others dumps are
// taken, and theirs made here.
type digester interface {
	digests(ctx context.Context, s selection) ([]streamDigest, error)
}

// digestsOf returns the digests of all hosts' streams.
func digestsOf(ctx context.Context, all []host, s selection) (ds []streamDigest, err error) {
	for _, h := range all {
		if d, ok := h.(digester); ok {
			some, err := d.digests(ctx, s)
			if err != nil && !errors.Is(err, lookup.ErrNotFound) {
				return nil, ofHost(h, err)
			}
			ds = append(ds, some...)
			continue
		}
		p := &replayer{}
		if err := h.dump(ctx, s, p); err != nil && !errors.Is(err, lookup.ErrNotFound) {
			return nil, ofHost(h, err)
		}
		for _, x := range p.streams {
			ds = append(ds, streamDigest{x.streamHead, x.digest()})
		}
	}
	return ds, nil
}

// diffHosts compares the digests of two fleets' streams, each where both stand at the
// same batch.
func (c *call) diffHosts(ctx context.Context, here []host) ([]*verdict, error) {
	there, err := c.dial("with", c.with)
	if err != nil {
		return nil, err
	}
	defer closeAll(there)
	done := map[streamName]*verdict{}
	open := map[streamName]bool{}
	asked := []selection{c.selection()}
	for round := 0; ; round++ {
		for _, s := range asked {
			a, b, err := bothDigests(ctx, here, there, s)
			if errors.Is(err, lookup.ErrDeadline) && round > 0 {
				return values(done), nil // those left open say why
			}
			if err != nil {
				return nil, err
			}
			match(a, b, done, open)
		}
		if len(open) == 0 {
			return values(done), nil
		}
		// The fewer streams are asked about the closer the two answers are in time.
		asked = asked[:0]
		for n := range open {
			s := selection{lookup.Filter{Model: n.model, Group: n.group, Tenant: n.tenant}, n.instance}
			if !slices.Contains(asked, s) {
				asked = append(asked, s)
			}
		}
		if !wait(ctx, pause) {
			return values(done), nil
		}
	}
}

func values(m map[streamName]*verdict) (vs []*verdict) {
	for _, v := range m {
		vs = append(vs, v)
	}
	return vs
}

// bothDigests asks both at once.
func bothDigests(ctx context.Context, here, there []host, s selection) (a, b []streamDigest, err error) {
	var other error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b, other = digestsOf(ctx, there, s)
	}()
	a, err = digestsOf(ctx, here, s)
	<-ended
	if err == nil {
		err = other
	}
	return a, b, err
}

// match compares what stands at the same batch; the others stay open.
func match(a, b []streamDigest, done map[streamName]*verdict, open map[streamName]bool) {
	const other = "at the other host"
	seen := map[streamName]bool{}
	for i := range a {
		x := &a[i]
		key := x.key()
		seen[key] = true
		if v := done[key]; v != nil && !open[key] {
			continue
		}
		v := verdictOf(&x.streamHead)
		v.other, v.otherShort = other, "other"
		done[key], open[key] = v, false
		k := slices.IndexFunc(b, func(y streamDigest) bool { return y.key() == key })
		switch {
		case k < 0:
			v.Result, v.Why = resultDiffers, "this stream is only at the first host"
		case !sameCursor(x.LastSeq, b[k].LastSeq):
			v.unknown("no common batch in time: one at batch %s, the other at %s", cursorText(x.LastSeq), cursorText(b[k].LastSeq))
			open[key] = true
		default:
			v.LastSeq, v.Result = x.LastSeq, resultEqual
			if x.digest != b[k].digest {
				v.Result = resultDiffers
				v.note("digests %s and %s", digestText(x.digest), digestText(b[k].digest))
			}
			for _, y := range []*streamHead{&x.streamHead, &b[k].streamHead} {
				if y.Status != "active" {
					v.note("a stream is %s", y.Status)
				}
			}
		}
		if !open[key] {
			delete(open, key)
		}
	}
	for i := range b {
		y := &b[i]
		if key := y.key(); !seen[key] && done[key] == nil {
			v := verdictOf(&y.streamHead)
			v.Result, v.Why = resultDiffers, "this stream is only "+other
			done[key] = v
		}
	}
}

func digestText(d uint64) string { return fmt.Sprintf("%016x", d) }
