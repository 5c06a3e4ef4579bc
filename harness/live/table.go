// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// show shows the table until ctx ends: redrawn in place on a terminal, else a
// line for each stream every few seconds.
func (r *run) show(ctx context.Context) error {
	t := time.NewTicker(r.screen.Period(r.cfg.Every))
	defer t.Stop()
	sampled := ""
	for {
		select {
		case <-ctx.Done():
			r.draw(context.WithoutCancel(ctx))
			return nil
		case <-r.host.Done():
			return r.host.Ended()
		case <-t.C:
		}
		for _, e := range r.engines {
			if err := e.proc.Ended(); err != nil {
				return err
			}
		}
		if sampled == "" {
			if sampled = r.sample(); sampled != "" {
				r.screen.Printf("  %s\n", sampled)
			}
		}
		r.draw(ctx)
	}
}

// row is one stream of the table.
type row struct {
	worker *worker
	rank   string
	l      listener
	lag    float64 // seconds from the engine's publishing to the index
	age    float64 // seconds since the last batch
}

// rows asks the host for its streams.
func (r *run) rows(ctx context.Context) ([]row, error) {
	ws, err := r.client.workers(ctx)
	if err != nil {
		return nil, err
	}
	lag, err := r.client.gauges(ctx, "kindex_stream_apply_lag_seconds")
	if err != nil {
		return nil, err
	}
	age, err := r.client.gauges(ctx, "kindex_stream_age_seconds")
	if err != nil {
		return nil, err
	}
	var out []row
	for i := range ws {
		for _, rank := range slices.Sorted(maps.Keys(ws[i].Listeners)) {
			k := streamKey{ws[i].name(), rank}
			out = append(out, row{&ws[i], rank, ws[i].Listeners[rank], lag[k], age[k]})
		}
	}
	return out, nil
}

// draw writes the table once.
func (r *run) draw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	rows, err := r.rows(ctx)
	if err != nil {
		if r.host.Ended() == nil && ctx.Err() == nil {
			r.screen.Printf("%v\n", err)
		}
		return
	}
	var b bytes.Buffer
	if r.screen.Terminal {
		r.table(&b, rows)
	} else {
		r.lines(&b, rows)
	}
	r.screen.Draw(b.Bytes())
}

// table is what a terminal shows.
func (r *run) table(b *bytes.Buffer, rows []row) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "\nSTREAM\tSTATUS\tLIFE\tBATCH\tLAG\tAGE\tBLOCKS\tGAPS\tRECOVERED\tLOST\tRESTARTS\t\n")
	for _, x := range rows {
		fmt.Fprintf(w, "%s/%s\t%s\t%d\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n",
			x.worker.name(), x.rank, x.l.Status, x.l.Epoch, number(x.l.LastSeq), seconds(x.lag), seconds(x.age), x.l.Memberships,
			x.l.Gaps, x.l.Recovered, x.l.Lost, x.l.Restarts, short(x.l.LastError))
	}
	if len(rows) == 0 {
		fmt.Fprint(w, "no stream\n")
	}
	_ = w.Flush() // into memory
	if len(r.engines) == 0 {
		return
	}
	fmt.Fprint(w, "\nENGINE\tLOOKUPS\tEXACT\tEXPLAINED\tWRONG\tPREDICTED\tCACHED\tLAST\n")
	for _, e := range r.engines {
		c, last := e.snapshot()
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", e.id, c.asked, c.exact, c.explained, c.wrong, c.predicted, c.cached, short(last))
	}
	_ = w.Flush()
	fmt.Fprintf(b, "\n%v, Ctrl-C ends\n", time.Since(r.began).Round(time.Second))
}

// lines is the same for a pipe or a file.
func (r *run) lines(b *bytes.Buffer, rows []row) {
	at := time.Since(r.began).Seconds()
	for _, x := range rows {
		fmt.Fprintf(b, "%6.1fs %s/%s %s life %d batch %s lag %s blocks %d gaps %d recovered %d lost %d restarts %d", at,
			x.worker.name(), x.rank, x.l.Status, x.l.Epoch, number(x.l.LastSeq), seconds(x.lag), x.l.Memberships,
			x.l.Gaps, x.l.Recovered, x.l.Lost, x.l.Restarts)
		for _, e := range r.engines {
			if e.id != x.worker.name() {
				continue
			}
			c, last := e.snapshot()
			fmt.Fprintf(b, "; lookups %d: exact %d, explained %d%s, wrong %d; predicted %d and cached %d tokens; last %s",
				c.asked, c.exact, c.explained, named(c.rules), c.wrong, c.predicted, c.cached, last)
		}
		if x.l.LastError != "" {
			fmt.Fprintf(b, "; %s", x.l.LastError)
		}
		b.WriteByte('\n')
	}
	if len(rows) == 0 {
		fmt.Fprintf(b, "%6.1fs no stream\n", at)
	}
}

func (e *engine) snapshot() (counts, string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.counts
	c.rules = maps.Clone(c.rules)
	return c, e.last
}

func named(rules map[string]int) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		out = append(out, fmt.Sprintf("%s %d", name, rules[name]))
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, ", ") + ")"
}

func number(n *uint64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

func seconds(s float64) string {
	switch {
	case s <= 0:
		return "-"
	case s < 1:
		return fmt.Sprintf("%.1fms", s*1e3)
	}
	return fmt.Sprintf("%.1fs", s)
}

// short keeps a message from breaking the table.
func short(s string) string {
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}
