// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bufio"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kindex/internal/kv"
	"kindex/internal/livedigest"
	"kindex/relay/normal"
	"kindex/relay/wire"
	"kindex/shard"
)

const fixtures = "../../harness/testdata/fixtures"

// message is one line of a recording.
type message struct {
	Kind   string   `json:"k"`
	Source string   `json:"src"`
	Frames [][]byte `json:"-"`
	Texts  []string `json:"f"`
}

// readFixture calls fn for each message of the recording at path.
func readFixture(t *testing.T, path string, fn func(*message)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReaderSize(z, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			var m message
			if err := json.Unmarshal(line, &m); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			for _, s := range m.Texts {
				b, err := base64.StdEncoding.DecodeString(s)
				if err != nil {
					t.Fatal(err)
				}
				m.Frames = append(m.Frames, b)
			}
			fn(&m)
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// stream is one recorded stream: its state, and the references of what came, and
// of what subscribers get.
type stream struct {
	t       *testing.T
	dec     wire.Decoder
	norm    *normal.Normaliser
	state   *State
	hashed  *State
	fx, fxh Effects
	raw     *holder
	own     *holder
	peer    *holder
	ownHash *holder
	book    livedigest.Book
	bookh   livedigest.Book
	last    uint64
	any     bool
	batches int
	peak    int
}

func newStream(t *testing.T, stated bool) *stream {
	return &stream{
		t: t, norm: normal.New(normal.Config{Stated: stated}), state: New(Options{}), hashed: New(Options{HashTokens: true}),
		raw: newHolder(t, shard.Options{}), own: newHolder(t, shard.Options{}), peer: newHolder(t, shard.Options{}), ownHash: newHolder(t, shard.Options{}),
	}
}

// restart begins another life: everything goes, on all sides.
func (s *stream) restart() {
	s.norm.Restart()
	s.state.Clear()
	s.hashed.Clear()
	for _, h := range []*holder{s.raw, s.own, s.peer, s.ownHash} {
		h.must(h.idx.Clear(h.id))
	}
	s.book.Clear()
	s.bookh.Clear()
}

func (s *stream) message(m *message) {
	_, payload, seq, err := wire.ParseMessage(m.Frames)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.any && seq <= s.last {
		s.restart()
	}
	s.any, s.last = true, seq
	var b kv.Batch
	if err := s.dec.Decode(payload, &b); err != nil {
		s.t.Fatal(err)
	}
	ops := s.norm.Batch(&b)
	s.raw.ops(ops)
	s.state.Apply(&b, ops, &s.fx)
	s.hashed.Apply(&b, ops, &s.fxh)
	s.own.own(ownEvents(s.t, AppendOwn(nil, &s.fx)), &s.book)
	s.ownHash.own(ownEvents(s.t, AppendOwn(nil, &s.fxh)), &s.bookh)
	events, _ := AppendPeer(nil, &s.fx, 1)
	s.peer.peer(peerEvents(s.t, events))
	if s.batches++; s.batches%100 == 0 {
		s.compare()
	}
}

func (s *stream) compare() {
	t := s.t
	want := s.raw.content()
	s.peak = max(s.peak, len(want))
	same(t, "own effects", s.own.content(), want)
	same(t, "own effects of hashed tokens", s.ownHash.content(), want)
	same(t, "peer's effects", s.peer.content(), want)
	checkInvariants(t, s.state)
	checkInvariants(t, s.hashed)
	for _, state := range []*State{s.state, s.hashed} {
		cut, err := state.Cut()
		if err != nil {
			t.Fatal(err)
		}
		checkOwn(t, cut, want, s.raw.digest())
		if state == s.state {
			checkPeer(t, cut, s.last, want)
		}
		cut.Close()
	}
}

// Every recorded stream: subscribers who get effects or snapshots hold what an
// index holds that gets the stream itself.
func TestFixtures(t *testing.T) {
	files, err := filepath.Glob(fixtures + "/*/*.jsonl.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings in %s: %v", fixtures, err)
	}
	streams, blocks := 0, 0
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".jsonl.gz")
		if strings.Contains(name, "load_pub") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			of := map[string]*stream{}
			readFixture(t, path, func(m *message) {
				if m.Kind != "msg" {
					return
				}
				if of[m.Source] == nil {
					of[m.Source] = newStream(t, strings.Contains(name, "sglang"))
				}
				of[m.Source].message(m)
			})
			for _, s := range of {
				s.compare()
				streams++
				blocks += s.peak
			}
		})
	}
	t.Logf("%d streams, at most %d blocks held at once in all", streams, blocks)
	if streams < len(files)/2 || blocks == 0 {
		t.Errorf("%d streams with %d blocks in %d files", streams, blocks, len(files))
	}
}
