// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// The files of a replay's folder.
const (
	fileSummary  = "summary.json"
	fileRequests = "requests.csv"
	fileFleet    = "fleet.csv"
	fileReport   = "report.md"
)

// WriteJSON writes summary.json.
func (s *Summary) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

// WriteDir writes everything into dir, made if need be.
func (r *Result) WriteDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a report is for everybody
		return err
	}
	plots, err := r.plots(dir)
	return errors.Join(
		err,
		write(dir, fileSummary, r.Summary.WriteJSON),
		write(dir, fileRequests, r.writeRequests),
		write(dir, fileFleet, r.writeFleet),
		write(dir, fileReport, func(w io.Writer) error { return r.Summary.writeReport(w, plots) }),
	)
}

// write writes one file whole or not at all.
func write(dir, name string, fill func(io.Writer) error) error {
	f, err := os.CreateTemp(dir, name+".*.part")
	if err != nil {
		return err
	}
	out := bufio.NewWriter(f)
	err = errors.Join(fill(out), out.Flush(), f.Chmod(0o644), f.Close()) //nolint:gosec // a report is for everybody
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", name, err), os.Remove(f.Name()))
	}
	return nil
}

var requestColumns = []string{
	"row", "id", "due_s", "sent_s", "late_ms", "ttft_ms", "mean_itl_ms", "max_itl_ms", "latency_ms", "error", "finish", "worker", "rank", "queue_ms",
	"input", "prompt_tokens", "output_tokens", "pieces", "cached_tokens", "fleet_cached_tokens", "oracle_tokens", "prefix_reuse_tokens", "best_at_arrival_tokens", "predicted_tokens",
}

// writeRequests writes a line a row; what is not known is empty.
func (r *Result) writeRequests(w io.Writer) error {
	out := csv.NewWriter(w)
	if err := out.Write(requestColumns); err != nil {
		return err
	}
	for i := range r.Records {
		q := &r.Records[i]
		late, ttft, mean, longest, latency, queue := "", "", "", "", "", ""
		if q.sent() {
			late = millisText(q.Sent - q.Due)
			if q.End >= 0 {
				latency = millisText(q.End - q.Sent)
			}
		}
		if d, ok := q.ttft(); ok {
			ttft = millisText(d)
		}
		if q.Pieces > 1 {
			mean, longest = millisText(q.itl()), millisText(q.Longest)
		}
		if q.Queue >= 0 {
			queue = strconv.FormatFloat(q.Queue*1e3, 'f', 3, 64)
		}
		if err := out.Write([]string{
			strconv.Itoa(q.Row), q.ID, secondsText(q.Due), secondsText(q.Sent), late, ttft, mean, longest, latency, q.Error, q.Finish, q.Worker, known(q.Rank), queue,
			strconv.Itoa(q.Input), known(q.Prompt), known(q.Completion), strconv.Itoa(q.Pieces), known(q.Cached), known(q.FleetCached), known(q.Oracle), strconv.Itoa(q.PrefixReuse), known(q.BestAtArrival), known(q.Predicted),
		}); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func millisText(d time.Duration) string { return strconv.FormatFloat(ms(d), 'f', 3, 64) }

func secondsText(d time.Duration) string {
	if d < 0 {
		return ""
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 6, 64)
}

func known(n int) string {
	if n == unknown {
		return ""
	}
	return strconv.Itoa(n)
}

// writeFleet writes a line a worker and second, and one for this client, whose running
// requests are those being answered and whose waiting ones those without a first token.
func (r *Result) writeFleet(w io.Writer) error {
	out := csv.NewWriter(w)
	if err := out.Write([]string{"t_s", "worker", "requests", "running", "waiting", "kv_usage"}); err != nil {
		return err
	}
	all := slices.Clone(r.Samples)
	slices.SortStableFunc(all, func(a, b Sample) int { return int(a.At - b.At) })
	for i := range all {
		s := &all[i].Worker
		usage := ""
		if s.Name != clientName {
			usage = strconv.FormatFloat(s.Usage, 'f', 4, 64)
		}
		if err := out.Write([]string{strconv.FormatFloat(all[i].At.Seconds(), 'f', 3, 64), s.Name, strconv.Itoa(s.Requests), strconv.Itoa(s.Running), strconv.Itoa(s.Waiting), usage}); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
