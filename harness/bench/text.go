// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"kindex/shard"
)

// WriteJSON writes r as one object.
func (r *Report) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// WriteText writes r as Markdown tables.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "%s, %d CPUs, %s, Linux %s, %s %s, load %s\n", m.CPU, m.CPUs, r.Level, m.Kernel, m.Go, m.Arch, m.Load)
	fmt.Fprintf(&b, "commit %s, index %s, seed %d, %d repeats: median (least to greatest)\n\n", m.Commit, r.Index, r.Seed, r.Repeats)
	t := tabwriter.NewWriter(&b, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t, "| frame to index, ns of CPU per stored block\t| decode\t| hash\t| index\t| all\t|")
	fmt.Fprintln(t, "| ---\t| ---\t| ---\t| ---\t| ---\t|")
	for _, a := range r.Apply {
		fmt.Fprintf(t, "| %s (%d stored, %d removed, %.0f bytes a block)\t| %s\t| %s\t| %s\t| %s\t|\n", a.Workload, a.Stored, a.Removed, a.Frame,
			a.Decode.Text(1), a.Hash.Text(1), a.Index.Text(1), a.Total.Text(1))
	}
	fmt.Fprintln(t)
	fmt.Fprintf(t, "| lookup (clock %.0f ns within)\t| p50, ns\t| p99, ns\t|\n", r.Clock.Median)
	fmt.Fprintln(t, "| ---\t| ---\t| ---\t|")
	for _, l := range r.Lookups {
		fmt.Fprintf(t, "| %s: %d blocks, %d holders\t| %s\t| %s\t|\n", l.Workload, l.Blocks, l.Holders, l.P50.Text(0), l.P99.Text(0))
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "| bytes per membership\t| memberships\t| all\t| runs\t| dictionary\t| edges\t| holders\t| streams\t| free beside\t| Go heap\t|")
	fmt.Fprintln(t, "| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t|")
	for _, x := range r.Memory {
		fmt.Fprintf(t, "| %s: %d holders, %d blocks\t| %d\t| %.1f", x.Workload, x.Holders, x.Blocks, x.Memberships, x.PerMember)
		for _, p := range []shard.Purpose{shard.PurposeRuns, shard.PurposeDictionary, shard.PurposeEdges, shard.PurposeHolders, shard.PurposeStreams, shard.PurposeFree} {
			fmt.Fprintf(t, "\t| %.1f", x.Purpose[p.String()])
		}
		fmt.Fprintf(t, "\t| %.1f\t|\n", x.Heap)
	}
	_ = t.Flush() // into memory
	_, err := io.WriteString(w, b.String())
	return err
}
