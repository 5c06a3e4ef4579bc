// SPDX-License-Identifier: Apache-2.0

// Before: a state file, or another host's state. After: the index, in a holder that
// nobody knows yet; then the registry.

package indexsrv

import (
	"kindex/internal/kv"
	"kindex/shard"
)

// loaded is a holder with content, before its stream begins.
type loaded struct {
	holder shard.Holder
	at     *Resume
}

// Load puts c into h, which is new and empty, event by event: whoever writes the same
// shard waits for one of them at most.
//
// Errors: shard.ErrArenaFull, shard.ErrUnknownHolder; then h has a part of it.
func (w *Writer) Load(h shard.Holder, m kv.ModelKey, c *shard.Content) error {
	l := &loader{w: w, h: h, model: m}
	rw := &runWriter{c: c, model: m, sink: l, again: l.again}
	if len(c.Copies) > 0 {
		// No tier that h has nothing in.
		rw.hole = shard.Copy{Tier: c.Copies[0].Tier, Group: c.Copies[0].Group}
	}
	l.hole = rw.hole
	if err := rw.write(); err != nil {
		return err
	}
	for i := range c.Orphans {
		o := &c.Orphans[i]
		if err := w.in(h, func(idx shard.Index) error { return shard.AddOrphan(idx, h, o) }); err != nil {
			return err
		}
	}
	return nil
}

// loader applies a content's events to one holder.
type loader struct {
	w     *Writer
	h     shard.Holder
	model kv.ModelKey
	hole  shard.Copy
}

var _ runSink = (*loader)(nil)

func (l *loader) stored(run *dumpRun) error {
	return l.w.Store(l.h, &shard.Store{
		Tier: run.tier, Group: run.group, Namespace: l.model.Namespace(run.seed),
		Parent: run.parent, HasParent: run.hasParent, Engines: run.engines, Contents: run.contents,
	})
}

func (l *loader) removed(hashes []kv.EngineHash) error {
	return l.w.Remove(l.h, &shard.Remove{Tier: l.hole.Tier, Group: l.hole.Group, Engines: hashes})
}

func (l *loader) again(c shard.Copy, n uint32) error {
	return l.w.in(l.h, func(idx shard.Index) error { return shard.AddCopies(idx, l.h, c, n) })
}
