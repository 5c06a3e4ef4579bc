// SPDX-License-Identifier: Apache-2.0

//go:build tokenizer && cgo

package prompt

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// letters returns how a tokenizer.json writes bytes: printable ones as themselves, the
// others behind all of them.
func letters() (out [256]string) {
	next := rune(256)
	for i := range 256 {
		if i > 32 && i < 127 || i > 160 && i != 173 {
			out[i] = string(rune(i))
			continue
		}
		out[i] = string(next)
		next++
	}
	return out
}

// file writes b as a tokenizer.json and returns where.
func (b *bpe) file(t *testing.T) string {
	t.Helper()
	names := map[uint32]string{}
	vocabulary := map[string]uint32{}
	for i, l := range letters() {
		names[uint32(i)], vocabulary[l] = l, uint32(i)
	}
	type ranked struct {
		pair [2]uint32
		id   uint32
	}
	var all []ranked
	for pair, id := range b.ranks {
		all = append(all, ranked{pair, id})
	}
	slices.SortFunc(all, func(a, b ranked) int { return int(a.id) - int(b.id) })
	merges := [][2]string{}
	for _, m := range all {
		names[m.id] = names[m.pair[0]] + names[m.pair[1]]
		vocabulary[names[m.id]] = m.id
		merges = append(merges, [2]string{names[m.pair[0]], names[m.pair[1]]})
	}
	var added []any
	for i, m := range marks {
		added = append(added, map[string]any{
			"id": 1_000_000 + i, "content": m, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true,
		})
		vocabulary[m] = uint32(1_000_000 + i)
	}
	begin := map[string]any{"SpecialToken": map[string]any{"id": "<s>", "type_id": 0}}
	text := map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}
	second := map[string]any{"Sequence": map[string]any{"id": "B", "type_id": 1}}
	out, err := json.Marshal(map[string]any{
		"version": "1.0", "truncation": map[string]any{"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}, "padding": nil,
		"added_tokens": added, "normalizer": nil,
		"pre_tokenizer":  map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
		"post_processor": map[string]any{"type": "TemplateProcessing", "single": []any{begin, text}, "pair": []any{begin, text, second}, "special_tokens": map[string]any{"<s>": map[string]any{"id": "<s>", "ids": []int{1_000_002}, "tokens": []string{"<s>"}}}},
		"decoder":        map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model":          map[string]any{"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocabulary, "merges": merges},
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), out, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestNativeTokenizer holds the library against byte-pair encoding written out, on
// awkward texts and random ones, from several goroutines.
func TestNativeTokenizer(t *testing.T) {
	b := tokenizers()["across"]
	n, err := OpenTokenizer(b.file(t))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	check := func(text string) {
		got, err := n.Encode([]uint32{7}, []byte(text), false)
		if want := append([]uint32{7}, b.encode(text)...); err != nil || !slices.Equal(got, want) {
			t.Errorf("%.100q: got %v, %v, want %v", text, got, err, want)
		}
		got, err = n.Encode(nil, []byte(text), true)
		if want := b.encode("<s>" + text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%.100q with special tokens: got %v, %v, want %v", text, got, err, want)
		}
	}
	check("")
	for _, text := range awkward {
		check(text)
	}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for range 50 {
				check(words(rng, 1+rng.IntN(300)) + "\x00" + words(rng, 10))
			}
		})
	}
	all.Wait()
	if _, err := n.Encode(nil, []byte("a\xffb"), false); err == nil {
		t.Error("text that is not UTF-8 is taken")
	}
}

// TestNativeTokenizerProved: with engines that have the same tokenizer it answers, with
// others it does not.
func TestNativeTokenizerProved(t *testing.T) {
	b := tokenizers()["across"]
	n, err := OpenTokenizer(b.file(t))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	provedOn(t, n, b, b)
	provedOn(t, n, b, tokenizers()["words"])
	// One that lacks a single rare token.
	less := &bpe{ranks: map[[2]uint32]uint32{}}
	last := uint32(0)
	for pair, id := range b.ranks {
		less.ranks[pair] = id
		last = max(last, id)
	}
	for pair, id := range less.ranks {
		if id == last {
			delete(less.ranks, pair)
		}
	}
	provedOn(t, n, b, less)
}

// TestNativeTokenizerRefuses: what is no tokenizer.json is one clear line.
func TestNativeTokenizerRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, path := range []string{
		filepath.Join(dir, "absent"), dir, write("empty", ""), write("text", "hello"), write("object", `{"version":"1.0"}`), write("deep", strings.Repeat("[", 100_000)),
		write("wrong", `{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":[["x","y"]]}}`), write("bytes", "\xff\x00"),
	} {
		n, err := OpenTokenizer(path)
		if err == nil {
			n.Close()
			t.Errorf("%s is taken", path)
			continue
		}
		if !strings.HasPrefix(err.Error(), "tokenizer: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q", path, err)
		}
		if path == filepath.Join(dir, "absent") && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
