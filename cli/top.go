// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"kindex/internal/lookup"
)

func topCommand() *command {
	return &command{
		name: "top", summary: "a live view: streams, lag, gaps and blocks of each worker, lookups a second, bytes by node",
		flags: slices.Concat([]string{"once", "interval"}, hostFlags, chooseFlags, []string{"instance"}),
		help: `On a terminal the picture is renewed in place; elsewhere one follows the other.
IDLE is the time since the newest batch, LAG how long after the engine stamped it
that was admitted; both have the clocks' difference in them. A lookup rate needs
two looks, so that --once takes one --interval, at most a second.
`,
		run: runTop,
	}
}

// picture is one look at a fleet.
type picture struct {
	at    time.Time
	hosts []hostPicture
}

// hostPicture is one look at a host.
type hostPicture struct {
	Host    string       `json:"host"`
	Error   string       `json:"error,omitempty"`    // it was not reached
	NoStats string       `json:"no_stats,omitempty"` // why there are no figures
	Stats   *figures     `json:"stats"`
	Rate    *float64     `json:"lookups_per_second"`  // null: not known yet
	Mean    *float64     `json:"lookup_mean_seconds"` // since the look before; null: none
	Workers []workerJSON `json:"workers"`

	workers []lookup.Worker
}

// look takes a picture; before is the one before, or nil. A host that is not reached
// is part of it.
func (c *call) look(ctx context.Context, all []host, before *picture) *picture {
	p := &picture{at: time.Now()}
	for i, h := range all {
		one := hostPicture{Host: h.name()}
		if err := c.lookAt(ctx, h, &one); err != nil {
			one.Error = firstLine(err)
		}
		if before != nil {
			one.rate(&before.hosts[i], p.at.Sub(before.at).Seconds())
		}
		p.hosts = append(p.hosts, one)
	}
	return p
}

func firstLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (c *call) lookAt(ctx context.Context, h host, p *hostPicture) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	ws, err := workersOf(ctx, []host{h}, c.selection())
	if err != nil {
		return errors.Unwrap(err) // without the host's name, which the picture has
	}
	f, err := h.stats(ctx)
	switch {
	case err != nil:
		p.NoStats = firstLine(err)
	case f == nil:
		p.NoStats = "shared memory carries none"
	default:
		f.fill(ws, time.Now())
		p.Stats = f
	}
	p.workers, p.Workers = ws, showWorkers(ws, time.Now())
	return nil
}

// rate finds out how fast lookups came since before, seconds ago.
func (h *hostPicture) rate(before *hostPicture, ago float64) {
	if h.Stats == nil || before.Stats == nil || ago <= 0 || h.Stats.Lookups < before.Stats.Lookups {
		return // it began anew meanwhile
	}
	n := float64(h.Stats.Lookups - before.Stats.Lookups)
	rate := n / ago
	h.Rate = &rate
	if n > 0 {
		mean := max(0, h.Stats.LookupTime-before.Stats.LookupTime) / n
		h.Mean = &mean
	}
}

func runTop(ctx context.Context, c *call) error {
	all, err := c.dial("host", c.host)
	if err != nil {
		return err
	}
	defer closeAll(all)
	interval := c.interval
	if c.once {
		interval = min(interval, time.Second)
	}
	var before *picture
	for n := 0; ; n++ {
		p := c.look(ctx, all, before)
		if ctx.Err() != nil {
			return nil // that is how a live view ends
		}
		reached := slices.ContainsFunc(p.hosts, func(h hostPicture) bool { return h.Error == "" })
		if !reached && (n == 0 || c.once) {
			return lookup.Refuse(lookup.ErrUnavailable, "%s: %s", p.hosts[0].Host, p.hosts[0].Error)
		}
		if !c.once || n > 0 || !reached {
			if err := c.showPicture(p, n > 0 && !c.once); err != nil {
				return err
			}
		}
		if c.once && n > 0 {
			return nil
		}
		before = p
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// What steers a terminal: to its upper left corner, and to clear what is left of a
// line and of the screen.
const (
	cursorHome = "\x1b[H"
	clearRest  = "\x1b[K"
	clearBelow = "\x1b[J"
	clearAll   = "\x1b[H\x1b[2J"
)

// showPicture writes p: over the one before on a terminal, else after it.
func (c *call) showPicture(p *picture, again bool) error {
	if c.json {
		return c.writeJSON(struct {
			Time  float64       `json:"time"`
			Hosts []hostPicture `json:"hosts"`
		}{float64(p.at.UnixMilli()) / 1e3, p.hosts})
	}
	width, height, live := 0, 0, false
	if c.Screen != nil && !c.once {
		width, height, live = c.Screen()
	}
	var b strings.Builder
	if err := p.write(&b, width); err != nil {
		return err
	}
	text := b.String()
	if !live {
		if again {
			text = "\n" + text
		}
		_, err := io.WriteString(c.Out, text)
		return err
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if height > 1 && len(lines) > height-1 {
		cut := len(lines) - (height - 2)
		lines = append(lines[:height-2], fmt.Sprintf("... %d lines more", cut))
	}
	head := cursorHome
	if !again {
		head = clearAll
	}
	_, err := io.WriteString(c.Out, head+strings.Join(lines, clearRest+"\n")+clearRest+"\n"+clearBelow)
	return err
}

// write writes p as people read it.
func (p *picture) write(w io.Writer, width int) error {
	for i := range p.hosts {
		h := &p.hosts[i]
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s  %s  %s\n", printable(h.Host), p.at.Format(time.TimeOnly), h.summary())
		if h.Error != "" {
			continue
		}
		if err := h.figures(w); err != nil {
			return err
		}
		t := newTable("INSTANCE", ">RANK", "MODEL", "STATUS", ">SEQ", ">IDLE", ">LAG", ">GAPS", ">LOST", ">HELD BACK", ">ORPHANS", ">BLOCKS", "WHY")
		for k := range h.workers {
			wk := &h.workers[k]
			for n := range wk.Ranks {
				r := &wk.Ranks[n]
				idle, lag := "-", "-"
				if v, ok := idleOf(r, p.at); ok {
					idle = seconds(v)
				}
				if v, ok := lagOf(r); ok {
					lag = seconds(v)
				}
				t.add(wk.Instance, strconv.Itoa(r.Rank), modelOf(wk.Tenant, wk.Model, wk.Group), r.Status, seqOf(r), idle, lag,
					grouped(r.Gaps), grouped(r.Lost), grouped(r.Held), grouped(r.Orphans), grouped(r.Memberships), r.LastError)
			}
		}
		if err := t.write(w, width); err != nil {
			return err
		}
	}
	return nil
}

// summary is a host in one line.
func (h *hostPicture) summary() string {
	if h.Error != "" {
		return "not reached: " + printable(h.Error)
	}
	byStatus := map[string]int{}
	n := 0
	for i := range h.workers {
		for k := range h.workers[i].Ranks {
			byStatus[h.workers[i].Ranks[k].Status]++
			n++
		}
	}
	parts := []string{counted(uint64(len(h.workers)), "worker"), counted(uint64(n), "stream")}
	for _, status := range slices.Sorted(maps.Keys(byStatus)) {
		parts = append(parts, fmt.Sprintf("%d %s", byStatus[status], status))
	}
	return strings.Join(parts, ", ")
}

// figures are the lines between a host's summary and its streams.
func (h *hostPicture) figures(w io.Writer) error {
	f := h.Stats
	if f == nil {
		_, err := fmt.Fprintf(w, "no figures: %s\n", printable(h.NoStats))
		return err
	}
	ready := "ready"
	if !f.Ready {
		ready = "not ready"
	}
	rate := "-"
	if h.Rate != nil {
		rate = fmt.Sprintf("%.0f", *h.Rate)
	}
	mean := ""
	if h.Mean != nil {
		mean = " of " + seconds(*h.Mean)
	}
	fmt.Fprintf(w, "%s, %s held, %s distinct, %s lookups/s%s\n", ready, counted(f.Memberships, "block"), grouped(f.Blocks), rate, mean)
	nodes := map[int]uint64{}
	purposes := map[int][]string{}
	for _, b := range f.Bytes {
		if nodes[b.Node] += b.Bytes; b.Bytes > 0 {
			purposes[b.Node] = append(purposes[b.Node], b.Purpose+" "+size(b.Bytes))
		}
	}
	for _, n := range slices.Sorted(maps.Keys(nodes)) {
		fmt.Fprintf(w, "node %d: %s (%s)\n", n, size(nodes[n]), strings.Join(purposes[n], ", "))
	}
	return nil
}
