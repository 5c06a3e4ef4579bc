// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// every is how many batches lie between the cursors that subscribers go on from.
const every = 10

// Every recorded stream goes through a relay, and every subscriber ends with the
// content of the direct stream: from the beginning, from every 10th cursor, when
// the history has rolled, and when messages were lost, repeated and exchanged on
// their way.
func TestRecordings(t *testing.T) {
	type config struct {
		name  string
		keeps int     // batches in the history; 0: the default
		rate  float64 // of each fault
		seeds int
	}
	configs := []config{
		{"whole", 0, 0, 1},
		{"rolled", 10, 0, 1},
		{"faults 1 %", 0, 0.01, 3},
		{"rolled, faults 1 %", 10, 0.01, 3},
		{"faults 10 %", 0, 0.10, 1},
	}
	if testing.Short() {
		configs = configs[3:4]
		configs[0].seeds = 1
	}
	var total tally
	all := recordings(t)
	for _, rec := range all {
		t.Run(rec.name, func(t *testing.T) {
			want := make([]*content, len(rec.ranks))
			for n := range want {
				want[n] = rec.direct(t, n)
			}
			for _, c := range configs {
				for seed := range c.seeds {
					run := trial{rec: &rec, want: want, keeps: c.keeps, rate: c.rate, seed: uint64(seed), name: c.name}
					run.play(t)
					total.add(&run)
				}
			}
		})
	}
	t.Logf("%d recordings; in %d of them the history of 10 rolled; %d subscribers compared, %d of them resumed; %d snapshots, %d resets; %d messages lost, %d repeated, %d exchanged on their way",
		len(all), total.rolled, total.compared, total.resumed, total.snapshots, total.resets, total.lost, total.repeated, total.exchanged)
	if testing.Short() {
		return
	}
	if total.rolled == 0 || total.lost == 0 || total.repeated == 0 || total.exchanged == 0 {
		t.Error("something was never tried")
	}
}

type tally struct {
	rolled, compared, resumed, snapshots, resets, lost, repeated, exchanged int
}

func (a *tally) add(tr *trial) {
	if tr.rolled && tr.name == "rolled" {
		a.rolled++
	}
	a.compared += tr.compared
	a.resumed += tr.resumed
	a.snapshots += tr.snapshots
	a.resets += tr.resets
	for i := range tr.players {
		a.lost += tr.players[i].lost
		a.repeated += tr.players[i].repeated
		a.exchanged += tr.players[i].exchange
	}
}

// trial is one recording through one relay.
type trial struct {
	name  string
	rec   *recording
	want  []*content
	keeps int
	rate  float64
	seed  uint64

	e       *Engine
	players []player
	parked  []*replica // subscribers that were cut off at every 10th batch

	rolled                               bool
	compared, resumed, snapshots, resets int
}

func (tr *trial) play(t *testing.T) {
	t.Helper()
	e, ps := openTest(t, len(tr.rec.ranks), func(c *EngineConfig) {
		c.Kind, c.HistoryBatches = tr.rec.kind, tr.keeps
	})
	defer e.Close()
	tr.e = e
	for n, p := range ps {
		p.connect()
		tr.players = append(tr.players, player{p: p, msgs: tr.rec.ranks[n], rate: tr.rate, rng: rand.New(rand.NewPCG(tr.seed, uint64(n)))})
	}
	// Subscribers from the start, which are told while the engine publishes.
	kinds := []*replica{newReplica(FormOwn, RulesOwn), newReplica(FormPeer, RulesOwn), newReplica(FormPeer, RulesPeer)}
	live := slices.Clone(kinds)
	subs := make([]*Subscription, len(live))
	for i, rp := range live {
		rp.stated = tr.rec.kind == "sglang"
		subs[i] = subscribe(t, e, SubscribeRequest{Form: rp.form, Rules: rp.rules})
	}
	for more, steps := true, 0; more; steps++ {
		more = false
		for n := range tr.players {
			more = tr.players[n].step() || more
		}
		if steps%every == every-1 {
			for _, rp := range kinds {
				tr.park(t, rp)
			}
		}
		for i, rp := range live {
			subs[i] = tr.catchUp(t, rp, subs[i])
		}
	}
	for _, r := range e.Ranks() {
		tr.rolled = tr.rolled || r.hist.from > r.hist.first
	}
	for _, rp := range live {
		tr.compare(t, rp, "told from the start")
	}
	for _, rp := range kinds {
		late := newReplica(rp.form, rp.rules)
		late.stated = rp.stated
		tr.catchUp(t, late, subscribe(t, e, SubscribeRequest{Form: rp.form, Rules: rp.rules})).Close()
		tr.compare(t, late, "told at the end")
	}
	for i, rp := range tr.parked {
		what := fmt.Sprintf("cut off at batch %d", every*(i/len(kinds)+1))
		if rp.rules == RulesPeer {
			if r := rp.rank(t, 0); !r.has {
				rp.ranks = map[int]*replicaRank{} // no cursor: everything anew
			} else if tr.overtaken(rp) {
				continue
			}
		}
		s, err := e.Subscribe(SubscribeRequest{Form: rp.form, Rules: rp.rules, Cursors: rp.cursors()})
		if err != nil {
			s = tr.again(t, rp, err)
		}
		tr.resumed++
		tr.catchUp(t, rp, s).Close()
		tr.compare(t, rp, what)
	}
}

// overtaken reports whether rank 0 has begun an epoch that rp was not told of. The
// peer's cursor does not name its life: once another one has passed its number,
// nobody can tell.
func (tr *trial) overtaken(rp *replica) bool {
	return tr.e.Ranks()[0].Info().Epoch != rp.ranks[0].epoch
}

// park tells a new subscriber everything so far and cuts it off.
func (tr *trial) park(t *testing.T, kind *replica) {
	t.Helper()
	rp := newReplica(kind.form, kind.rules)
	rp.stated = kind.stated
	tr.catchUp(t, rp, subscribe(t, tr.e, SubscribeRequest{Form: rp.form, Rules: rp.rules})).Close()
	tr.parked = append(tr.parked, rp)
}

// again does what the peer's gateway does when a subscription ends: it forgets
// everything and begins anew.
func (tr *trial) again(t *testing.T, rp *replica, err error) *Subscription {
	t.Helper()
	if r := endReason(t, err); r != EndOutOfRange && r != EndDataLoss || rp.rules != RulesPeer {
		t.Fatalf("%s: a subscription by rules %d ended: %v", tr.name, rp.rules, err)
	}
	rp.ranks = map[int]*replicaRank{}
	tr.resets++
	return subscribe(t, tr.e, SubscribeRequest{Form: rp.form, Rules: rp.rules})
}

// catchUp tells rp everything that there is by now. It returns the subscription,
// which is another one where the first has ended.
func (tr *trial) catchUp(t *testing.T, rp *replica, s *Subscription) *Subscription {
	t.Helper()
	for {
		err := rp.until(t, s, func() bool { return tr.caughtUp(t, rp) })
		if err == nil {
			return s
		}
		if _, ended := errors.AsType[*EndError](err); !ended {
			t.Fatalf("%s, rules %d, form %d: %v", tr.name, rp.rules, rp.form, err)
		}
		s = tr.again(t, rp, err)
	}
}

// caughtUp reports whether rp was told of every rank what there is.
func (tr *trial) caughtUp(t *testing.T, rp *replica) bool {
	for n, rank := range tr.e.Ranks() {
		in, r := rank.Info(), rp.rank(t, n)
		if in.Has && (r.epoch != in.Epoch || !r.has || r.last != in.Sequence || r.chunk != 0) {
			return false
		}
	}
	return true
}

func (tr *trial) compare(t *testing.T, rp *replica, what string) {
	t.Helper()
	for n, want := range tr.want {
		r := rp.rank(t, n)
		if err := want.differs(r.content); err != nil {
			t.Fatalf("%s, seed %d, form %d, rules %d, rank %d, a subscriber %s: %v", tr.name, tr.seed, rp.form, rp.rules, n, what, err)
		}
		tr.snapshots += r.snapshots
		tr.resets += r.resets
		if want, got := tr.e.Ranks()[n].digest(t), r.book.Sum(); rp.form == FormOwn && got != want {
			t.Fatalf("%s, seed %d, rank %d, a subscriber %s: its digest is %x, the relay's %x", tr.name, tr.seed, n, what, got, want)
		}
	}
	tr.compared++
}

// digest is that of the rank's content.
func (r *Rank) digest(t *testing.T) uint64 {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	cut, err := r.live.Cut()
	if err != nil {
		t.Fatal(err)
	}
	defer cut.Close()
	return cut.Digest()
}
