// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kindex/indexsrv/state"
	"kindex/internal/dirlock"
	"kindex/internal/kv"
	"kindex/shard"
)

// keptIn is a configuration that keeps its state in dir, only at the end.
func keptIn(dir string, change func(*Config)) func(*Config) {
	return func(c *Config) {
		c.StateDir, c.StateInterval = dir, 0
		if change != nil {
			change(c)
		}
	}
}

// stateCopy copies what is in a state directory now: what a host finds whose
// predecessor was killed at this moment.
func stateCopy(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // renamed meanwhile
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, e.Name()), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func (h *testHost) ready() {
	h.t.Helper()
	waitFor(h.t, "ready", func() bool { return len(h.Unready()) == 0 })
}

func (h *testHost) ids() (ids []string) {
	for _, w := range h.Instances("", "") {
		ids = append(ids, string(w.Instance))
	}
	return ids
}

// TestWarmRestart: a host that was told to stop comes back with its registrations and
// contents, and each stream goes on where it stood: what was published meanwhile comes
// through replay, nothing twice. Placeholder announcements, holes and orphans included.
func TestWarmRestart(t *testing.T) {
	dir := t.TempDir()
	e, other := startEngine(t, nil, nil), startEngine(t, nil, nil)
	first := startZMQHost(t, keptIn(dir, nil))
	first.ready()
	registerEngine(t, first, "1", e, "")
	registerEngine(t, first, `"two"`, other, `,"routing_group":"g","dp_rank":3`)
	e.publish(storeOf(0, 1, 2, 3, 4))
	e.publish(removeOf(3), storeOf(90, 91, 92)) // a hole; and an orphan
	other.publish(storeOf(0, 7))
	waitFor(t, "both", func() bool {
		n, _ := first.depth("1", 1, 2, 3)
		return n == 2 && first.listener("1").Orphans == 2 && first.listener(`"two"`, "3").Memberships == 1
	})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	e.publish(storeOf(4, 5)) // nobody listens

	second := startZMQHost(t, keptIn(dir, nil))
	second.ready()
	if got, want := second.ids(), []string{"1", `"two"`}; !slices.Equal(got, want) {
		t.Fatalf("registered: %s, want %s", got, want)
	}
	l := second.listener("1")
	if l.Resumed != 1 || l.Cold != "" || l.Status != "active" || l.Recovered != 1 || l.Restarts != 0 || l.Epoch != 1 || *l.LastSeq != 2 || l.Orphans != 2 {
		t.Errorf("after the restart: %s", jsonOf(t, l))
	}
	e.publish(storeOf(2, 3), storeOf(0, 90)) // the hole heals; the orphan's parent
	waitFor(t, "what comes live", func() bool { n, _ := second.depth("1", 1, 2, 3, 4, 5); return n == 5 })
	waitFor(t, "the orphan", func() bool { n, _ := second.depth("1", 90, 91, 92); return n == 3 })
	if n, _ := second.depth("1", 1, 2, 3, 4, 5); n != 5 {
		t.Errorf("depth %d, want 5", n)
	}
	if two := second.listener(`"two"`, "3"); two.Resumed != 1 || two.Memberships != 1 || two.Endpoint != other.live {
		t.Errorf("the other: %s", jsonOf(t, two))
	}
	cold := startZMQHost(t, nil)
	registerEngine(t, cold, "1", e, "")
	registerEngine(t, cold, `"two"`, other, `,"routing_group":"g","dp_rank":3`)
	cold.ready()
	if got, want := second.must(200, "GET", "/digest", ""), cold.must(200, "GET", "/digest", ""); got != want {
		t.Errorf("digests %s, of a host that read everything %s", got, want)
	}
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestKilled: a host that was killed comes back with the last state file, as old as
// that may be, and the registrations as they were last.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	e, other := startEngine(t, nil, nil), startEngine(t, nil, nil)
	h := startZMQHost(t, keptIn(dir, func(c *Config) { c.StateInterval = 20 * time.Millisecond }))
	h.ready()
	registerEngine(t, h, "1", e, "")
	registerEngine(t, h, "2", other, "")
	e.publish(storeOf(0, 1, 2))
	waitFor(t, "a state file with it", func() bool {
		for _, f := range files(dir, stateFile) {
			var got contents
			if readStateFile(f.path, &got) == nil && got.positions == 2 {
				return true
			}
		}
		return false
	})
	h.must(200, "POST", "/unregister", `{"instance_id":2,"model_name":"m"}`)
	killed := stateCopy(t, dir) // at once: what was answered is kept
	e.publish(storeOf(2, 3))
	again := startZMQHost(t, keptIn(killed, nil))
	again.ready()
	if got := again.ids(); !slices.Equal(got, []string{"1"}) {
		t.Errorf("registered: %s, want 1 alone: 2 was unregistered", got)
	}
	if n, degraded := again.depth("1", 1, 2, 3); n != 3 || degraded {
		t.Errorf("depth %d, degraded %v", n, degraded)
	}
	if l := again.listener("1"); l.Resumed != 1 {
		t.Errorf("listener: %s", jsonOf(t, l))
	}
}

// contents counts what a state's streams have.
type contents struct {
	state.Checked
	positions int
}

func (c *contents) Stream(st *state.Stream) error {
	c.positions += len(st.Content.Hashes)
	return nil
}

// TestRestartedMeanwhile: an engine that was another one when the host came back, and
// one whose replay begins later by now, leave nothing stale behind.
func TestRestartedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	e := startEngine(t, nil, nil)
	rolled := startEngine(t, nil, func(e *engine) { e.keep = 2 })
	first := startZMQHost(t, keptIn(dir, nil))
	first.ready()
	registerEngine(t, first, "1", e, "")
	registerEngine(t, first, "2", rolled, "")
	e.publish(storeOf(0, 1, 2))
	rolled.publish(storeOf(0, 1, 2))
	waitFor(t, "both", func() bool { return first.listener("1").Memberships+first.listener("2").Memberships == 4 })
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	e.kill()
	e = startEngine(t, e, nil)
	e.publish(storeOf(0, 8))
	for range 5 {
		rolled.publish(storeOf(0, 9))
	}
	h := startZMQHost(t, keptIn(dir, nil))
	waitFor(t, "begun", func() bool { return h.beginning.Load() == nil })
	waitFor(t, "the new life", func() bool { n, _ := h.depth("1", 8); return n == 1 })
	if n, _ := h.depth("1", 1, 2); n != 0 {
		t.Errorf("%d blocks of the old life", n)
	}
	waitFor(t, "what the replay has", func() bool { n, _ := h.depth("2", 9); return n == 1 })
	if n, degraded := h.depth("2", 1, 2); n > 0 && !degraded {
		t.Errorf("%d blocks of before the gap, and the answer does not say so", n)
	}
	if l := h.listener("2"); l.Status == "active" || l.LastError == "" {
		t.Errorf("what was rolled past: %s, want it said", jsonOf(t, l))
	}
}

// TestConfiguredWins: a worker of the command line is as the command line says; one of
// another endpoint is another stream, whose content is not the kept one's.
func TestConfiguredWins(t *testing.T) {
	dir := t.TempDir()
	e, moved := startEngine(t, nil, nil), startEngine(t, nil, nil)
	first := startZMQHost(t, keptIn(dir, nil))
	first.ready()
	registerEngine(t, first, "1", e, "")
	registerEngine(t, first, "2", e, "")
	registerEngine(t, first, "3", e, "")
	e.publish(storeOf(0, 1, 2))
	moved.publish(storeOf(0, 7))
	waitFor(t, "content", func() bool { return first.listener("1").Memberships == 2 && first.listener("3").Memberships == 2 })
	first.ready()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	worker := func(id uint64, e *engine) Registration {
		return Registration{Instance: NumberID(id), Endpoint: e.live, ReplayEndpoint: e.back, Model: "m", BlockSize: testBlock}
	}
	h := startZMQHost(t, keptIn(dir, func(c *Config) { c.Workers = []Registration{worker(2, moved), worker(3, e)} }))
	h.ready()
	if got := h.ids(); !slices.Equal(got, []string{"2", "3", "1"}) {
		t.Errorf("registered: %s", got)
	}
	if n, _ := h.depth("2", 1, 2); n != 0 || h.listener("2").Endpoint != moved.live {
		t.Errorf("the moved one: %d old blocks, %s", n, jsonOf(t, h.listener("2")))
	}
	waitFor(t, "the moved one's own", func() bool { n, _ := h.depth("2", 7); return n == 1 })
	for _, id := range []string{"1", "3"} {
		if l := h.listener(id); l.Resumed != 1 || l.Memberships != 2 {
			t.Errorf("%s: %s", id, jsonOf(t, l))
		}
	}
}

// startLogged is a host over a fake source, and what it logs.
func startLogged(t *testing.T, change func(*Config)) (*testHost, *lockedBuffer) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Listen, cfg.CleanupTimeout, cfg.DrainTimeout = "127.0.0.1:0", 5*time.Second, 5*time.Second
	change(&cfg)
	log := &lockedBuffer{}
	src := &fakeSource{}
	h, err := newHost(cfg, src, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	return serveTestHost(t, h, src), log
}

// TestRefusedFiles: the newest good file is taken; each other is named with its
// reason; with none the host starts cold.
func TestRefusedFiles(t *testing.T) {
	dir := t.TempDir()
	h := startTestHost(t, keptIn(dir, nil))
	waitFor(t, "begun", func() bool { return len(h.Unready()) == 0 })
	h.register(reg("1", "m", ""))
	for range 2 { // two files
		if err := h.keeper.write(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.stop(); err != nil {
		t.Fatal(err)
	}
	states := files(dir, stateFile)
	if len(states) != keptFiles {
		t.Fatalf("%d state files are kept, want %d", len(states), keptFiles)
	}
	damage := func(path string, how func([]byte) []byte) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, how(b), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, step := range []struct {
		how  func()
		ids  []string
		says []string
	}{
		{func() { damage(states[0].path, func(b []byte) []byte { return b[:len(b)/2] }) }, []string{"1"}, []string{"cut short", "state restored"}},
		{func() { damage(states[1].path, func(b []byte) []byte { b[8] = 9; return b }) }, []string{"1"}, []string{"its version is 9", "state restored"}},
		{func() {
			for _, f := range files(dir, registrationsFile) {
				damage(f.path, func(b []byte) []byte { b[len(b)-1]++; return b })
			}
		}, nil, []string{"checksum", "starting cold"}},
	} {
		step.how()
		there := stateCopy(t, dir)
		again, log := startLogged(t, keptIn(there, nil))
		waitFor(t, "begun", func() bool { return again.beginning.Load() == nil })
		if got := again.ids(); !slices.Equal(got, step.ids) {
			t.Errorf("step %d: registered %s, want %s", i, got, step.ids)
		}
		for _, want := range step.says {
			if !strings.Contains(log.String(), want) {
				t.Errorf("step %d: no %q in the log:\n%s", i, want, log)
			}
		}
	}
}

// TestStateDirTaken: two hosts never share a directory; one that is none is refused.
func TestStateDirTaken(t *testing.T) {
	dir := t.TempDir()
	startTestHost(t, keptIn(dir, nil))
	listens := func(dir string) error {
		cfg := DefaultConfig()
		cfg.Listen, cfg.StateDir = "127.0.0.1:0", dir
		h, err := newHost(cfg, &fakeSource{}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		err = h.Listen()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		return err
	}
	if err := listens(dir); !errors.Is(err, dirlock.ErrTaken) || !strings.Contains(err.Error(), "state-dir") {
		t.Errorf("a directory in use: got %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := listens(file); err == nil || !strings.Contains(err.Error(), "state-dir") {
		t.Errorf("a file: got %v", err)
	}
}

// TestUnwritable: a directory that cannot be written is told by a line and a metric;
// the host goes on, and so does the keeping once it can.
func TestUnwritable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	h, log := startLogged(t, keptIn(dir, func(c *Config) { c.StateInterval = 10 * time.Millisecond }))
	waitFor(t, "begun", func() bool { return len(h.Unready()) == 0 })
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	h.register(reg("1", "m", ""))
	waitFor(t, "the alarm", func() bool { return strings.Contains(log.String(), "state cannot be kept") })
	h.put(h.rank("m", "", "1", 0), kv.TierDevice, "", "", 1, tokens(1, 8), nil)
	h.must(200, "POST", "/query", query(t, tokens(1, 8), ""))
	text := h.must(200, "GET", "/metrics", "")
	if !strings.Contains(text, "\nkindex_state_failing 1\n") || strings.Contains(text, "\nkindex_state_write_failures_total 0\n") {
		t.Error("no metric says that the state is not kept")
	}
	if n := strings.Count(log.String(), "what=registrations"); n > 1 {
		t.Errorf("%d lines about the same failure", n)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h.register(reg("2", "m", ""))
	waitFor(t, "the end of the alarm", func() bool { return strings.Contains(log.String(), "state is kept again") })
}

// TestLoadIsTheContent: what was copied from one holder and loaded into another is the
// same content, copies, tiers, groups and holes included, whatever the kind of index.
func TestLoadIsTheContent(t *testing.T) {
	for _, kind := range shard.Kinds {
		h := startTestHost(t, func(c *Config) { c.KVIndex = kind })
		h.register(reg("1", "m", ""))
		r := h.rank("m", "", "1", 0)
		for seed := range uint64(4) {
			h.churnContent(r, rand.New(rand.NewPCG(seed, 4)), 300) //nolint:gosec // seeded on purpose
			c, err := h.idx.Content(r.holder)
			if err != nil {
				t.Fatal(err)
			}
			to, err := h.idx.AddHolder(r.cfg.Model)
			if err == nil {
				err = h.idx.Load(to, r.cfg.Model, c)
			}
			if err != nil {
				t.Fatal(err)
			}
			again, err := h.idx.Content(to)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := saidOf(again), saidOf(c); !slices.Equal(got, want) || again.Digest() != c.Digest() {
				t.Fatalf("%s, seed %d: %d positions loaded, of %d, and they differ", kind, seed, len(got), len(want))
			}
			if err := h.idx.Drop(to); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// saidOf lists a content's positions with their copies, in no order of its own.
func saidOf(c *shard.Content) (all []string) {
	paths := make([]string, len(c.Hashes))
	for i, st := range c.Stretches {
		above := fmt.Sprint(st.Namespace)
		if st.Parent >= 0 {
			above = paths[st.Parent]
		}
		for at := st.First; at < c.End(i); at++ {
			above = fmt.Sprint(above, "/", c.Hashes[at])
			paths[at] = above
			var copies []string
			for _, cp := range c.CopiesOf(at) {
				copies = append(copies, fmt.Sprint(cp))
			}
			slices.Sort(copies)
			all = append(all, fmt.Sprint(above, copies))
		}
	}
	slices.Sort(all)
	return all
}

// TestNoTokensKept: the tokens of what engines announced are in no file.
func TestNoTokensKept(t *testing.T) {
	dir := t.TempDir()
	e := startEngine(t, nil, nil)
	h := startZMQHost(t, keptIn(dir, nil))
	h.ready()
	registerEngine(t, h, "1", e, "")
	e.publish(storeOf(0, 1_000_001, 1_000_002), storeOf(5, 1_000_003)) // the last one an orphan
	waitFor(t, "content", func() bool { l := h.listener("1"); return l.Memberships == 2 && l.Orphans == 1 })
	if err := h.stop(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, entry := range entries {
		b, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		read += len(b)
		for n := uint64(1_000_001); n <= 1_000_003; n++ {
			for _, token := range blockTokens(n) {
				for _, form := range [][]byte{{byte(token), byte(token >> 8), byte(token >> 16), byte(token >> 24)}, []byte(fmt.Sprint(token))} {
					if bytes.Contains(b, form) {
						t.Errorf("%s has token %d", entry.Name(), token)
					}
				}
			}
		}
	}
	if read == 0 {
		t.Error("nothing was kept")
	}
}

// TestPeerBootstrap: a new host copies what another one knows and goes on beside it.
func TestPeerBootstrap(t *testing.T) {
	e := startEngine(t, nil, nil)
	a := startZMQHost(t, nil)
	registerEngine(t, a, "1", e, "")
	e.publish(storeOf(0, 1, 2, 3))
	waitFor(t, "content", func() bool { return a.listener("1").Memberships == 3 })
	b := startZMQHost(t, func(c *Config) { c.Peers = "http://127.0.0.1:1, " + a.url })
	b.ready()
	if l := b.listener("1"); l.Resumed != 1 || l.Memberships != 3 {
		t.Errorf("copied: %s", jsonOf(t, l))
	}
	e.publish(storeOf(3, 4))
	waitFor(t, "what comes live", func() bool { n, d := b.depth("1", 1, 2, 3, 4); return n == 4 && !d })
	waitFor(t, "equal", func() bool { return a.must(200, "GET", "/digest", "") == b.must(200, "GET", "/digest", "") })
	if got := b.must(200, "GET", "/peers", ""); got != `["http://127.0.0.1:1","`+a.url+`"]` {
		t.Errorf("peers: %s", got)
	}

	// A host that has nothing is told of one while it runs.
	dir := t.TempDir()
	c := startZMQHost(t, keptIn(dir, nil))
	c.ready()
	c.want("GET", "/peers", "", 200, "[]")
	c.want("POST", "/register_peer", `{"url":"`+b.url+`/"}`, 201, `{"status":"ok"}`)
	waitFor(t, "the copy", func() bool { return len(c.ids()) == 1 && len(c.Unready()) == 0 })
	if n, degraded := c.depth("1", 1, 2, 3, 4); n != 4 || degraded {
		t.Errorf("depth %d, degraded %v", n, degraded)
	}
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	again := startZMQHost(t, keptIn(dir, nil))
	again.ready()
	again.want("GET", "/peers", "", 200, `["`+b.url+`"]`) // kept, too
	again.want("POST", "/deregister_peer", `{"url":"`+b.url+`"}`, 200, `{"status":"ok"}`)
	again.want("POST", "/deregister_peer", `{"url":"`+b.url+`"}`, 404, `{"error":"peer not found"}`)
	for _, bad := range []string{`{}`, `{"url":1}`, `{"url":"tcp://h"}`, `{"url":"http://"}`, `{"url":"http://u:p@h/"}`} {
		if got := again.error("POST", "/register_peer", bad, 400); !strings.Contains(got, "url") {
			t.Errorf("%s: %s", bad, got)
		}
	}
}

// TestPeersGivenUp: a host whose peers do not answer, or answer nonsense, waits no
// longer than it was told; one whose peers know nothing does not wait.
func TestPeersGivenUp(t *testing.T) {
	none := startTestHost(t, nil)
	quick := startTestHost(t, func(c *Config) { c.Peers, c.PeerTimeout = none.url, time.Hour })
	waitFor(t, "begun", func() bool { return len(quick.Unready()) == 0 })

	// Not an index host: /health of one, for a state.
	h, log := startLogged(t, func(c *Config) {
		c.Peers, c.PeerTimeout = "http://127.0.0.1:1,"+none.url+"/health", 100*time.Millisecond
		c.Workers = []Registration{{Instance: NumberID(9), Endpoint: "tcp://127.0.0.1:1", Model: "m", BlockSize: 16}}
	})
	waitFor(t, "begun", func() bool { return h.beginning.Load() == nil })
	for _, want := range []string{"peer not copied", "404", "refused", "given up"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in the log:\n%s", want, log)
		}
	}
	if got := h.ids(); !slices.Equal(got, []string{"9"}) {
		t.Errorf("registered: %s", got)
	}
}

// TestFrozenAlone: while one stream stands still, what it is told waits for it, and
// others of the same lane and shard go on; so does whoever asks how it stands.
func TestFrozenAlone(t *testing.T) {
	e, other := startEngine(t, nil, nil), startEngine(t, nil, nil)
	h := startZMQHost(t, func(c *Config) { c.ShardsPerNode, c.LanesPerNode = 1, 1 })
	registerEngine(t, h, "1", e, "")
	registerEngine(t, h, "2", other, "")
	h.ready()
	h.rank("m", "", "1", 0).stream.freeze(func(StreamStatus, *Resume) {
		e.publish(storeOf(0, 1))
		for n := uint64(1); n <= 3; n++ {
			other.publish(storeOf(0, n))
		}
		waitFor(t, "the other stream", func() bool { return h.listener("2").Memberships == 3 })
		if l := h.listener("1"); l.Memberships != 0 {
			t.Errorf("a frozen stream went on: %s", jsonOf(t, l))
		}
	})
	waitFor(t, "what waited", func() bool { return h.listener("1").Memberships == 1 })
}

// A host that does not serve writes no state, and nobody waits for one.
func TestStateNotServed(t *testing.T) {
	c := DefaultConfig()
	c.StateDir = t.TempDir()
	h, err := New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	h.keeper.note()
	h.keeper.wait(t.Context()) // hangs if it waits
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(c.StateDir); err != nil || len(entries) > 0 {
		t.Errorf("got %v (%v), want an empty directory", entries, err)
	}
}
