// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/relay/normal"
	"kindex/relay/wire"
)

const fixtures = "../harness/testdata/fixtures"

// recording is what one engine published, by rank, in order.
type recording struct {
	name, kind string
	ranks      [][]feed.Message
}

// recordings reads every recorded stream of events.
func recordings(t *testing.T) (all []recording) {
	t.Helper()
	files, err := filepath.Glob(fixtures + "/*/*.jsonl.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings in %s: %v", fixtures, err)
	}
	for _, path := range files {
		if rec := readRecording(t, path); len(rec.ranks) > 0 {
			all = append(all, rec)
		}
	}
	return all
}

func readRecording(t *testing.T, path string) recording {
	t.Helper()
	rec := recording{name: strings.TrimSuffix(filepath.Base(path), ".jsonl.gz")}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReaderSize(z, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			rec.line(t, line)
		}
		if errors.Is(err, io.EOF) {
			return rec
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (rec *recording) line(t *testing.T, line []byte) {
	t.Helper()
	var l struct {
		K, Src, Engine string
		F              []string
	}
	if err := json.Unmarshal(line, &l); err != nil {
		t.Fatalf("%s: %v", rec.name, err)
	}
	switch {
	case l.K == "header":
		if rec.kind = "vllm"; l.Engine == "sglang" {
			rec.kind = l.Engine
		}
	case l.K == "msg" && strings.HasPrefix(l.Src, "pub"):
		var rank int
		if _, err := fmt.Sscanf(l.Src, "pub%d", &rank); err != nil {
			t.Fatalf("%s: source %q", rec.name, l.Src)
		}
		for len(rec.ranks) <= rank {
			rec.ranks = append(rec.ranks, nil)
		}
		frames := make([][]byte, len(l.F))
		for i, f := range l.F {
			var err error
			if frames[i], err = base64.StdEncoding.DecodeString(f); err != nil {
				t.Fatal(err)
			}
		}
		_, payload, seq, err := wire.ParseMessage(frames)
		if err != nil {
			t.Fatal(err)
		}
		rec.ranks[rank] = append(rec.ranks[rank], feed.Message{Seq: seq, Payload: payload})
	}
}

// direct is a stream's content without a relay: what an index host makes of it.
type direct struct {
	*content
	dec   wire.Decoder
	batch kv.Batch
	ops   []normal.Op
}

func (d *direct) Decodable(payload []byte) bool {
	var probe wire.Decoder
	return probe.Decode(payload, new(kv.Batch)) == nil
}

func (d *direct) Stage(b *feed.Batch) bool {
	if d.dec.Decode(b.Payload, &d.batch) != nil {
		return false
	}
	d.ops = d.norm.Batch(&d.batch)
	return true
}

func (d *direct) Commit(*feed.Faults) { d.apply(d.ops) }

func (*direct) Lost(uint64, uint64, string) {}

func (d *direct) Forget(why feed.Forget, _ *feed.Faults) {
	d.clear()
	if why == feed.ForgetRestart {
		d.norm.Restart()
	}
}

// direct returns the content that rank n of rec ends with.
func (rec *recording) direct(t *testing.T, n int) *content {
	t.Helper()
	d := &direct{content: newContent(t)}
	d.norm = normal.New(normal.Config{Stated: rec.kind == "sglang"})
	ps := newPublishers(1)
	cfg := feed.Config{Endpoint: "tcp://127.0.0.1:5557", ReplayEndpoint: "tcp://127.0.0.1:5657"}
	stream, err := feed.Open(ps, cfg, d, feed.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	ps[0].stream = stream
	ps[0].connect()
	pl := player{p: ps[0], msgs: rec.ranks[n]}
	for pl.step() {
	}
	return d.content
}

// player publishes a recorded stream, and may lose, repeat and exchange messages
// on their way; the replay has every batch of the life.
type player struct {
	p    *publisher
	msgs []feed.Message
	rate float64 // of each of the three
	rng  *rand.Rand

	at                       int
	lost, repeated, exchange int
}

// step publishes the next message. It returns false at the end.
func (pl *player) step() bool {
	if pl.at == len(pl.msgs) {
		return false
	}
	m := pl.keep()
	last := pl.at == len(pl.msgs)
	switch roll := pl.roll(); {
	case roll < pl.rate && !last:
		pl.lost++
	case roll < 2*pl.rate:
		pl.repeated++
		pl.p.send(m.Seq, m.Payload)
		pl.p.send(m.Seq, m.Payload)
	case roll < 3*pl.rate && !last && pl.msgs[pl.at].Seq > m.Seq:
		pl.exchange++
		next := pl.keep()
		pl.p.send(next.Seq, next.Payload)
		pl.p.send(m.Seq, m.Payload)
	default:
		pl.p.send(m.Seq, m.Payload)
	}
	return true
}

func (pl *player) roll() float64 {
	if pl.rng == nil {
		return 1
	}
	return pl.rng.Float64()
}

// keep makes the next message one that the replay has. A number that goes back is
// of another life, whose replay begins empty.
func (pl *player) keep() feed.Message {
	m := pl.msgs[pl.at]
	if pl.at > 0 && m.Seq <= pl.msgs[pl.at-1].Seq {
		pl.p.kept = nil
	}
	pl.at++
	pl.p.keep(m.Seq, m.Payload)
	return m
}
