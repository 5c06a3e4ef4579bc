// SPDX-License-Identifier: Apache-2.0

package shard_test

import (
	"strings"
	"testing"

	"kindex/shard"
	"kindex/shard/planted"
)

// The proofs of the proofs: each is run over an index with a planted fault, and
// must report it.

// faulty returns a subject with fault f, of shards where it lies in what joins them.
func faulty(f planted.Fault) subject {
	return subject{"faulty", func(o shard.Options) (shard.Index, error) {
		inner, err := shard.New("positional", o)
		if f >= planted.GroupLacksHolder {
			inner, err = shard.NewSharded("chain", o, o)
		}
		if err != nil {
			return nil, err
		}
		return planted.New(inner, f), nil
	}, 1, false}
}

// firstLine shortens a report of failure.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	if len(line) > 300 {
		line = line[:300] + "..."
	}
	return line
}

// sequential is why a proof without concurrency cannot meet MixesMoments.
const sequential = "it is exact while no writer is about"

// proofs are what must see a fault, each with the faults it cannot meet and why.
var proofs = []struct {
	name  string
	prove func(t *testing.T, subs []subject) error
	blind map[planted.Fault]string
}{
	{
		name: "corpus",
		prove: func(_ *testing.T, subs []subject) error {
			w, err := newWorld(0, 16, subs)
			if err != nil {
				return err
			}
			return w.prove(40_000)
		},
		blind: map[planted.Fault]string{planted.MixesMoments: sequential},
	},
	{
		name: "wild",
		prove: func(_ *testing.T, subs []subject) error {
			_, err := proveWild(0, 3000, subs, false)
			return err
		},
		blind: map[planted.Fault]string{planted.MixesMoments: sequential},
	},
	{
		name: "concurrent",
		prove: func(_ *testing.T, subs []subject) error {
			for seed := range uint64(12) {
				if _, err := proveConcurrent(seed, 4000, 500, subs[0]); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		name: "fuzz",
		prove: func(t *testing.T, subs []subject) error {
			for _, b := range fuzzSeeds(t) {
				if _, err := proveScript(b, subs); err != nil {
					return err
				}
			}
			return nil
		},
		blind: map[planted.Fault]string{
			planted.MixesMoments:   sequential,
			planted.ForgetsRemoval: "the committed scripts are too short to remove 1,000 hashes",
		},
	},
}

// TestProofsSeePlantedFaults runs every proof over every fault.
func TestProofsSeePlantedFaults(t *testing.T) {
	for _, p := range proofs {
		for f := range planted.NumFaults {
			if why := p.blind[f]; why != "" {
				t.Logf("%s cannot see an index that %s: %s", p.name, f, why)
				continue
			}
			t.Run(p.name+"/"+strings.ReplaceAll(f.String(), " ", "_"), func(t *testing.T) {
				t.Parallel()
				err := p.prove(t, []subject{faulty(f)})
				if err == nil {
					t.Fatalf("the proof passed an index that %s", f)
				}
				t.Logf("seen: %s", firstLine(err))
			})
		}
	}
}
