// SPDX-License-Identifier: Apache-2.0

package prompt

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"kindex/gateway/openai"
)

// tokenizers are of every kind that decides what may be joined.
func tokenizers() map[string]*bpe {
	rng := rand.New(rand.NewPCG(7, 8))
	text := words(rng, 2_000)
	return map[string]*bpe{"across": train(text, 200, false), "words": train(text, 200, true), "bytes": {ranks: map[[2]uint32]uint32{}}}
}

// TestJoin: whatever joins, joins right.
func TestJoin(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, b := range tokenizers() {
		joined := 0
		const rounds = 800
		for range rounds {
			text := words(rng, 50+rng.IntN(300))
			if rng.IntN(8) == 0 {
				text = strings.Repeat("a", 40+rng.IntN(200))
			}
			end := 1 + rng.IntN(len(text)-1)
			from := rng.IntN(end)
			got, ok := join(b.encode(text[:end]), b.encode(text[from:end]), b.encode(text[from:]))
			if !ok {
				continue
			}
			joined++
			if want := b.encode(text); !slices.Equal(got, want) {
				t.Fatalf("%s: %q, window from %d, known to %d: got %v, want %v", name, text, from, end, got, want)
			}
		}
		if joined < rounds/3 {
			t.Errorf("%s: %d of %d joined", name, joined, rounds)
		}
	}
}

// TestGrowingText: a text that grows has the engine's tokens at every step, for few
// bytes.
func TestGrowingText(t *testing.T) {
	for name, b := range tokenizers() {
		f := &fake{encode: b.encode, template: chatML}
		r := New(Options{Client: f, Budget: time.Minute})
		pool := poolOf(t, 2, 16)
		rng := rand.New(rand.NewPCG(3, 4))
		text := words(rng, 6_000)
		sent, whole, from := int64(0), 0, map[Source]int{}
		for turn := range 25 {
			var p Prompt
			before := f.bytes.Load()
			body, _ := json.Marshal(map[string]any{"model": "m", "prompt": text})
			r.Resolve(t.Context(), pool, parsed(t, openai.Completion, string(body)), &p)
			if want := b.encode("<s>" + text); !slices.Equal(p.Tokens, want) {
				t.Fatalf("%s, turn %d: %d tokens from %v (%s), want %d", name, turn, len(p.Tokens), p.Source, p.Why, len(want))
			}
			from[p.Source]++
			if p.Source == Grown {
				sent += f.bytes.Load() - before
				whole += len(body)
			}
			text += words(rng, 50+rng.IntN(500))
			r.idle()
		}
		r.Close()
		if from[Grown] < 20 || sent > int64(whole/2) {
			t.Errorf("%s: %v, %d bytes sent for %d", name, from, sent, whole)
		}
	}
}

// idle waits until no question is under way.
func (r *Resolver) idle() { r.flying.Wait() }

// TestGrowingChat: a conversation has the engine's tokens at every turn, whatever the
// template does with it; and one of the usual kind costs a short question a turn.
func TestGrowingChat(t *testing.T) {
	all := tokenizers()
	for name, c := range map[string]struct {
		template func([]said) string
		grows    bool
	}{
		"marked": {chatML, true}, "unmarked": {unmarked, true}, "forgetful": {forgetful, true}, "counting": {counting, false}, "late": {late, true},
	} {
		b := all["words"]
		if name == "unmarked" {
			b = all["across"]
		}
		f := &fake{encode: b.encode, template: c.template}
		r := New(Options{Client: f, Budget: time.Minute})
		pool := poolOf(t, 3, 16)
		rng := rand.New(rand.NewPCG(5, 6))
		talk := []said{{"system", words(rng, 3_000)}, {"user", words(rng, 300)}}
		from := map[Source]int{}
		var calls, bytes, grown, wrong int64
		for turn := range 20 {
			var p Prompt
			body, _ := json.Marshal(map[string]any{"model": "m", "messages": talk, "temperature": rng.Float64(), "tools": []int{1}})
			c1, b1 := f.calls.Load(), f.bytes.Load()
			call := parsed(t, openai.Chat, string(body))
			r.Resolve(t.Context(), pool, call, &p)
			want := b.encode("[1]" + c.template(talk))
			if !slices.Equal(p.Tokens, want) && (name != "late" || p.Source != Grown) {
				t.Fatalf("%s, turn %d: %d tokens from %v (%s), want %d", name, turn, len(p.Tokens), p.Source, p.Why, len(want))
			}
			from[p.Source]++
			if p.Source == Grown && !slices.Equal(p.Tokens, want) {
				wrong++
			}
			if p.Source == Grown {
				grown++
				calls += f.calls.Load() - c1
				bytes += f.bytes.Load() - b1
			}
			r.idle()
			r.Confirm(call, &p, openai.Usage{Known: true, Prompt: int64(len(want))})
			// The same once more costs nothing.
			c1 = f.calls.Load()
			r.Resolve(t.Context(), pool, call, &p)
			if wrong == 0 && (p.Source != Cached || f.calls.Load() != c1) || !slices.Equal(p.Tokens, want) {
				t.Fatalf("%s, turn %d: the same prompt came from %v, for %d questions", name, turn, p.Source, f.calls.Load()-c1)
			}
			answer := "<think>" + words(rng, 100) + "</think>" + words(rng, 800)
			talk = append(talk, said{"assistant", answer}, said{"user", words(rng, 50+rng.IntN(200))})
		}
		s := r.Stats()
		r.Close()
		t.Logf("%s: %v; %d questions of %d bytes for %d grown turns; compared %d, different %d", name, from, calls, bytes, grown, s.Compared, s.Differences)
		switch {
		case name == "late":
			// Nobody can foresee it: the first answer tells, and then it is over.
			if wrong != 1 || s.Mismatches != 1 {
				t.Errorf("%s: %d wrong, %d mismatches", name, wrong, s.Mismatches)
			}
		case wrong > 0:
			t.Errorf("%s: %d wrong", name, wrong)
		case c.grows && (grown < 16 || calls > 3*grown/2 || bytes > 6_000*grown):
			t.Errorf("%s: %v, %d questions of %d bytes", name, from, calls, bytes)
		case !c.grows && grown > 0:
			t.Errorf("%s: %v", name, from)
		}
	}
}

// TestBranches: conversations that part after the same begin do not mix.
func TestBranches(t *testing.T) {
	b := tokenizers()["words"]
	f := &fake{encode: b.encode, template: chatML}
	r := New(Options{Client: f, Budget: time.Minute})
	defer r.Close()
	pool := poolOf(t, 2, 16)
	rng := rand.New(rand.NewPCG(9, 9))
	system := said{"system", words(rng, 2_000)}
	talks := make([][]said, 6)
	for i := range talks {
		talks[i] = []said{system, {"user", words(rng, 300)}}
	}
	for range 12 {
		i := rng.IntN(len(talks))
		for k := range talks {
			options := []string{"", `,"tools":[1]`, `,"tools":[2]`}[rng.IntN(3)]
			model := []string{"m", "adapter"}[rng.IntN(2)]
			all, _ := json.Marshal(talks[k])
			var p Prompt
			r.Resolve(t.Context(), pool, parsed(t, openai.Chat, fmt.Sprintf(`{"model":%q,"messages":%s%s}`, model, all, options)), &p)
			tools := strings.TrimPrefix(options, `,"tools":`)
			if want := b.encode(tools + chatML(talks[k])); !slices.Equal(p.Tokens, want) {
				t.Fatalf("talk %d: %d tokens from %v, want %d", k, len(p.Tokens), p.Source, len(want))
			}
			if want := map[string]string{"m": "", "adapter": "adapter"}[model]; p.LoRA != want {
				t.Fatalf("adapter %q, want %q", p.LoRA, want)
			}
		}
		talks[i] = append(talks[i], said{"assistant", words(rng, 200)}, said{"user", words(rng, 100)})
		if k := rng.IntN(len(talks)); k != i {
			talks[k] = append(slices.Clone(talks[i][:len(talks[i])-1]), said{"user", words(rng, 100)})
		}
	}
}
