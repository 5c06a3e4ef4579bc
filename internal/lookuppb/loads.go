// SPDX-License-Identifier: Apache-2.0

package lookuppb

import (
	"time"

	"google.golang.org/protobuf/proto"

	"kindex/internal/lookup"
	kindexv1 "kindex/proto/kindex/v1"
)

// maxLoads is how many loads one message has.
const maxLoads = 512

// LoadEncoder makes messages of the steps of one stream of loads. A rank's names are
// sent once, with a number that stands for them. The zero value begins a stream.
//
// Concurrency: one goroutine.
type LoadEncoder struct {
	numbers map[lookup.LoadName]uint32
	next    uint32
}

// Encode returns the messages of one step.
func (e *LoadEncoder) Encode(u *lookup.LoadUpdate) []*kindexv1.WatchLoadsResponse {
	m := &kindexv1.WatchLoadsResponse{Whole: u.Whole}
	if u.Whole || e.numbers == nil {
		e.numbers, e.next = map[lookup.LoadName]uint32{}, 0
	}
	for _, n := range u.Gone {
		if k, ok := e.numbers[n]; ok {
			m.Gone = append(m.Gone, k)
			delete(e.numbers, n)
		}
	}
	ms := []*kindexv1.WatchLoadsResponse{m}
	for i := range u.Loads {
		if len(m.Loads) == maxLoads {
			m.More = true
			m = &kindexv1.WatchLoadsResponse{Whole: u.Whole}
			ms = append(ms, m)
		}
		l := &u.Loads[i]
		k, ok := e.numbers[l.LoadName]
		if !ok {
			k = e.next
			e.next++
			e.numbers[l.LoadName] = k
			m.Holders = append(m.Holders, &kindexv1.LoadHolder{
				Number: k, InstanceId: l.Instance, ModelName: l.Model, RoutingGroup: l.Group, TenantId: l.Tenant, DpRank: uint32(l.Rank),
			})
		}
		m.Loads = append(m.Loads, encodeLoad(k, l))
	}
	return ms
}

// Each calls say with each message of a step, encoded.
func (e *LoadEncoder) Each(u *lookup.LoadUpdate, say func([]byte) error) error {
	for _, m := range e.Encode(u) {
		b, err := proto.Marshal(m)
		if err == nil {
			err = say(b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func encodeLoad(number uint32, l *lookup.Load) *kindexv1.Load {
	m := &kindexv1.Load{Holder: number, Status: l.Status, Memberships: l.Held}
	if l.EventAge >= 0 {
		m.EventAgeUs = new(uint64(l.EventAge.Microseconds()))
	}
	if r := l.Record; r != nil {
		m.Record = &kindexv1.LoadRecord{
			AgeUs:   uint64(max(r.Age, 0).Microseconds()),
			Running: known32(r.Running), Waiting: known32(r.Waiting), WaitingUncachedTokens: known(r.WaitingUncached),
			TokenUsage: knownShare(r.Usage), ActiveTokenUsage: knownShare(r.ActiveUsage), GenThroughput: knownShare(r.Throughput),
			MaxRunning: known32(r.MaxRunning), PrefillPendingTokens: known(r.PrefillPending), SilenceMs: known(r.SilenceMS),
			ReportsSteps: r.ReportsSteps, Sample: r.Sample,
		}
	}
	return m
}

func known(v int64) *uint64 {
	if v < 0 {
		return nil
	}
	return new(uint64(v))
}

func known32(v int64) *uint32 {
	if v < 0 {
		return nil
	}
	return new(uint32(min(v, 1<<32-1)))
}

func knownShare(v float64) *float64 {
	if !(v >= 0) { // not a number is nothing said
		return nil
	}
	return &v
}

// LoadDecoder is the other end of a [LoadEncoder]: one for each stream.
//
// Concurrency: one goroutine.
type LoadDecoder struct {
	names map[uint32]lookup.LoadName
	step  *lookup.LoadUpdate // that goes on; nil: none
}

// maxLoadHolders bounds the names that a stream may make known at once.
const maxLoadHolders = 1 << 20

// Parse is Decode of the encoded message.
func (d *LoadDecoder) Parse(b []byte) (*lookup.LoadUpdate, error) {
	m := new(kindexv1.WatchLoadsResponse)
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, lookup.Refuse(lookup.ErrUnavailable, "the host's loads cannot be read: %v", err)
	}
	return d.Decode(m)
}

// Decode returns the step that m ends; nil: it goes on with the next message.
//
// Errors: ErrUnavailable where m cannot follow what came before.
func (d *LoadDecoder) Decode(m *kindexv1.WatchLoadsResponse) (*lookup.LoadUpdate, error) {
	u := d.step
	if u == nil {
		u = &lookup.LoadUpdate{Whole: m.GetWhole()}
		if u.Whole || d.names == nil {
			d.names = map[uint32]lookup.LoadName{}
		}
	}
	for _, k := range m.GetGone() {
		if n, ok := d.names[k]; ok {
			u.Gone = append(u.Gone, n)
			delete(d.names, k)
		}
	}
	for _, h := range m.GetHolders() {
		d.names[h.GetNumber()] = lookup.LoadName{
			Instance: h.GetInstanceId(), Model: h.GetModelName(), Group: h.GetRoutingGroup(), Tenant: h.GetTenantId(), Rank: int(h.GetDpRank()),
		}
	}
	if len(d.names) > maxLoadHolders || len(u.Loads) > maxLoadHolders {
		return nil, lookup.Refuse(lookup.ErrUnavailable, "the host tells the loads of more than %d ranks", maxLoadHolders)
	}
	for _, l := range m.GetLoads() {
		n, ok := d.names[l.GetHolder()]
		if !ok {
			return nil, lookup.Refuse(lookup.ErrUnavailable, "the host tells a load of rank number %d without saying who that is", l.GetHolder())
		}
		u.Loads = append(u.Loads, decodeLoad(n, l))
	}
	if m.GetMore() {
		d.step = u
		return nil, nil
	}
	d.step = nil
	return u, nil
}

func decodeLoad(n lookup.LoadName, m *kindexv1.Load) lookup.Load {
	l := lookup.Load{LoadName: n, Status: m.GetStatus(), Held: m.GetMemberships(), EventAge: -1}
	if m.EventAgeUs != nil {
		l.EventAge = micros(m.GetEventAgeUs())
	}
	r := m.GetRecord()
	if r == nil {
		return l
	}
	l.Record = &lookup.LoadRecord{
		Age: micros(r.GetAgeUs()), Running: said(r.Running), Waiting: said(r.Waiting), WaitingUncached: said(r.WaitingUncachedTokens),
		Usage: saidShare(r.TokenUsage), ActiveUsage: saidShare(r.ActiveTokenUsage), Throughput: saidShare(r.GenThroughput),
		MaxRunning: said(r.MaxRunning), PrefillPending: said(r.PrefillPendingTokens), SilenceMS: said(r.SilenceMs),
		ReportsSteps: r.GetReportsSteps(), Sample: r.GetSample(),
	}
	return l
}

// maxAge bounds an age: who says more is as old as that.
const maxAge = 1 << 62 / 1_000

func micros(us uint64) time.Duration { return time.Duration(min(us, maxAge)) * time.Microsecond }

func said[T uint32 | uint64](v *T) int64 {
	if v == nil {
		return -1
	}
	return int64(min(uint64(*v), 1<<62))
}

func saidShare(v *float64) float64 {
	if v == nil || !(*v >= 0) {
		return -1
	}
	return *v
}
