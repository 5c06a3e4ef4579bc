// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strconv"

	"kindex/internal/lookup"
)

func dumpCommand() *command {
	return &command{
		name: "dump", summary: "what the streams hold, as events that make it in an empty index",
		flags: slices.Concat(hostFlags, chooseFlags, []string{"instance"}),
		help: `Lines of JSON, as GET /dump?format=ndjson has them: one that names a stream and its
cursor, then its events. They have hashes and no token ids. --json changes nothing.
`,
		run: runDump,
	}
}

func runDump(ctx context.Context, c *call) error {
	all, ctx, done, err := c.hosts(ctx)
	if err != nil {
		return err
	}
	defer done()
	d := &dumpWriter{w: bufio.NewWriterSize(c.Out, 1<<16)}
	for _, h := range all {
		if err := ofHost(h, h.dump(ctx, c.selection(), d)); err != nil {
			_ = d.w.Flush() // what came before is right
			return err
		}
	}
	return d.w.Flush()
}

func loadCommand() *command {
	return &command{
		name: "load", args: "FILE", least: 1, most: 1, summary: "checks a dump by replaying it into an empty index, and says what it comes to",
		flags: []string{"json"},
		help: `FILE is what kindex dump wrote; -: standard input. Nothing is sent anywhere: a host
takes content from its engines, its relays, its state directory and its peers
alone. The digest is the one that GET /digest tells of the stream at that cursor;
kindex diff --dump FILE holds a host against the file.
`,
		run: runLoad,
	}
}

// loadedJSON is a stream of a dump in kindex's JSON.
type loadedJSON struct {
	streamHead
	Blocks uint64 `json:"blocks"`
	Copies uint64 `json:"second_copies"`
	Digest string `json:"digest"`
}

// readDumpFile replays the dump in a file.
func (c *call) readDumpFile(flag, path string) (*replayer, error) {
	in, err := c.input(flag, path)
	if err != nil {
		return nil, err
	}
	defer in.Close() //nolint:errcheck // it was read
	p := &replayer{}
	if err := readDump(bufio.NewReaderSize(in, 1<<16), lookup.ErrInvalid, p); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

func runLoad(_ context.Context, c *call) error {
	p, err := c.readDumpFile("load", c.args[0])
	if err != nil {
		return err
	}
	out := []loadedJSON{}
	t := newTable("INSTANCE", ">RANK", "MODEL", ">BLOCK", "STATUS", ">EPOCH", ">SEQ", ">ORPHANS", ">BLOCKS HELD", "DIGEST")
	for _, s := range p.streams {
		l := loadedJSON{s.streamHead, s.blocks(), s.stats().SecondCopies, fmt.Sprintf("%016x", s.digest())}
		out = append(out, l)
		t.add(s.Instance.Text, strconv.Itoa(s.Rank), modelOf(s.Tenant, s.Model, s.Group), strconv.Itoa(s.BlockSize), s.Status,
			strconv.FormatUint(s.Epoch, 10), cursorText(s.LastSeq), grouped(s.Orphans), grouped(l.Blocks), l.Digest)
	}
	if c.json {
		return c.writeJSON(out)
	}
	return t.write(c.Out, c.width())
}

// cursorText is the number of a stream's newest batch.
func cursorText(seq *uint64) string {
	if seq == nil {
		return "-"
	}
	return strconv.FormatUint(*seq, 10)
}
