// SPDX-License-Identifier: Apache-2.0

package relayindex

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"kindex/harness/mockworker"
	"kindex/harness/publish"
	"kindex/harness/record"
	"kindex/internal/kv"
	"kindex/internal/longtest"
	"kindex/relay"
	"kindex/relay/wire"
)

// play plays a recording over sockets, as fast as it goes, and returns where; it has
// ended when ended is closed. newest are the last numbers published; a recording without any, or
// that no engine's sockets can play, has no ended.
func play(t *testing.T, path string) (e engineAt, newest []*uint64, ended chan struct{}) {
	t.Helper()
	f, err := record.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	e = engineAt{kind: "vllm", ranks: max(f.Header.Ranks, 1), block: f.Header.MainBlockSize()}
	if f.Header.Engine == "sglang" {
		e.kind = "sglang"
	}
	if e.block == 0 {
		e.block = firstBlockSize(f)
	}
	first := 0 // a recording of one rank need not be of rank 0
	if e.ranks == 1 {
		first = f.Header.Rank
	}
	if newest = newestOf(f, first, e.ranks); e.block == 0 || slices.Contains(newest, nil) {
		return e, nil, nil
	}
	span := first + e.ranks
	port, err := publish.FreePorts(2 * span)
	if err != nil {
		t.Fatal(err)
	}
	at := func(port int) string { return fmt.Sprintf("tcp://127.0.0.1:%d", port) }
	e.pub, e.replay = at(port+first), at(port+span+first)
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	var errs strings.Builder
	done := make(chan int, 1)
	go func() {
		code := mockworker.Main(ctx, []string{"--recording", path, "--pub", at(port), "--replay", at(port + span), "--speed", "1000000", "--report"}, strings.NewReader(""), in, &errs)
		_ = in.Close()
		done <- code
	}()
	ended = make(chan struct{})
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			if strings.Contains(s.Text(), `"k":"end"`) {
				close(ended)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != 0 {
			t.Errorf("the engine ended with %d: %s", code, errs.String())
		}
	})
	return e, newest, ended
}

// newestOf returns the number of the last message of each rank; nil where it has none.
func newestOf(f *record.File, first, ranks int) []*uint64 {
	newest := make([]*uint64, ranks)
	for i := range f.Lines {
		m := f.Lines[i].Msg
		if m == nil || len(m.Frames) != 3 || len(m.Frames[1]) != 8 {
			continue
		}
		if rank, ok := record.PubRank(m.Src); ok && rank >= first && rank < first+ranks {
			seq := binary.BigEndian.Uint64(m.Frames[1])
			newest[rank-first] = &seq
		}
	}
	return newest
}

// firstBlockSize returns the size of the first main-attention store's blocks.
func firstBlockSize(f *record.File) int {
	var dec wire.Decoder
	var b kv.Batch
	for i := range f.Lines {
		m := f.Lines[i].Msg
		if m == nil || len(m.Frames) == 0 || dec.Decode(m.Frames[len(m.Frames)-1], &b) != nil {
			continue
		}
		for k := range b.Events {
			if ev := &b.Events[k]; ev.Kind == kv.KindStored && ev.BlockSize > 0 && (ev.Spec == kv.SpecUnstated || ev.Spec == kv.SpecFull) {
				return ev.BlockSize
			}
		}
	}
	return 0
}

// TestFixtures: what a recording makes of an index by way of a relay, under its own
// contract and the peers', from the beginning, live and out of a snapshot, is what its
// sockets make of one directly.
func TestFixtures(t *testing.T) {
	for i, path := range fixtures(t) {
		if i%10 != 0 && !longtest.Enabled() {
			continue
		}
		t.Run(nameOf(path), func(t *testing.T) {
			e, newest, ended := play(t, path)
			if ended == nil {
				t.Skip("no sockets to play")
			}
			whole, _ := startRelay(t, e, "127.0.0.1:0", nil)
			rolled, _ := startRelay(t, e, "127.0.0.1:0", func(c *relay.Config) { c.HistoryBatches = 10 })
			want := direct(t, e)
			others := map[string]*host{"whole": relayed(t, e, whole), "live": relayed(t, e, rolled)}
			<-ended
			caughtUp(t, want, newest)
			others["late"] = relayed(t, e, rolled)
			for name, got := range others {
				caughtUp(t, got, newest)
				until(t, name+" is equal", func() string { return differs(want, got) })
			}
			exact := true
			for i, l := range want.listeners() {
				exact = exact && l.Status == "active"
				t.Logf("rank %d: %s, %d memberships after batch %d; late: %d snapshots", i, l.Status, l.Memberships, *newest[i], others["late"].listeners()[i].Snapshots)
			}
			if !exact {
				return // the peers' contract does not say of what
			}
			for name, addr := range map[string]string{"whole": whole, "rolled": rolled} {
				if a, b := want.digests(), byPeerContract(t, e, addr, newest); !slices.Equal(a, b) {
					t.Errorf("digests %s directly, %s under the peers' contract (%s)", a, b, name)
				}
			}
		})
	}
}

// caughtUp waits until h has admitted the newest batch of each rank.
func caughtUp(t *testing.T, h *host, newest []*uint64) {
	t.Helper()
	until(t, "the newest batch", func() string {
		for i, l := range h.listeners() {
			if l.LastSeq == nil || *l.LastSeq != *newest[i] {
				return fmt.Sprintf("rank %d, newest is %d: %+v", i, *newest[i], l)
			}
		}
		return ""
	})
}
