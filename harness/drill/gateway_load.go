// SPDX-License-Identifier: Apache-2.0

// Before: a gateway's drill, which has a load begin. After: the gateway, over HTTP;
// gateway_judge.go, which reads what became of each request.

package drill

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The load that each gateway carries: families of prompts that share long beginnings,
// and prompts that share nothing.
const (
	askFamilies = 24
	askAlone    = 5 // one in so many shares nothing
	askTokens   = 16
)

// asked is one request and what became of it. Its fields are one goroutine's until it
// has ended.
type asked struct {
	id         string
	sent       time.Time
	first, end time.Time // first: of the answer's body; zero: none came
	status     int       // 0: no answer
	worker     string    // id of whose answer it is
	whole      bool      // to [DONE]
	fault      string    // why not, or code of a refusal
	retryAfter string
}

// ok reports whether the request was answered to its end.
func (a *asked) ok() bool { return a.status == http.StatusOK && a.whole }

// load sends requests to a gateway at a steady pace, however these fare.
//
// Concurrency: end is called once.
type load struct {
	name   string
	url    string
	client *http.Client
	hang   time.Duration

	cancel context.CancelFunc
	paced  sync.WaitGroup
	under  sync.WaitGroup

	mu  sync.Mutex
	all []*asked // that ended; guarded by mu
}

// newLoad returns a load that sends nothing yet. Requests are given up after hang.
func newLoad(name, url string, hang time.Duration) *load {
	return &load{
		name: name, url: url, hang: hang, cancel: func() {},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1_024, DisableCompression: true, DialContext: (&net.Dialer{Timeout: time.Second}).DialContext}},
	}
}

// begin sends rate requests a second until end.
func (l *load) begin(ctx context.Context, rate int, seed uint64) {
	ctx, l.cancel = context.WithCancel(ctx)
	l.paced.Go(func() {
		rng := rand.New(rand.NewPCG(seed, 11)) //nolint:gosec // seeded on purpose
		began := time.Now()
		for n := 0; ; n++ {
			due := began.Add(time.Duration(n) * time.Second / time.Duration(rate))
			if pause(ctx, time.Until(due)) != nil {
				return
			}
			l.send(fmt.Sprintf("%s-%d-%d", l.name, began.UnixMilli(), n), askPrompt(rng, seed), askTokens+rng.IntN(askTokens))
		}
	})
}

// send sends one request, whose answer is waited for elsewhere.
func (l *load) send(id string, prompt []uint32, tokens int) {
	a := &asked{id: id, sent: time.Now()}
	l.under.Go(func() {
		l.ask(a, prompt, tokens)
		a.end = time.Now()
		l.mu.Lock()
		l.all = append(l.all, a)
		l.mu.Unlock()
	})
}

// end sends nothing more, and waits until every request has ended.
func (l *load) end() {
	l.cancel()
	l.paced.Wait()
	l.under.Wait()
	l.client.CloseIdleConnections()
}

// ended returns the requests that have ended, in any order.
func (l *load) ended() []*asked {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*asked(nil), l.all...)
}

// askPrompt draws a prompt.
func askPrompt(rng *rand.Rand, seed uint64) []uint32 {
	var tokens []uint32
	more := func(r *rand.Rand, n int) {
		for range n {
			tokens = append(tokens, uint32(3+r.IntN(2_000)))
		}
	}
	if rng.IntN(askAlone) == 0 {
		more(rng, 100+rng.IntN(400))
		return tokens
	}
	// What a family shares, and a turn of it that some share.
	which := rng.Uint64N(askFamilies)
	head := rand.New(rand.NewPCG(seed, 2_000+which)) //nolint:gosec // seeded on purpose
	more(head, 128+head.IntN(640))
	turn := rand.New(rand.NewPCG(seed, 10_000+100*which+rng.Uint64N(4))) //nolint:gosec // the same
	more(turn, 32+turn.IntN(128))
	more(rng, 8+rng.IntN(64))
	return tokens
}

// ask makes one streamed request.
func (l *load) ask(a *asked, prompt []uint32, tokens int) {
	// A client's own time, whatever becomes of the drill: every request is to end.
	ctx, cancel := context.WithTimeout(context.Background(), l.hang)
	defer cancel()
	resp, err := l.post(ctx, a.id, map[string]any{"model": modelName, "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "stream": true}, false)
	if err != nil {
		a.fail(ctx, err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	a.status, a.worker, a.retryAfter = resp.StatusCode, resp.Header.Get("X-Kindex-Worker"), resp.Header.Get("Retry-After")
	if a.status != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		a.fault = string(bytes.TrimSpace(b))
		return
	}
	in := bufio.NewScanner(resp.Body)
	for in.Scan() {
		line := in.Text()
		switch {
		case a.first.IsZero() && line != "":
			a.first = time.Now()
		}
		switch {
		case line == "data: [DONE]":
			a.whole = true
		case strings.HasPrefix(line, `data: {"error"`):
			a.fault = line
		}
	}
	if err := in.Err(); err != nil {
		a.whole = false
		a.fail(ctx, err)
	}
}

func (a *asked) fail(ctx context.Context, err error) {
	a.fault = err.Error()
	if ctx.Err() != nil {
		a.fault = "given up by its client: " + a.fault
	}
}

// post sends one request.
func (l *load) post(ctx context.Context, id string, body map[string]any, explain bool) (*http.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/v1/completions", bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	if explain {
		req.Header.Set("X-Kindex-Explain", "1")
	}
	return l.client.Do(req)
}
