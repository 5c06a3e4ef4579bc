// SPDX-License-Identifier: Apache-2.0

package archtest

import "strings"

// module is this module's path, the prefix of every import of ours.
const module = "kindex"

// An arrow says what the packages below From may import of this module. A path
// ending in /... stands for itself and all below it.
type arrow struct {
	from string
	to   []string
	why  string
}

// arrows is the import lattice. The entry with the longest matching from wins;
// a package may always import what lies below itself. A package that no entry
// names is an error: a new part takes its place here first.
var arrows = []arrow{
	{"cmd/indexsrv", []string{"indexsrv"}, "a main only parses, builds and serves"},
	{"cmd/relay", []string{"relay"}, "a main only parses, builds and serves"},
	{"cmd/gateway", []string{"gateway"}, "a main only parses, builds and serves"},
	{"cmd/harness", []string{"harness/..."}, "a main only parses, builds and serves"},
	{"cmd/mockworker", []string{"harness/mockworker"}, "the mock engine is a part of the harness"},
	{"cmd/kindex", []string{"cli"}, "a main only parses, builds and serves"},

	{"harness", []string{"..."}, "benchmarks, oracles and drills look at everything"},

	{
		"indexsrv",
		[]string{"relay/client", "relay/feed", "relay/normal", "relay/wire", "lanes", "shard", "asm", "numa", "proto/...", "internal/..."},
		"the index host joins streams, lanes and shards, and says which kernels run; nobody below knows it",
	},
	{"indexsrv/state", []string{"relay/feed", "shard", "internal/kv"}, "a form of what a host holds: bytes in, values out"},
	{"indexclient", []string{"proto/...", "internal/..."}, "others import the client: it drags in no index and no engine wire"},
	{
		"gateway",
		[]string{"indexclient", "indexsrv", "numa", "proto/...", "internal/..."},
		"the gateway asks an index; the embedded one is the same host in process. At rest it gives memory back, by numa",
	},
	{"gateway/openai", []string{"internal/..."}, "bodies and answers: bytes in, values out"},
	{"gateway/prompt", []string{"gateway/fleet", "gateway/openai", "gateway/upstream", "internal/..."}, "prompts to tokens: it is handed the client that asks workers"},
	{"gateway/admit", nil, "a door: it knows no request and no worker"},
	{"gateway/health", []string{"gateway/fleet", "proto/...", "internal/..."}, "probes and rules, told of outcomes: it asks workers by itself"},
	{
		"gateway/load",
		[]string{"gateway/fleet", "gateway/upstream", "relay/load", "internal/..."},
		"asks who pushes no load; what engines' answers mean is known in one place, which a relay reads them by",
	},
	{"gateway/upstream", []string{"gateway/fleet", "internal/..."}, "connections to workers"},
	{"gateway/policy", []string{"gateway/fleet"}, "decisions: values in, a holder out; they know no network"},
	{"gateway/overlay", []string{"gateway/fleet", "gateway/policy", "internal/..."}, "what no index can know yet, beside its matches"},
	{
		"gateway/route",
		[]string{"gateway/admit", "gateway/fleet", "gateway/health", "gateway/index", "gateway/openai", "gateway/overlay", "gateway/policy", "gateway/prompt", "internal/..."},
		"joins what knows prompts, caches, load and health; it knows no connection",
	},
	{"gateway/fleet/enroll", []string{"gateway/fleet", "gateway/upstream", "proto/...", "internal/..."}, "asks engines what they are, over HTTP and gRPC"},
	{
		"gateway/rpc",
		[]string{"gateway/fleet", "gateway/index", "gateway/openai", "gateway/overlay", "gateway/policy", "gateway/route", "proto/...", "internal/..."},
		"the engines' own services before a router; its tests join a router of all its parts",
	},
	{"gateway/fleet", []string{"internal/..."}, "who the workers are: everything of a gateway reads it, it knows nobody"},
	{"gateway/index", []string{"gateway/fleet", "indexclient", "indexsrv", "internal/..."}, "asks an index and knows no request; the embedded one is a host without servers"},
	{
		"cli",
		[]string{"indexclient", "relay/client", "relay/feed", "relay/normal", "relay/wire", "shard", "proto/...", "internal/..."},
		"an operator's tool is one more client of everything, and holds dumps and streams against the reference index",
	},
	{"relay", []string{"relay/...", "proto/...", "internal/..."}, "a relay orders and keeps batches; it knows no index"},
	{"relay/feed", []string{"relay/wire", "internal/..."}, "admission and sockets of one stream, for a relay and an index host alike"},
	{"relay/normal", []string{"internal/kv"}, "events to operations, whoever keeps them"},
	{"relay/live", []string{"relay/normal", "internal/kv", "internal/livedigest"}, "the content of one rank: values in, values out"},
	{"relay/load", []string{"relay/wire", "proto/...", "internal/..."}, "readings of an engine's load"},
	{"relay/hashcheck", []string{"relay/wire", "internal/..."}, "holds an engine's hashes against its tokens; its tests decode recordings"},
	{"relay/client", []string{"relay/normal", "relay/wire", "proto/...", "internal/..."}, "a subscriber of relays: it drags in no relay"},
	{"relay/wire", []string{"internal/kv"}, "bytes to events and back, nothing else"},
	{"lanes", []string{"shard", "numa", "internal/..."}, "lanes run what they are handed: no wire"},
	{"shard", []string{"asm", "numa", "internal/..."}, "the index knows no network, no wire, no host"},
	{"shard/compare", []string{"shard", "internal/kv"}, "holds an index against another from outside"},
	{"shard/planted", []string{"shard", "internal/kv"}, "wraps an index from outside"},
	{"numa", []string{"internal/..."}, "the door to placement and memory stands alone"},
	{"asm", nil, "kernels and their twins take slices and return values"},
	{"asm/asmtest", []string{"asm/internal/cpu"}, "asm's own tests use it: it may not import what they test"},
	{"proto", []string{"proto/..."}, "contracts depend on one another alone"},

	{"internal/kv", nil, "the vocabulary: everything may import it, it imports nothing of ours"},
	{"internal/longtest", nil, "a leaf for tests"},
	{"internal/archtest", nil, "reads the tree as text"},
	{"internal/hangup", []string{"internal/fdwait"}, "the system's queue is waited for as any descriptor is"},
	{"internal/secure", []string{"internal/settings"}, "certificates and tokens, read as settings' files are"},
	{"internal/lookup", []string{"internal/kv"}, "the question and the answer: values and one interface"},
	{"internal/jsonscan", []string{"internal/lookup"}, "bytes in, values out; a refusal is a refused lookup's"},
	{"internal/lookuppb", []string{"internal/kv", "internal/lookup", "proto/kindex/v1"}, "the question and the answer on a wire"},
	{"internal", []string{"internal/kv", "internal/seqlock", "internal/invariants"}, "shared leaves stay leaves"},
}

// testsMayImport is open to test files anywhere on top of the arrows: the
// reference index, and what compares with it, is every test's oracle, every test of
// the core runs at every level of the kernels, and what is encoded by hand is read
// back by the generated contracts and the decoder. A server is asked by its client,
// a client asks the server itself, and a subscriber's streams begin at a server. What
// asks engines is tested against the mock one.
var testsMayImport = []string{"shard/...", "internal/...", "asm/asmtest", "proto/...", "relay/wire", "relay", "indexclient", "indexsrv", "harness/mockworker/engine"}

// arrowOf returns the entry that rules dir, a slash path below the module root.
func arrowOf(dir string) (arrow, bool) {
	var best arrow
	found := false
	for _, a := range arrows {
		if (dir == a.from || strings.HasPrefix(dir, a.from+"/")) && len(a.from) >= len(best.from) {
			best, found = a, true
		}
	}
	return best, found
}

// allows reports whether one of patterns names dir.
func allows(patterns []string, dir string) bool {
	for _, p := range patterns {
		if p == "..." || p == dir {
			return true
		}
		if base, ok := strings.CutSuffix(p, "/..."); ok && (dir == base || strings.HasPrefix(dir, base+"/")) {
			return true
		}
	}
	return false
}
