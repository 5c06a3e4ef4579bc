// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"

	"kindex/indexclient"
	"kindex/internal/lookup"
)

// sharedHost is a host over shared memory, which tells of workers alone.
type sharedHost struct {
	target string
	index  indexclient.Client
}

func dialShared(target string) (host, error) {
	c, err := indexclient.Dial(context.Background(), target, indexclient.Options{Wait: true})
	if err != nil {
		return nil, usagef("--host: %v", err)
	}
	return &sharedHost{target, c}, nil
}

func (h *sharedHost) name() string { return h.target }

func (h *sharedHost) close() { _ = h.index.Close() } // nothing is under way

func (h *sharedHost) workers(ctx context.Context, f lookup.Filter) ([]lookup.Worker, error) {
	return h.index.Workers(ctx, f)
}

// errShared is for what shared memory does not carry.
func (h *sharedHost) errShared(what string) error {
	return usagef("--host: %s tells of workers alone: for %s give host:port (gRPC) or http://host:port", h.target, what)
}

func (h *sharedHost) stats(context.Context) (*figures, error) { return nil, nil } //nolint:nilnil // it has none

func (h *sharedHost) explain(context.Context, *lookup.Query) (*lookup.Explanation, error) {
	return nil, h.errShared("explanations")
}

func (h *sharedHost) dump(context.Context, selection, dumpSink) error {
	return h.errShared("dumps")
}
