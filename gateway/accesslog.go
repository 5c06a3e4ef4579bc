// SPDX-License-Identifier: Apache-2.0

// Before: the front, at the end of each request. After: a file, or standard error.

package gateway

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"kindex/internal/logsink"
)

// accessLog writes a JSON line for each request. It never waits: what finds no room is
// dropped and counted.
//
// Concurrency: any goroutine.
type accessLog struct {
	log  *slog.Logger
	sink *logsink.Sink
	file *reopened // nil: standard error
}

// newAccessLog opens the access log that cfg names; nil: none.
func newAccessLog(cfg *Config) (*accessLog, error) {
	var out io.Writer = os.Stderr
	a := &accessLog{}
	switch cfg.AccessLog {
	case "":
		return nil, nil
	case "-":
	default:
		a.file = &reopened{path: cfg.AccessLog}
		if err := a.file.open(); err != nil {
			return nil, err // names the file
		}
		out = a.file
	}
	a.sink = logsink.New(out, "json", cfg.LogQueue)
	a.log = logsink.NewLogger(a.sink, "json", slog.LevelInfo)
	return a, nil
}

// reopen has a file that was moved away made anew.
func (a *accessLog) reopen() error {
	if a == nil || a.file == nil {
		return nil
	}
	return a.file.open()
}

func (a *accessLog) close() {
	a.sink.Close()
	if a.file != nil {
		a.file.close()
	}
}

// request writes the line of one.
func (a *accessLog) request(t *answered) {
	if a == nil {
		return
	}
	us := func(mark int64) int64 {
		if mark == 0 {
			return -1
		}
		return (mark - t.Start) / int64(time.Microsecond)
	}
	attrs := [...]slog.Attr{
		slog.String("id", t.ID), slog.String("path", t.Path), slog.Int("status", t.Status), slog.String("code", t.Code),
		slog.String("model", cut(t.Model)), slog.Bool("stream", t.Stream), slog.String("worker", t.Worker), slog.Int("rank", t.Rank),
		slog.String("outcome", t.Outcome.String()), slog.Int("tries", t.Tries),
		slog.Int64("placed_us", us(t.Placed)), slog.Int64("first_byte_us", us(t.FirstByte)), slog.Int64("first_token_us", us(t.FirstToken)), slog.Int64("took_us", us(t.End)),
		slog.Int64("prompt_tokens", t.Usage.Prompt), slog.Int64("cached_tokens", t.Usage.Cached), slog.Int64("completion_tokens", t.Usage.Completion),
	}
	a.log.LogAttrs(context.Background(), slog.LevelInfo, "request", attrs[:]...)
}

// reopened is a file that can be opened again while it is written.
type reopened struct {
	path string

	mu sync.Mutex // guards f
	f  *os.File
}

func (r *reopened) open() error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.f != nil {
		_ = r.f.Close() // what it could not take is lost already
	}
	r.f = f
	return nil
}

// Write implements io.Writer.
func (r *reopened) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.f.Write(b)
}

func (r *reopened) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.f.Close() // as above
}

// faultLog says which requests failed by no fault of their client's: a few of each code,
// and how many were left out.
type faultLog struct {
	log   *slog.Logger
	lines logsink.Limiter
}

func (f *faultLog) request(t *answered) {
	if t.Status < fasthttp.StatusInternalServerError {
		return
	}
	code := t.Code
	if code == "" {
		code = t.Outcome.String()
	}
	left, ok := f.lines.Allow(code, time.Now())
	if !ok {
		return
	}
	args := []any{
		"id", t.ID, "path", t.Path, "status", t.Status, "code", code, "model", cut(t.Model), "worker", t.Worker, "tries", t.Tries,
		"took", time.Duration(t.End - t.Start).Round(time.Microsecond).String(),
	}
	if left > 0 {
		args = append(args, "left_out", left)
	}
	f.log.Warn("request failed", args...)
}
