// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"kindex/internal/kv"
	"kindex/internal/lookup"
)

func explainCommand() *command {
	return &command{
		name: "explain", summary: "who holds which blocks of a prompt, and why each match ends where it does",
		flags: slices.Concat([]string{"tokens", "hashes", "lora", "salt", "limit"}, hostFlags, chooseFlags, []string{"instance"}),
		help: `The prompt is token ids (--tokens), or content hashes of its blocks (--hashes).
Of each rank it says how many blocks it holds, stretch by stretch, and why its
match ends: never stored or evicted, a hole, an orphan that waits for its parent,
a stream that is not exact, another block size, a tail that fills no block.
Exit status 1: no worker of that model, or nobody holds the first block.
`,
		run: runExplain,
	}
}

// maxIDs bounds a file of ids. maxIDBytes bounds it in bytes.
const (
	maxIDs     = 16 << 20
	maxIDBytes = 256 << 20
)

// readIDs reads integers, as a JSON array or separated by blanks or commas. No error
// repeats what is in the file.
func readIDs[T ~uint32 | ~uint64](in io.Reader, signed bool, most uint64) ([]T, error) {
	r := bufio.NewReaderSize(&io.LimitedReader{R: in, N: maxIDBytes + 1}, 1<<16)
	ids := []T{}
	var word []byte
	read, open, closed := 0, false, false
	end := func() error {
		if len(word) == 0 {
			return nil
		}
		if closed {
			return errors.New("must end with the array")
		}
		v, err := strconv.ParseUint(string(word), 10, 64)
		if err != nil && signed {
			var n int64
			n, err = strconv.ParseInt(string(word), 10, 64)
			v = uint64(n)
		}
		if err != nil || v > most {
			return fmt.Errorf("id %d, counted from 1: must be an integer from 0 to %d", len(ids)+1, most)
		}
		if len(ids) == maxIDs {
			return fmt.Errorf("must have at most %d ids", maxIDs)
		}
		ids, word = append(ids, T(v)), word[:0]
		return nil
	}
	for {
		b, err := r.ReadByte()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if read++; read > maxIDBytes {
			return nil, fmt.Errorf("must be at most %d bytes", maxIDBytes)
		}
		switch {
		case b == '[' && !open && len(ids)+len(word) == 0:
			open = true
			continue
		case b != ']' && b != ',' && b != ' ' && b != '\n' && b != '\t' && b != '\r':
			if word = append(word, b); len(word) > 20 {
				return nil, fmt.Errorf("id %d, counted from 1: must be an integer from 0 to %d", len(ids)+1, most)
			}
			continue
		}
		if err := end(); err != nil {
			return nil, err
		}
		if b == ']' {
			if !open || closed {
				return nil, errors.New("must be a JSON array of integers, or integers separated by blanks")
			}
			closed = true
		}
	}
	if err := end(); err != nil {
		return nil, err
	}
	if open && !closed {
		return nil, errors.New("must end with ]: is it whole?")
	}
	return ids, nil
}

// input opens a file, or the standard input for "-".
func (c *call) input(flag, path string) (io.ReadCloser, error) {
	if path == "-" {
		if c.In == nil {
			return nil, usagef("%s: there is no standard input", flag)
		}
		return io.NopCloser(c.In), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, usagef("%s: %v", flag, err)
	}
	return f, nil
}

// prompt is what --tokens or --hashes names.
func (c *call) prompt(q *lookup.Query) error {
	if (c.tokens == "") == (c.hashes == "") {
		return usagef("explain: must have --tokens FILE, or --hashes FILE in its place (-: standard input)")
	}
	flag, path := "--tokens", c.tokens
	if path == "" {
		flag, path = "--hashes", c.hashes
	}
	in, err := c.input(flag, path)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it was read
	if c.tokens != "" {
		q.Tokens, err = readIDs[uint32](in, false, math.MaxUint32)
	} else {
		q.Hashes, err = readIDs[kv.ContentHash](in, true, math.MaxUint64)
	}
	if err != nil {
		return usagef("%s: %s: %v", flag, path, err)
	}
	return nil
}

// onlyModel returns the model of the query where --model does not say it: the only
// one there is.
func onlyModel(ctx context.Context, all []host, f lookup.Filter) (lookup.Filter, error) {
	if f.Model != "" {
		return f, nil
	}
	ws, err := workersOf(ctx, all, selection{Filter: f})
	if err != nil {
		return f, err
	}
	models := []string{}
	for i := range ws {
		w := &ws[i]
		if label := lookup.ModelLabel(w.Tenant, w.Model, w.Group); !slices.Contains(models, label) {
			models = append(models, label)
			f = lookup.Filter{Model: w.Model, Group: w.Group, Tenant: w.Tenant}
		}
	}
	switch {
	case len(models) == 0:
		return f, lookup.Refuse(lookup.ErrNotFound, "no worker is registered%s", chosenBy(f))
	case len(models) > 1:
		slices.Sort(models)
		if len(models) > 5 {
			models = append(models[:5], "...")
		}
		return f, usagef("--model: must be given, there are %s (model:group@tenant)", strings.Join(models, ", "))
	}
	return f, nil
}

func chosenBy(f lookup.Filter) string {
	if f.Group == "" && f.Tenant == "" {
		return ""
	}
	return " there"
}

func runExplain(ctx context.Context, c *call) error {
	q := &lookup.Query{LoRA: c.lora, Salt: c.salt, Limit: c.limit}
	if c.instance != "" {
		q.Only = []string{c.instance}
	}
	if err := c.prompt(q); err != nil {
		return err
	}
	all, ctx, done, err := c.hosts(ctx)
	if err != nil {
		return err
	}
	defer done()
	f, err := onlyModel(ctx, all, c.filter())
	if err != nil {
		return err
	}
	q.Model, q.Group, q.Tenant = f.Model, f.Group, f.Tenant
	e, err := explainAll(ctx, all, q)
	if err != nil {
		return err
	}
	if c.json {
		err = c.writeJSON(e)
	} else {
		err = c.writeExplanation(e)
	}
	if err == nil && (len(e.Holders) == 0 || e.Blocks > 0 && e.Holders[0].Any == 0) {
		return errNo
	}
	return err
}

// explainAll unites the answers of hosts between which the workers are split: one
// without the model is left out where another has it.
func explainAll(ctx context.Context, all []host, q *lookup.Query) (*lookup.Explanation, error) {
	var sum *lookup.Explanation
	var absent error
	for _, h := range all {
		e, err := h.explain(ctx, q)
		if err != nil {
			if err = ofHost(h, err); !errors.Is(err, lookup.ErrNotFound) {
				return nil, err
			}
			absent = err
			continue
		}
		if sum == nil {
			sum = e
			continue
		}
		if e.BlockSize != sum.BlockSize {
			return nil, ofHost(h, lookup.Refuse(lookup.ErrConflict, "block_size is %d there, and %d at the others", e.BlockSize, sum.BlockSize))
		}
		sum.Holders = append(sum.Holders, e.Holders...)
		sum.More += e.More
	}
	if sum == nil {
		return nil, absent
	}
	slices.SortStableFunc(sum.Holders, func(a, b lookup.Explained) int {
		m := lookup.Match{Device: a.Device, Host: a.Host, Any: a.Any}
		return m.Compare(&lookup.Match{Device: b.Device, Host: b.Host, Any: b.Any})
	})
	if n := q.Limit; n > 0 && len(sum.Holders) > n {
		sum.More += len(sum.Holders) - n
		sum.Holders = sum.Holders[:n]
	}
	return sum, nil
}

// maxRunsShown bounds the stretches of one holder that are written for people.
const maxRunsShown = 16

func (c *call) writeExplanation(e *lookup.Explanation) error {
	var b strings.Builder
	fmt.Fprintf(&b, "model %s: %s of %d tokens", printable(modelOf(e.Tenant, e.Model, e.Group)), counted(e.Blocks, "block"), e.BlockSize)
	if e.Tail > 0 {
		fmt.Fprintf(&b, ", and %s more", counted(e.Tail, "token"))
	}
	b.WriteString("\n")
	for i := range e.Holders {
		d := &e.Holders[i]
		fmt.Fprintf(&b, "\ninstance %s rank %d: %s\n", printable(d.Instance.Text), d.Rank, depthOf(d, e.Blocks))
		for k, r := range d.Runs {
			if k == maxRunsShown {
				fmt.Fprintf(&b, "  ... %s stretches more\n", grouped(uint64(len(d.Runs)-k+d.MoreRuns)))
				break
			}
			fmt.Fprintf(&b, "  %s  %s\n", span(r, e.Blocks), howHeld(&r))
		}
		for _, why := range d.Why {
			fmt.Fprintf(&b, "  why: %s\n", printable(why))
		}
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "\n%s more not shown\n", counted(e.More, "rank"))
	}
	_, err := io.WriteString(c.Out, b.String())
	return err
}

// depthOf says how many of n blocks d holds from the first on.
func depthOf(d *lookup.Explained, n int) string {
	s := fmt.Sprintf("%d of %s", d.Any, counted(n, "block"))
	if d.Device != d.Any {
		s += fmt.Sprintf(" (device %d, device or host %d)", d.Device, d.Host)
	}
	if d.Status != "active" {
		s += ", stream " + d.Status
	}
	return s
}

// span is a stretch's blocks, in columns wide enough for those of a prompt of n.
func span(r lookup.Run, n int) string {
	w := len(strconv.Itoa(max(n-1, 0)))
	first, last := strconv.Itoa(int(r.First)), strconv.Itoa(int(r.First+r.Blocks-1))
	if r.Blocks == 1 {
		return fmt.Sprintf("block  %*s %*s", w, first, w+1, "")
	}
	return fmt.Sprintf("blocks %*s..%*s", w, first, w, last)
}

func howHeld(r *lookup.Run) string {
	s := "not held"
	if len(r.Tiers) > 0 {
		s = strings.Join(r.Tiers, "+")
	}
	if r.Waiting {
		s += ", waits for its parent"
	}
	return s
}
