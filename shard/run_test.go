// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"fmt"
	"reflect"
	"testing"
)

// runsOf returns the number of runs and the blocks that they have room for.
func runsOf(c *chainCore) (runs, room int) {
	for idx := uint32(1); idx <= c.runs.next; idx++ {
		if c.runs.lineOf(idx) != 0 {
			runs++
			room += int(runCap[c.runs.at(idx).class])
		}
	}
	return runs, room
}

// TestChainDecodeGrows: a chain that one of a prompt's holders, or all of them in
// turn, decode block by block takes few runs, with room for not much more than the
// chain.
func TestChainDecodeGrows(t *testing.T) {
	const prompt, decode = 300, 3000
	f := func(holders int, all bool) {
		t.Run(fmt.Sprint(holders, all), func(t *testing.T) {
			c := newChain(t, Options{})
			chain := chainOf(1, prompt+decode)
			engines := hashesOf(chain, 0)
			for i := range holders {
				c.open(slot(i + 1))
				mustStore(t, c, slot(i+1), chain[:prompt])
			}
			held := make([]uint64, 1)
			for i := prompt; i < len(chain); i++ {
				for s := slot(holders); s > 0 && (all || int(s) == holders); s-- {
					if _, err := c.store(s, 1, c.find(s, engines[i-1]), engines[i:i+1], chain[i:i+1], held, nil); err != nil {
						t.Fatal(err)
					}
				}
				runs, room := runsOf(c)
				n := i + 1 - prompt
				if most := 2 + log2(n) + n/maxRun; runs > most {
					t.Fatalf("%d blocks decoded: %d runs, want at most %d", n, runs, most)
				}
				if most := int(runCap[runClass(prompt)]) + 3*n + 4; room > most {
					t.Fatalf("%d blocks decoded: room for %d blocks, want at most %d", n, room, most)
				}
			}
			c.check()
			if got := sorted(c.lookup(1, chain, nil)); len(got) != holders || int(got[holders-1].depth) != len(chain) {
				t.Errorf("lookup: %d holders, the last %+v", len(got), got[len(got)-1])
			}
			for i := len(chain) - 1; i >= prompt; i-- {
				for s := slot(1); int(s) <= holders; s++ {
					c.remove(s, engines[i:i+1], nil)
				}
			}
			c.check()
			var st Stats
			if c.stats(&st); st.Runs != 1 || st.Blocks != prompt || holders < 40 && c.dict.n != prompt {
				t.Errorf("after removal of what was decoded: %d runs, %d blocks, %d positions", st.Runs, st.Blocks, c.dict.n)
			}
		})
	}
	f(1, false)
	f(3, false)
	f(4, false)
	f(16, false)
	f(200, false)
	f(4, true)
	f(16, true)
	f(100, true)
}

func log2(n int) (k int) {
	for ; n > 1; n /= 2 {
		k++
	}
	return k
}

// TestChainPromptsTakeNoMore: prompts that nobody decodes, and those that go on
// with prompts at another's end, take no more room than they need.
func TestChainPromptsTakeNoMore(t *testing.T) {
	c := newChain(t, Options{})
	c.open(1)
	want := 0
	for k := range 200 {
		chain := chainOf(k, 20+k)
		mustStore(t, c, 1, chain)
		want += int(runCap[runClass(len(chain))])
	}
	// Many short ends at the end of a full decoded run: the first alone may be large.
	const long = 5 + 4 + 8 + 16 + 32
	chain := chainOf(1000, long)
	held := make([]uint64, 1)
	engines := hashesOf(chain, 0)
	for i := range chain {
		at := pos(0)
		if i > 0 {
			at = c.find(1, engines[i-1])
		}
		if _, err := c.store(1, 1, at, engines[i:i+1], chain[i:i+1], held, nil); err != nil {
			t.Fatal(err)
		}
	}
	_, room := runsOf(c)
	if got := room - want; got > 3*long {
		t.Errorf("a decoded chain of %d blocks: room for %d", long, got)
	}
	for k := range 100 {
		at := c.find(1, engines[long-2])
		branch := chainOf(2000+k, 1)
		if _, err := c.store(1, 1, at, hashesOf(branch, 0), branch, held, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, after := runsOf(c); after-room > 100*4+2*long {
		t.Errorf("100 branches of a block: room for %d more", after-room)
	}
	c.check()
}

// TestChainSizes keeps what stats multiplies by true.
func TestChainSizes(t *testing.T) {
	if got := reflect.TypeFor[runInfo]().Size(); got != infoBytes {
		t.Errorf("runInfo takes %d bytes, want %d", got, infoBytes)
	}
	if got := reflect.TypeFor[slotState]().Size(); got != slotBytes {
		t.Errorf("slotState takes %d bytes, want %d", got, slotBytes)
	}
}
