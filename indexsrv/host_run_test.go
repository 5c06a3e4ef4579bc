// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/relay/feed"
	"kindex/shard"
)

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// runProgram runs the program until it serves.
func runProgram(t *testing.T, signals chan os.Signal, args ...string) (addr string, stderr *lockedBuffer, status chan int) {
	t.Helper()
	stderr, status = &lockedBuffer{}, make(chan int, 1)
	go func() {
		status <- Run(append([]string{"--listen", "127.0.0.1:0"}, args...), &bytes.Buffer{}, stderr, signals)
	}()
	url := regexp.MustCompile(`url=http://(\S+)`)
	waitFor(t, "it serves", func() bool {
		m := url.FindStringSubmatch(stderr.String())
		if m != nil {
			addr = m[1]
		}
		return m != nil
	})
	return addr, stderr, status
}

// TestSignals: the first drains and ends with 0, the second ends it at once
// with 1.
func TestSignals(t *testing.T) {
	signals := make(chan os.Signal, 2)
	_, stderr, status := runProgram(t, signals, "--worker", "1=tcp://127.0.0.1:9,model=m,block=16")
	signals <- os.Interrupt
	if got := <-status; got != 0 {
		t.Errorf("after one signal: exit %d, want 0\n%s", got, stderr)
	}

	signals = make(chan os.Signal, 2)
	addr, stderr, status := runProgram(t, signals, "--drain-timeout", "1s", "--drain-delay", "1s")
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprint(c, "POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	signals <- os.Interrupt
	waitFor(t, "the drain", func() bool { return strings.Contains(stderr.String(), "draining") })
	begun := time.Now()
	signals <- os.Interrupt
	if got := <-status; got != 1 {
		t.Errorf("after two signals: exit %d, want 1\n%s", got, stderr)
	}
	if took := time.Since(begun); took > 900*time.Millisecond {
		t.Errorf("the second signal took %s", took)
	}
	time.Sleep(2500 * time.Millisecond) // the abandoned drain ends, too
}

// TestQueryInProcess: the embedded way gives HTTP's answers.
func TestQueryInProcess(t *testing.T) {
	h := startTestHost(t, nil)
	h.register(reg("1", "m", ""))
	h.register(strings.Replace(reg(`"b"`, "m", `,"dp_size":2`), "21001", "23001", 1))
	h.put(h.rank("m", "", "1", 0), kv.TierDevice, "", "", 1, tokens(1, 8), nil)
	h.put(h.rank("m", "", "b", 1), kv.TierHost, "", "", 1, tokens(1, 16), nil)
	item := kv.AppendExtraKey(nil, kv.ExtraKey{Kind: kv.ExtraItem, ID: "i", Offset: 0})
	h.put(h.rank("m", "", "1", 0), kv.TierDevice, "ad", "", 9, tokens(1, 4), [][]byte{item})
	setState(h.rank("m", "", "b", 0), feed.StateDegraded)
	one := lookup.Match{Instance: "1", Number: true, Device: 2, Host: 2, Any: 2}
	b := lookup.Match{Instance: "b", Rank: 1, Host: 4, Any: 4, Degraded: true}
	f := func(q lookup.Query, want ...lookup.Match) {
		t.Helper()
		var got lookup.Answer
		if err := h.Lookup(t.Context(), &q, &got); err != nil || !slices.Equal(got.Matches, want) || got.BlockSize != 4 {
			t.Errorf("%+v:\n got %+v, %v\nwant %+v", q, got, err, want)
		}
	}
	hashes := (&kv.Blocks{Tokens: tokens(1, 16), BlockSize: 4}).AppendHashes(nil, kv.HashSeed)
	f(lookup.Query{Model: "m", Tokens: tokens(1, 17)}, b, one)
	f(lookup.Query{Model: "m", Tokens: tokens(1, 17), Limit: 1}, b)
	f(lookup.Query{Model: "m", Tokens: tokens(1, 17), Only: []string{"x", "1"}}, one)
	f(lookup.Query{Model: "m", Tokens: tokens(1, 17), Only: []string{}})
	f(lookup.Query{Model: "m", Tokens: tokens(1, 3)})
	f(lookup.Query{Model: "m", Hashes: hashes}, b, one)
	f(lookup.Query{Model: "m"})
	adapted := lookup.Match{Instance: "1", Number: true, Device: 1, Host: 1, Any: 1}
	f(lookup.Query{Model: "m", LoRA: "ad", Tokens: tokens(1, 4), Extra: [][]byte{item}}, adapted)
	f(lookup.Query{Model: "m", LoRA: "ad", Tokens: tokens(1, 5), Extra: [][]byte{item, nil}}, adapted)
	plain := kv.HashBlock(kv.ContentSeed("ad", ""), tokens(1, 4), nil)
	f(lookup.Query{Model: "m", LoRA: "ad", Hashes: []kv.ContentHash{plain}, Extra: [][]byte{item}}, adapted)
	f(lookup.Query{Model: "m", LoRA: "ad", Tokens: tokens(1, 4)})
}

// TestLookupRefusals: each names the field, and leaves the answer empty.
func TestLookupRefusals(t *testing.T) {
	h := startTestHost(t, nil)
	h.register(reg("1", "m", ""))
	h.put(h.rank("m", "", "1", 0), kv.TierDevice, "", "", 1, tokens(1, 8), nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late, stop := context.WithDeadline(t.Context(), epochTime.AddDate(-20, 0, 0))
	defer stop()
	for name, c := range map[string]struct {
		ctx  context.Context
		q    lookup.Query
		kind error
		text string
	}{
		"unknown model":  {t.Context(), lookup.Query{Model: "zz", Tokens: tokens(1, 4)}, ErrNotFound, "model_name: "},
		"no model":       {t.Context(), lookup.Query{Tokens: tokens(1, 4)}, ErrInvalid, "model_name: "},
		"both":           {t.Context(), lookup.Query{Model: "m", Tokens: tokens(1, 4), Hashes: []kv.ContentHash{1}}, ErrInvalid, "block_hashes: "},
		"keys":           {t.Context(), lookup.Query{Model: "m", Tokens: tokens(1, 4), Extra: make([][]byte, 3)}, ErrInvalid, "extra_keys: "},
		"limit":          {t.Context(), lookup.Query{Model: "m", Tokens: tokens(1, 4), Limit: -1}, ErrInvalid, "limit: "},
		"many instances": {t.Context(), lookup.Query{Model: "m", Tokens: tokens(1, 4), Only: make([]string, lookup.MaxInstances+1)}, ErrInvalid, "instances: "},
		"a long name":    {t.Context(), lookup.Query{Model: strings.Repeat("m", lookup.MaxName+1)}, ErrInvalid, "model_name: "},
		"no keys":        {t.Context(), lookup.Query{Model: "m", Tokens: tokens(1, 4), Extra: [][]byte{{9}}}, ErrInvalid, "extra_keys[0]: "},
		"cancelled":      {ended, lookup.Query{Model: "m", Tokens: tokens(1, 4)}, context.Canceled, ""},
		"too late":       {late, lookup.Query{Model: "m", Tokens: tokens(1, 4)}, ErrDeadline, "deadline: "},
	} {
		var a lookup.Answer
		if err := h.Lookup(t.Context(), &lookup.Query{Model: "m", Tokens: tokens(1, 8)}, &a); err != nil || len(a.Matches) != 1 {
			t.Fatalf("before: %+v, %v", a, err)
		}
		err := h.Lookup(c.ctx, &c.q, &a)
		if !errors.Is(err, c.kind) || !strings.HasPrefix(err.Error(), c.text) || len(a.Matches) != 0 || a.BlockSize != 0 {
			t.Errorf("%s: %v (%+v), want %v: %s", name, err, a, c.kind, c.text)
		}
	}
}

func storeAll(m kv.ModelKey, chain []kv.ContentHash) *shard.Store {
	st := &shard.Store{Namespace: m.Namespace(kv.HashSeed), Contents: chain}
	for i := range chain {
		st.Engines = append(st.Engines, kv.EngineHash(i+1))
	}
	return st
}

// BenchmarkQueryAnswer is a query without its HTTP: body in, answer out.
func BenchmarkQueryAnswer(b *testing.B) {
	for _, holders := range []int{1, 16, 128} {
		for _, blocks := range []int{64, 512} {
			b.Run(fmt.Sprintf("holders=%d/blocks=%d", holders, blocks), func(b *testing.B) {
				cfg := DefaultConfig()
				h, err := newHost(cfg, &fakeSource{}, quiet)
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = h.Close() }()
				ts := tokens(1, blocks*16)
				chain := (&kv.Blocks{Tokens: ts, BlockSize: 16}).AppendHashes(nil, kv.HashSeed)
				for id := range holders {
					r := Registration{Instance: NumberID(uint64(id)), Endpoint: "tcp://h:1", Model: "m", BlockSize: 16}
					if err := h.Register(b.Context(), r); err != nil {
						b.Fatal(err)
					}
				}
				for _, w := range h.reg.workers(nil) {
					if err := h.idx.Store((*w.ranks.Load())[0].holder, storeAll(w.model.key, chain)); err != nil {
						b.Fatal(err)
					}
				}
				body := append([]byte(`{"model_name":"m","token_ids":[`), strings.Trim(strings.Join(strings.Fields(fmt.Sprint(ts)), ","), "[]")...)
				q := newQueryScratch(0)
				q.body = append(body, "]}"...)
				b.ReportAllocs()
				for b.Loop() {
					q.reset()
					if err := q.scan.Object(q.fields); err != nil {
						b.Fatal(err)
					}
					if _, err := h.ask(q, false); err != nil {
						b.Fatal(err)
					}
					q.out = appendAnswer(q.out[:0], q.rows, 16)
				}
				if len(q.rows) != holders {
					b.Fatalf("%d instances answered, want %d", len(q.rows), holders)
				}
			})
		}
	}
}
