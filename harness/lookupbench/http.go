// SPDX-License-Identifier: Apache-2.0

// Before: arms.go. After: the HTTP port of a host, ours or the peer's.

package lookupbench

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/valyala/fasthttp"
)

// httpTime bounds one call.
const httpTime = 10 * time.Second

// keptReply is one reply and whose it is.
type keptReply struct{ question, from, to int }

// httpAsker asks over one connection that it keeps.
type httpAsker struct {
	client    *fasthttp.HostClient
	questions []question
	tokens    bool
	req       *fasthttp.Request
	resp      *fasthttp.Response

	kept    []keptReply
	replies []byte
}

func newHTTPAsker(addr string, tokens bool, questions []question) *httpAsker {
	a := &httpAsker{
		client: &fasthttp.HostClient{
			Addr: addr, MaxConns: 1, ReadTimeout: httpTime, WriteTimeout: httpTime, MaxIdleConnDuration: time.Hour,
			NoDefaultUserAgentHeader: true,
		},
		questions: questions, tokens: tokens, req: fasthttp.AcquireRequest(), resp: fasthttp.AcquireResponse(),
	}
	path := "/query_by_hash"
	if tokens {
		path = "/query"
	}
	a.req.SetRequestURI("http://" + addr + path)
	a.req.Header.SetMethod(fasthttp.MethodPost)
	a.req.Header.SetContentType("application/json")
	return a
}

func (a *httpAsker) ask(i int) error {
	q := &a.questions[i]
	if a.tokens {
		a.req.SetBodyRaw(q.tokens)
	} else {
		a.req.SetBodyRaw(q.hash)
	}
	return a.client.Do(a.req, a.resp)
}

// took keeps the reply for later.
func (a *httpAsker) took(i int) {
	from := len(a.replies)
	if a.resp.StatusCode() == fasthttp.StatusOK {
		a.replies = append(a.replies, a.resp.Body()...)
	}
	a.kept = append(a.kept, keptReply{i, from, len(a.replies)})
}

// judge reads the replies that were kept and forgets them.
func (a *httpAsker) judge() (wrong int64) {
	// Equal replies are read once.
	known := map[int]map[string]bool{}
	for _, k := range a.kept {
		body := a.replies[k.from:k.to]
		if known[k.question][string(body)] {
			continue
		}
		if !a.questions[k.question].right(body) {
			wrong++
			continue
		}
		if known[k.question] == nil {
			known[k.question] = map[string]bool{}
		}
		known[k.question][string(body)] = true
	}
	a.kept, a.replies = a.kept[:0], a.replies[:0]
	return wrong
}

func (a *httpAsker) close() { a.client.CloseIdleConnections() }

// sameScores tells whether the reply in body has exactly these scores.
func sameScores(body []byte, want map[string]map[string]int) bool {
	var got struct {
		Scores    map[string]map[string]int `json:"scores"`
		Instances map[string]struct {
			Longest int `json:"longest_matched"`
		} `json:"instances"`
	}
	if json.Unmarshal(body, &got) != nil || len(got.Instances) != len(want) {
		return false
	}
	for id, in := range got.Instances {
		if in.Longest != want[id]["0"] {
			return false
		}
	}
	return maps.EqualFunc(got.Scores, want, func(a, b map[string]int) bool { return maps.Equal(a, b) })
}

// call makes one request that nothing is measured of.
func call(ctx context.Context, method, url string, body any) (status int, text []byte, err error) {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	req.SetRequestURI(url)
	req.Header.SetMethod(method)
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		req.Header.SetContentType("application/json")
		req.SetBody(b)
	}
	if err := ctx.Err(); err != nil {
		return 0, nil, err
	}
	if err := fasthttp.DoTimeout(req, resp, httpTime); err != nil {
		return 0, nil, fmt.Errorf("%s %s: %w", method, url, err)
	}
	return resp.StatusCode(), append([]byte(nil), resp.Body()...), nil
}
