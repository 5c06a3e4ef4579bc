// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descStateWrites      = desc("state_writes_total", "State files written.")
	descStateRegWrites   = desc("state_registration_writes_total", "Files of registrations alone written, as they changed.")
	descStateFailures    = desc("state_write_failures_total", "State or registrations that could not be written.")
	descStateFailing     = desc("state_failing", "1 while the last try to write something failed, else 0.")
	descStateRefused     = desc("state_refused_files_total", "Files of the state directory that were cut short, damaged or foreign.")
	descStateBytes       = desc("state_bytes", "Size of the last state file.")
	descStateSeconds     = desc("state_write_seconds", "Time that the last state file took.")
	descStateWritten     = desc("state_written_timestamp_seconds", "When the last state file was begun; absent before the first.")
	descStateLoad        = desc("state_load_seconds", "Time that loading the state took at the start.")
	descStateRestored    = desc("state_restored_streams_total", "Streams whose content was loaded, from a file or a peer.")
	descStateMemberships = desc("state_restored_memberships_total", "Blocks held by those streams when they were loaded.")
	descPeers            = desc("peers", "Other hosts that this one knows.")
	descPeerCopies       = desc("peer_copies_total", "States copied from peers.")
	descPeerFailures     = desc("peer_failures_total", "Tries to copy from a peer that failed.")
)

func describeState(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descStateWrites, descStateRegWrites, descStateFailures, descStateFailing, descStateRefused, descStateBytes, descStateSeconds,
		descStateWritten, descStateLoad, descStateRestored, descStateMemberships, descPeers, descPeerCopies, descPeerFailures,
	} {
		ch <- d
	}
}

// state tells what was kept, restored and copied.
func (c *collector) state(ch chan<- prometheus.Metric) {
	st := &c.h.stateStats
	failing := false
	if c.h.keeper != nil {
		failing = c.h.keeper.failing()
	}
	ch <- counter(descStateWrites, st.writes.Load())
	ch <- counter(descStateRegWrites, st.registrationWrites.Load())
	ch <- counter(descStateFailures, st.failures.Load())
	ch <- gauge(descStateFailing, fromBool(failing))
	ch <- counter(descStateRefused, st.refused.Load())
	ch <- gauge(descStateBytes, float64(st.bytes.Load()))
	ch <- gauge(descStateSeconds, time.Duration(st.seconds.Load()).Seconds())
	if at := st.written.Load(); at != 0 {
		ch <- gauge(descStateWritten, float64(at)/1e9)
	}
	ch <- gauge(descStateLoad, time.Duration(st.loadSeconds.Load()).Seconds())
	ch <- counter(descStateRestored, st.restored.Load())
	ch <- counter(descStateMemberships, st.memberships.Load())
	ch <- gauge(descPeers, float64(len(c.h.peers.list())))
	ch <- counter(descPeerCopies, st.peerCopies.Load())
	ch <- counter(descPeerFailures, st.peerFailures.Load())
}
