// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kindex/internal/settings"
	"kindex/numa"
)

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func equalConfig(t *testing.T, got, want Config) {
	t.Helper()
	if d := cmp.Diff(want, got, cmp.AllowUnexported(InstanceID{})); d != "" {
		t.Errorf("configuration differs (-want +got):\n%s", d)
	}
}

// TestConfigPrecedence: defaults, then the file, then flags.
func TestConfigPrecedence(t *testing.T) {
	path := writeConfig(t, `
# a comment
listen: "127.0.0.1:9000"
kv-index: reference
cpu-features: generic
max-body-bytes: 1MiB
max-streams: 100
connect-period: 1m
node: 0
shards-per-node: 2
lanes-per-node: 3
pin: off
interleave: true
log-level: debug
log-format: json
worker:
  - 1=tcp://h:5557,replay=tcp://h:6557,model=m,block=16,dp_size=2
  - {instance_id: "2", endpoint: "tcp://h:1", model_name: "a,b", block_size: 32, routing_group: g, tenant_id: t, engine: sglang, dp_rank: 3}
  - instance_id: 3
    endpoint: ipc:///run/e.sock
    model: m
    block: 16
`)
	want := DefaultConfig()
	want.Listen, want.KVIndex, want.MaxBodyBytes, want.MaxStreams = "127.0.0.1:9000", "reference", 1<<20, 100
	want.CPUFeatures = "generic"
	want.Node, want.ShardsPerNode, want.LanesPerNode, want.Pin, want.Interleave = 0, 2, 3, numa.PinOff, true
	want.ConnectPeriod, want.LogLevel, want.LogFormat = time.Minute, slog.LevelDebug, "json"
	want.Workers = []Registration{
		{Instance: NumberID(1), Endpoint: "tcp://h:5557", ReplayEndpoint: "tcp://h:6557", Model: "m", BlockSize: 16, Ranks: 2},
		{Instance: TextID("2"), Endpoint: "tcp://h:1", Model: "a,b", BlockSize: 32, RoutingGroup: "g", Tenant: "t", Engine: "sglang", Rank: 3},
		{Instance: NumberID(3), Endpoint: "ipc:///run/e.sock", Model: "m", BlockSize: 16},
	}
	got, action, faults := parseArgs([]string{"--config", path})
	if len(faults) > 0 || action != settings.Serve {
		t.Fatalf("faults %v, action %v", faults, action)
	}
	equalConfig(t, got, want)

	want.Listen, want.LogLevel = "127.0.0.1:0", slog.LevelWarn
	want.Workers = []Registration{{Instance: TextID("pod-a"), Endpoint: "tcp://h:7", Model: "z", BlockSize: 1}}
	got, action, faults = parseArgs([]string{"-listen=127.0.0.1:0", "--config=" + path, "--worker", "pod-a=tcp://h:7,model=z,block=1", "--log-level", "WARN", "--check-config"})
	if len(faults) > 0 || action != settings.Check {
		t.Fatalf("faults %v, action %v", faults, action)
	}
	equalConfig(t, got, want)
}

// TestPrintDefaults: what it prints is a file that changes nothing.
func TestPrintDefaults(t *testing.T) {
	var b bytes.Buffer
	if err := defaultCommand().WriteDefaults(&b); err != nil {
		t.Fatal(err)
	}
	got, _, faults := parseArgs([]string{"--config", writeConfig(t, b.String())})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	equalConfig(t, got, DefaultConfig())
	var usage bytes.Buffer
	if err := defaultCommand().WriteUsage(&usage); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	for _, o := range cfg.options() {
		flagged := "--" + o.Name + " VALUE\n"
		if o.IsBool() {
			flagged = "--" + o.Name + "\n"
		}
		value := o.Value()
		if value == "" {
			value = `""`
		}
		for what, text := range map[string]string{"defaults": "\n" + o.Name + ": " + value + "\n", "usage": flagged} {
			if out := b.String() + usage.String(); !strings.Contains(out, text) {
				t.Errorf("%s: --%s is not in it", what, o.Name)
			}
		}
	}
	if faults := cfg.Validate(); len(faults) > 0 {
		t.Errorf("the defaults are refused: %v", faults)
	}
}

// TestConfigFaults: each fault is named where it was made, all of them at once.
func TestConfigFaults(t *testing.T) {
	file := func(text string, want ...string) {
		t.Helper()
		path := writeConfig(t, text)
		_, _, faults := parseArgs([]string{"--config", path})
		checkFaults(t, text, faults, path, want)
	}
	file("liste: 1\nmax-streams: 0\nlog-level: loud\nread-timeout: 5\n",
		`FILE:1: unknown key "liste": must be one of listen, `, `FILE:2: max-streams: "0" must be an integer from 1 to `, `FILE:3: log-level: "loud" must be one of`, `FILE:4: read-timeout: "5" must be a duration`)
	file("listen: [a]\n", "FILE:1: listen: must be one plain value")
	file("listen: {a: b}\nlisten2: x\n", "FILE:1: listen: must be one plain value", "FILE:2: unknown key")
	file("listen: 1\nlisten: 2\n", "FILE:1: listen: ", "FILE:2: listen: given twice, the first time in line 1")
	file("- a\n- b\n", "FILE:1: the file must be a mapping")
	file("just text\n", "FILE:1: the file must be a mapping")
	file("a: [\n", "FILE")
	file("a: b: c\n", "FILE:1: ")
	file("\tlisten: x\n", "FILE:1: ")
	file("listen: 127.0.0.1:1\n---\nlisten: x\n", "FILE:3: a second document")
	file("listen: nonsense\n", `FILE:1: listen: "nonsense" must be host:port`)
	file("listen: ':99999'\n", `FILE:1: listen: ":99999": the port must be`)
	file("kv-index: btree\n", `FILE:1: kv-index: "btree": must be one of`)
	file("cpu-features: sse\n", `FILE:1: cpu-features: "sse": must be auto, avx512, avx2 or generic`)
	file("listen: &x 127.0.0.1:1\nkv-index: *x\n", "FILE:1: listen: must be one plain value", "FILE:2: kv-index: must be one plain value")
	file("max-body-bytes: 8MB\n", `FILE:1: max-body-bytes: "8MB" must be 1KiB to 1GiB`)
	file("max-body-bytes: 99999999999999999999\n", "FILE:1: max-body-bytes: ")
	file("worker: 7\n", "FILE:1: worker: must be a list")
	file("worker:\n  - 1=tcp://h:1,model=m\n  - 2=tcp://h:99999,model=m,block=16\n  - {instance_id: 3, endpoint: 'tcp://h:1', model_name: m, block_size: 16, blok: 1}\n",
		"FILE:2: worker: block_size: must be an integer", "FILE:3: worker: endpoint: ", `FILE:4: worker: unknown key "blok": a worker has block (block_size), `)
	file("worker:\n  - 1=tcp://h:1,model=m,block=16\n  - 1=tcp://h:2,model=m,block=16\n  - 2=tcp://h:3,model=m,block=32\n",
		"worker 1: dp_rank: 0 is given twice", "worker 2: block_size: must be 16")
	file("max-streams: 3\nworker:\n  - 1=tcp://h:1,model=m,block=16,dp_size=4\n", "worker: 4 streams are over max-streams, 3")
	file(strings.Repeat("#", settings.MaxFile+1), "FILE: over 4MiB")

	args := func(want []string, args ...string) {
		t.Helper()
		_, _, faults := parseArgs(args)
		checkFaults(t, strings.Join(args, " "), faults, "", want)
	}
	args([]string{"flag provided but not defined: -nope (indexsrv --help lists all flags)"}, "--nope")
	args([]string{"flag needs an argument: -listen"}, "--listen")
	args([]string{`argument "serve": indexsrv takes flags only`}, "serve")
	args([]string{"flag --listen: ", "flag --max-streams: "}, "--listen", "x", "--max-streams", "many")
	args([]string{"flag --shards-per-node: \"0\" must be an integer from 1 to 16", "flag --lanes-per-node: \"x\" must be an integer from 0 to 1024"}, "--shards-per-node", "0", "--lanes-per-node=x")
	args([]string{`flag --pin: pin mode "maybe": must be auto, on or off`, `flag --interleave: "yes" must be true or false`}, "--pin", "maybe", "--interleave=yes")
	args([]string{`flag --node: "-2" must be all or a node's number`}, "--node", "-2")
	args([]string{"node: 4711 is no node that this process may use: must be all or one of "}, "--node", "4711")
	args([]string{`argument "true": indexsrv takes flags only`}, "--interleave", "true")
	args([]string{"flag --config: given more than once"}, "--config", writeConfig(t, ""), "--config", "y")
	args([]string{"open /nonexistent: no such file or directory"}, "--config", "/nonexistent")
	for _, w := range []string{"", "1", "1=", "=tcp://h:1,model=m,block=16", "1=tcp://h:1", "1=tcp://h:1,model=m,block=x", "1=tcp://h:1,model=m,block=16,block_size=16", "1=tcp://h:1,model=,block=16", "1=tcp://h:1,model=m,block=16,", "1=tcp://h:1,model=m,block=16,color=red", "1=tcp://h:1,model=m,block=16,source=relay", "1=tcp://h:1,model=m,block=16,dp_size=0"} {
		args([]string{"flag --worker: "}, "--worker", w)
	}
}

func checkFaults(t *testing.T, given string, faults []error, path string, want []string) {
	t.Helper()
	if len(faults) != len(want) {
		t.Errorf("%q: %d faults %v, want %d", given, len(faults), faults, len(want))
		return
	}
	for i, w := range want {
		w = strings.Replace(w, "FILE", path, 1)
		if got := faults[i].Error(); !strings.HasPrefix(got, w) || strings.Contains(got, "\n") {
			t.Errorf("%q: got %q, want one line that begins %q", given, got, w)
		}
	}
}
