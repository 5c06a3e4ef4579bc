// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"kindex/internal/settings"
)

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestConfig: file, then flags; engines as texts and as mappings.
func TestConfig(t *testing.T) {
	path := writeConfig(t, `
listen: 127.0.0.1:9500
http: "off"
hash-tokens: true
history-batches: 5
history-bytes: 1MiB
log-level: debug
load-interval: 1s
hash-check: auto
engine:
  - vllm=tcp://h:5557,replay=tcp://h:5657,ranks=4,name=a
  - {sglang: "tcp://h2:5557", metrics: "http://h2:30000", grpc: "h2:30001", block: 32, listen: 127.0.0.1:7}
  - {vllm: "ipc:///run/e.sock", name: 7}
`)
	want := DefaultConfig()
	want.Listen, want.HTTP, want.HashTokens, want.HistoryBatches, want.HistoryBytes = "127.0.0.1:9500", "off", true, 5, 1<<20
	want.LogLevel, want.LoadInterval, want.HashCheck = slog.LevelDebug, time.Second, "auto"
	want.Engines = []EngineSpec{
		{Kind: "vllm", Endpoint: "tcp://h:5557", Replay: "tcp://h:5657", Ranks: 4, Name: "a"},
		{Kind: "sglang", Endpoint: "tcp://h2:5557", Metrics: "http://h2:30000", GRPC: "h2:30001", Block: 32, Listen: "127.0.0.1:7"},
		{Kind: "vllm", Endpoint: "ipc:///run/e.sock", Name: "7"},
	}
	got, action, faults := parseArgs([]string{"--config", path})
	if len(faults) > 0 || action != settings.Serve || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v\nwant %+v\naction %v, faults %v", got, want, action, faults)
	}
	for i, name := range []string{"a", "sglang-1", "7"} {
		if got.nameOf(i) != name {
			t.Errorf("engine %d is called %s, want %s", i, got.nameOf(i), name)
		}
	}
	for i, address := range []string{"127.0.0.1:9500", "127.0.0.1:7", "127.0.0.1:9502"} {
		if a, err := got.listenOf(i); a != address || err != nil {
			t.Errorf("engine %d listens on %s, %v, want %s", i, a, err, address)
		}
	}

	want.Listen, want.HistoryBatches = "127.0.0.1:0", 6
	want.Engines = []EngineSpec{{Kind: "sglang", Endpoint: "tcp://x:1"}}
	got, action, faults = parseArgs([]string{"--config", path, "--listen=127.0.0.1:0", "--history-batches", "6", "--engine", "sglang=tcp://x:1", "--check-config"})
	if len(faults) > 0 || action != settings.Check || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v\naction %v, faults %v", got, want, action, faults)
	}
}

// TestConfigFaults: each fault is named where it was made, in one line.
func TestConfigFaults(t *testing.T) {
	const engine = "engine: [vllm=tcp://h:1]\n"
	check := func(given string, faults []error, path string, want []string) {
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
	file := func(text string, want ...string) {
		t.Helper()
		path := writeConfig(t, text)
		_, _, faults := parseArgs([]string{"--config", path})
		check(text, faults, path, want)
	}
	file(engine)
	file("", "engine: none is given: it must be --engine vllm|sglang=ENDPOINT")
	file("lisen: x\n"+engine, `FILE:1: unknown key "lisen": must be one of listen, http, `)
	file("listen: x\n"+engine, `FILE:1: listen: "x" must be host:port`)
	file("http: nothing\n"+engine, `FILE:1: http: "nothing" must be host:port`)
	file("hash-tokens: maybe\n"+engine, `FILE:1: hash-tokens: "maybe" must be true or false`)
	file("history-bytes: 1GB\n"+engine, `FILE:1: history-bytes: "1GB" must be 1KiB to `)
	file("engine: vllm\n", "FILE:1: engine: must be a list")
	file("engine:\n - {vllm: \"tcp://h:1\", colour: red}\n", `FILE:2: engine: unknown key "colour": an engine has vllm, sglang, block, grpc, listen, loads, metrics, name, ranks, replay`)
	file("engine:\n - {vllm: \"tcp://h:1\", name: [x]}\n", "FILE:2: engine: name: must be one plain value")
	file("engine:\n - {loads: \"tcp://h:2\", vllm: \"tcp://h:1\"}\n", "FILE:2: engine: loads: vllm has no load socket, only sglang has")
	file("engine:\n - {replay: \"tcp://h:1\"}\n", "FILE:2: engine: vllm=ENDPOINT or sglang=ENDPOINT is missing")
	file("engine:\n - {vllm: \"tcp://h:1\", sglang: \"tcp://h:2\"}\n", "FILE:2: engine: an engine is one of vllm and sglang, once")
	file("engine: [\"vllm=tcp://h:1,name=a\", \"vllm=tcp://h:2,name=a\"]\n", "engine a: name: it is given to two engines")
	file("engine: [vllm=tcp://h:1, sglang=tcp://h:2]\nhttp: 127.0.0.1:9401\n", "engine sglang-1 would listen on 127.0.0.1:9401, where http listens")
	file("listen: 127.0.0.1:65535\nengine: [vllm=tcp://h:1, vllm=tcp://h:2]\n", "engine vllm-1: listen: it would be port 65536")
	file("tls-cert: x\n"+engine, "tls-cert and tls-key: both must be given")
	file("client-ca: x\n"+engine, "client-ca: it needs tls-cert and tls-key", "client-ca: open x: no such file")
	file("tls-cert: /nonexistent\ntls-key: /nonexistent\nclient-ca: x\n"+engine, "tls: open /nonexistent: no such file", "client-ca: open x: no such file")
	file("log-queue: 1\nlog-queue: 2\nlisten: x\n"+engine, "FILE:2: log-queue: given twice, the first time in line 1: give it once", `FILE:3: listen: "x" must be`)
	file("tls-cert: /nonexistent\ntls-key: /nonexistent\n"+engine, "tls: open /nonexistent: no such file")
	file("tls-cert: /dev/zero\ntls-key: /dev/zero\n"+engine, "tls: /dev/zero: over 1048576 bytes")
	file("hash-check: md5\n"+engine, `FILE:1: hash-check: "md5" must be auto, off, sha256`)
	file("hash-check: sha256:7\nengine: [vllm=tcp://h:1, sglang=tcp://h:2]\n", `engine sglang-1: hash-check: "sha256:7": an engine of kind sglang does not hash so: it must be auto`)
	file("hash-tokens: true\nengine: [\"sglang=tcp://h:1,block=1\"]\n", "engine sglang-0: block: blocks of 1 tokens serve no events under hash-tokens")
	file("hash-tokens-min-block: 0\n"+engine, `FILE:1: hash-tokens-min-block: "0" must be`)
	file("load-token-file: /nonexistent\n"+engine, "load-token-file: open /nonexistent: no such file")
	file("load-token-file: "+writeConfig(t, "two words\n")+"\n"+engine, "load-token-file: ")
	file("load-token-file: /dev/zero\n"+engine, "load-token-file: /dev/zero: over 1048576 bytes")
	file("token-file: /nonexistent\n"+engine, "token-file: open /nonexistent: no such file")

	args := func(want string, args ...string) {
		t.Helper()
		_, _, faults := parseArgs(args)
		check(strings.Join(args, " "), faults, "", []string{want})
	}
	for given, want := range map[string]string{
		"":                                  `"": it must be vllm|sglang=ENDPOINT`,
		"vllm":                              `"vllm": it must be vllm|sglang=ENDPOINT`,
		"vllm=":                             "vllm is empty",
		"trt=tcp://h:1":                     `unknown key "trt": an engine has vllm, sglang, `,
		"vllm=h:1":                          `vllm: "h:1" is no endpoint: it must be tcp://host:port or ipc://path`,
		"vllm=udp://h:1":                    `vllm: "udp://h:1": the scheme must be tcp or ipc`,
		"vllm=tcp://h:99999":                `vllm: "tcp://h:99999": the port must be 1 to 65535`,
		"vllm=tcp://h:65535,ranks=2":        `vllm: "tcp://h:65535": rank 1 would be port 65536`,
		"vllm=ipc://x,ranks=2":              `vllm: "ipc://x": only tcp endpoints have more than one rank`,
		"vllm=tcp://h:1,replay=tcp://*:2":   `replay: "tcp://*:2": a replay endpoint is bound by the engine`,
		"vllm=tcp://h:1,ranks=0":            `ranks: "0" must be an integer from 1 to 1024`,
		"vllm=tcp://h:1,ranks=x":            `ranks: "x" must be an integer`,
		"vllm=tcp://h:1,metrics=h:8000":     `metrics=h:8000: must be http://host:port`,
		"vllm=tcp://h:1,grpc=http://h:1":    `grpc: "http://h:1" must be host:port`,
		"vllm=tcp://h:1,grpc=h":             `grpc: "h" must be host:port`,
		"vllm=tcp://h:1,grpc=h:0":           `grpc: "h:0": the port must be 1 to 65535`,
		"vllm=tcp://h:1,loads=tcp://h:2":    `loads: vllm has no load socket, only sglang has: give metrics=URL or grpc=HOST:PORT`,
		"sglang=tcp://h:1,loads=h:1":        `loads=h:1`,
		"vllm=tcp://h:1,name=a b":           `name: "a b" must be 1 to 64 letters`,
		"vllm=tcp://h:1,listen=7":           `listen: "7" must be host:port`,
		"vllm=tcp://h:1,block=0":            `block: "0" must be an integer from 1 to 65536`,
		"vllm=tcp://h:1,block=16,block=16":  "block is given twice",
		"vllm=tcp://h:1,vllm=tcp://h:2":     "an engine is one of vllm and sglang, once",
		"vllm=tcp://h:1,replay=tcp://h:1,":  `"vllm=tcp://h:1,replay=tcp://h:1,": it must be`,
		"sglang=tcp://h:1,grp=h:1,name=x":   `unknown key "grp"`,
		"vllm=tcp://h:1,listen=127.0.0.1:x": `listen: "127.0.0.1:x": the port must be 0 to 65535`,
	} {
		args("flag --engine: "+want, "--engine", given)
	}
	args("flag provided but not defined: -nope (relay --help lists all flags)", "--nope")
	args(`argument "serve": relay takes flags only`, "serve", "--engine=vllm=tcp://h:1")
	args("flag --listen: given 2 times: give it once", "--engine=vllm=tcp://h:1", "--listen", "127.0.0.1:1", "--listen=127.0.0.1:2")
	args("flag --max-streams: ", "--max-streams", "0", "--engine=vllm=tcp://h:1")
}

// TestRunPrints: help, version and defaults say what they must, and the defaults
// are a file that changes nothing.
func TestRunPrints(t *testing.T) {
	run := func(want int, args ...string) (stdout, stderr string) {
		t.Helper()
		var out, bad bytes.Buffer
		if got := Run(args, &out, &bad, nil); got != want {
			t.Errorf("%v: exit %d, want %d: %s", args, got, want, &bad)
		}
		return out.String(), bad.String()
	}
	help, _ := run(0, "--help")
	defaults, _ := run(0, "--print-defaults")
	cfg := DefaultConfig()
	for _, o := range cfg.options() {
		if !strings.Contains(help, "\n  --"+o.Name) || !strings.Contains(defaults, "\n"+o.Name+": ") {
			t.Errorf("%s is not in the help or the defaults", o.Name)
		}
	}
	if v, _ := run(0, "--version"); !strings.HasPrefix(v, "relay ") {
		t.Errorf("version %q", v)
	}
	path := writeConfig(t, defaults)
	got, _, faults := parseArgs([]string{"--config", path, "--engine", "vllm=tcp://h:1"})
	got.Engines = nil
	if len(faults) > 0 || !reflect.DeepEqual(got, DefaultConfig()) {
		t.Errorf("the printed defaults give %+v, %v", got, faults)
	}
	if out, _ := run(0, "--check-config", "--engine", "vllm=tcp://h:1"); out != "configuration ok\n" {
		t.Errorf("check: %q", out)
	}
	if _, bad := run(2, "--engine", "x", "--listen", "y"); strings.Count(bad, "\n") != 2 || !strings.Contains(bad, "relay: flag --listen: ") {
		t.Errorf("two faults: %q", bad)
	}
}
