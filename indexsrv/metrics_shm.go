// SPDX-License-Identifier: Apache-2.0

package indexsrv

import "github.com/prometheus/client_golang/prometheus"

var (
	descShmClients  = desc("shm_clients", "Clients of shared memory, by whether they have given a sign of life within 100 ms.", "state")
	descShmBytes    = desc("shm_bytes", "Memory of the rings of all clients.")
	descShmRequests = desc("shm_requests_total", "Requests over shared memory, each shard's part for itself, by what became of them.", "result")
	descShmEnded    = desc("shm_clients_ended_total", "Clients of shared memory that the host would not have, by reason.", "reason")
)

// sharedMemory tells how lookups over shared memory go; nothing where there are none.
func (c *collector) sharedMemory(ch chan<- prometheus.Metric) {
	if c.h.shm == nil {
		return
	}
	n := &c.h.shm.srv.Counters
	silent := n.Silent.Load()
	ch <- gauge(descShmClients, float64(max(n.Clients.Load()-silent, 0)), "alive")
	ch <- gauge(descShmClients, float64(silent), "silent")
	ch <- gauge(descShmBytes, float64(n.Bytes.Load()))
	ch <- counter(descShmRequests, n.Requests.Load(), "answered")
	ch <- counter(descShmRequests, n.Late.Load(), "late")
	ch <- counter(descShmEnded, n.Denied.Load(), "denied")
	ch <- counter(descShmEnded, n.Refused.Load(), "refused")
	ch <- counter(descShmEnded, n.Dropped.Load(), "dropped")
}
