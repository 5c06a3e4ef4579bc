// SPDX-License-Identifier: Apache-2.0

// Before: probes, the tokenising of prompts, lists of models. After: requests.

package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/valyala/fasthttp"

	"kindex/gateway/fleet"
)

// Get asks w for path and returns the answer's status and body, of at most limit bytes.
// It takes as long as the context lets it.
//
// Errors: [*Error].
func (c *Client) Get(ctx context.Context, w *fleet.Worker, path string, limit int) (status int, body []byte, err error) {
	return c.ask(ctx, w, &Request{Method: fasthttp.MethodGet, Path: path}, limit)
}

var jsonLines = []byte("Content-Type: application/json\r\n")

// Post sends w a body of JSON, and is as [Client.Get] else.
func (c *Client) Post(ctx context.Context, w *fleet.Worker, path string, body []byte, limit int) (status int, answer []byte, err error) {
	return c.ask(ctx, w, &Request{Method: fasthttp.MethodPost, Path: path, Lines: jsonLines, Body: body}, limit)
}

func (c *Client) ask(ctx context.Context, w *fleet.Worker, q *Request, limit int) (int, []byte, error) {
	var head fasthttp.ResponseHeader
	r, err := c.Do(ctx, w, q, &head)
	if err != nil {
		return 0, nil, err
	}
	defer r.Close()
	body, err := r.ReadAll(limit)
	if err != nil {
		return 0, nil, err
	}
	return head.StatusCode(), body, nil
}

// ReadAll reads the rest of the body, of at most limit bytes.
//
// Errors: [*Error].
func (r *Response) ReadAll(limit int) ([]byte, error) {
	return r.AppendAll(nil, limit)
}

// AppendAll is ReadAll behind what stands in b.
func (r *Response) AppendAll(b []byte, limit int) ([]byte, error) {
	size := r.Size()
	if size > int64(limit) {
		return b, r.over(limit)
	}
	base := len(b)
	if size >= 0 && int64(cap(b)-base) < size {
		b = append(make([]byte, 0, int64(base)+size), b...)
	}
	for {
		if size >= 0 && int64(len(b)-base) == size {
			return b, nil
		}
		if len(b)-base > limit {
			return b, r.over(limit)
		}
		if len(b) == cap(b) {
			b = append(b, make([]byte, 4096)...)[:len(b)]
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
}

func (r *Response) over(limit int) error {
	return &Error{Kind: TooLarge, URL: r.conn.pool.url, Err: fmt.Errorf("over %d bytes", limit)}
}
