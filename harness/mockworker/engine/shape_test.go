// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"
)

// TestShape: a model of what an engine says of itself over JSON, in steps of any length,
// does what one of its own config does pass by pass: the same is found, at the same
// times, whether events are made or not.
func TestShape(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 9))
	for _, kind := range []string{VLLM, SGLang} {
		for _, host := range []int{0, 40} {
			c := Config{Engine: kind, Blocks: 120, BlockSize: 4, Budget: 64, MaxRunning: 5, HostBlocks: host, Timing: DefaultTiming(), Speed: 2, Pub: "tcp://127.0.0.1:0"}
			e, err := New(c)
			if err != nil {
				t.Fatal(err)
			}
			said, err := json.Marshal(e.Shape())
			e.Close()
			if err != nil {
				t.Fatal(err)
			}
			var shape Shape
			if err := json.Unmarshal(said, &shape); err != nil {
				t.Fatal(err)
			}
			var own, told []Stats
			c.Ended = func(s Stats) { own = append(own, s) }
			d := shape.Config()
			d.Ended = func(s Stats) { told = append(told, s) }
			a, err := NewModel(c)
			if err != nil {
				t.Fatal(err)
			}
			b, err := NewModel(d)
			if err != nil {
				t.Fatal(err)
			}
			at, looked := time.Duration(0), 0
			for i := range 300 {
				at += time.Duration(rng.IntN(40)) * time.Millisecond
				a.Advance(at)
				for looked < int(at/time.Millisecond) { // b in smaller steps
					looked += 1 + rng.IntN(9)
					b.Advance(min(time.Duration(looked)*time.Millisecond, at))
				}
				b.Advance(at)
				tokens := make([]uint32, 1+rng.IntN(90))
				family := uint32(rng.IntN(6))
				for k := range tokens {
					tokens[k] = 10 + family + uint32(k/20)*7
				}
				q := Request{ID: strconv.Itoa(i), Tokens: tokens, MaxTokens: 1 + rng.IntN(9)}
				_, errA := a.Submit(q)
				_, errB := b.Submit(q)
				if errA != nil || errB != nil {
					t.Fatal(errA, errB)
				}
				if x, y := a.Reuse(a.Prompt(tokens, "", "")), b.Reuse(b.Prompt(tokens, "", "")); x != y {
					t.Fatalf("%s, request %d: %+v is reused, and %+v", kind, i, x, y)
				}
			}
			a.Drain()
			b.Drain()
			if !slices.Equal(own, told) || len(own) != 300 {
				t.Errorf("%s: %d requests ended, and %d, or not alike", kind, len(own), len(told))
			}
			cached, queued := 0, time.Duration(0)
			for i := range own {
				cached += own[i].Cached
				queued += own[i].Queued()
			}
			if cached == 0 || queued == 0 {
				t.Errorf("%s: %d tokens cached, %v in the queue: this shows nothing", kind, cached, queued)
			}
		}
	}
}
