// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/shard"
)

// dumped is the JSON form of a dump.
type dumped map[string]*dumpedModel

type dumpedModel struct {
	BlockSize int                              `json:"block_size"`
	Streams   map[string]map[string]dumpCursor `json:"streams"`
	Events    []dumpEvent                      `json:"events"`
}

type dumpCursor struct {
	Epoch   uint64  `json:"epoch"`
	LastSeq *uint64 `json:"last_seq"`
}

type dumpEvent struct {
	Worker json.RawMessage `json:"worker_id"`
	Tier   string          `json:"storage_tier"`
	Event  struct {
		ID   uint64 `json:"event_id"`
		Rank int    `json:"dp_rank"`
		Data struct {
			Stored *struct {
				Parent *uint64 `json:"parent_hash"`
				Seed   *uint64 `json:"namespace_seed"`
				Group  uint8   `json:"group_idx"`
				Blocks []struct {
					Block  uint64 `json:"block_hash"`
					Tokens uint64 `json:"tokens_hash"`
				} `json:"blocks"`
			} `json:"stored"`
			Removed *struct {
				Blocks []uint64 `json:"block_hashes"`
			} `json:"removed"`
		} `json:"data"`
	} `json:"event"`
}

// replay applies events in order to an empty index and returns its holders by
// worker and rank.
func replay(t *testing.T, idx shard.Index, key kv.ModelKey, events []dumpEvent) map[string]shard.Holder {
	t.Helper()
	holders := map[string]shard.Holder{}
	next := map[string]uint64{}
	for _, e := range events {
		who := fmt.Sprintf("%s/%d", e.Worker, e.Event.Rank)
		h, ok := holders[who]
		if !ok {
			var err error
			if h, err = idx.AddHolder(key); err != nil {
				t.Fatal(err)
			}
			holders[who] = h
		}
		if e.Event.ID != next[who] {
			t.Fatalf("%s: event %d, want %d", who, e.Event.ID, next[who])
		}
		next[who]++
		tier := kv.TierUnknown
		for _, tr := range []kv.Tier{kv.TierDevice, kv.TierHost, kv.TierDisk} {
			if tr.String() == e.Tier {
				tier = tr
			}
		}
		var err error
		switch st, rm := e.Event.Data.Stored, e.Event.Data.Removed; {
		case st != nil:
			seed := uint64(kv.HashSeed)
			if st.Seed != nil {
				seed = *st.Seed
			}
			s := shard.Store{Tier: tier, Group: st.Group, Namespace: key.Namespace(seed)}
			if st.Parent != nil {
				s.Parent, s.HasParent = kv.EngineHash(*st.Parent), true
			}
			for _, b := range st.Blocks {
				s.Engines = append(s.Engines, kv.EngineHash(b.Block))
				s.Contents = append(s.Contents, kv.ContentHash(b.Tokens))
			}
			err = idx.Store(h, &s)
		case rm != nil:
			r := shard.Remove{Tier: tier}
			for _, b := range rm.Blocks {
				r.Engines = append(r.Engines, kv.EngineHash(b))
			}
			err = idx.Remove(h, &r)
		default:
			t.Fatalf("%s: event %d is neither stored nor removed", who, e.Event.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		if st, err := idx.HolderStats(h); err != nil || st.Orphans > 0 {
			t.Fatalf("%s: event %d came before its parent (%v)", who, e.Event.ID, err)
		}
	}
	return holders
}

// churnContent puts random content into r: chains, branches, tiers, groups,
// second copies, two hashes on one position, names, holes.
func (h *testHost) churnContent(r *rank, rng *rand.Rand, steps int) {
	h.t.Helper()
	type told struct {
		e     kv.EngineHash
		tier  kv.Tier
		group uint8
	}
	var copies []told
	next := kv.EngineHash(rng.Uint64())
	for range steps {
		if len(copies) > 0 && rng.IntN(3) == 0 {
			i := rng.IntN(len(copies))
			c := copies[i]
			copies[i] = copies[len(copies)-1]
			copies = copies[:len(copies)-1]
			if err := h.idx.Remove(r.holder, &shard.Remove{Tier: c.tier, Group: c.group, Engines: []kv.EngineHash{c.e}}); err != nil {
				h.t.Fatal(err)
			}
			continue
		}
		seed := kv.ContentSeed([]string{"", "", "ad"}[rng.IntN(3)], "")
		st := shard.Store{Tier: kv.Tier(rng.IntN(3)), Group: uint8(rng.IntN(2)), Namespace: r.cfg.Model.Namespace(seed)}
		if len(copies) > 0 && rng.IntN(2) == 0 {
			st.Parent, st.HasParent = copies[rng.IntN(len(copies))].e, true
		}
		for range 1 + rng.IntN(6) {
			e := next
			next++
			if len(copies) > 0 && rng.IntN(8) == 0 {
				e = copies[rng.IntN(len(copies))].e // moved, or a second copy
			}
			st.Engines = append(st.Engines, e)
			st.Contents = append(st.Contents, kv.ContentHash(rng.IntN(4)))
		}
		for range 1 + rng.IntN(2) {
			if err := h.idx.Store(r.holder, &st); err != nil {
				h.t.Fatal(err)
			}
			for _, e := range st.Engines {
				copies = append(copies, told{e, st.Tier, st.Group})
			}
		}
	}
}

// TestDumpReloads: events replayed into an empty index of any kind give content
// with the same digests and as many second copies.
func TestDumpReloads(t *testing.T) {
	for seed := range uint64(6) {
		h := startTestHost(t, nil)
		rng := rand.New(rand.NewPCG(seed, 1))
		h.register(reg("1", "m", `,"dp_size":2`))
		h.register(strings.Replace(reg(`"w\"2"`, "m", ""), "21001", "23001", 1))
		h.register(reg("1", "m", `,"routing_group":"g"`))
		for _, w := range h.reg.workers(nil) {
			for _, r := range *w.ranks.Load() {
				h.churnContent(r, rng, 150)
			}
		}
		var d dumped
		if err := json.Unmarshal([]byte(h.must(200, "GET", "/dump?format=json", "")), &d); err != nil {
			t.Fatal(err)
		}
		var digests map[string]map[string]map[string]string
		if err := json.Unmarshal([]byte(h.must(200, "GET", "/digest", "")), &digests); err != nil {
			t.Fatal(err)
		}
		if len(d) != 2 || len(digests) != 2 || len(digests["m:default"]) != 2 || len(digests["m:default"]["1"]) != 2 {
			t.Fatalf("%d models dumped, digests %v: want 2 models, 2 instances, 2 ranks", len(d), digests)
		}
		if lines := h.readLines(); len(lines) != 2 || jsonOf(t, lines["m:g"].Streams) != jsonOf(t, d["m:g"].Streams) ||
			jsonOf(t, lines["m:default"].Streams) != jsonOf(t, d["m:default"].Streams) || lines["m:g"].BlockSize != 4 {
			t.Errorf("seed %d: the lines have other streams than the JSON form", seed)
		} else {
			h.checkReload(lines, digests, "reference")
		}
		for _, kind := range shard.Kinds {
			h.checkReload(d, digests, kind)
		}
	}
}

// checkReload replays all models of d into indexes of one kind.
func (h *testHost) checkReload(d dumped, digests map[string]map[string]map[string]string, kind string) {
	h.t.Helper()
	checked, holes := 0, 0
	for label, m := range d {
		group := strings.TrimPrefix(label, "m:")
		idx, err := shard.New(kind, shard.Options{})
		if err != nil {
			h.t.Fatal(err)
		}
		for who, holder := range replay(h.t, idx, kv.MakeModelKey("default", "m", group), m.Events) {
			shown, number, _ := strings.Cut(who, "/")
			id := shown
			if shown[0] == '"' {
				id = `w"2`
			}
			got, err := shard.Digest(idx, holder)
			if err != nil {
				h.t.Fatal(err)
			}
			if want := digests[label][id][number]; fmt.Sprintf("%016x", got) != want {
				h.t.Errorf("%s, %s %s: reloaded digest %016x, want %s", kind, label, who, got, want)
			}
			n := 0
			if number == "1" {
				n = 1
			}
			was, err := h.idx.HolderStats(h.rank("m", group, id, n).holder)
			if err != nil {
				h.t.Fatal(err)
			}
			is, err := idx.HolderStats(holder)
			if err != nil {
				h.t.Fatal(err)
			}
			if was.Memberships != is.Memberships || was.SecondCopies != is.SecondCopies {
				h.t.Errorf("%s, %s: reloaded %d memberships, %d second copies, want %d, %d", kind, who, is.Memberships, is.SecondCopies, was.Memberships, was.SecondCopies)
			}
			checked++
		}
		for _, e := range m.Events {
			if e.Event.Data.Removed != nil {
				holes += len(e.Event.Data.Removed.Blocks)
			}
		}
	}
	if checked != 4 || holes == 0 {
		h.t.Errorf("%s: %d streams checked, %d holes: the test shows too little", kind, checked, holes)
	}
}

// readLines reads the ndjson form into the shape of the JSON form.
func (h *testHost) readLines() dumped {
	h.t.Helper()
	d := dumped{}
	sc := bufio.NewScanner(strings.NewReader(h.must(200, "GET", "/dump?format=ndjson", "")))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var line struct {
			Model     string                           `json:"model"`
			BlockSize int                              `json:"block_size"`
			Streams   map[string]map[string]dumpCursor `json:"streams"`
			dumpEvent
		}
		if err := json.Unmarshal(sc.Bytes(), &line); err != nil {
			h.t.Fatalf("%s: %v", sc.Text(), err)
		}
		if d[line.Model] == nil {
			d[line.Model] = &dumpedModel{Streams: map[string]map[string]dumpCursor{}}
		}
		m := d[line.Model]
		if line.Streams == nil {
			m.Events = append(m.Events, line.dumpEvent)
			continue
		}
		m.BlockSize = line.BlockSize
		for id, byRank := range line.Streams {
			if m.Streams[id] == nil {
				m.Streams[id] = map[string]dumpCursor{}
			}
			maps.Copy(m.Streams[id], byRank)
		}
	}
	return d
}

// TestDumpForm holds one small dump against the contract, byte for byte.
func TestDumpForm(t *testing.T) {
	h := startTestHost(t, nil)
	h.want("GET", "/dump", "", 200, "{}\n")
	h.want("GET", "/digest", "", 200, "{}")
	h.register(reg("1", "m", ""))
	r := h.rank("m", "", "1", 0)
	h.put(r, kv.TierDevice, "", "", 11, tokens(1, 8), nil)
	h.put(r, kv.TierHost, "", "", 11, tokens(1, 4), nil)
	c := (&kv.Blocks{Tokens: tokens(1, 8), BlockSize: 4}).AppendHashes(nil, kv.HashSeed)
	event := func(id int, tier, data string) string {
		return fmt.Sprintf(`{"worker_id":1,"storage_tier":%q,"event":{"event_id":%d,"data":{%s},"dp_rank":0}}`, tier, id, data)
	}
	block := func(e int, c kv.ContentHash) string {
		return fmt.Sprintf(`{"block_hash":%d,"tokens_hash":%d,"mm_extra_info":null}`, e, c)
	}
	epoch := h.Instances("", "")[0].Listeners["0"].Epoch
	state := h.Instances("", "")[0].Listeners["0"].Status
	streams := fmt.Sprintf(`"streams":{"1":{"0":{"epoch":%d,"last_seq":null,"status":%q,"orphans":0}}}`, epoch, state)
	want := `{"m:default":{"block_size":4,"events":[` +
		event(0, "device", `"stored":{"parent_hash":null,"blocks":[`+block(11, c[0])+`]}`) + `,` +
		event(1, "host", `"stored":{"parent_hash":null,"blocks":[`+block(11, c[0])+`]}`) + `,` +
		event(2, "device", `"stored":{"parent_hash":11,"blocks":[`+block(12, c[1])+`]}`) +
		`],` + streams + "}}\n"
	h.want("GET", "/dump", "", 200, want)
	h.want("GET", "/dump?model_name=m&instance_id=1&format=json", "", 200, want)
	h.take(r, kv.TierHost, 11)
	h.want("GET", "/dump?format=ndjson", "", 200, `{"model":"m:default","block_size":4,`+streams+"}\n"+
		`{"model":"m:default",`+event(0, "device", `"stored":{"parent_hash":null,"blocks":[`+block(11, c[0])+`,`+block(12, c[1])+`]}`)[1:]+"\n")

	// The digest knows no history: a detour ends at the same one.
	before := h.must(200, "GET", "/digest?model_name=m", "")
	h.put(r, kv.TierHost, "", "", 11, tokens(1, 4), nil)
	if h.must(200, "GET", "/digest", "") == before {
		t.Error("a host copy does not show in the digest")
	}
	h.take(r, kv.TierHost, 11)
	h.want("GET", "/digest", "", 200, before)
}

// TestLabels: names never run together.
func TestLabels(t *testing.T) {
	seen := map[string]modelName{}
	parts := []string{"a", "a:b", "b", "b@c", "default", "c", "%3A", "a:b@c", "@", ":"}
	for _, model := range parts {
		for _, group := range parts {
			for _, tenant := range parts {
				n := makeModelName(tenant, model, group)
				if was, ok := seen[n.String()]; ok && was != n {
					t.Errorf("%+v and %+v are both %q", was, n, n)
				}
				seen[n.String()] = n
			}
		}
	}
	if got := makeModelName("", "m", "").String(); got != "m:default" {
		t.Errorf("got %q, want m:default", got)
	}
	if got := makeModelName("t", "m", "g").String(); got != "m:g@t" {
		t.Errorf("got %q, want m:g@t", got)
	}
}

// TestDumpBounded: there are only so many dumps at a time, and one that nobody
// reads ends by itself.
func TestDumpBounded(t *testing.T) {
	h := startTestHost(t, func(c *Config) { c.WriteStallTimeout = 300 * time.Millisecond })
	h.register(reg("1", "m", ""))
	h.put(h.rank("m", "", "1", 0), kv.TierDevice, "", "", 1, tokens(1, 4*120_000), nil)
	for range maxDumps {
		h.dumps <- struct{}{}
	}
	h.error("GET", "/dump", "", 503)
	h.must(200, "HEAD", "/dump", "")
	<-h.dumps
	resp, err := http.Get(h.url + "/dump") // about 8 MB, which no socket buffers
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	waitFor(t, "the stalled dump is given up", func() bool { return len(h.dumps) == maxDumps-1 })
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("a dump nobody read for the stall timeout ended whole")
	}
	if n := len(h.must(200, "GET", "/dump", "")); n < 120_000*50 {
		t.Errorf("the next dump has %d bytes", n)
	}
}
