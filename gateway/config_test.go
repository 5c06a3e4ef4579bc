// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"kindex/internal/settings"
)

// noFile leaves out where a configuration was read.
var noFile = cmpopts.IgnoreUnexported(Config{})

// reread writes a configuration to a file and reads it back.
func reread(t *testing.T, write func(*bytes.Buffer) error) *Config {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	got, action, faults := parseArgs([]string{"--config", path})
	if len(faults) > 0 || action != settings.Serve {
		t.Fatalf("action %v, faults %v in\n%s", action, faults, b.String())
	}
	return got
}

// TestDefaultsRoundTrip: the file of the defaults says the defaults.
func TestDefaultsRoundTrip(t *testing.T) {
	want := DefaultConfig()
	got := reread(t, func(b *bytes.Buffer) error { return defaultCommand().WriteDefaults(b) })
	if d := cmp.Diff(&want, got, noFile); d != "" {
		t.Errorf("print-defaults read back (-want +got):\n%s", d)
	}
}

// TestOffRoundTrip: what is switched off by 0 stays off through a file, and is not
// taken for left out.
func TestOffRoundTrip(t *testing.T) {
	off := []string{
		"worker-stall-secs", "worker-wedge-secs", "worker-stale-secs", "worker-overload-token-usage", "worker-overload-waiting",
		"breaker-failures", "tokenize-budget", "predict-life", "max-inflight", "answer-timeout", "stall-timeout", "retries", "queue", "otlp-ratio",
	}
	cfg := DefaultConfig()
	for _, o := range cfg.options() {
		for _, name := range off {
			if o.Name == name {
				if err := o.Set("0"); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
	if cfg.StallAfter != 0 || cfg.OverloadUsage != 0 || cfg.OverloadWaiting != 0 || cfg.BreakerFailures != 0 {
		t.Fatalf("not off: %+v", cfg.HealthConfig)
	}
	got := reread(t, func(b *bytes.Buffer) error { return cfg.command().WriteConfig(b) })
	if d := cmp.Diff(&cfg, got, noFile); d != "" {
		t.Errorf("read back (-want +got):\n%s", d)
	}
}

// TestRandomRoundTrip: any configuration is read back as it was, from a file and from
// flags.
func TestRandomRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		cfg := randomConfig(t, r)
		got := reread(t, func(b *bytes.Buffer) error { return cfg.command().WriteConfig(b) })
		if d := cmp.Diff(cfg, got, noFile); d != "" {
			t.Fatalf("from a file (-want +got):\n%s", d)
		}
		var args []string
		for _, o := range cfg.options() {
			args = append(args, "--"+o.Name+"="+o.Value())
		}
		for _, item := range cfg.workerItems() {
			w := item[0].Value
			for _, p := range item[1:] {
				w += "," + p.Key + "=" + p.Value
			}
			args = append(args, "--worker", w)
		}
		got, _, faults := parseArgs(args)
		if len(faults) > 0 {
			t.Fatalf("%q: %v", args, faults)
		}
		if d := cmp.Diff(cfg, got, noFile); d != "" {
			t.Fatalf("from flags (-want +got):\n%s", d)
		}
	}
}

// randomConfig sets each option to something it takes.
func randomConfig(t *testing.T, r *rand.Rand) *Config {
	t.Helper()
	texts := []string{"x", "", "a b", `q"uo'te`, "# no comment", "key: value", "- item", "null", "~", "yes", "1e3", "é€", "{a}", "[b]", "c:", "*d", "!e", "%f", "@g", "`h", `\n`}
	cfg := DefaultConfig()
	for _, o := range cfg.options() {
		if strings.HasPrefix(o.Name, "tls-") || strings.HasSuffix(o.Name, "-file") {
			continue // must be files
		}
		for range 1 + r.IntN(3) {
			for _, s := range []string{
				"0", strconv.Itoa(r.IntN(100)), strconv.FormatFloat(r.Float64(), 'g', -1, 64),
				time.Duration(r.Int64N(int64(time.Hour))).String(), strconv.Itoa(4+r.IntN(28)) + "KiB",
				fmt.Sprintf("h%d:%d", r.IntN(1000), 1+r.IntN(60_000)), strconv.FormatBool(r.IntN(2) == 0), texts[r.IntN(len(texts))],
			} {
				if r.IntN(2) == 0 {
					_ = o.Set(s) // what it refuses changes nothing
				}
			}
		}
	}
	for i := range r.IntN(4) {
		w := fmt.Sprintf("http://h%d:%d,model=m %d#x,dp_size=%d,priority=%d,cost=%g", i, 1+r.IntN(1000), i, 1+r.IntN(8), r.IntN(100), 0.001+r.Float64())
		if err := cfg.addWorker(w); err != nil {
			t.Fatalf("%s: %v", w, err)
		}
	}
	cfg.KVIndex, cfg.Index, cfg.IndexToken = "chain", "", ""
	if r.IntN(2) == 0 {
		cfg.KVIndex, cfg.Index = "remote", "unix:/run/k"
	}
	cfg.OTLPInsecure = cfg.OTLPInsecure && cfg.OTLPEndpoint != ""
	return &cfg
}

// TestConfigFaults: what cannot be right is refused in one line that names it.
func TestConfigFaults(t *testing.T) {
	for args, want := range map[string]string{
		"--policy x":                                      `flag --policy: "x": must be one of cache_aware`,
		"--worker-stall-secs -1":                          `flag --worker-stall-secs: "-1" must be a number from 0 to 86400`,
		"--worker-stall-secs NaN":                         `"NaN" must be a number`,
		"--worker-overload-token-usage 1.1":               `"1.1" must be a number from 0 to 1`,
		"--worker ftp://a:1":                              `must be http, https, grpc or grpcs://HOST:PORT`,
		"--worker grpc://a":                               `must be http, https, grpc or grpcs://HOST:PORT`,
		"--worker http://a:1,color=red":                   `unknown key "color": a worker has api_key_file, block, cost`,
		"--worker http://a:1 --worker http://a:1":         `worker: http://a:1 is given twice`,
		"--kv-index remote":                               `kv-index: remote needs index`,
		"--kv-index remote --index unix:":                 `flag --index: `,
		"--index unix:/x":                                 `index: it is asked only with kv-index remote, not chain`,
		"--listen 127.0.0.1:9 --admin-listen 127.0.0.1:9": `admin-listen: must be another address than listen`,
		"--otlp-endpoint x":                               `"x" must be host:port`,
		"--otlp-insecure":                                 `otlp-insecure: it needs otlp-endpoint`,
		"--tls-cert nosuch":                               `tls-cert and tls-key: both must be given`,
		"--api-key-file nosuch":                           `api-key-file: open nosuch`,
		"--retries 1 --retries 2":                         `flag --retries: given 2 times`,
		"--nosuch":                                        `flag provided but not defined: -nosuch (gateway --help lists all flags)`,
		"stray":                                           `argument "stray": gateway takes flags only`,
	} {
		_, _, faults := parseArgs(strings.Fields(args))
		var lines []string
		for _, err := range faults {
			lines = append(lines, err.Error())
		}
		if len(lines) != 1 || !strings.Contains(lines[0], want) || strings.Contains(lines[0], "\n") {
			t.Errorf("%s: got %q, want one line with %q", args, lines, want)
		}
	}
}
