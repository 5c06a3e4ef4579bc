// SPDX-License-Identifier: Apache-2.0

// Before: run.go, when a request is due. After: client.go, which sends it.

package openloop

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
)

// maxPooled is the largest buffer that is kept for another request, in bytes.
const maxPooled = 2 << 20

// bodies makes requests' bodies.
//
// Concurrency: any goroutine.
type bodies struct {
	prompts prompts
	kind    string
	head    []byte // all up to the prompt
	ignore  bool
	most    int // tokens of an answer; 0: as the row says
	pool    sync.Pool
}

func newBodies(o *Options, model string) (*bodies, error) {
	known, err := readWords(o.Words)
	if err != nil {
		return nil, err
	}
	name, err := json.Marshal(model)
	if err != nil {
		return nil, err
	}
	b := &bodies{prompts: prompts{o.Seed, o.Vocab, known, o.Share / TokensPerID}, kind: o.Prompt, ignore: o.IgnoreEOS, most: o.MaxOutput}
	b.head = append(append([]byte(`{"model":`), name...), `,"stream":true,"stream_options":{"include_usage":true},"temperature":0,`...)
	return b, nil
}

// path is where a body goes.
func (b *bodies) path() string {
	if b.kind == PromptChat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// output is how many tokens are asked for.
func (b *bodies) output(r *Row) int {
	n := max(r.Output, 1)
	if b.most > 0 {
		n = min(n, b.most)
	}
	return n
}

// of makes a row's body. The caller releases it.
func (b *bodies) of(r *Row) *body {
	x, ok := b.pool.Get().(*body)
	if !ok {
		x = &body{}
	}
	x.pool = &b.pool
	x.refs.Store(1)
	x.buf = b.append(x.buf[:0], r)
	return x
}

func (b *bodies) append(dst []byte, r *Row) []byte {
	dst = append(dst, b.head...)
	dst = append(dst, `"max_tokens":`...)
	dst = strconv.AppendInt(dst, int64(b.output(r)), 10)
	if b.ignore {
		dst = append(dst, `,"ignore_eos":true`...)
	}
	switch b.kind {
	case PromptTokens:
		dst = append(dst, `,"prompt":[`...)
		dst = b.prompts.appendTokens(dst, r)
		dst = append(dst, `]}`...)
	case PromptText:
		dst = append(dst, `,"prompt":"`...)
		dst = b.prompts.appendText(dst, r)
		dst = append(dst, `"}`...)
	default:
		dst = append(dst, `,"messages":[{"role":"user","content":"`...)
		dst = b.prompts.appendText(dst, r)
		dst = append(dst, `"}]}`...)
	}
	return dst
}

// body is one request's body. The HTTP client may read it on, and may begin anew on
// another connection, after the request has ended: the last to let go puts it back.
type body struct {
	buf  []byte
	refs atomic.Int32
	pool *sync.Pool
}

func (b *body) release() {
	if b.refs.Add(-1) == 0 && cap(b.buf) <= maxPooled {
		b.pool.Put(b)
	}
}

// open returns a reader of the whole body; closing it lets go.
func (b *body) open() io.ReadCloser {
	b.refs.Add(1)
	r := &bodyReader{body: b}
	r.Reset(b.buf)
	return r
}

type bodyReader struct {
	bytes.Reader
	body   *body
	closed atomic.Bool
}

// Close implements [io.Closer].
func (r *bodyReader) Close() error {
	if r.closed.CompareAndSwap(false, true) {
		r.body.release()
	}
	return nil
}
