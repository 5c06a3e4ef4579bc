// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kindex/harness/record"
	"kindex/internal/kv"
	"kindex/relay/wire"
)

const dynamoPort = 18290

// TestDynamo registers the same recorded streams at our index host and at
// Dynamo's indexer and asks both the same questions. Ours must give the
// reference's answer every time. Where the peer's differs, the difference must
// be of a kind below, shown by the events themselves.
func TestDynamo(t *testing.T) {
	if !inNamespace(t, 15*time.Minute, func() {
		dynamoEnv.install(t)
		buildIndexsrv(t)
	}) {
		return
	}

	files, err := filepath.Glob("../testdata/fixtures/given/*.jsonl.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	both := startBoth(t)
	sum := tally{kinds: map[string]int{}}
	for i, file := range files {
		f, err := record.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Ranks()) == 0 {
			continue // load readings only
		}
		name := strings.TrimSuffix(filepath.Base(file), ".jsonl.gz")
		t.Run(name, func(t *testing.T) {
			d := newDuel(t, f, i+1, name, both)
			d.play(t)
			t.Logf("%s: %d batches, %d questions: %d answered alike, differences %v", name, d.batches, d.sum.questions, d.sum.alike, d.sum.kinds)
			sum.add(&d.sum)
		})
	}
	t.Logf("%d questions, %d answered alike, differences: %v", sum.questions, sum.alike, sum.kinds)
	if !maps.Equal(sum.kinds, differences) {
		t.Errorf("differences by kind: got %v, want %v", sum.kinds, differences)
	}
}

// differences pins how many answers of the peer differ over all recordings, by
// kind.
var differences = map[string]int{
	kindDigest:      470,
	kindPlaceholder: 3,
	kindItems:       170,
	kindPairs:       210,
	kindRestart:     9,
	kindSalt:        243,
	kindCopies:      122,
}

// pair is our index host and the peer, both running.
type pair struct{ ours, theirs *client }

func (p *pair) both() []*client { return []*client{p.ours, p.theirs} }

// startBoth starts both servers.
func startBoth(t *testing.T) pair {
	t.Helper()
	peer := start(t, "dynamo", nil, dynamoEnv.python(t), "-m", "dynamo.indexer", "--port", strconv.Itoa(dynamoPort))
	p := pair{ours: startIndexsrv(t).client, theirs: newClient(dynamoPort)}
	p.theirs.awaitUp(t, peer, time.Minute)
	return p
}

// tally counts answers.
type tally struct {
	questions, alike int
	kinds            map[string]int // differences by kind
}

func (s *tally) add(o *tally) {
	s.questions += o.questions
	s.alike += o.alike
	for k, n := range o.kinds {
		s.kinds[k] += n
	}
}

// duel is one recording played to both.
type duel struct {
	pair
	file   *record.File // nil: the test makes the stream
	id     int          // the worker, at both
	model  string
	block  int
	layout *wire.Layout // of the batches we make ourselves
	frames wire.ReplayFrames
	ref    *reference
	past   history
	pubs   map[int]*publisher // by rank

	batches  int
	recorded map[int]uint64 // by rank: the last recorded sequence
	fresh    map[int]bool   // by rank: published since both were last seen to have applied
	lost     map[int]bool   // by rank: the peer follows its stream no more
	markers  uint64
	sum      tally
}

func newDuel(t *testing.T, f *record.File, id int, model string, both pair) *duel {
	t.Helper()
	d := &duel{pair: both, file: f, id: id, model: model, block: f.Header.MainBlockSize()}
	if d.block == 0 {
		d.block = eventBlockSize(t, f)
	}
	var err error
	if d.layout, err = wire.LayoutFor(f.Header.Engine, f.Header.Version); err != nil {
		t.Fatal(err)
	}
	d.ref, d.past = newReference(t, d.block), newHistory(d.block)
	for _, rank := range f.Ranks() {
		d.join(t, rank, f.Header.Topic, recordedHistory(t, f, rank))
	}
	return d
}

// join registers one rank at both and waits until both listen. The history was
// published before.
func (d *duel) join(t *testing.T, rank int, topic string, history [][]byte) {
	t.Helper()
	if d.pubs == nil {
		d.pubs, d.recorded, d.fresh, d.lost = map[int]*publisher{}, map[int]uint64{}, map[int]bool{}, map[int]bool{}
		d.sum.kinds = map[string]int{}
	}
	p := newPublisher(t, topic, history, d.frames)
	d.pubs[rank] = p
	for _, payload := range history {
		d.past.add(t, rank, payload)
	}
	reg := registration{Instance: d.id, Endpoint: p.Live, Replay: p.Replay, Model: d.model, Block: d.block, Rank: rank}
	for _, c := range d.both() {
		c.must(t, http.StatusCreated, http.MethodPost, "/register", &reg, nil)
	}
	p.awaitSubscribers(t, len(d.both()))
	d.ref.add(t, rank, p)
}

// leave unregisters the worker at both and ends its publishers.
func (d *duel) leave(t *testing.T) {
	t.Helper()
	body := map[string]any{"instance_id": d.id, "model_name": d.model}
	for _, c := range d.both() {
		c.must(t, http.StatusOK, http.MethodPost, "/unregister", body, nil)
	}
	for _, p := range d.pubs {
		p.close()
	}
}

// eventBlockSize returns the block size that the first stored event names.
func eventBlockSize(t *testing.T, f *record.File) int {
	t.Helper()
	var dec wire.Decoder
	var b kv.Batch
	for i := range f.Lines {
		m := f.Lines[i].Msg
		if m == nil || len(m.Frames) != 3 {
			continue
		}
		if err := dec.Decode(m.Frames[2], &b); err != nil {
			continue
		}
		for j := range b.Events {
			if b.Events[j].BlockSize > 0 {
				return b.Events[j].BlockSize
			}
		}
	}
	t.Fatal("no event names a block size")
	return 0
}

// recordedHistory returns what rank had published before the recording began:
// the recorder met a warm engine and asked its replay socket later.
func recordedHistory(t *testing.T, f *record.File, rank int) [][]byte {
	t.Helper()
	var first uint64
	for i := range f.Lines {
		if m := f.Lines[i].Msg; m != nil {
			if r, ok := record.PubRank(m.Src); ok && r == rank {
				_, _, seq, err := wire.ParseMessage(m.Frames)
				if err != nil {
					t.Fatal(err)
				}
				first = seq
				break
			}
		}
	}
	history := make([][]byte, first)
	for i := range f.Lines {
		rec := f.Lines[i].Replay
		if rec == nil {
			continue
		}
		if r, ok := record.ReplayRank(rec.Src); !ok || r != rank {
			continue
		}
		for _, frames := range rec.Messages {
			payload, seq, end, err := wire.ParseReplay(frames)
			if err == nil && !end && seq < first {
				history[seq] = payload
			}
		}
	}
	if slices.ContainsFunc(history, func(p []byte) bool { return p == nil }) {
		return nil // not recorded: the stream begins where the recording does
	}
	return history
}

// play publishes the recording in its order and asks at each request.
func (d *duel) play(t *testing.T) {
	var asked []*record.Req
	for i := range d.file.Lines {
		switch l := &d.file.Lines[i]; l.Kind {
		case record.KindMsg:
			if rank, ok := record.PubRank(l.Msg.Src); ok {
				d.publish(t, rank, l.Msg.Frames)
			}
		case record.KindReq:
			asked = append(asked, l.Req)
			d.compare(t, l.Req)
		default: // the engine's own truth is verify's matter
		}
	}
	if len(asked) == 0 { // a legacy file: ask for what was stored
		d.sync(t)
		for _, tokens := range d.past.prompts() {
			d.question(t, &question{Model: d.model, Tokens: tokens, prompt: tokens})
		}
	}
	for _, req := range asked { // and everything once more at the end
		d.compare(t, req)
	}
	for _, grown := range d.conversations() {
		d.compare(t, grown)
	}
	d.leave(t)
}

// conversations returns the recorded requests with their answers appended: what
// a client sends that goes on.
func (d *duel) conversations() []*record.Req {
	asked := map[string]*record.Req{}
	var out []*record.Req
	for i := range d.file.Lines {
		switch l := &d.file.Lines[i]; l.Kind {
		case record.KindReq:
			asked[l.Req.ID] = l.Req
		case record.KindResp:
			if req := asked[l.Resp.ID]; req != nil && len(l.Resp.Output) > 0 {
				grown := *req
				grown.Prompt = slices.Concat(req.Prompt, l.Resp.Output)
				out = append(out, &grown)
			}
		default:
		}
	}
	return out
}

// publish sends one recorded batch. A sequence that goes back is a new life.
func (d *duel) publish(t *testing.T, rank int, frames [][]byte) {
	t.Helper()
	_, payload, seq, err := wire.ParseMessage(frames)
	if err != nil {
		t.Fatal(err)
	}
	p := d.pubs[rank]
	if last, ok := d.recorded[rank]; ok && seq <= last {
		p.restart()
		d.past.restart(rank)
	}
	d.recorded[rank] = seq
	d.send(t, rank, payload)
}

func (d *duel) send(t *testing.T, rank int, payload []byte) {
	t.Helper()
	p := d.pubs[rank]
	d.ref.live(rank, p, p.publish(t, payload), payload)
	d.sent(t, rank, payload)
}

// lose publishes a batch that no subscriber gets.
func (d *duel) lose(t *testing.T, rank int, payload []byte) {
	t.Helper()
	d.pubs[rank].keep(payload)
	d.sent(t, rank, payload)
}

func (d *duel) sent(t *testing.T, rank int, payload []byte) {
	t.Helper()
	d.past.add(t, rank, payload)
	d.fresh[rank] = true
	d.batches++
}

// sync waits until both have applied everything published. Ours says how far it
// is. The peer does not: each rank's stream gets one more batch, which stores a
// block of its own, and that block is asked for until it is there.
func (d *duel) sync(t *testing.T) {
	t.Helper()
	seqs := map[string]uint64{}
	for rank := range d.pubs {
		if d.fresh[rank] && !d.lost[rank] {
			d.mark(t, rank)
		}
		if n := len(d.pubs[rank].from(0)); n > 0 {
			seqs[strconv.Itoa(rank)] = uint64(n - 1)
		}
	}
	d.ours.awaitSeq(t, d.model, seqs)
}

func (d *duel) mark(t *testing.T, rank int) {
	t.Helper()
	d.markers++
	tokens := make([]uint32, d.block)
	for i := range tokens {
		tokens[i] = 1<<30 + uint32(d.markers)
	}
	hash := kv.EngineHash(0x0fee_d000_0000_0000 + d.markers)
	b := kv.Batch{Timestamp: float64(time.Now().UnixMilli()) / 1e3, Rank: rank, HasRank: true, Events: []kv.Event{{
		Kind: kv.KindStored, Hashes: []kv.EngineHash{hash}, Tokens: tokens, BlockSize: d.block, Medium: "GPU",
	}}}
	d.send(t, rank, wire.AppendBatch(nil, &b, d.layout))
	q := question{Model: d.model, Tokens: tokens}
	deadline := time.Now().Add(2 * time.Second)
	for {
		r := d.theirs.ask(t, &q)
		if r.Scores[strconv.Itoa(d.id)][strconv.Itoa(rank)] == d.block {
			break
		}
		if time.Now().After(deadline) {
			d.lost[rank] = true
			break
		}
		time.Sleep(200 * time.Microsecond)
	}
	d.fresh[rank] = false
}

// compare asks both about one recorded request: by tokens, and where the bare
// namespace is meant by hashes too.
func (d *duel) compare(t *testing.T, req *record.Req) {
	t.Helper()
	d.sync(t)
	q := question{Model: d.model, Tokens: req.Prompt, Salt: req.Salt, prompt: req.Prompt}
	if req.LoRA != nil {
		q.LoRA = req.LoRA.Name
	}
	d.question(t, &q)
	if q.Salt == "" && q.LoRA == "" && d.sum.questions%4 == 0 {
		blocks := kv.Blocks{Tokens: q.Tokens, BlockSize: d.block}
		bare := question{Model: d.model, Hashes: []int64{}, prompt: req.Prompt}
		for _, h := range blocks.AppendHashes(nil, kv.HashSeed) {
			bare.Hashes = append(bare.Hashes, int64(h))
		}
		if len(bare.Hashes) > 0 {
			d.question(t, &bare)
		}
	}
}

// question puts q to both and judges the answers.
func (d *duel) question(t *testing.T, q *question) {
	t.Helper()
	d.sum.questions++
	want := d.ref.answer(q, strconv.Itoa(d.id))
	if got := d.ours.ask(t, q); !same(&got, &want) {
		t.Errorf("question %d: ours %+v, the reference %+v", d.sum.questions, got, want)
	}
	got := d.theirs.ask(t, q)
	if same(&got, &want) {
		d.sum.alike++
		return
	}
	kind, shown := d.explain(q, &want, &got)
	d.sum.kinds[kind]++
	if kind == kindUnexplained {
		t.Errorf("question %d is answered otherwise by the peer, and no event tells why", d.sum.questions)
	}
	if d.sum.kinds[kind] == 1 || kind == kindUnexplained {
		t.Logf("question %d (%d tokens): peer %s, right is %s: %s%s",
			d.sum.questions, len(q.prompt), brief(&got), brief(&want), kind, shown)
	}
}

// same reports whether two replies say the same of every worker, rank and tier.
func same(a, b *reply) bool {
	return maps.EqualFunc(a.Scores, b.Scores, func(x, y map[string]int) bool { return maps.Equal(x, y) }) &&
		maps.EqualFunc(a.Instances, b.Instances, func(x, y instance) bool { return reflect.DeepEqual(x, y) })
}

func brief(r *reply) string {
	for _, in := range r.Instances {
		return fmt.Sprintf("gpu %d cpu %d disk %d by rank %v", in.GPU, in.CPU, in.Disk, in.Ranks)
	}
	return "nothing"
}
