// SPDX-License-Identifier: Apache-2.0

package prompt

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kindex/gateway/fleet"
	"kindex/gateway/openai"
)

// inProcess is a tokenizer as the option takes one.
type inProcess struct {
	*bpe
	wrong string // a text that it has other tokens for
}

func (l inProcess) Encode(dst []uint32, text []byte, special bool) ([]uint32, error) {
	if l.wrong != "" && string(text) == l.wrong {
		return append(dst, 1), nil
	}
	if special {
		return append(dst, l.encode("<s>"+string(text))...), nil
	}
	return append(dst, l.encode(string(text))...), nil
}

func (l inProcess) Texts(int) []string { return []string{"a text of its own"} }

// provedOn runs local beside an engine with the tokenizer b, and holds what comes of it:
// it answers where the engine has its tokenizer, and only there.
func provedOn(t *testing.T, local Tokenizer, own, engines *bpe) {
	t.Helper()
	f := &fake{encode: engines.encode, template: chatML}
	var log bytes.Buffer
	r := New(Options{Client: f, Budget: time.Minute, Local: local, Log: slog.New(slog.NewTextHandler(&log, nil))})
	defer r.Close()
	pool := poolOf(t, 2, 16)
	r.Prove(pool)
	r.idle()
	calls := f.calls.Load()
	if proved := r.Stats().LocalOn; proved != (own == engines) || strings.Count(log.String(), "\n") != 1 {
		t.Fatalf("proved %v, log %q", proved, log.String())
	}
	rng := rand.New(rand.NewPCG(1, 1))
	text := words(rng, 3_000)
	for range 12 {
		var p Prompt
		r.Resolve(t.Context(), pool, parsed(t, openai.Completion, `{"model":"m","prompt":`+strconv.Quote(text)+`}`), &p)
		if want := engines.encode("<s>" + text); !slices.Equal(p.Tokens, want) {
			t.Fatalf("%d tokens from %v (%s), want %d", len(p.Tokens), p.Source, p.Why, len(want))
		}
		if (p.Source == Local) != (own == engines) {
			t.Fatalf("from %v", p.Source)
		}
		text += words(rng, 200)
	}
	if own == engines && f.calls.Load() != calls {
		t.Errorf("%d questions to engines", f.calls.Load()-calls)
	}
}

// TestLocal: a tokenizer in this process answers where it is the engine's, and chats are
// the engine's all the same.
func TestLocal(t *testing.T) {
	all := tokenizers()
	provedOn(t, inProcess{bpe: all["across"]}, all["across"], all["across"])
	provedOn(t, inProcess{bpe: all["across"]}, all["across"], all["words"])
	for _, text := range append([]string{"a text of its own"}, awkward...) {
		f := &fake{encode: all["words"].encode, template: chatML}
		r := New(Options{Client: f, Budget: time.Minute, Local: inProcess{all["words"], text}})
		r.Prove(poolOf(t, 1, 16))
		r.idle()
		if r.Stats().LocalOn {
			t.Errorf("%q: another answer does not show", text)
		}
		r.Close()
	}
}

// TestLocalAudit: an engine is asked beside it now and then, and the first difference
// ends it.
func TestLocalAudit(t *testing.T) {
	b := tokenizers()["words"]
	f := &fake{encode: b.encode, template: chatML}
	r := New(Options{Client: f, Budget: time.Minute, Local: inProcess{bpe: b}})
	defer r.Close()
	pool := poolOf(t, 1, 16)
	r.Prove(pool)
	r.idle()
	f.encode = bytewise
	for i := range 3 * auditEach {
		var p Prompt
		r.Resolve(t.Context(), pool, parsed(t, openai.Completion, fmt.Sprintf(`{"model":"m","prompt":"the cat sat on a mat and then, number %d"}`, i)), &p)
		r.idle()
		want := Local
		if i >= auditEach {
			want = Asked
		}
		if p.Source != want {
			t.Fatalf("%d: from %v (%s), want %v", i, p.Source, p.Why, want)
		}
	}
}

// TestLocalLater: what cannot be shown yet is tried again; what an answer contradicts is
// over.
func TestLocalLater(t *testing.T) {
	b := tokenizers()["words"]
	f := &fake{encode: b.encode, template: chatML}
	f.fail = func(*fleet.Worker, string) (int, string, error) { return 0, "", errors.New("refused") }
	r := New(Options{Client: f, Budget: time.Minute, Local: inProcess{bpe: b}})
	defer r.Close()
	pool := poolOf(t, 1, 16)
	r.Prove(pool)
	r.idle()
	s := r.state(pool, false)
	if s.local.Load() != localUnknown || s.proving.Load() <= fleet.Now() {
		t.Fatalf("nobody answered: %d", s.local.Load())
	}
	f.mu.Lock()
	f.fail = nil
	f.mu.Unlock()
	r.askers.Clear() // their pause is over
	s.proving.Store(0)
	c := parsed(t, openai.Completion, someText)
	var p Prompt
	r.Resolve(t.Context(), pool, c, &p)
	r.idle()
	r.cache.drop(p.key)
	if r.Resolve(t.Context(), pool, c, &p); p.Source != Local {
		t.Fatalf("from %v (%s)", p.Source, p.Why)
	}
	r.Confirm(c, &p, openai.Usage{Known: true, Prompt: 1})
	if r.Resolve(t.Context(), pool, c, &p); p.Source != Asked {
		t.Errorf("contradicted, and then from %v (%s)", p.Source, p.Why)
	}
}

// TestOpenTokenizer: without the library the option is refused with the way to it.
func TestOpenTokenizer(t *testing.T) {
	n, err := OpenTokenizer("absent")
	if err == nil {
		n.Close()
		t.Fatal("it is taken")
	}
	if !strings.HasPrefix(err.Error(), "tokenizer: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%q", err)
	}
	if strings.Contains(err.Error(), "make tokenizer") {
		t.Skip("the library is not in this build: `make tokenizer`, then go test -tags tokenizer ./gateway/prompt")
	}
}
