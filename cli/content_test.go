// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kindex/indexsrv"
	"kindex/internal/kv"
	"kindex/internal/lookup"
	"kindex/relay"
)

// spec is --engine for e.
func (e *engine) spec() string { return "vllm=" + e.live + ",replay=" + e.back }

// TestDumpAndLoad: a dump is the same over gRPC and HTTP, and comes to the digests
// that the host tells.
func TestDumpAndLoad(t *testing.T) {
	h, _ := fleet(t)
	r := kindex(t, "", "dump", "--host", h.grpc)
	over := kindex(t, "", "dump", "--host", h.http)
	if r.code != 0 || r.out != over.out || !strings.HasPrefix(r.out, `{"model":"m:default","block_size":4,"streams":{"1":{"0":{"epoch":1,"last_seq":1,"status":"active","orphans":0}}}}`) {
		t.Fatalf("status %d\n%s\nover HTTP\n%s%s", r.code, r.out, over.out, r.err)
	}
	one := kindex(t, "", "dump", "--host", h.http, "--instance", "b")
	if n := strings.Count(one.out, `"streams"`); n != 1 || one.code != 0 {
		t.Errorf("of one instance: status %d, %d streams", one.code, n)
	}
	if none := kindex(t, "", "dump", "--host", h.grpc, "--model", "zz"); none.code != 1 || none.out != "" {
		t.Errorf("of no model: status %d, %q", none.code, none.out)
	}
	l := kindex(t, r.out, "load", "-", "--json")
	var streams []loadedJSON
	if err := json.Unmarshal([]byte(l.out), &streams); err != nil || l.code != 0 || len(streams) != 2 {
		t.Fatalf("status %d, %v: %s%s", l.code, err, l.out, l.err)
	}
	text := kindex(t, r.out, "load", "-")
	for _, s := range streams {
		v := kindex(t, "", "diff", "--host", h.grpc, "--with", h.http, "--instance", s.Instance.Text)
		if s.Blocks != 2 || s.LastSeq == nil || *s.LastSeq != 1 || s.Status != "active" || !strings.Contains(text.out, s.Digest) || v.code != 0 {
			t.Errorf("%+v: %s%s", s, v.out, v.err)
		}
	}
	if got := columns(strings.SplitN(text.out, "\n", 2)[0]); got != "INSTANCE | RANK | MODEL | BLOCK | STATUS | EPOCH | SEQ | ORPHANS | BLOCKS HELD | DIGEST" {
		t.Errorf("table: %s", got)
	}
	told := map[string]bool{}
	ds, err := digestsOf(t.Context(), []host{newHTTPHost(h.http, nil, func() (string, error) { return "", nil })}, selection{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range ds {
		told[digestText(d.digest)] = true
	}
	if !told[streams[0].Digest] || !told[streams[1].Digest] {
		t.Errorf("digests %v, loaded %s and %s", told, streams[0].Digest, streams[1].Digest)
	}
}

// TestBadDumps: what is no dump is refused with the line's number.
func TestBadDumps(t *testing.T) {
	const head = `{"model":"m:default","block_size":4,"streams":{"1":{"0":{"epoch":1,"last_seq":1,"status":"active","orphans":0}}}}` + "\n"
	event := func(data string) string {
		return head + `{"model":"m:default","worker_id":1,"storage_tier":"device","event":{"event_id":0,"data":{` + data + `},"dp_rank":0}}`
	}
	const block = `{"block_hash":5,"tokens_hash":6,"mm_extra_info":null}`
	for text, want := range map[string]string{
		"x":         "line 1: must be a line of kindex dump",
		"{}":        "line 1: must be a stream's head",
		"[]":        "line 1: ",
		head + "{}": "line 2: must be a stream's head",
		strings.Replace(head, "m:default", "m", 1):                                               `line 1: model "m" must be`,
		strings.Replace(head, `"0":`, `"x":`, 1):                                                 "line 1: streams: rank",
		strings.Replace(head, `"block_size":4`, `"block_size":0`, 1):                             "line 1: a head must have one stream",
		strings.TrimPrefix(event(`"removed":{"block_hashes":[]}`), head):                         "line 1: an event before the head",
		strings.Replace(event(`"removed":{"block_hashes":[]}`), `"dp_rank":0`, `"dp_rank":1`, 1): "line 2: an event of another stream",
		event(``): "line 2: an event must have stored",
		event(`"stored":{"parent_hash":null,"blocks":[]}`):                                                "line 2: stored: must have 1 to",
		event(`"stored":{"parent_hash":77,"blocks":[` + block + `]}`):                                     "line 2: stored: parent_hash 77 was not told before",
		event(`"removed":{"block_hashes":[5]}`):                                                           "line 2: removed: block_hash 5 was not told",
		event(`"stored":{"parent_hash":null,"group_idx":300,"blocks":[` + block + `]}`):                   "line 2: ",
		strings.Replace(event(`"stored":{"parent_hash":null,"blocks":[`+block+`]}`), "device", "tape", 1): `line 2: storage_tier "tape" must be one of device, host, disk`,
		head + strings.Repeat("x", maxLine+1):                                                             "line 2: must be at most",
	} {
		r := kindex(t, text, "load", "-")
		if r.code != 2 || r.out != "" || !strings.HasPrefix(r.err, "kindex: -: dump, "+want) || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%.150s: status %d %.200q, want %q", text, r.code, r.err, want)
		}
	}
	for text, streams := range map[string]int{"": 0, "\n\n": 0, head: 1, strings.TrimSuffix(head, "\n"): 1, event(`"stored":{"parent_hash":null,"blocks":[` + block + `]}`): 1} {
		p := &replayer{}
		if err := readDump(bufio.NewReader(strings.NewReader(text)), lookup.ErrInvalid, p); err != nil || len(p.streams) != streams {
			t.Errorf("%.100q: %v, %d streams", text, err, len(p.streams))
		}
	}
	for _, label := range [][3]string{{"default", "m", "default"}, {"t:@%", "a/b:c@d", "g:@%"}} {
		tenant, model, group, err := lookup.ParseModelLabel(lookup.ModelLabel(label[0], label[1], label[2]))
		if got := [3]string{tenant, model, group}; err != nil || got != label {
			t.Errorf("%q: %q, %v", label, got, err)
		}
	}
}

// FuzzReadDump: no dump does harm.
func FuzzReadDump(f *testing.F) {
	f.Add(`{"model":"m:default","block_size":4,"streams":{"1":{"0":{"epoch":1,"last_seq":1,"status":"active","orphans":0}}}}` + "\n" +
		`{"model":"m:default","worker_id":1,"storage_tier":"device","event":{"event_id":0,"data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":5,"tokens_hash":6,"mm_extra_info":null}]}},"dp_rank":0}}`)
	f.Fuzz(func(t *testing.T, text string) {
		p := &replayer{}
		err := readDump(bufio.NewReader(strings.NewReader(text)), lookup.ErrInvalid, p)
		if err != nil && strings.Contains(err.Error(), "BUG") {
			t.Error(err)
		}
		for _, s := range p.streams {
			_ = s.digest()
		}
	})
}

// TestDiffEngine: an index and the engine that it follows agree, whoever speaks
// meanwhile; with another engine it differs, and with one that has lost its
// beginning what is left is compared.
func TestDiffEngine(t *testing.T) {
	h, es := fleet(t)
	for _, host := range []string{h.grpc, h.http} {
		kindex(t, "", "diff", "--host", host, "--engine", es[0].spec(), "--instance", "1").want(t, 0, "instance 1 rank 0 of m: equal at batch 1: 2 blocks\n")
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
				es[0].publish(stored("GPU", 1, 100+n%500), removed(100+(n+250)%500))
				time.Sleep(time.Millisecond)
			}
		}
	}()
	for range 5 {
		r := kindex(t, "", "diff", "--host", h.grpc, "--engine", es[0].spec(), "--instance", "1", "--timeout", "20s")
		if r.code != 0 || !regexp.MustCompile(`^instance 1 rank 0 of m: equal at batch \d+: \d+ blocks\n$`).MatchString(r.out) {
			t.Errorf("while it speaks: status %d\n%s%s", r.code, r.out, r.err)
		}
	}
	close(stop)
	<-done

	kindex(t, "", "diff", "--host", h.grpc, "--engine", es[1].spec(), "--instance", "b").want(t, 0, "instance b rank 0 of m: equal at batch 1: 2 blocks\n")
	other := startEngine(t, 100)
	other.publish(stored("GPU", 0, 1, 2))
	other.publish(stored("CPU", 0, 1))
	r := kindex(t, "", "diff", "--host", h.grpc, "--engine", other.spec(), "--instance", "b")
	hash := func(n int) uint64 { return uint64(kv.HashBlock(kv.HashSeed, tokensOf(n), nil)) }
	r.want(t, 1, fmt.Sprintf(`instance b rank 0 of m: differs at batch 1: 1 only in the index, 2 only in the engine's replay
  only index  block 2, tokens_hash %d, block_hash 4, device
  only engine block 0, tokens_hash %d, block_hash 1, host
  only engine block 1, tokens_hash %d, block_hash 2, device
`, hash(4), hash(1), hash(2)))
	r = kindex(t, "", "diff", "--host", h.grpc, "--engine", other.spec(), "--instance", "b", "--json", "--show", "1")
	var vs []verdict
	if err := json.Unmarshal([]byte(r.out), &vs); err != nil || r.code != 1 || len(vs) != 1 || vs[0].Result != resultDiffers || vs[0].OnlyIndex != 1 || vs[0].OnlyOther != 2 ||
		len(vs[0].OtherCopy) != 1 || *vs[0].LastSeq != 1 {
		t.Errorf("status %d, %v: %s", r.code, err, r.out)
	}

	late := startEngine(t, 1) // its replay has the last batch alone
	late.publish(stored("GPU", 0, 1, 2, 4))
	late.publish(stored("GPU", 0, 1))
	r = kindex(t, "", "diff", "--host", h.grpc, "--engine", late.spec(), "--instance", "b")
	r.want(t, 0, `instance b rank 0 of m: equal at batch 1: 2 blocks
  note: compared one way only, what the index has beyond it is not counted: batches 0 to 0 are lost: the replay begins at 1
`)

	// An engine that has not come so far, one that is not there, and a stream that is
	// not named.
	young := startEngine(t, 1)
	young.publish(stored("GPU", 0, 1))
	r = kindex(t, "", "diff", "--host", h.grpc, "--engine", young.spec(), "--instance", "b", "--timeout", "500ms")
	if r.code != 3 || !strings.HasPrefix(r.out, "instance b rank 0 of m: not compared: no common batch in time: the index at batch 1, the other at batch 0") {
		t.Errorf("too young: status %d\n%s%s", r.code, r.out, r.err)
	}
	for args, want := range map[string]string{
		"":                      "--instance: must be given (with --model, where it has several), there are 1 of m:default, b of m:default",
		"--instance zz":         "no worker of the index is chosen that has rank 0",
		"--instance b --rank 3": "no worker of the index is chosen that has rank 3",
	} {
		r := kindex(t, "", append([]string{"diff", "--host", h.grpc, "--engine", es[0].spec()}, strings.Fields(args)...)...)
		if r.code == 0 || !strings.HasPrefix(r.err, "kindex: "+want) {
			t.Errorf("%s: status %d %q", args, r.code, r.err)
		}
	}
	r = kindex(t, "", "diff", "--host", h.grpc, "--engine", "vllm="+es[0].live, "--instance", "b")
	if r.code != 2 || !strings.HasPrefix(r.err, "kindex: --engine: must have replay=ENDPOINT") {
		t.Errorf("without a replay socket: status %d %q", r.code, r.err)
	}
}

// TestDiffRelay: an index holds what a relay of the same engine has.
func TestDiffRelay(t *testing.T) {
	h, es := fleet(t)
	addr := startRelay(t, es[0])
	r := kindex(t, "", "diff", "--host", h.grpc, "--relay", addr, "--instance", "1")
	r.want(t, 0, "instance 1 rank 0 of m: equal at batch 1: 2 blocks\n")
	r = kindex(t, "", "diff", "--host", h.http, "--relay", addr, "--instance", "b", "--show", "0")
	r.want(t, 1, "instance b rank 0 of m: differs at batch 1: 1 only in the index, 1 only in the relay\n")

	r = kindex(t, "", "tail", "--relay", addr, "--from-start", "--count", "2")
	if r.code != 0 || !strings.Contains(r.out, "stored 3 blocks at a root, device: 1 2 3\n") || !strings.Contains(r.out, "removed 1 block, device: 2\n") {
		t.Errorf("tail: status %d\n%s%s", r.code, r.out, r.err)
	}
}

// startRelay begins a relay of e and returns its gRPC address.
func startRelay(t *testing.T, e *engine) string {
	t.Helper()
	cfg := relay.DefaultConfig()
	cfg.Listen, cfg.HTTP = "127.0.0.1:0", "127.0.0.1:0"
	cfg.MinHashBlock = testBlock
	cfg.Engines = []relay.EngineSpec{{Kind: "vllm", Endpoint: e.live, Replay: e.back}}
	h, err := relay.New(cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("the relay's drain: %v", err)
		}
	})
	return h.Addr(0)
}

// TestDiffHosts: two hosts of the same engines agree, until one follows another.
func TestDiffHosts(t *testing.T) {
	h, es := fleet(t)
	h2 := startHost(t, nil)
	h2.follow("1", "m", es[0])
	h2.at(1)
	for _, pair := range [][2]string{{h.grpc, h2.grpc}, {h.http, h2.grpc}, {h.grpc, h2.http}} {
		r := kindex(t, "", "diff", "--host", pair[0], "--with", pair[1], "--instance", "1")
		r.want(t, 0, "instance 1 rank 0 of m: equal at batch 1\n")
	}
	r := kindex(t, "", "diff", "--host", h.grpc, "--with", h2.grpc)
	r.want(t, 1, `instance 1 rank 0 of m: equal at batch 1
instance b rank 0 of m: differs before the first batch
  note: this stream is only at the first host
`)
	h2.follow("b", "m", es[0])
	h2.at(1)
	r = kindex(t, "", "diff", "--host", h.grpc, "--with", h2.grpc)
	if r.code != 1 || !regexp.MustCompile(`instance b rank 0 of m: differs at batch 1\n  note: digests [0-9a-f]{16} and [0-9a-f]{16}\n$`).MatchString(r.out) {
		t.Errorf("another engine: status %d\n%s", r.code, r.out)
	}

	// A dump holds as long as nothing is said, and is not compared afterwards.
	file := filepath.Join(t.TempDir(), "dump")
	if err := os.WriteFile(file, []byte(kindex(t, "", "dump", "--host", h.grpc).out), 0o600); err != nil {
		t.Fatal(err)
	}
	kindex(t, "", "diff", "--host", h.http, "--dump", file).want(t, 0, "instance 1 rank 0 of m: equal at batch 1: 2 blocks\ninstance b rank 0 of m: equal at batch 1: 2 blocks\n")
	es[0].publish(stored("GPU", 1, 7))
	h.settled(func(w indexsrv.Worker, l indexsrv.Listener) bool { return string(w.Instance) != "1" || *l.LastSeq == 2 })
	r = kindex(t, "", "diff", "--host", h.grpc, "--dump", file)
	r.want(t, 3, "instance 1 rank 0 of m: not compared: the index is at batch 2, the other at 1\ninstance b rank 0 of m: equal at batch 1: 2 blocks\n")
	r = kindex(t, "", "diff", "--host", h.grpc, "--with", h2.grpc, "--model", "zz")
	if r.code != 1 || !strings.Contains(r.err, "there is no stream to compare") {
		t.Errorf("no model: status %d %q", r.code, r.err)
	}
}

// TestTail: the events of an engine as lines and as JSON; no token id is among them
// unless that is asked for.
func TestTail(t *testing.T) {
	e := startEngine(t, 100)
	ev := stored("CPU", 9, 1, 2)
	ev.LoRAName, ev.Extra, ev.HasExtra = "adapter", [][]kv.ExtraKey{{{Kind: kv.ExtraString, ID: "salt-of-a-prompt"}}, nil}, true
	e.publish(stored("GPU", 0, 1, 2, 3, 4, 5), removed(2))
	e.publish(ev)
	e.publish(kv.Event{Kind: kv.KindCleared})
	e.publish()
	args := []string{"tail", "--engine", e.spec(), "--from-start", "--count", "4"}
	r := kindex(t, "", args...)
	if r.code != 0 || columns(plain(r.out)) != `TIME | batch 0 | rank 0 | stored 5 blocks of 4 at a root, device, full_attention, group 0: 1 2 3 4 ...
TIME | batch 0 | rank 0 | removed 1 block, device, group 0: 2
TIME | batch 1 | rank 0 | stored 2 blocks of 4 below 9, host, lora adapter, full_attention, group 0, 1 block with keys: 1 2
TIME | batch 2 | rank 0 | cleared all
TIME | batch 3 | rank 0 | empty
` {
		t.Errorf("status %d\n%s%s", r.code, columns(plain(r.out)), r.err)
	}
	j := kindex(t, "", append(args, "--json")...)
	var first tailEvent
	if err := json.Unmarshal([]byte(strings.SplitN(j.out, "\n", 2)[0]), &first); err != nil || first.Event != "BlockStored" || first.Tokens != 20 || first.Blocks != 5 || *first.Seq != 0 || len(first.Hashes) != 5 {
		t.Errorf("%v: %s", err, j.out)
	}
	for _, out := range []string{r.out, j.out} {
		if strings.Contains(out, fmt.Sprint(secretToken/1000)) || strings.Contains(out, "salt-of-a-prompt") {
			t.Errorf("a token id or a key is shown:\n%s", out)
		}
	}
	for _, more := range []string{"--json", "--json=false"} {
		if shown := kindex(t, "", append(args, "--show-tokens", more)...); !strings.Contains(shown.out, fmt.Sprint(secretToken+testBlock)) {
			t.Errorf("%s: asked for, no token id is shown:\n%s", more, shown.out)
		}
	}
	live := make(chan result, 1)
	go func() { live <- kindex(t, "", "tail", "--engine", "vllm="+e.live, "--count", "1", "--timeout", "20s") }()
	for len(live) == 0 {
		e.publish(stored("GPU", 0, 8))
		time.Sleep(20 * time.Millisecond)
	}
	if r := <-live; r.code != 0 || !strings.Contains(r.out, "stored 1 block of 4 at a root, device, full_attention, group 0: 8\n") {
		t.Errorf("live: status %d\n%s%s", r.code, r.out, r.err)
	}
}
