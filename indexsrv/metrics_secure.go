// SPDX-License-Identifier: Apache-2.0

package indexsrv

import "github.com/prometheus/client_golang/prometheus"

var (
	descRefused    = desc("refused_requests_total", "Connections, requests and calls turned away for who asked, by reason.", "reason")
	descSuppressed = desc("audit_lines_suppressed_total", "Refusals and failed changes without a line of their own in the log, for there were too many.")
)

// secure tells who was turned away.
func (c *collector) secure(ch chan<- prometheus.Metric) {
	u := &c.h.gate.audit
	for r := range numReasons {
		ch <- counter(descRefused, u.refusals[r].Load(), r.String())
	}
	ch <- counter(descSuppressed, u.suppressed.Load())
}
