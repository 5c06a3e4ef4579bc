// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"kindex/internal/lookup"
	"kindex/relay/client"
)

func diffCommand() *command {
	return &command{
		name: "diff", summary: "holds an index against an engine's replay, a relay, another host or a dump",
		flags: slices.Concat([]string{"engine", "relay", "relay-engine", "rank", "with", "dump", "show"}, hostFlags, chooseFlags, []string{"instance"}),
		help: `One of
  --engine SPEC   the engine's own replay, read from its first batch on
  --relay ADDR    what a relay has of it
  --with TARGET   another index host, by the digest of each stream
  --dump FILE     a dump that was written before
Contents are compared where both stand at the same batch. What is written says at
which; with --engine, --relay and --with it waits for that, no longer than
--timeout, while batches go on. --engine and --relay take one stream: --rank
(default 0) of --instance, or of the only instance that there is. What an engine
or relay has lost counts neither way, and is said.
Exit status: 0 equal, 1 differs, 3 not compared.
`,
		run: runDiff,
	}
}

// Results of a comparison.
const (
	resultEqual   = "equal"
	resultDiffers = "differs"
	resultUnknown = "not_compared"
)

// verdict is what came of one stream.
type verdict struct {
	Instance lookup.ExplainedID `json:"instance_id"`
	Model    string             `json:"model_name"`
	Group    string             `json:"routing_group"`
	Tenant   string             `json:"tenant_id"`
	Rank     int                `json:"dp_rank"`
	Result   string             `json:"result"`
	LastSeq  *uint64            `json:"last_seq"` // where both stood; null: before the first batch, or not compared
	Blocks   *uint64            `json:"blocks"`   // the index holds; null: not counted
	Why      string             `json:"why,omitempty"`

	OnlyIndex  uint64      `json:"only_index"` // copies
	OnlyOther  uint64      `json:"only_other"`
	IndexCopy  []blockCopy `json:"only_index_copies"`
	OtherCopy  []blockCopy `json:"only_other_copies"`
	other      string
	otherShort string
}

func verdictOf(h *streamHead) *verdict {
	return &verdict{
		Instance: h.Instance, Model: h.Model, Group: h.Group, Tenant: h.Tenant, Rank: h.Rank,
		IndexCopy: []blockCopy{}, OtherCopy: []blockCopy{},
	}
}

// unknown makes v say that nothing was compared, and why.
func (v *verdict) unknown(format string, args ...any) *verdict {
	v.Result, v.Why = resultUnknown, fmt.Sprintf(format, args...)
	return v
}

// decide compares a, which the index holds at seq, with b. oneWay: b may lack what a
// has.
func (v *verdict) decide(a, b *replica, seq *uint64, show int, oneWay bool) {
	d := compare(a, b, show)
	v.LastSeq, v.Blocks = seq, &d.blocks
	v.Result = resultEqual
	if oneWay {
		d.onlyA, d.shownA = 0, []blockCopy{}
	}
	if !d.none() {
		v.Result = resultDiffers
	}
	v.OnlyIndex, v.OnlyOther, v.IndexCopy, v.OtherCopy = d.onlyA, d.onlyB, d.shownA, d.shownB
}

// note adds to why.
func (v *verdict) note(format string, args ...any) {
	if v.Why != "" {
		v.Why += "; "
	}
	v.Why += fmt.Sprintf(format, args...)
}

func runDiff(ctx context.Context, c *call) error {
	given := 0
	for _, s := range []string{c.engine, c.relay, c.with, c.dump} {
		if s != "" {
			given++
		}
	}
	if given != 1 {
		return usagef("diff: must have one of --engine, --relay, --with and --dump")
	}
	all, ctx, done, err := c.hosts(ctx)
	if err != nil {
		return err
	}
	defer done()
	var vs []*verdict
	switch {
	case c.with != "":
		vs, err = c.diffHosts(ctx, all)
	case c.dump != "":
		vs, err = c.diffDump(ctx, all)
	default:
		var v *verdict
		if v, err = c.diffSource(ctx, all); v != nil {
			vs = []*verdict{v}
		}
	}
	if err != nil {
		return err
	}
	return c.writeVerdicts(vs)
}

func (c *call) writeVerdicts(vs []*verdict) error {
	slices.SortFunc(vs, func(a, b *verdict) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Group, b.Group),
			cmp.Compare(a.Instance.Text, b.Instance.Text), cmp.Compare(a.Rank, b.Rank))
	})
	var b strings.Builder
	counts := map[string]int{}
	for _, v := range vs {
		counts[v.Result]++
		v.write(&b)
	}
	var err error
	if c.json {
		err = c.writeJSON(vs)
	} else {
		_, err = io.WriteString(c.Out, b.String())
	}
	switch {
	case err != nil:
		return err
	case counts[resultDiffers] > 0:
		return errNo
	case counts[resultUnknown] > 0:
		return lookup.Refuse(lookup.ErrUnavailable, "%d of %s not compared", counts[resultUnknown], counted(uint64(len(vs)), "stream"))
	case len(vs) == 0:
		return lookup.Refuse(lookup.ErrNotFound, "there is no stream to compare")
	}
	return nil
}

func (v *verdict) write(b *strings.Builder) {
	fmt.Fprintf(b, "instance %s rank %d of %s: ", printable(v.Instance.Text), v.Rank, printable(modelOf(v.Tenant, v.Model, v.Group)))
	at := "before the first batch"
	if v.LastSeq != nil {
		at = fmt.Sprintf("at batch %d", *v.LastSeq)
	}
	switch v.Result {
	case resultUnknown:
		fmt.Fprintf(b, "not compared: %s\n", printable(v.Why))
		return
	case resultEqual:
		fmt.Fprintf(b, "equal %s", at)
		if v.Blocks != nil {
			fmt.Fprintf(b, ": %s", counted(*v.Blocks, "block"))
		}
		b.WriteString("\n")
	case resultDiffers:
		fmt.Fprintf(b, "differs %s", at)
		if v.OnlyIndex+v.OnlyOther > 0 {
			fmt.Fprintf(b, ": %s only in the index, %s only %s", grouped(v.OnlyIndex), grouped(v.OnlyOther), v.other)
		}
		b.WriteString("\n")
	}
	if v.Why != "" {
		fmt.Fprintf(b, "  note: %s\n", printable(v.Why))
	}
	for _, side := range []struct {
		name   string
		copies []blockCopy
		all    uint64
	}{{"index", v.IndexCopy, v.OnlyIndex}, {v.otherShort, v.OtherCopy, v.OnlyOther}} {
		for _, x := range side.copies {
			fmt.Fprintf(b, "  only %-6s block %d, tokens_hash %d, block_hash %d, %s\n", side.name, x.Depth, x.Content, x.Engine, x.Tier)
		}
		if n := side.all - uint64(len(side.copies)); n > 0 && len(side.copies) > 0 {
			fmt.Fprintf(b, "  only %-6s ... %s more (--show)\n", side.name, grouped(n))
		}
	}
}

// pause is how long to wait before looking again at what has not come yet.
const pause = 50 * time.Millisecond

// wait waits a little; it returns false once ctx has ended.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// oneStream returns the stream that --engine or --relay is held against, and the host
// that has it.
func (c *call) oneStream(ctx context.Context, all []host) (host, *lookup.Worker, error) {
	type found struct {
		h host
		w lookup.Worker
	}
	var fs []found
	var names []string
	for _, h := range all {
		ws, err := workersOf(ctx, []host{h}, c.selection())
		if err != nil {
			return nil, nil, err
		}
		for _, w := range ws {
			if slices.ContainsFunc(w.Ranks, func(r lookup.Rank) bool { return r.Rank == c.rank }) {
				fs = append(fs, found{h, w})
				names = append(names, w.Instance+" of "+lookup.ModelLabel(w.Tenant, w.Model, w.Group))
			}
		}
	}
	switch len(fs) {
	case 0:
		return nil, nil, lookup.Refuse(lookup.ErrNotFound, "no worker of the index is chosen that has rank %d", c.rank)
	case 1:
		return fs[0].h, &fs[0].w, nil
	}
	if len(names) > 5 {
		names = append(names[:5], "...")
	}
	return nil, nil, usagef("--instance: must be given (with --model, where it has several), there are %s", strings.Join(names, ", "))
}

// diffSource compares one stream with an engine's replay or a relay.
func (c *call) diffSource(ctx context.Context, all []host) (*verdict, error) {
	h, w, err := c.oneStream(ctx, all)
	if err != nil {
		return nil, err
	}
	r, err := newReplica(w.Tenant, w.Model, w.Group)
	if err != nil {
		return nil, err
	}
	var src *source
	other := "in the engine's replay"
	if c.engine != "" {
		cfg, kind, err := parseEngine(c.engine, c.rank)
		if err != nil {
			return nil, err
		}
		if cfg.ReplayEndpoint == "" {
			return nil, usagef("--engine: must have replay=ENDPOINT to be compared: %s", engineForm)
		}
		if src, err = openEngine(cfg, kind, w.BlockSize, r); err != nil {
			return nil, lookup.Refuse(lookup.ErrUnavailable, "--engine: %v", err)
		}
	} else {
		other = "in the relay"
		src = newSource(r)
		cl, err := c.openRelay(w.BlockSize, func() client.Handler { return relayHandler{src} })
		if err != nil {
			return nil, err
		}
		src.end = cl.Close
	}
	defer src.close()
	for i := range w.Ranks {
		if k := &w.Ranks[i]; k.Rank == c.rank && k.HasSeq {
			src.allow(k.LastSeq)
		}
	}
	v, err := c.meet(ctx, h, w, src)
	if v != nil {
		v.other, v.otherShort = other, map[bool]string{true: "engine", false: "relay"}[c.engine != ""]
	}
	return v, err
}

// meet compares src with the index once both stand at the same batch.
func (c *call) meet(ctx context.Context, h host, w *lookup.Worker, src *source) (*verdict, error) {
	name := streamName{w.Tenant, w.Model, w.Group, w.Instance, c.rank}
	v := verdictOf(&streamHead{
		Instance: lookup.ExplainedID{Text: w.Instance, Number: w.Number},
		Model:    w.Model, Group: w.Group, Tenant: w.Tenant, Rank: c.rank,
	})
	where := "no dump yet"
	for {
		now, _ := src.state()
		p := &replayer{}
		err := h.dump(ctx, selection{lookup.Filter{Model: w.Model, Group: w.Group, Tenant: w.Tenant}, w.Instance}, p)
		if errors.Is(err, lookup.ErrDeadline) {
			return v.unknown("not in time: the index at %s, the other at %s", where, now.at()), nil
		}
		if err != nil {
			return nil, ofHost(h, err)
		}
		in := p.find(name)
		if in == nil {
			return nil, ofHost(h, lookup.Refuse(lookup.ErrNotFound, "instance %s rank %d is not registered any more", w.Instance, c.rank))
		}
		where = "batch " + cursorText(in.LastSeq)
		switch follow(ctx, in, src, now) {
		case standsThere:
			return c.met(v, in, src), nil
		case standsNowhere:
			now, _ = src.state()
			return v.unknown("no common batch in time: the index at %s, the other at %s", where, now.at()), nil
		}
	}
}

// What came of following.
const (
	standsThere     = iota
	standsElsewhere // look again
	standsNowhere   // in time
)

// follow makes src stand where in does.
func follow(ctx context.Context, in *streamContent, src *source, before sourceState) int {
	if in.LastSeq == nil {
		// Neither can have said anything: the source must be there to show it.
		now, _ := src.state()
		if !now.has && now.why == "" {
			return standsThere
		}
	} else {
		src.allow(*in.LastSeq)
		if src.reach(ctx, *in.LastSeq, before.lives) {
			return standsThere
		}
	}
	if !wait(ctx, pause) {
		return standsNowhere
	}
	return standsElsewhere
}

// met compares, where both stand at in's cursor.
func (c *call) met(v *verdict, in *streamContent, src *source) *verdict {
	src.mu.Lock()
	defer src.mu.Unlock()
	if n := src.replica.stats().OrphansDropped; n > 0 {
		src.miss(counted(n, "block") + " whose parent did not come were dropped here")
	}
	v.decide(in.replica, src.replica, in.LastSeq, c.show, !src.whole)
	if !src.whole {
		v.note("compared one way only, what the index has beyond it is not counted: %s", src.why)
	}
	if in.Status != "active" {
		v.note("the index's stream is %s", in.Status)
	}
	return v
}

// diffDump compares streams with what a file says of them.
func (c *call) diffDump(ctx context.Context, all []host) ([]*verdict, error) {
	file, err := c.readDumpFile("--dump", c.dump)
	if err != nil {
		return nil, err
	}
	here := &replayer{}
	for _, h := range all {
		if err := h.dump(ctx, c.selection(), here); err != nil {
			return nil, ofHost(h, err)
		}
	}
	return c.pair(here, file, "in the dump", "dump"), nil
}

// pair compares equal streams of two dumps.
func (c *call) pair(here, there *replayer, other, short string) (vs []*verdict) {
	for _, a := range here.streams {
		v := verdictOf(&a.streamHead)
		v.other, v.otherShort = other, short
		vs = append(vs, v)
		b := there.find(a.key())
		switch {
		case b == nil:
			v.Result, v.Why = resultDiffers, "this stream is only in the index"
		case !sameCursor(a.LastSeq, b.LastSeq):
			v.unknown("the index is at batch %s, the other at %s", cursorText(a.LastSeq), cursorText(b.LastSeq))
		default:
			v.decide(a.replica, b.replica, a.LastSeq, c.show, false)
		}
	}
	for _, b := range there.streams {
		if here.find(b.key()) == nil && c.selection().takes(&b.streamHead) {
			v := verdictOf(&b.streamHead)
			v.Result, v.Why, v.other, v.otherShort = resultDiffers, "this stream is only "+other, other, short
			vs = append(vs, v)
		}
	}
	return vs
}

// takes reports whether s chooses h.
func (s selection) takes(h *streamHead) bool {
	return (s.Model == "" || s.Model == h.Model) && (s.Group == "" || s.Group == h.Group) && (s.Tenant == "" || s.Tenant == h.Tenant) &&
		(s.instance == "" || s.instance == h.Instance.Text)
}

func sameCursor(a, b *uint64) bool {
	return (a == nil) == (b == nil) && (a == nil || *a == *b)
}
