// SPDX-License-Identifier: Apache-2.0

package hashcheck

import (
	"strings"
	"sync"
	"testing"
	"time"

	"kindex/internal/enginehash"
	"kindex/internal/kv"
	"kindex/relay/wire"
)

// engine makes events as an engine of one scheme does, over made-up tokens.
type engine struct {
	scheme
	size  int
	unit  int  // 0: the block's size
	bytes bool // the wire shows whole digests
	next  uint32
	known map[kv.EngineHash]enginehash.Digest
}

func newEngine(a enginehash.Algorithm, seed string) *engine {
	return &engine{scheme: seeded(a, seed), size: 4, known: map[kv.EngineHash]enginehash.Digest{}}
}

// stored returns an event of n blocks of new tokens below parent, or of a chain's
// first blocks for nil; keys are the extra keys of its first block.
func (e *engine) stored(parent *kv.Event, n int, keys ...kv.ExtraKey) *kv.Event {
	ev := &kv.Event{Kind: kv.KindStored, BlockSize: e.size}
	above := e.none
	if parent != nil {
		ev.HasParent, ev.Parent = true, parent.Hashes[len(parent.Hashes)-1]
		above = e.known[ev.Parent]
		if e.bytes {
			ev.ParentDigest = append([]byte(nil), above[:e.alg.Size()]...)
		}
	}
	if len(keys) > 0 {
		ev.HasExtra, ev.Extra = true, make([][]kv.ExtraKey, n)
		ev.Extra[0] = keys
	}
	unit := e.size
	if e.unit > 0 {
		unit = e.unit
	}
	h := enginehash.New(e.alg)
	for i := range n {
		for range e.size / unit {
			b := enginehash.Block{}
			for range unit {
				e.next++
				b.Tokens = append(b.Tokens, e.next)
			}
			ev.Tokens = append(ev.Tokens, b.Tokens...)
			if i == 0 {
				for _, k := range keys {
					b.Keys = append(b.Keys, hashedKey(k))
				}
			}
			above = h.Sum(&above, &b)
		}
		hash := e.alg.Fold(&above)
		e.known[hash] = above
		ev.Hashes = append(ev.Hashes, hash)
		if e.bytes {
			ev.Form = kv.FormBytes
			ev.Digests = append(ev.Digests, append([]byte(nil), above[:e.alg.Size()]...))
		}
	}
	return ev
}

func hashedKey(k kv.ExtraKey) enginehash.Key {
	switch k.Kind {
	case kv.ExtraItem:
		return enginehash.Key{Kind: enginehash.KeyItem, Name: k.ID, Offset: k.Offset}
	case kv.ExtraBytes:
		return enginehash.Key{Kind: enginehash.KeyEmbeds, Blob: []byte(k.ID)}
	case kv.ExtraString:
	}
	return enginehash.Key{Kind: enginehash.KeySalt, Name: k.ID}
}

func batch(evs ...*kv.Event) *kv.Batch {
	b := &kv.Batch{}
	for _, ev := range evs {
		b.Events = append(b.Events, *ev)
	}
	return b
}

func checker(t *testing.T, text, engine string) *Checker {
	t.Helper()
	cfg, err := Parse(text, engine)
	if err != nil {
		t.Fatal(err)
	}
	return New(cfg)
}

func wantStats(t *testing.T, c *Checker, checked, mismatched uint64) {
	t.Helper()
	if s := c.Stats(); s.Checked != checked || s.Mismatched != mismatched {
		t.Errorf("%d checked, %d mismatched, want %d and %d", s.Checked, s.Mismatched, checked, mismatched)
	}
}

func TestParse(t *testing.T) {
	none := strings.Repeat("ab", 32)
	for _, c := range []struct {
		text, engine string
		want         Config
	}{
		{"auto", "vllm", Config{Engine: "vllm", Auto: true}},
		{"sha256", "vllm", Config{Engine: "vllm", Algorithm: enginehash.SHA256}},
		{"xxhash_cbor:a:b", "vllm", Config{Engine: "vllm", Algorithm: enginehash.XXHashCBOR, Seed: "a:b"}},
		{"sha256_cbor:none=" + none, "vllm", Config{Engine: "vllm", Algorithm: enginehash.SHA256CBOR}},
		{"sglang", "sglang", Config{Engine: "sglang", Algorithm: enginehash.SGLang}},
	} {
		got, err := Parse(c.text, c.engine)
		if err != nil || got.Engine != c.want.Engine || got.Auto != c.want.Auto || got.Algorithm != c.want.Algorithm || got.Seed != c.want.Seed || strings.Contains(c.text, "none") != (len(got.None) == 32) {
			t.Errorf("%s: %+v, %v, want %+v", c.text, got, err, c.want)
		}
	}
	for _, text := range []string{"off", ""} {
		if got, err := Parse(text, "vllm"); got != nil || err != nil {
			t.Errorf("%q: %v, %v, want nothing", text, got, err)
		}
	}
	for _, c := range []struct{ text, engine, want string }{
		{"md5", "vllm", `"md5" must be auto, off, sha256`},
		{"sha256:", "vllm", "must be auto"},
		{"sglang:1", "sglang", "must be auto"},
		{"auto:1", "vllm", "must be auto"},
		{"sglang", "vllm", `"sglang": an engine of kind vllm does not hash so: it must be auto`},
		{"sha256", "sglang", "does not hash so"},
		{"xxhash:none=" + none, "vllm", "none= must be followed by 32 hexadecimal digits"},
		{"sha256:none=x", "vllm", "64 hexadecimal digits"},
	} {
		if _, err := Parse(c.text, c.engine); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}

func TestCheckForm(t *testing.T) {
	for text, ok := range map[string]bool{"auto": true, "off": true, "sglang": true, "xxhash:1": true, "sglang:1": false, "sha1": false} {
		if err := CheckForm(text); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestOff(t *testing.T) {
	c := New(nil)
	c.Restart()
	if w := c.Check(batch(newEngine(enginehash.SHA256, "0").stored(nil, 2)), t0); w != "" || c.Stats().Checked != 0 {
		t.Error("a checker that is off checks")
	}
}

// TestUnknownSeed: a seed that nobody guesses.
func TestUnknownSeed(t *testing.T) {
	for _, c := range []struct {
		name, check   string
		bytes         bool
		want          string
		checked, miss uint64
	}{
		{"eight bytes", "sha256", false, `another seed, most likely: no first block fits sha256 with the default seed, nor any other known algorithm with a common seed; give --hash-check sha256:SEED`, 20, 20},
		{"whole digests", "sha256", true, `another seed: the engine hashes by sha256, but no first block fits the default seed; give --hash-check sha256:SEED`, 60, 20},
		{"whole digests, another length", "xxhash:0", true, `another algorithm: the engine's digests have 32 bytes, those of xxhash have 16`, 20, 20},
		{"found out by what is below", "auto", true, `first blocks cannot be checked: without PYTHONHASHSEED the engine draws the seed of sha256 at random`, 0, 0},
		{"found out not", "auto", false, `the engine's hashes fit no known algorithm with a known seed`, 0, 0},
		{"the right one", "sha256:what nobody guesses", false, "", 60, 0},
		{"the right digest", "sha256:none=", false, "", 60, 0},
	} {
		e := newEngine(enginehash.SHA256, "what nobody guesses")
		e.bytes = c.bytes
		if c.check == "sha256:none=" {
			c.check += hexOf(e.none[:])
		}
		k := checker(t, c.check, "vllm")
		var warnings []string
		for range 20 {
			root := e.stored(nil, 1)
			if w := k.Check(batch(root, e.stored(root, 2)), t0); w != "" {
				warnings = append(warnings, w)
			}
		}
		if c.want == "" && len(warnings) > 0 || c.want != "" && (len(warnings) != 1 || !strings.HasPrefix(warnings[0], c.want)) {
			t.Errorf("%s: warnings %q, want one: %s", c.name, warnings, c.want)
		}
		s := k.Stats()
		if c.check != "auto" && (s.Checked != c.checked || s.Mismatched != c.miss) {
			t.Errorf("%s: %d checked, %d mismatched, want %d, %d", c.name, s.Checked, s.Mismatched, c.checked, c.miss)
		}
		if c.want != "" && s.Warning != warnings[0] {
			t.Errorf("%s: the stats say %q", c.name, s.Warning)
		}
	}
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, c := range b {
		s.WriteByte(digits[c>>4])
		s.WriteByte(digits[c&15])
	}
	return s.String()
}

// TestDamaged: one block among good ones.
func TestDamaged(t *testing.T) {
	e := newEngine(enginehash.SHA256, enginehash.DefaultSeed)
	k := checker(t, "sha256", "vllm")
	root := e.stored(nil, 2)
	bad := e.stored(root, 3)
	bad.Tokens[4]++
	warnings := 0
	if k.Check(batch(root, bad), t0) != "" {
		warnings++
	}
	wantStats(t, k, 4, 1)
	if n := k.Stats().Unverifiable[UnknownParent]; n != 1 {
		t.Errorf("%d blocks without a parent, want 1", n)
	}
	for range 40 {
		if w := k.Check(batch(e.stored(nil, 1)), t0); w != "" {
			warnings++
			if !strings.HasPrefix(w, "some blocks do not fit sha256, others do") {
				t.Errorf("the warning is %q", w)
			}
		}
	}
	if warnings != 1 {
		t.Errorf("%d warnings, want 1", warnings)
	}
}

// TestKeys: salts, images and embeddings, in a form that is known and one that is
// not.
func TestKeys(t *testing.T) {
	keys := []kv.ExtraKey{{Kind: kv.ExtraItem, ID: "img", Offset: -3}, {Kind: kv.ExtraItem, ID: "img", Offset: 2}, {Kind: kv.ExtraString, ID: "salt"}, {Kind: kv.ExtraBytes, ID: "\x00\x01"}}
	for _, a := range enginehash.VLLM() {
		e := newEngine(a, "0")
		k := checker(t, a.String()+":0", "vllm")
		k.Check(batch(e.stored(nil, 2, keys...)), t0)
		wantStats(t, k, 2, 0)
		lost := e.stored(nil, 2, keys...)
		lost.Extra[0] = lost.Extra[0][:3]
		warnings := []string{k.Check(batch(lost), t0)}
		for range enoughBatches {
			warnings = append(warnings, k.Check(batch(e.stored(nil, 1)), t0))
		}
		if got := strings.Join(warnings, ""); !strings.HasPrefix(got, "blocks with extra keys (salts, images, embeddings) do not fit, all others do") {
			t.Errorf("%v: warnings %q", a, warnings)
		}
	}
}

// TestUnits: blocks of a hybrid model, hashed at a smaller unit.
func TestUnits(t *testing.T) {
	e := newEngine(enginehash.SHA256CBOR, "7")
	e.size, e.unit = 16, 4
	k := checker(t, "sha256_cbor:7", "vllm")
	root := e.stored(nil, 2)
	if w := k.Check(batch(root, e.stored(root, 3)), t0); w != "" {
		t.Errorf("warning %q", w)
	}
	wantStats(t, k, 5, 0)
	k = checker(t, "sha256:7", "vllm")
	if w := k.Check(batch(root), t0); w != "" && !strings.HasPrefix(w, "another algorithm: the engine hashes by sha256_cbor") {
		t.Errorf("warning %q", w)
	}
}

// TestRestart: another life may hash otherwise, and its warning is told when it
// is another one.
func TestRestart(t *testing.T) {
	k := checker(t, "auto", "vllm")
	first, second := newEngine(enginehash.SHA256, "0"), newEngine(enginehash.XXHash, "1")
	root := first.stored(nil, 1)
	k.Check(batch(root), t0)
	if s := k.Stats(); s.Algorithm != "sha256" || s.Digests != 1 {
		t.Errorf("algorithm %s, %d digests", s.Algorithm, s.Digests)
	}
	k.Restart()
	k.Check(batch(second.stored(nil, 1), first.stored(root, 1)), t0)
	if s := k.Stats(); s.Algorithm != "xxhash" || s.Checked != 2 || s.Mismatched != 0 || s.Unverifiable[UnknownParent] != 1 {
		t.Errorf("%+v", s)
	}
	k = checker(t, "sha256:5", "vllm")
	var warnings []string
	for _, e := range []*engine{first, first, second} {
		k.Restart()
		if w := k.Check(batch(e.stored(nil, 1)), t0); w != "" {
			warnings = append(warnings, w)
		}
	}
	if len(warnings) != 2 {
		t.Errorf("warnings %q, want two", warnings)
	}
}

// TestBudget: a flood is checked up to the limit of each second.
func TestBudget(t *testing.T) {
	e := newEngine(enginehash.XXHash, "0")
	k := checker(t, "xxhash:0", "vllm")
	b := batch(e.stored(nil, 1000))
	for range blocksPerSecond/1000 + 5 {
		k.Check(b, t0)
	}
	if s := k.Stats(); s.Checked != blocksPerSecond || s.Skipped != 5000 {
		t.Errorf("%d checked, %d skipped", s.Checked, s.Skipped)
	}
	k.Check(b, t0.Add(time.Second))
	wantStats(t, k, blocksPerSecond+1000, 0)
}

// TestDigestsBounded: the newest digests are kept, and those in use.
func TestDigestsBounded(t *testing.T) {
	e := newEngine(enginehash.XXHash, "0")
	k := checker(t, "xxhash:0", "vllm")
	root := e.stored(nil, 1)
	k.Check(batch(root), t0)
	for i := range 2*keepDigests/1000 + 10 {
		clear(e.known)
		e.known[root.Hashes[0]] = k.young[root.Hashes[0]]
		if d, ok := k.old[root.Hashes[0]]; ok {
			e.known[root.Hashes[0]] = d
		}
		k.Check(batch(e.stored(root, 1), e.stored(nil, 1000)), t0.Add(time.Duration(i)*time.Second))
	}
	if s := k.Stats(); s.Digests > 2*keepDigests || s.Mismatched != 0 || s.Unverifiable[UnknownParent] != 0 {
		t.Errorf("%+v", s)
	}
}

// TestHidden: with the format dynamo, an extra key hides a chain, and a salt's can
// be seen through.
func TestHidden(t *testing.T) {
	e := newEngine(enginehash.SGLang, "")
	k := checker(t, "sglang", "sglang")
	salted, hidden := e.page("tenant", nil), e.page("", new("extra"))
	k.Check(batch(salted, hidden), t0)
	wantStats(t, k, 1, 0)
	if n := k.Stats().Unverifiable[Hidden]; n != 1 {
		t.Errorf("%d hidden, want 1", n)
	}
	k = checker(t, "sglang", "sglang")
	var warnings []string
	for range 20 {
		if w := k.Check(batch(e.page("", new("extra"))), t0); w != "" {
			warnings = append(warnings, w)
		}
	}
	if len(warnings) != 1 || !strings.HasPrefix(warnings[0], "another algorithm: no first page") {
		t.Errorf("warnings %q", warnings)
	}
	k = checker(t, "sglang", "sglang")
	warnings = nil
	for range 20 {
		plain := e.page("", nil)
		if w := k.Check(batch(plain, e.page("", new("extra"))), t0); w != "" {
			warnings = append(warnings, w)
		}
	}
	if len(warnings) != 1 || !strings.HasPrefix(warnings[0], "some first pages do not fit, others do") {
		t.Errorf("warnings %q", warnings)
	}
}

// page returns an event of one page as the format dynamo publishes it.
func (e *engine) page(salt string, extraKey *string) *kv.Event {
	ev := &kv.Event{Kind: kv.KindStored, BlockSize: e.size, Salt: salt, HasSalt: salt != ""}
	for range e.size {
		e.next++
		ev.Tokens = append(ev.Tokens, e.next)
	}
	d := enginehash.New(enginehash.SGLang).Sum(enginehash.SaltRoot(salt), &enginehash.Block{Tokens: ev.Tokens})
	hash := enginehash.SGLang.Fold(&d)
	if salt != "" || extraKey != nil {
		var s *string
		if salt != "" {
			s = &salt
		}
		ns := enginehash.MakeNamespace(extraKey, s)
		hash = ns.Hide(hash)
	}
	ev.Hashes = []kv.EngineHash{hash}
	return ev
}

// TestOldAdapters: releases that hash an adapter's name or number, which the wire
// shows.
func TestOldAdapters(t *testing.T) {
	for _, c := range []struct {
		name string
		key  enginehash.Key
		ev   kv.Event
	}{
		{"a name in the extra keys", enginehash.Key{Kind: enginehash.KeyBareText, Name: "a"}, kv.Event{LoRAName: "a", HasExtra: true, Extra: [][]kv.ExtraKey{{{Kind: kv.ExtraString, ID: "a"}}}}},
		{"a name alone", enginehash.Key{Kind: enginehash.KeyBareText, Name: "a"}, kv.Event{LoRAName: "a", HasLoRAID: true, LoRAID: 3, ArrayItems: 8}},
		{"a number", enginehash.Key{Kind: enginehash.KeyBareNumber, Offset: 3}, kv.Event{HasLoRAID: true, LoRAID: 3, ArrayItems: 6}},
		{"a number beside a name", enginehash.Key{Kind: enginehash.KeyBareNumber, Offset: 3}, kv.Event{LoRAName: "a", HasLoRAID: true, LoRAID: 3, ArrayItems: 8}},
	} {
		ev := c.ev
		ev.Kind, ev.BlockSize, ev.Tokens = kv.KindStored, 2, []uint32{1, 2}
		none := enginehash.SHA256.None("0")
		d := enginehash.New(enginehash.SHA256).Sum(&none, &enginehash.Block{Tokens: ev.Tokens, Keys: []enginehash.Key{c.key}})
		ev.Hashes = []kv.EngineHash{enginehash.SHA256.Fold(&d)}
		k := checker(t, "sha256:0", "vllm")
		k.Check(batch(&ev), t0)
		if s := k.Stats(); s.Checked != 1 || s.Mismatched != 0 {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
}

func TestCheckDoesNotAllocate(t *testing.T) {
	e := newEngine(enginehash.SHA256, "0")
	k := checker(t, "sha256:0", "vllm")
	root := e.stored(nil, 4)
	b := batch(root, e.stored(root, 4))
	if n := testing.AllocsPerRun(10, func() { k.Check(b, t0) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// TestStatsWhileChecking is for the race detector.
func TestStatsWhileChecking(t *testing.T) {
	e := newEngine(enginehash.XXHash, "0")
	k := checker(t, "xxhash:0", "vllm")
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 100 {
			k.Check(batch(e.stored(nil, 3)), t0)
		}
	})
	for range 100 {
		if s := k.Stats(); s.Mismatched > 0 || s.Checked > 300 {
			t.Errorf("%+v", s)
		}
	}
	wg.Wait()
	wantStats(t, k, 300, 0)
}

// FuzzCheck: whatever can be decoded can be checked, and every block is counted
// once.
func FuzzCheck(f *testing.F) {
	for _, file := range fixtures(f)[:12] {
		r := readFixture(f, file)
		for _, ms := range r.batches {
			f.Add(ms[0].payload, uint8(0))
			f.Add(ms[len(ms)/2].payload, uint8(1))
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte, how uint8) {
		var d wire.Decoder
		var b kv.Batch
		if d.Decode(payload, &b) != nil {
			return
		}
		text, engine := "auto", "vllm"
		switch how % 4 {
		case 1:
			text, engine = "sglang", "sglang"
		case 2:
			text = "xxhash_cbor"
		case 3:
			text = "sha256"
		}
		cfg, err := Parse(text, engine)
		if err != nil {
			t.Fatal(err)
		}
		k := New(cfg)
		k.Check(&b, t0)
		k.Check(&b, t0)
		s := k.Stats()
		sum := s.Checked + s.Skipped
		for _, n := range s.Unverifiable {
			sum += n
		}
		want := uint64(0)
		for i := range b.Events {
			if ev := &b.Events[i]; ev.Kind == kv.KindStored && ev.Tier == kv.TierDevice && len(ev.Tokens) > 0 {
				want += uint64(2 * len(ev.Hashes))
			}
		}
		if sum != want || s.Mismatched > s.Checked {
			t.Fatalf("%d blocks counted, %d stored: %+v", sum, want, s)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	e := newEngine(enginehash.SHA256, enginehash.DefaultSeed)
	e.size = 16
	cfg, err := Parse("sha256", "vllm")
	if err != nil {
		b.Fatal(err)
	}
	k := New(cfg)
	ev := batch(e.stored(nil, 8))
	now := t0
	for b.Loop() {
		now = now.Add(time.Millisecond)
		k.Check(ev, now)
	}
}
