// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kindex/numa"
	"kindex/shard"
)

// machine writes one of the topologies captured for the numa package below a new
// root.
func machine(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "numa", "testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	files := strings.Split("\n"+string(text), "\n-- ")[1:]
	for _, f := range files {
		file, text, ok := strings.Cut(f, " --\n")
		if !ok {
			t.Fatalf("%s.txt: no file in %q", name, f)
		}
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// line says what a node carries.
func (p *nodePlan) line() string {
	return fmt.Sprintf("node %d by %d: %d shards, %d lanes, memory %s, pinned to %v", p.node, p.host, p.shards, p.lanes, p.memory, p.cpus)
}

// TestPlace: which nodes carry what, on machines of many shapes.
func TestPlace(t *testing.T) {
	for _, c := range []struct {
		name, machine string
		procs         int
		edit          func(*Config)
		want          []string
	}{
		{"one node", "nodes1", 2, nil, []string{"node 0 by 0: 1 shards, 2 lanes, memory node 0, pinned to []"}},
		{"two nodes, few CPUs", "nodes2", 4, nil, []string{
			"node 0 by 0: 1 shards, 2 lanes, memory node 0, pinned to []",
			"node 1 by 1: 1 shards, 2 lanes, memory node 1, pinned to []",
		}},
		{"pinned by order", "nodes2", 4, func(c *Config) { c.Pin, c.LanesPerNode, c.ShardsPerNode = numa.PinOn, 3, 2 }, []string{
			"node 0 by 0: 2 shards, 3 lanes, memory node 0, pinned to [0 1]",
			"node 1 by 1: 2 shards, 3 lanes, memory node 1, pinned to [2 3]",
		}},
		{"interleaved", "nodes2", 4, func(c *Config) { c.Interleave = true }, []string{
			"node 0 by 0: 1 shards, 2 lanes, memory interleaved over nodes 0-1, pinned to []",
			"node 1 by 1: 1 shards, 2 lanes, memory interleaved over nodes 0-1, pinned to []",
		}},
		{"one of two", "nodes2", 4, func(c *Config) { c.Node = 1 }, []string{"node 1 by 1: 1 shards, 2 lanes, memory node 1, pinned to []"}},
		{"a node without memory carries nothing", "memoryless", 6, nil, []string{
			"node 0 by 0: 1 shards, 2 lanes, memory node 0, pinned to []",
			"node 2 by 2: 1 shards, 2 lanes, memory node 2, pinned to []",
		}},
		{"unless it is named", "memoryless", 6, func(c *Config) { c.Node = 1 }, []string{"node 1 by 1: 1 shards, 2 lanes, memory node 2, pinned to []"}},
		{"a node without CPUs carries nothing", "cpuless", 4, nil, []string{
			"node 0 by 0: 1 shards, 2 lanes, memory node 0, pinned to []",
			"node 1 by 1: 1 shards, 2 lanes, memory node 1, pinned to []",
		}},
		{"unless it is named, too", "cpuless", 4, func(c *Config) { c.Node, c.Pin = 3, numa.PinOn }, []string{"node 3 by 0: 1 shards, 2 lanes, memory node 3, pinned to [0 1]"}},
		{"sparse numbers, CPUs to spare", "sparse", 16, func(c *Config) { c.LanesPerNode = 2 }, []string{
			"node 0 by 0: 1 shards, 2 lanes, memory node 0, pinned to [0 1 2 3]",
			"node 8 by 8: 1 shards, 2 lanes, memory node 8, pinned to [4 5 6 7]",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			if c.edit != nil {
				c.edit(&cfg)
			}
			topo, err := numa.Discover(machine(t, c.machine))
			if err != nil {
				t.Fatal(err)
			}
			plans, err := cfg.place(topo, c.procs)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range plans {
				if plans[i].why == "" {
					t.Errorf("%s: nobody says why", plans[i].line())
				}
				got = append(got, plans[i].line())
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// TestPlaceRefused: what a machine cannot carry is refused in one line that names
// the option.
func TestPlaceRefused(t *testing.T) {
	for want, edit := range map[string]func(*Config){
		"node: 7 is no node that this process may use: must be all or one of 0, 1": func(c *Config) { c.Node = 7 },
		"max-streams: 26213 is more than the index takes: 2 shards of 13106":       func(c *Config) { c.MaxStreams = 2*shard.MaxHolders + 1 },
		"max-streams: 13107 is more than the index takes: 1 shard of 13106":        func(c *Config) { c.Node, c.MaxStreams = 0, shard.MaxHolders+1 },
		`node: "-7" must be all or a node's number`:                                func(c *Config) { c.Node = -7 },
		"shards-per-node: \"17\" must be an integer from 1 to 16":                  func(c *Config) { c.ShardsPerNode = 17 },
		"lanes-per-node: \"-1\" must be an integer from 0 to 1024":                 func(c *Config) { c.LanesPerNode = -1 },
	} {
		cfg := DefaultConfig()
		cfg.SysRoot = machine(t, "nodes2")
		edit(&cfg)
		faults := cfg.Validate()
		if len(faults) != 1 || faults[0].Error() != want {
			t.Errorf("got %q, want %q", faults, want)
		}
	}
	cfg := DefaultConfig()
	cfg.SysRoot = machine(t, "nodes2")
	cfg.MaxStreams = 2 * shard.MaxHolders
	if faults := cfg.Validate(); faults != nil {
		t.Errorf("as many streams as the shards take: %v", faults)
	}
}
