// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"kindex/relay/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStreamLateJoin(t *testing.T) {
	for _, framing := range []wire.ReplayFrames{wire.ReplayBare, wire.ReplayTopic} {
		e := startEngine(t, nil, func(e *engine) { e.framing = framing })
		e.publish(storeOf(0, 1, 2))
		e.publish(storeOf(2, 3))
		s := subscribe(t, StreamConfig{Endpoint: e.live, ReplayEndpoint: e.back})
		st := s.at(1, 1)
		s.want(1, 2, 3)
		if st.Recovered != 2 || st.Lost != 0 {
			t.Errorf("got %s; want 2 recovered, 0 lost", statusLine(st))
		}
		e.publish(storeOf(3, 4))
		s.at(1, 2)
		s.want(1, 2, 3, 4)
	}
}

func TestStopWhilePending(t *testing.T) {
	s := subscribe(t, StreamConfig{Endpoint: "tcp://127.0.0.1:9", ReplayEndpoint: "tcp://127.0.0.1:9"})
	s.state(StatePending)
	begun := time.Now()
	s.stop()
	if d := time.Since(begun); d > 200*time.Millisecond {
		t.Errorf("stopping took %v, want at most 200 ms", d)
	}
}
