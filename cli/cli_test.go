// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kindex/indexsrv"
	"kindex/internal/secure/securetest"
)

// fleet is a host with two engines, whose streams stand at batch 1.
func fleet(t *testing.T) (*testHost, []*engine) {
	t.Helper()
	h := startHost(t, nil)
	var es []*engine
	for i, id := range []string{"1", "b"} {
		e := startEngine(t, 100)
		e.publish(stored("GPU", 0, 1, 2, 3+i))
		e.publish(removed(2))
		h.follow(id, "m", e)
		es = append(es, e)
	}
	h.at(1)
	return h, es
}

var squeeze = strings.NewReplacer("\n", "\n")

// columns is a table with one blank between columns.
func columns(s string) string { return squeeze.Replace(spans.ReplaceAllString(s, " | ")) }

// TestWorkers: the table and the JSON, over gRPC, HTTP and shared memory.
func TestWorkers(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	h := startHost(t, func(c *indexsrv.Config) { c.Shm.Listen = sock })
	e := startEngine(t, 100)
	e.publish(stored("GPU", 0, 1, 2, 3))
	h.follow("1", "m", e)
	h.at(0)
	for _, host := range []string{h.grpc, h.http, "unix:" + sock} {
		r := kindex(t, "", "workers", "--host", host)
		want := "INSTANCE | RANK | MODEL | BLOCK | SOURCE | STATUS | EPOCH | SEQ | GAPS | LOST | ORPHANS | BLOCKS HELD | ENDPOINT | WHY\n" +
			"1 | 0 | m | 4 | zmq | active | 1 | 0 | 0 | 0 | 0 | 3 | tcp://ADDR\n"
		if got := columns(plain(r.out)); r.code != 0 || got != want {
			t.Errorf("%s: status %d\n%s\nwant\n%s\n%s", host, r.code, got, want, r.err)
		}
		r = kindex(t, "", "workers", "--json", "--host", host)
		var ws []workerJSON
		if err := json.Unmarshal([]byte(r.out), &ws); err != nil || len(ws) != 1 || len(ws[0].Ranks) != 1 {
			t.Fatalf("%s: %v: %s %s", host, err, r.out, r.err)
		}
		if k := ws[0].Ranks[0]; !ws[0].Instance.Number || ws[0].Instance.Text != "1" || ws[0].Tenant != "default" || k.Memberships != 3 || k.LastSeq == nil || *k.LastSeq != 0 || k.Epoch != 1 {
			t.Errorf("%s: %s", host, r.out)
		}
	}
	for args, code := range map[string]int{"--model m": 0, "--model zz": 1, "--instance 1": 0, "--instance 2": 1, "--tenant zz": 0} {
		if r := kindex(t, "", append([]string{"workers", "--host", h.http}, strings.Fields(args)...)...); r.code != code {
			t.Errorf("%s: status %d, want %d: %s%s", args, r.code, code, r.out, r.err)
		}
	}
	// KINDEX_HOST stands in for --host.
	var out, errs safeBuffer
	code := run(t.Context(), []string{"workers", "--json"}, &Env{Out: &out, Err: &errs, Getenv: func(k string) string { return map[string]string{"KINDEX_HOST": h.grpc}[k] }})
	if code != 0 || !strings.HasPrefix(out.String(), `[{"instance_id":1,`) {
		t.Errorf("KINDEX_HOST: status %d, %s %s", code, out.String(), errs.String())
	}
	// What shared memory does not carry is said.
	r := kindex(t, "1", "explain", "--tokens", "-", "--host", "unix:"+sock)
	if r.code != 2 || !strings.Contains(r.err, "tells of workers alone: for explanations give host:port (gRPC)") {
		t.Errorf("over shared memory: status %d %q", r.code, r.err)
	}
}

// TestTableWidth: a table fits a screen, whatever names there are.
func TestTableWidth(t *testing.T) {
	tb := newTable("A", ">N", "TEXT")
	tb.add("a\x1b[31m", "1", strings.Repeat("wörter ", 20))
	tb.add("b", "12345", "x")
	for _, width := range []int{0, 200, 60, 30, 1} {
		var b strings.Builder
		if err := tb.write(&b, width); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
		for _, l := range lines {
			if n := len([]rune(l)); width >= 30 && n > width {
				t.Errorf("width %d: a line of %d", width, n)
			}
			if strings.ContainsRune(l, 0x1b) {
				t.Errorf("width %d: %q steers the terminal", width, l)
			}
		}
		if len(lines) != 3 || !strings.HasPrefix(lines[2], "b") || !strings.Contains(lines[2], "12345") {
			t.Errorf("width %d:\n%s", width, b.String())
		}
	}
}

// TestTop: one picture, pictures one after the other, and a terminal's.
func TestTop(t *testing.T) {
	h, _ := fleet(t)
	for _, host := range []string{h.grpc, h.http} {
		r := kindex(t, "", "top", "--once", "--interval", "20ms", "--host", host)
		lines := strings.Split(plain(r.out), "\n")
		if r.code != 0 || len(lines) < 6 || !strings.HasSuffix(lines[0], "ADDR  TIME  2 workers, 2 streams, 2 active") ||
			!strings.HasPrefix(lines[1], "ready, 4 blocks held, 3 distinct, 0 lookups/s") || !strings.HasPrefix(lines[2], "node 0: ") {
			t.Fatalf("%s: status %d\n%s%s", host, r.code, r.out, r.err)
		}
		if got := columns(lines[3]); got != "INSTANCE | RANK | MODEL | STATUS | SEQ | IDLE | LAG | GAPS | LOST | HELD BACK | ORPHANS | BLOCKS | WHY" {
			t.Errorf("%s: head %s", host, got)
		}
		for i, want := range []string{`^1 \| 0 \| m \| active \| 1 \| \S+ \| \S+ \| 0 \| 0 \| 0 \| 0 \| 2$`, `^b \| 0 \| m \| active \| 1 \| \S+ \| \S+ \| 0 \| 0 \| 0 \| 0 \| 2$`} {
			if got := columns(lines[4+i]); !regexp.MustCompile(want).MatchString(got) || strings.Contains(got, " - ") {
				t.Errorf("%s: %q, want %s", host, got, want)
			}
		}
		r = kindex(t, "", "top", "--once", "--json", "--interval", "20ms", "--host", host)
		var p struct {
			Time  float64
			Hosts []struct {
				Host    string
				Stats   *figures
				Rate    *float64 `json:"lookups_per_second"`
				Workers []workerJSON
			}
		}
		if err := json.Unmarshal([]byte(r.out), &p); err != nil || len(p.Hosts) != 1 || p.Hosts[0].Rate == nil || p.Hosts[0].Stats.Memberships != 4 ||
			len(p.Hosts[0].Workers) != 2 || p.Hosts[0].Workers[0].Ranks[0].Idle == nil || p.Hosts[0].Workers[0].Ranks[0].Lag == nil {
			t.Errorf("%s: %v: %s%s", host, err, r.out, r.err)
		}
	}

	// A live view on a screen of 5 lines goes on until it is ended; of two hosts one
	// is not there.
	var out, errs safeBuffer
	ctx, cancel := context.WithCancel(t.Context())
	env := &Env{Out: &out, Err: &errs, Screen: func() (int, int, bool) { return 60, 5, true }}
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"top", "--interval", "5ms", "--host", h.grpc + ",127.0.0.1:1"}, env)
	}()
	deadline := time.Now().Add(20 * time.Second)
	for strings.Count(out.String(), cursorHome) < 4 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	if code := <-ended; code != 0 || errs.String() != "" {
		t.Errorf("a live view: status %d, %s", code, errs.String())
	}
	frames := strings.Split(out.String(), cursorHome)
	if len(frames) < 4 || !strings.HasPrefix(frames[1], "\x1b[2J") || strings.HasPrefix(frames[2], "\x1b[2J") {
		t.Fatalf("frames: %q", out.String())
	}
	for _, f := range frames[1:3] {
		if n := strings.Count(f, "\n"); n != 4 || !strings.Contains(f, "lines more") || !strings.HasSuffix(f, clearBelow) {
			t.Errorf("a picture of %d lines: %q", n, f)
		}
	}
	r := kindex(t, "", "top", "--once", "--interval", "10ms", "--host", h.grpc+",127.0.0.1:1")
	if r.code != 0 || !strings.Contains(r.out, "127.0.0.1:1  ") || !strings.Contains(r.out, "not reached: ") {
		t.Errorf("of two hosts: status %d\n%s%s", r.code, r.out, r.err)
	}
}

// TestBadCommandLines: status 2, and one line that names what is wrong.
func TestBadCommandLines(t *testing.T) {
	for args, want := range map[string]string{
		"frob":                                      `"frob" is no command: must be one of workers, `,
		"--json workers":                            `"--json" is no command: must be one of `,
		"workers --frob":                            "--frob is no flag (kindex workers --help lists those of workers)",
		"workers --tokens x":                        "workers takes no --tokens (kindex workers --help lists its flags)",
		"workers x":                                 `workers takes flags only, and not "x"`,
		"workers --host":                            "--host: must be --host TARGET",
		"workers --timeout 5":                       `--timeout: "5" must be a time from 1ms to 24h`,
		"workers --timeout 0s":                      `--timeout: "0s" must be a time`,
		"workers --json=7":                          `--json: "7" must be true or false`,
		"workers --host a --host b":                 "--host: given twice",
		"workers --host ftp://x:1":                  `--host: "ftp://x:1" must be host:port, http://host:port, `,
		"workers --host x":                          `--host: "x" must be host:port, `,
		"workers --host x:0":                        `--host: "x:0" must be`,
		"workers --host http://u@x:1":               `--host: "http://u@x:1" must be`,
		"workers --host http://x:1/a":               `--host: "http://x:1/a" must be`,
		"workers --host a:1,a:1":                    "--host: a:1 is given twice",
		"workers --host unix:x":                     "--host: ",
		"workers --tls-cert x":                      "--tls-cert and --tls-key: both must be given, or neither",
		"workers --tls-ca /nope":                    "--tls-ca: ",
		"workers --token-file /nope":                "--token-file: ",
		"workers --model " + long:                   "--model: must be at most 512 bytes",
		"explain":                                   "explain: must have --tokens FILE, or --hashes FILE in its place",
		"explain --tokens a --hashes b":             "explain: must have --tokens FILE, or",
		"explain --tokens /nope":                    "--tokens: open /nope: no such file or directory",
		"explain --tokens - --limit 0":              `--limit: "0" must be an integer from 1 to `,
		"diff":                                      "diff: must have one of --engine, --relay, --with and --dump",
		"diff --with a:1 --dump b":                  "diff: must have one of",
		"diff --with a":                             `--with: "a" must be host:port`,
		"load":                                      "load: must be kindex load FILE",
		"load a b":                                  "load: must be kindex load FILE",
		"load /nope":                                "load: open /nope: no such file or directory",
		"tail":                                      "tail: must have --engine or --relay",
		"tail --engine x":                           `--engine: "x" must be vllm|sglang=ENDPOINT[,replay=ENDPOINT]`,
		"tail --engine vllm=http://x":               "--engine: ",
		"tail --engine vllm=tcp://x:1,a=b":          `--engine: "vllm=tcp://x:1,a=b" must be`,
		"tail --engine replay=tcp://x:1":            "--engine: ",
		"tail --engine vllm=ipc://x --rank 1":       "--rank: ",
		"tail --engine vllm=tcp://x:1 --from-start": "--from-start: needs replay=ENDPOINT in --engine",
		"tail --relay x":                            "--relay: ",
		"tail --relay x:1 --rank 70000":             `--rank: "70000" must be an integer from 0 to 65535`,
		"completion":                                "completion: must be kindex completion bash|zsh|fish",
		"completion tcsh":                           `completion: "tcsh" must be bash, zsh or fish`,
	} {
		r := kindex(t, "", strings.Fields(args)...)
		if r.code != 2 || r.out != "" || !strings.HasPrefix(r.err, "kindex: "+want) || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%.60s: status %d, %q, want %q...", args, r.code, r.err, want)
		}
	}
	if r := kindex(t, ""); r.code != 2 || !strings.HasPrefix(r.err, "kindex: no command given: must be one of workers, top, explain, ") {
		t.Errorf("no arguments: status %d, %q", r.code, r.err)
	}
	for _, args := range []string{"--help", "help", "-h", "workers --help", "help top", "--version"} {
		if r := kindex(t, "", strings.Fields(args)...); r.code != 0 || r.err != "" || len(r.out) < 10 {
			t.Errorf("%s: status %d, %q %q", args, r.code, r.out, r.err)
		}
	}
	for _, c := range commands() {
		r := kindex(t, "", c.name, "--help")
		for _, f := range c.flags {
			if !strings.Contains(r.out, "\n  --"+f) {
				t.Errorf("kindex %s --help does not name --%s", c.name, f)
			}
		}
		if !strings.Contains(r.out, "Exit status:") {
			t.Errorf("kindex %s --help does not name the exit statuses", c.name)
		}
	}
}

var long = strings.Repeat("m", 600)

// TestHostsAway: nobody there, somebody else there, and somebody silent: status 3
// and one line, in time.
func TestHostsAway(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	dump := filepath.Join(t.TempDir(), "dump")
	if err := os.WriteFile(dump, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{
		"127.0.0.1:1", "http://127.0.0.1:1", "https://127.0.0.1:1", "unix:" + filepath.Join(t.TempDir(), "none"),
		silent.Addr().String(), "http://" + silent.Addr().String(),
	} {
		for _, args := range []string{"workers", "top", "explain --tokens -", "dump", "diff --with http://127.0.0.1:1", "diff --dump " + dump, "diff --engine vllm=tcp://127.0.0.1:1,replay=tcp://127.0.0.1:1"} {
			code := 3
			if strings.HasPrefix(host, "unix:") && (strings.HasPrefix(args, "dump") || strings.Contains(args, "--with") || strings.Contains(args, "--dump")) {
				code = 2 // shared memory carries none
			}
			r := kindex(t, "1 2", append(strings.Fields(args), "--host", host, "--timeout", "200ms")...)
			if r.code != code || r.out != "" || !strings.HasPrefix(r.err, "kindex: ") || strings.Count(r.err, "\n") != 1 {
				t.Errorf("%s at %s: status %d, want %d: %q %q", args, host, r.code, code, r.out, r.err)
			}
		}
	}
	for _, args := range []string{"tail --engine vllm=tcp://127.0.0.1:1", "tail --relay 127.0.0.1:1"} {
		if r := kindex(t, "", append(strings.Fields(args), "--timeout", "300ms")...); r.code != 3 || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%s: status %d %q", args, r.code, r.err)
		}
	}
}

// TestTokens: a host that asks for a token gets the one of the file, and it is sent
// nowhere in the clear.
func TestTokens(t *testing.T) {
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	served := write("served", "read reader-token-of-this-test\n")
	h := startHost(t, func(c *indexsrv.Config) { c.TokenFile = served })
	good, wrong := write("good", "reader-token-of-this-test\n"), write("wrong", "another-token-of-this-test\n")
	for _, host := range []string{h.grpc, h.http} {
		for file, code := range map[string]int{"": 3, wrong: 3, good: 0} {
			args := []string{"workers", "--host", host}
			if file != "" {
				args = append(args, "--token-file", file)
			}
			r := kindex(t, "", args...)
			if r.code != code || strings.Contains(r.out+r.err, "of-this-test") || code == 3 && strings.Count(r.err, "\n") != 1 {
				t.Errorf("%s with %s: status %d, want %d: %q", host, filepath.Base(file), r.code, code, r.err)
			}
		}
	}
	for _, host := range []string{"192.0.2.1:1", "http://192.0.2.1:1"} {
		if r := kindex(t, "", "workers", "--token-file", good, "--host", host); r.code != 2 || !strings.Contains(r.err, "a token is not sent to 192.0.2.1 in the clear") {
			t.Errorf("in the clear: status %d %q", r.code, r.err)
		}
	}
}

// TestTLS: a host that asks for certificates is asked with them, over gRPC and HTTP.
func TestTLS(t *testing.T) {
	a, other := securetest.New(t, "ours"), securetest.New(t, "theirs")
	dir := t.TempDir()
	cert, key := a.Pair(dir, "host")
	ca := securetest.WriteFile(t, filepath.Join(dir, "ca.pem"), a.PEM)
	otherCA := securetest.WriteFile(t, filepath.Join(dir, "other.pem"), other.PEM)
	h := startHost(t, func(c *indexsrv.Config) { c.TLSCert, c.TLSKey, c.TLSClientCA = cert, key, ca })
	https := strings.Replace(h.http, "http:", "https:", 1)
	for _, host := range []string{h.grpc, https} {
		for flags, code := range map[string]int{
			"--tls-ca " + ca + " --tls-cert " + cert + " --tls-key " + key: 0,
			"--tls-ca " + ca:      3,
			"--tls-ca " + otherCA: 3,
			"":                    3,
		} {
			r := kindex(t, "", append([]string{"workers", "--json", "--timeout", "2s", "--host", host}, strings.Fields(flags)...)...)
			if r.code != code || code == 0 && r.out != "[]\n" || code != 0 && strings.Count(r.err, "\n") != 1 {
				t.Errorf("%s %s: status %d, want %d: %q %q", host, flags, r.code, code, r.out, r.err)
			}
		}
	}
	if r := kindex(t, "", "workers", "--host", h.http, "--tls-ca", ca); r.code != 2 || !strings.Contains(r.err, "must be https:// where --tls-ca") {
		t.Errorf("http with an authority: status %d %q", r.code, r.err)
	}
}

// TestCompletion: the scripts are what their shells read, and know every flag.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		r := kindex(t, "", "completion", shell)
		if r.code != 0 || r.err != "" {
			t.Fatalf("%s: status %d %s", shell, r.code, r.err)
		}
		for _, c := range commands() {
			for _, f := range c.flags {
				if !strings.Contains(r.out, "--"+f) && !strings.Contains(r.out, "-l "+f) {
					t.Errorf("%s: --%s is not in the script", shell, f)
				}
			}
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			continue // this machine has none to ask
		}
		file := filepath.Join(t.TempDir(), shell)
		if err := os.WriteFile(file, []byte(r.out), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), path, "-n", file).CombinedOutput(); err != nil {
			t.Errorf("%s -n: %v: %s", shell, err, out)
		}
		if shell != "bash" {
			continue
		}
		for words, want := range map[string]string{"kindex ex": "explain", "kindex explain --tok": "--tokens --token-file", "kindex completion z": "zsh", "kindex diff --wi": "--with"} {
			fields := strings.Fields(words)
			script := `source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kindex; echo "${COMPREPLY[@]}"`
			out, err := exec.CommandContext(t.Context(), path, append([]string{"-c", script, "x", file}, fields...)...).CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != want {
				t.Errorf("%s completes to %q, want %q (%v)", words, got, want, err)
			}
		}
	}
}

// TestFigures reads a host's metrics as HTTP has them.
func TestFigures(t *testing.T) {
	for line, want := range map[string]bool{
		`kindex_streams{status="active"} 3`: true, `a 1`: true, `a{b="c\"}",d="e"} 1.5e3`: true, `# HELP x`: false, ``: false, `a{b="c" 1`: false, `a{b=c} 1`: false, `a{`: false, `a x`: false, ` `: false,
	} {
		if _, _, _, ok := sample(line); ok != want {
			t.Errorf("%q: %v, want %v", line, ok, want)
		}
	}
	name, labels, v, _ := sample(`a{b="c\"}",d="e"} 1.5e3 99`)
	if name != "a" || labels["b"] != `c"}` || labels["d"] != "e" || v != 1500 {
		t.Errorf("%s %v %g", name, labels, v)
	}
}
