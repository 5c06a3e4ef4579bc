// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/relay/wire"
)

// The token ids of prompts are not to be had from a host: it hashes them as they
// come and forgets them. This file sends distinctive ids by every way in, well and
// badly, and looks for them in all that comes out.
//
// A new way in belongs into secretWays, a new way out into secretOutputs; a new GET
// route, and a new file below a directory that the host writes, is looked at of
// itself.

// secretToken returns distinctive token id i: ten digits, and four bytes of which
// none is 0.
func secretToken(i int) uint32 {
	x := uint64(i) + 1
	x ^= x << 25
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return uint32(x>>32) | 0x80010101
}

// secretTokens returns n of them from i on.
func secretTokens(i, n int) []uint32 {
	ts := make([]uint32, n)
	for k := range ts {
		ts[k] = secretToken(i + k)
	}
	return ts
}

// maxSecret is one more than the number of the last token that is ever sent.
const maxSecret = 1_000

// secretForms are the ways in which token i, and in bytes the two from i on, could
// be written down. Four bytes alone would be met by chance; ten digits are not.
func secretForms(i int) map[string][]byte {
	a, b := secretToken(i), secretToken(i+1)
	le := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, a), b)
	be := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, a), b)
	return map[string][]byte{
		"decimal":         strconv.AppendUint(nil, uint64(a), 10),
		"signed":          strconv.AppendInt(nil, int64(int32(a)), 10),
		"float":           strconv.AppendFloat(nil, float64(a), 'e', -1, 64),
		"hexadecimal":     fmt.Appendf(nil, "%x", a),
		"HEXADECIMAL":     fmt.Appendf(nil, "%X", a),
		"little-endian":   le,
		"big-endian":      be,
		"hexadecimal LE":  fmt.Appendf(nil, "%x", le),
		"64 bits":         binary.LittleEndian.AppendUint64(nil, uint64(a)),
		"varints":         binary.AppendUvarint(binary.AppendUvarint(nil, uint64(a)), uint64(b)),
		"msgpack":         binary.BigEndian.AppendUint32([]byte{0xce}, a),
		"quoted LE":       []byte(strings.Trim(strconv.QuoteToASCII(string(le)), `"`)),
		"list of bytes":   byteList(le, ' '),
		"list of bytes,":  byteList(le, ','),
		"little-endian 3": le[1:7],
	}
}

func byteList(b []byte, between byte) []byte {
	var list []byte
	for _, c := range b {
		list = append(strconv.AppendUint(list, uint64(c), 10), between)
	}
	return list[:len(list)-1]
}

var base64Text = regexp.MustCompile(`[A-Za-z0-9+/_-]{24,}`)

// findSecrets returns where and how tokens stand in the outputs.
func findSecrets(outputs map[string][]byte) []string {
	var found []string
	for name, b := range outputs {
		pieces := [][]byte{b}
		if r, err := gzip.NewReader(bytes.NewReader(b)); err == nil {
			if plain, err := io.ReadAll(r); err == nil {
				pieces = append(pieces, plain)
			}
		}
		for _, text := range base64Text.FindAll(b, 10_000) {
			for skip := range 4 { // it may begin within the run
				for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
					t := text[skip:]
					if plain, err := enc.AppendDecode(nil, t[:len(t)/4*4]); err == nil {
						pieces = append(pieces, plain)
					}
				}
			}
		}
		all := bytes.Join(pieces, []byte("\n\n"))
		for i := range maxSecret {
			for form, needle := range secretForms(i) {
				if bytes.Contains(all, needle) {
					found = append(found, fmt.Sprintf("%s: token %d as %s", name, i, form))
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

// secretRig is a host with real sockets, and all that came out of it.
type secretRig struct {
	*secureHost
	e       *engine
	answers bytes.Buffer // of every request and call, errors included
	dirs    []string     // that the host writes to
	next    int          // token that was not sent yet
}

func (r *secretRig) fresh(blocks int) []uint32 {
	r.t.Helper()
	ts := secretTokens(r.next, blocks*testBlock)
	if r.next += blocks * testBlock; r.next >= maxSecret {
		r.t.Fatalf("over %d tokens: raise maxSecret", maxSecret)
	}
	return ts
}

// ask keeps what comes back. The status must be one of those given.
func (r *secretRig) ask(method, path, body string, want ...int) {
	r.t.Helper()
	a := r.send(r.url, method, path, "", body)
	fmt.Fprintf(&r.answers, "%d %v %s\n", a.code, a.header, a.text)
	if !slices.Contains(want, a.code) {
		r.t.Errorf("%s %.60s: %d %.200s, want %d", method, path, a.code, a.text, want)
	}
}

// store is a store of ts as blocks with engine hashes from first on.
func (r *secretRig) store(parent, first uint64, ts []uint32) kv.Event {
	ev := storeOf(parent)
	for i := range len(ts) / testBlock {
		ev.Hashes = append(ev.Hashes, kv.EngineHash(first)+kv.EngineHash(i))
	}
	ev.Tokens = ts
	return ev
}

func startSecretRig(t *testing.T) *secretRig {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Listen, cfg.GRPCListen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.StateDir = t.TempDir()
	cfg.ShardsPerNode, cfg.LanesPerNode = 2, 2
	cfg.LogLevel = slog.LevelDebug
	logged := &lockedBuffer{}
	h, err := New(cfg, slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true})))
	if err != nil {
		t.Fatal(err)
	}
	r := &secretRig{secureHost: &secureHost{serveTestHost(t, h, nil), logged, tlsClient(nil)}, dirs: []string{cfg.StateDir}}
	r.e = startEngine(t, nil, nil)
	return r
}

// secretWays are the ways by which token ids come in.
var secretWays = []struct {
	name string
	send func(*secretRig)
}{
	{"registration", (*secretRig).sendRegistrations},
	{"events", (*secretRig).sendEvents},
	{"bad events", (*secretRig).sendBadEvents},
	{"queries", (*secretRig).sendQueries},
	{"bad queries", (*secretRig).sendBadQueries},
	{"calls", (*secretRig).sendCalls},
	{"every route", (*secretRig).sendRoutes},
}

func (r *secretRig) sendRegistrations() {
	ts := jsonOf(r.t, r.fresh(1))
	good := fmt.Sprintf(`"instance_id":1,"endpoint":%q,"replay_endpoint":%q,"model_name":"m","block_size":%d`, r.e.live, r.e.back, testBlock)
	r.ask("POST", "/register", `{`+good+`,"token_ids":`+ts+`}`, 201)
	r.ask("POST", "/register", `{`+good+`,"token_ids":`+ts+`}`, 409)
	r.ask("POST", "/register", `{"instance_id":2,"model_name":`+ts+`}`, 400)
	r.ask("POST", "/register", `{"instance_id":2,"block_size":`+ts+`}`, 400)
	r.ask("POST", "/unregister", `{"instance_id":2,"model_name":"m","token_ids":`+ts+`}`, 404)
	waitFor(r.t, "the engine's socket", func() bool { return r.listener("1").Status == feed.StateActive.String() })
}

func (r *secretRig) sendEvents() {
	chain := r.fresh(4)
	r.e.publish(r.store(0, 100, chain))
	waitFor(r.t, "the first batch", func() bool { return r.listener("1").Memberships == 4 })
	r.e.unheard(r.store(103, 104, r.fresh(2))) // lost on the way: a gap that the replay fills
	named := r.store(0, 200, r.fresh(2))
	named.LoRAName = "adapter"
	host := r.store(0, 300, r.fresh(2))
	host.Medium = "CPU"
	r.e.publish(named, host, r.store(999, 400, r.fresh(2))) // the last waits for its parent
	r.e.publish(removeOf(102))
	waitFor(r.t, "all batches", func() bool {
		l := r.listener("1")
		return l.LastSeq != nil && *l.LastSeq == 3 && l.Orphans == 2 && l.Status == "active"
	})
}

func (r *secretRig) sendBadEvents() {
	odd := r.store(0, 500, r.fresh(2))
	odd.BlockSize = testBlock / 2 // other blocks than registered
	short := r.store(0, 510, r.fresh(2))
	short.Tokens = short.Tokens[:len(short.Tokens)-3] // tokens for less than the blocks
	r.e.publish(odd, short)
	good := wire.AppendBatch(nil, &kv.Batch{Timestamp: stampOf, HasRank: true, Events: []kv.Event{r.store(0, 520, r.fresh(3))}}, testLayout)
	r.e.send(true, good[:len(good)-len(good)/4]) // ends among the tokens
	text := bytes.Replace(good, []byte{0xce}, []byte{0xa4}, 1)
	r.e.send(true, text) // a token that is a text of its own bytes
	r.e.send(true, bytes.Replace(good, []byte("BlockStored"), []byte("BlockStareD"), 1))
	r.e.send(true, binary.LittleEndian.AppendUint32(nil, r.fresh(1)[0]))
	r.e.raw(good) // a message of one frame
	r.e.raw([]byte("kv"), good, good)
	r.e.publish(r.store(0, 530, r.fresh(1)))
	waitFor(r.t, "drops", func() bool {
		l := r.listener("1")
		n := uint64(0)
		for _, dropped := range l.Dropped {
			n += dropped
		}
		return n >= 4 && l.Status != feed.StateActive.String()
	})
}

func (r *secretRig) sendQueries() {
	chain := jsonOf(r.t, secretTokens(testBlock, 4*testBlock)) // sendEvents' first
	r.ask("POST", "/query", `{"model_name":"m","token_ids":`+chain+`}`, 200)
	if !strings.Contains(r.answers.String(), fmt.Sprintf(`"longest_matched":%d`, 2*testBlock)) {
		r.t.Errorf("the chain is not held, so that this test tests nothing:\n%s", r.answers.String())
	}
	fresh := jsonOf(r.t, r.fresh(2))
	for _, more := range []string{``, `,"lora_name":"adapter","cache_salt":"s"`, `,"extra_keys":[null,[["image",-3]]]`, `,"instances":[1],"max_results":1`, `,"more":` + fresh} {
		r.ask("POST", "/query", `{"model_name":"m","token_ids":`+fresh+more+`}`, 200)
		r.ask("POST", "/explain", `{"model_name":"m","token_ids":`+fresh+more+`}`, 200)
	}
	r.ask("POST", "/query_by_hash", `{"model_name":"m","block_hashes":[1,2],"token_ids":`+fresh+`}`, 200)
}

func (r *secretRig) sendBadQueries() {
	ts := r.fresh(1)
	list := strings.Trim(jsonOf(r.t, ts), "[]")
	one := fmt.Sprint(ts[3])
	for _, body := range []string{
		`{"model_name":"m","token_ids":[` + list + `,"` + one + `"]}`,
		`{"model_name":"m","token_ids":[` + list + `,-` + one + `]}`,
		`{"model_name":"m","token_ids":[` + list + `,` + one + `.5]}`,
		`{"model_name":"m","token_ids":[` + list + `,` + one + one + `]}`,
		`{"model_name":"m","token_ids":[` + list + `,` + one + `e9]}`,
		`{"model_name":"m","token_ids":[` + list + `,[` + one + `]]}`,
		`{"model_name":"m","token_ids":[` + list + ` ` + one + `]}`,
		`{"model_name":"m","token_ids":"` + list + `"}`,
		`{"model_name":"m","token_ids":` + one + `}`,
		`{"model_name":"m","token_ids":{"` + one + `":1}}`,
		`{"model_name":"m","token_ids":[` + list,
		`{"model_name":"m","token_ids":[` + list + `],"token_ids":[` + list + `]}`,
		`{"model_name":"m","token_ids":[` + list + `],"extra_keys":[[[` + one + `]]]}`,
		`{"model_name":"m","token_ids":[` + list + `],"extra_keys":` + one + `}`,
		`{"token_ids":[` + list + `]}`,
		`{"model_name":[` + list + `]}`,
		`[` + list + `]`,
		one,
		`{"model_name":"m",` + list + `}`,
		`{"model_name":"m","token_ids":[` + list + "\x00" + one + `]}`,
	} {
		r.ask("POST", "/query", body, 400)
		r.ask("POST", "/explain", body, 400)
		r.ask("POST", "/query_by_hash", strings.ReplaceAll(body, `"token_ids"`, `"block_hashes"`), 400, 200) // a hash may be negative
	}
	r.ask("POST", "/query", `{"model_name":"zz","token_ids":[`+list+`]}`, 404)
	r.ask("GET", "/query?token_ids="+list, "", 405)
	r.ask("GET", "/workers?model_name=m&token_ids="+list, "", 200)
	r.ask("GET", "/dump?format=x&token_ids="+list, "", 400)
	r.ask("POST", "/nowhere/"+one, list, 404)
	r.ask("POST", "/query", `{"model_name":"m","token_ids":[`+strings.Repeat(list+",", 60_000)+`1]}`, 413)
	fmt.Fprintln(&r.answers, rawAnswer(r.t, r.Addr().String(), "POST /query HTTP/1.1\r\nHost: x\r\nX-Tokens: "+list+"\r\nContent-Length: nonsense\r\n\r\n"+list))
	fmt.Fprintln(&r.answers, rawAnswer(r.t, r.Addr().String(), list+"\r\n\r\n"))
	fmt.Fprintln(&r.answers, rawAnswer(r.t, r.Addr().String(), "POST /query HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nConnection: close\r\nContent-Length: "+strconv.Itoa(len(list))+"\r\n\r\n"+list))
}

// sendRoutes asks every route that takes a body, well for those that know token_ids.
func (r *secretRig) sendRoutes() {
	chain, fresh := jsonOf(r.t, secretTokens(testBlock, 4*testBlock)), jsonOf(r.t, r.fresh(2))
	for _, route := range routes {
		if !route.body {
			continue
		}
		for _, body := range []string{
			`{"model_name":"m","token_ids":` + chain + `}`,
			`{"model_name":"m","token_ids":` + fresh + `}`,
			`{"model_name":"m","instance_id":77,"token_ids":` + fresh + `}`,
			`{"model_name":"zz","token_ids":` + fresh + `}`,
			`{"token_ids":` + fresh + `,"url":` + fresh + `}`,
			fresh, fresh[:len(fresh)-3],
		} {
			r.ask("POST", route.path, body, 200, 400, 404)
		}
	}
}

// secretOutputs are the ways by which something comes out; each adds what it has.
var secretOutputs = []func(*secretRig, map[string][]byte){
	(*secretRig).readCalls,
	(*secretRig).readRoutes,
	(*secretRig).readFiles,
	func(r *secretRig, out map[string][]byte) { out["answers"] = r.answers.Bytes() },
	func(r *secretRig, out map[string][]byte) { out["log"] = []byte(r.logged.String()) },
}

// readRoutes asks every GET route.
func (r *secretRig) readRoutes(out map[string][]byte) {
	paths := []string{"/dump?format=ndjson", "/debug/pprof/goroutine?debug=1", "/debug/pprof/goroutine", "/debug/pprof/heap?debug=1", "/debug/pprof/trace?seconds=1"}
	for _, route := range routes {
		if route.method == "GET" {
			paths = append(paths, route.path)
		}
	}
	for _, path := range paths {
		a := r.send(r.url, "GET", path, "", "")
		out[path] = fmt.Appendf(nil, "%v\n%s", a.header, a.text)
		if a.code != 200 && a.code != 501 && path != "/readyz" {
			r.t.Errorf("%s: %d %.200s", path, a.code, a.text)
		}
	}
}

// readFiles reads every file below the directories that the host writes to.
func (r *secretRig) readFiles(out map[string][]byte) {
	if err := r.keeper.write(r.t.Context()); err != nil {
		r.t.Error(err)
	}
	for _, dir := range r.dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			if len(b) > 0 { // a lock is
				out[filepath.Base(path)] = b
			}
			return err
		})
		if err != nil {
			r.t.Error(err)
		}
	}
}

// leaked sends by every way, and looks at all that comes out; plant is called
// between.
func (r *secretRig) leaked(plant func()) []string {
	r.t.Helper()
	for _, w := range secretWays {
		w.send(r)
		if r.t.Failed() {
			r.t.Fatalf("by %s", w.name)
		}
	}
	if plant != nil {
		plant()
	}
	out := map[string][]byte{}
	for _, read := range secretOutputs {
		read(r, out)
	}
	if !slices.ContainsFunc(slices.Collect(maps.Keys(out)), func(name string) bool { return strings.HasPrefix(name, stateFile+"-") }) {
		r.t.Error("there is no state file")
	}
	for name, b := range out {
		if len(b) == 0 {
			r.t.Errorf("%s is empty: this test looks at nothing", name)
		}
	}
	return findSecrets(out)
}

// TestNoTokenComesOut: no token id of a prompt can be found in anything that the
// host says or writes.
func TestNoTokenComesOut(t *testing.T) {
	for _, leak := range startSecretRig(t).leaked(nil) {
		t.Error(leak)
	}
}

// TestPlantedTokenIsFound: the test above sees a token in whatever form, and a line
// of the log that has one.
func TestPlantedTokenIsFound(t *testing.T) {
	for form, text := range secretForms(42) {
		noise := bytes.Repeat([]byte("0123456789abcdef"), 100)
		for name, b := range map[string][]byte{
			"as it is": slices.Concat(noise, text, noise),
			"base64":   []byte(`{"x":"` + base64.StdEncoding.EncodeToString(slices.Concat(noise[:7], text, noise[:25])) + `"}`),
			"gzip":     gzipped(t, slices.Concat(noise, text)),
		} {
			if len(findSecrets(map[string][]byte{"output": b})) == 0 {
				t.Errorf("%s, %s: not found", form, name)
			}
		}
	}
	if found := findSecrets(map[string][]byte{"output": []byte("1234567890 deadbeef " + strings.Repeat("9", 100))}); len(found) > 0 {
		t.Errorf("found what is not there: %v", found)
	}
	r := startSecretRig(t)
	found := r.leaked(func() { r.log.Debug("query", "token_ids", secretTokens(20, 2)) })
	if want := "log: token 20 as decimal"; !slices.Contains(found, want) {
		t.Errorf("found %v, want %q", found, want)
	}
}

func gzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
