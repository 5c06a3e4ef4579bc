// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"kindex/relay/feed"
)

// oneLife reports whether a stream begins at 0 and leaves nothing out, so that an
// engine could publish it as it is.
func oneLife(msgs []feed.Message) bool {
	for i := range msgs {
		if msgs[i].Seq != uint64(i) {
			return false
		}
	}
	return len(msgs) > 20
}

// send publishes a recorded batch unless it is lost on the way; the replay has it.
func (p *engineSockets) send(payload []byte, lost bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	seq := uint64(len(p.history))
	p.history = append(p.history, payload)
	if lost {
		return
	}
	if _, err := p.pub.SendMessage("kv", binary.BigEndian.AppendUint64(nil, seq), payload); err != nil {
		p.t.Error(err)
	}
}

// Recordings over an engine's real sockets, each batch in ten lost on its way and
// the first half published before the relay is there: subscribers end with the
// direct stream's content, from the beginning and after a cut.
func TestRecordingsOverSockets(t *testing.T) {
	src, err := feed.NewZMQ(feed.ZMQOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = src.Close() })
	played := 0
	for _, rec := range recordings(t) {
		if !strings.HasPrefix(rec.name, "vllm") && !strings.HasPrefix(rec.name, "sglang") || len(rec.ranks) != 1 || !oneLife(rec.ranks[0]) {
			continue
		}
		if played++; played > 6 && testing.Short() {
			break
		}
		t.Run(rec.name, func(t *testing.T) { overSockets(t, src, &rec) })
	}
	if played < 5 {
		t.Errorf("%d recordings were played", played)
	}
}

func overSockets(t *testing.T, src feed.Source, rec *recording) {
	msgs := rec.ranks[0]
	want := rec.direct(t, 0)
	pub, replay := freePort(t), freePort(t)
	engine := startSockets(t, pub, replay)
	half := len(msgs) / 2
	for _, m := range msgs[:half] {
		engine.send(m.Payload, true)
	}
	e, err := OpenEngine(EngineConfig{
		Name: rec.name, Kind: rec.kind, HistoryBatches: 10,
		Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", pub), Replay: fmt.Sprintf("tcp://127.0.0.1:%d", replay),
	}, src)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	early, cut := newReplica(FormOwn, RulesOwn), newReplica(FormPeer, RulesOwn)
	early.stated, cut.stated = rec.kind == "sglang", rec.kind == "sglang"
	s := subscribe(t, e, SubscribeRequest{})
	sc := subscribe(t, e, SubscribeRequest{Form: FormPeer})
	through := func(rp *replica, n int) func() bool {
		return func() bool {
			r := rp.rank(t, 0)
			return r.has && r.last == uint64(n-1) && r.chunk == 0 && r.standing.Primed
		}
	}
	if err := early.until(t, s, through(early, half)); err != nil {
		t.Fatal(err)
	}
	if err := cut.until(t, sc, through(cut, half)); err != nil {
		t.Fatal(err)
	}
	sc.Close()
	for i, m := range msgs[half:] {
		engine.send(m.Payload, i%10 == 3 && half+i+1 < len(msgs))
	}
	exact := func() bool { return through(early, len(msgs))() && early.rank(t, 0).standing.Exact }
	if err := early.until(t, s, exact); err != nil {
		t.Fatal(err)
	}
	sc = subscribe(t, e, SubscribeRequest{Form: FormPeer, Cursors: cut.cursors()})
	if err := cut.until(t, sc, through(cut, len(msgs))); err != nil {
		t.Fatal(err)
	}
	for _, rp := range []*replica{early, cut} {
		if err := want.differs(rp.rank(t, 0).content); err != nil {
			t.Errorf("form %d: %v", rp.form, err)
		}
	}
	if st := e.Ranks()[0].Stats(); st.Lost != 0 || st.Restarts != 0 {
		t.Errorf("%d lost, %d restarts, want none", st.Lost, st.Restarts)
	}
}
