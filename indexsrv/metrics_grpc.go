// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kindex/internal/lookup"
)

var (
	descCalls       = desc("grpc_calls_total", "gRPC calls that have ended, by method and code.", "method", "code")
	descOpenCalls   = desc("grpc_open_calls", "gRPC calls under way, streams among them.")
	descRPCLookups  = desc("grpc_lookups_total", "Lookups over gRPC, unary or in streams, by result.", "result")
	descRPCPanics   = desc("grpc_panics_total", "gRPC calls that met a fault in this program.")
	descRPCStalled  = desc("grpc_stalled_total", "gRPC streams ended because the client took nothing.")
	descRPCRejected = desc("grpc_refused_connections_total", "gRPC connections closed because there were too many.")
)

// numCodes are gRPC's codes.
const numCodes = int(codes.Unauthenticated) + 1

// results are how a lookup may end: well, by kind of refusal, by its caller, or by a
// fault.
var results = func() []string {
	names := []string{"ok"}
	for _, k := range lookup.Kinds() {
		names = append(names, k.Error())
	}
	return append(names, "canceled", "internal")
}()

// rpcMetrics are what the gRPC server counts.
//
// Concurrency: any goroutine.
type rpcMetrics struct {
	index map[string]int // of a method in calls
	names []string
	calls [][numCodes]atomic.Uint64

	open       atomic.Int64
	lookups    []atomic.Uint64 // as results
	panics     atomic.Uint64
	stalled    atomic.Uint64
	turnedAway atomic.Uint64
}

// newRPCMetrics counts the methods of s.
func newRPCMetrics(s *grpc.Server) *rpcMetrics {
	m := &rpcMetrics{index: map[string]int{}, lookups: make([]atomic.Uint64, len(results))}
	for name, info := range s.GetServiceInfo() {
		for _, method := range info.Methods {
			full := "/" + name + "/" + method.Name
			m.index[full] = len(m.names)
			m.names = append(m.names, full)
		}
	}
	m.calls = make([][numCodes]atomic.Uint64, len(m.names))
	return m
}

// call counts that a call has ended with err.
func (m *rpcMetrics) call(method string, err error) {
	i, ok := m.index[method]
	if code := int(status.Code(err)); ok && code < numCodes {
		m.calls[i][code].Add(1)
	}
}

// lookup counts a lookup that has ended with err.
func (m *rpcMetrics) lookup(err error) {
	m.lookups[resultOf(err)].Add(1)
}

func resultOf(err error) int {
	if err == nil {
		return 0
	}
	kind := lookup.KindOf(err)
	if kind == nil && errors.Is(err, context.Canceled) {
		return len(results) - 2
	}
	for i, k := range lookup.Kinds() {
		if k == kind {
			return i + 1
		}
	}
	return len(results) - 1
}

func describeRPC(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descCalls, descOpenCalls, descRPCLookups, descRPCPanics, descRPCStalled, descRPCRejected} {
		ch <- d
	}
}

// rpc emits what the gRPC server counts.
func (c *collector) rpc(ch chan<- prometheus.Metric) {
	if c.h.rpc == nil {
		return
	}
	m := c.h.rpc.met
	for i := range m.calls {
		for code := range m.calls[i] {
			if n := m.calls[i][code].Load(); n > 0 {
				ch <- counter(descCalls, n, m.names[i], codes.Code(code).String())
			}
		}
	}
	for i := range m.lookups {
		ch <- counter(descRPCLookups, m.lookups[i].Load(), results[i])
	}
	ch <- gauge(descOpenCalls, float64(m.open.Load()))
	ch <- counter(descRPCPanics, m.panics.Load())
	ch <- counter(descRPCStalled, m.stalled.Load())
	ch <- counter(descRPCRejected, m.turnedAway.Load())
}
