// SPDX-License-Identifier: Apache-2.0

package lookups

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"kindex/indexclient"
	"kindex/indexsrv"
	"kindex/internal/kv"
	"kindex/internal/lookup"
)

const identityQueries = 10_000

// question is one query in the form of each way.
type question struct {
	query indexclient.Query
	path  string
	body  string
}

// randomQuestion asks for what streams may hold, or, at times, for what nobody does.
func randomQuestion(rng *rand.Rand) question {
	s := spaces[rng.IntN(len(spaces))]
	p := randomPath(rng)
	q := indexclient.Query{Model: "m", LoRA: s.lora, Salt: s.salt}
	body := map[string]any{"model_name": "m", "lora_name": s.lora, "cache_salt": s.salt}
	name := func(field string, to *string, value string) {
		*to = value
		body[field] = value
	}
	switch rng.IntN(50) {
	case 0:
		name("model_name", &q.Model, "zz")
	case 1:
		name("routing_group", &q.Group, "zz")
	case 2:
		name("tenant_id", &q.Tenant, "default")
	}
	tokens := p.tokens()
	tail := rng.IntN(blockSize)
	for range tail {
		tokens = append(tokens, rng.Uint32())
	}
	if rng.IntN(4) > 0 { // with the images' keys
		var overHTTP [][]any
		for _, keys := range p.items() {
			var e []byte
			var h []any
			for _, k := range keys {
				e = kv.AppendExtraKey(e, k)
				h = append(h, []any{k.ID, k.Offset})
			}
			q.Extra, overHTTP = append(q.Extra, e), append(overHTTP, h)
		}
		body["extra_keys"] = overHTTP
	}
	if rng.IntN(20) == 0 { // wrong, in a way that all must refuse alike
		q.Extra = append(q.Extra, nil, nil, nil)
		body["extra_keys"] = make([][]any, len(q.Extra))
	}
	path := "/query"
	if rng.IntN(2) == 0 {
		path = "/query_by_hash"
		b := kv.Blocks{Tokens: tokens[:len(p)*blockSize], BlockSize: blockSize}
		q.Hashes = b.AppendHashes(nil, kv.ContentSeed(s.lora, s.salt))
		if rng.IntN(8) == 0 {
			q.Tokens = []uint32{} // no tokens, as nil
		}
		body["block_hashes"] = q.Hashes
	} else {
		q.Tokens, body["token_ids"] = tokens, tokens
	}
	if rng.IntN(4) == 0 {
		all := []string{"1", "x", "7", "y", "nobody"}
		q.Only = append([]string{}, all[rng.IntN(5):]...)
		body["instances"] = q.Only
	}
	if rng.IntN(4) == 0 {
		q.Limit = 1 + rng.IntN(6)
		body["max_results"] = q.Limit
	}
	b, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return question{q, path, string(b)}
}

// reply is HTTP's answer.
type reply struct {
	Scores    map[string]map[string]int `json:"scores"`
	Instances map[string]replyInstance  `json:"instances"`
}

type replyInstance struct {
	Longest  int            `json:"longest_matched"`
	GPU      int            `json:"gpu"`
	CPU      int            `json:"cpu"`
	Disk     int            `json:"disk"`
	DP       map[string]int `json:"dp"`
	Degraded bool           `json:"degraded"`
}

// asReply is what HTTP must say where the answer without a limit is a: counts in
// tokens, by instance, the deepest so many instances.
func asReply(a *indexclient.Answer, limit int) reply {
	r := reply{Scores: map[string]map[string]int{}, Instances: map[string]replyInstance{}}
	for _, m := range a.Matches {
		i, ok := r.Instances[m.Instance]
		if !ok {
			i.DP = map[string]int{}
		}
		i.Longest, i.Disk = max(i.Longest, int(m.Any)*a.BlockSize), max(i.Disk, int(m.Any)*a.BlockSize)
		i.GPU, i.CPU = max(i.GPU, int(m.Device)*a.BlockSize), max(i.CPU, int(m.Host)*a.BlockSize)
		i.DP[fmt.Sprint(m.Rank)] = int(m.Device) * a.BlockSize
		i.Degraded = m.Degraded
		r.Instances[m.Instance] = i
	}
	order := []string{"1", "x", "7", "y"} // of registration
	ids := slices.Collect(maps.Keys(r.Instances))
	slices.SortFunc(ids, func(a, b string) int {
		x, y := r.Instances[a], r.Instances[b]
		return cmp.Or(cmp.Compare(y.Disk, x.Disk), cmp.Compare(y.CPU, x.CPU), cmp.Compare(y.GPU, x.GPU), cmp.Compare(slices.Index(order, a), slices.Index(order, b)))
	})
	if limit > 0 && len(ids) > limit {
		for _, id := range ids[limit:] {
			delete(r.Instances, id)
		}
	}
	for id, i := range r.Instances {
		for rank, device := range i.DP {
			if device > 0 {
				if r.Scores[id] == nil {
					r.Scores[id] = map[string]int{}
				}
				r.Scores[id][rank] = device
			}
		}
	}
	return r
}

// ways are the ways into one host.
type ways struct {
	h                                  *indexsrv.Host
	inProcess, unary, streamed, shared indexclient.Client
	url                                string
}

// remote are those of w that leave the process.
func (w *ways) remote() map[string]indexclient.Client {
	return map[string]indexclient.Client{"unary": w.unary, "streamed": w.streamed, "shared memory": w.shared}
}

func openWays(t *testing.T, h *indexsrv.Host, socket string) *ways {
	t.Helper()
	w := &ways{h: h, inProcess: indexclient.InProcess(h), url: "http://" + h.Addr().String()}
	for _, way := range []struct {
		to     *indexclient.Client
		target string
		unary  bool
	}{{&w.unary, h.GRPCAddr().String(), true}, {&w.streamed, h.GRPCAddr().String(), false}, {&w.shared, "unix:" + socket, false}} {
		c, err := indexclient.Dial(t.Context(), way.target, indexclient.Options{Unary: way.unary, Timeout: patience, Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		*way.to = c
	}
	return w
}

// outcome is what one way said.
type outcome struct {
	answer indexclient.Answer
	err    error
}

func ask(t *testing.T, c indexclient.Client, q *indexclient.Query) (o outcome) {
	o.err = c.Lookup(t.Context(), q, &o.answer)
	return o
}

func (o *outcome) same(p *outcome) bool {
	return lookup.KindOf(o.err) == lookup.KindOf(p.err) && (o.err == nil) == (p.err == nil) &&
		o.answer.BlockSize == p.answer.BlockSize && slices.Equal(o.answer.Matches, p.answer.Matches)
}

// compare asks all ways between two questions in process, and says where one
// differs. held is false where those two did, or where one differs and a batch was
// applied meanwhile, which may have changed the answer there and back.
func (w *ways) compare(t *testing.T, q *question) (why string, held bool) {
	t.Helper()
	before := w.cursors()
	why, held = w.bracket(t, q)
	if why != "" && w.cursors() != before {
		return "", false
	}
	return why, held
}

// cursors are where all streams stand. Each is read between two of its batches: while
// they are the same none was applied.
func (w *ways) cursors() string {
	var b strings.Builder
	for _, in := range w.h.Instances("", "") {
		for _, n := range slices.Sorted(maps.Keys(in.Listeners)) {
			l := in.Listeners[n]
			if l.LastSeq != nil {
				fmt.Fprint(&b, *l.LastSeq, " ")
			}
		}
	}
	return b.String()
}

func (w *ways) bracket(t *testing.T, q *question) (why string, held bool) {
	t.Helper()
	all := q.query
	all.Limit = 0
	before, whole := ask(t, w.inProcess, &q.query), ask(t, w.inProcess, &all)
	unary, streamed, shared := ask(t, w.unary, &q.query), ask(t, w.streamed, &q.query), ask(t, w.shared, &q.query)
	status, body := post(t, w.url+q.path, q.body)
	after := ask(t, w.inProcess, &q.query)
	wholeAfter := ask(t, w.inProcess, &all)
	if !before.same(&after) || !whole.same(&wholeAfter) {
		return "", false
	}
	switch {
	case !before.same(&unary):
		return fmt.Sprintf("unary: %+v\nin process: %+v", unary, before), true
	case !before.same(&streamed):
		return fmt.Sprintf("streamed: %+v\nin process: %+v", streamed, before), true
	case !before.same(&shared):
		return fmt.Sprintf("shared memory: %+v\nin process: %+v", shared, before), true
	case before.err != nil:
		if want := indexsrv.RefusalStatus(before.err); status != want {
			return fmt.Sprintf("HTTP: %d %s\nin process: %v", status, body, before.err), true
		}
		var e struct{ Error string }
		if json.Unmarshal([]byte(body), &e) != nil || e.Error != before.err.Error() || unwrapped(unary.err) != e.Error ||
			unwrapped(streamed.err) != e.Error || unwrapped(shared.err) != e.Error {
			return fmt.Sprintf("HTTP: %s\nin process: %v\nunary: %v\nstreamed: %v\nshared memory: %v", body, before.err, unary.err, streamed.err, shared.err), true
		}
		return "", true
	}
	var got reply
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != 200 {
		return fmt.Sprintf("HTTP: %d %s (%v)", status, body, err), true
	}
	if want := asReply(&whole.answer, q.query.Limit); !reflect.DeepEqual(got, want) {
		return fmt.Sprintf("HTTP: %+v\nin process: %+v", got, want), true
	}
	return "", true
}

// unwrapped is what the host said.
func unwrapped(err error) string {
	if host, ok := err.(*indexclient.HostError); ok {
		return host.Err.Error()
	}
	return fmt.Sprint(err)
}

// TestIdentity: 10,000 random questions get one answer, whatever the way, while
// eight streams write; and all of them again when these are quiet.
func TestIdentity(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := startHost(t, func(c *indexsrv.Config) { c.Shm.Listen, c.ShardsPerNode = socket, 3 })
	f := startFleet(t, h)
	w := openWays(t, h, socket)
	until(t, "some content", func() string {
		if f.sent.Load() < 400 {
			return fmt.Sprint(f.sent.Load(), " batches")
		}
		return ""
	})
	rng := rand.New(rand.NewPCG(77, 78))
	questions := make([]question, identityQueries)
	compared, matched, refused, moved := 0, 0, 0, 0
	begun := f.sent.Load()
	for i := range questions {
		q := randomQuestion(rng)
		questions[i] = q
		for tries := 0; ; tries++ {
			why, held := w.compare(t, &q)
			if why != "" {
				t.Fatalf("question %d, %s %s\n%s", i, q.path, q.body, why)
			}
			if held {
				compared++
				break
			}
			moved++
			if tries == 20 {
				t.Fatalf("question %d: the answer changed under each of %d comparisons", i, tries)
			}
		}
	}
	written := f.sent.Load() - begun
	f.end()
	cursors := map[string]uint64{}
	until(t, "all that was sent", func() string {
		i := 0
		for _, r := range ranks {
			for _, in := range h.Instances("", "") {
				for n := range r.ranks {
					if string(in.Instance) == r.id.String() || string(in.Instance) == `"`+r.id.String()+`"` {
						l := in.Listeners[fmt.Sprint(n)]
						if l.LastSeq == nil || *l.LastSeq != f.engines[i+n].seq-1 {
							return fmt.Sprintf("%s/%d stands at %v, not %d", r.id, n, l.LastSeq, f.engines[i+n].seq-1)
						}
						cursors[fmt.Sprint(r.id, n)] = *l.LastSeq
					}
				}
			}
			i += r.ranks
		}
		return ""
	})
	for i := range questions {
		why, held := w.compare(t, &questions[i])
		if why != "" || !held {
			t.Fatalf("quiet, question %d, %s %s\n%s (held: %v)", i, questions[i].path, questions[i].body, why, held)
		}
		o := ask(t, w.inProcess, &questions[i].query)
		if o.err != nil {
			refused++
		} else if len(o.answer.Matches) > 0 {
			matched++
		}
	}
	t.Logf("%d questions compared while %d batches were written (%d comparisons done again, for the answer had changed); quiet: %d with matches, %d refused",
		compared, written, moved, matched, refused)
	if compared != identityQueries || matched < identityQueries/2 || refused == 0 || written < 100 || len(cursors) != 8 {
		t.Errorf("compared %d, matched %d, refused %d, %d batches meanwhile: the check was none", compared, matched, refused, written)
	}
}

// TestRefusals: what no way can carry, or no host can answer, is refused alike by all
// of them, in the same words.
func TestRefusals(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	h := startHost(t, func(c *indexsrv.Config) { c.Shm.Listen = socket })
	if err := h.Register(t.Context(), indexsrv.Registration{Instance: indexsrv.NumberID(1), Model: "m", BlockSize: blockSize, Endpoint: "tcp://127.0.0.1:9"}); err != nil {
		t.Fatal(err)
	}
	w := openWays(t, h, socket)
	const bad = "a\xff"
	for _, c := range []struct {
		q    indexclient.Query
		want string
	}{
		{indexclient.Query{}, "model_name: must not be empty"},
		{indexclient.Query{Model: bad}, "model_name: must be valid UTF-8"},
		{indexclient.Query{Model: "m", Group: bad}, "routing_group: must be valid UTF-8"},
		{indexclient.Query{Model: "m", Tenant: bad}, "tenant_id: must be valid UTF-8"},
		{indexclient.Query{Model: "m", LoRA: bad}, "lora_name: must be valid UTF-8"},
		{indexclient.Query{Model: "m", Salt: bad}, "cache_salt: must be valid UTF-8"},
		{indexclient.Query{Model: "m", Only: []string{"1", bad}}, "instances: each must be valid UTF-8"},
		{indexclient.Query{Model: "m", Only: make([]string, lookup.MaxInstances+1)}, "instances: must have at most 65536 ids"},
		{indexclient.Query{Model: "m", Limit: -1}, "limit: must be an integer from 1 to 2147483647, or 0 for all"},
		{indexclient.Query{Model: "m", Limit: 1<<32 + 1}, "limit: must be an integer from 1 to 2147483647, or 0 for all"},
		{indexclient.Query{Model: "m", LoRA: strings.Repeat("x", lookup.MaxName+1)}, "lora_name: must be at most 512 bytes"},
		{indexclient.Query{Model: "m", Tokens: []uint32{1}, Hashes: []kv.ContentHash{1}}, "block_hashes: must be left out where token_ids is given"},
		{indexclient.Query{Model: "m", Tokens: []uint32{}, Hashes: []kv.ContentHash{1}, Extra: [][]byte{nil, nil}}, "extra_keys: must have one entry per block, 1, and has 2"},
		{indexclient.Query{Model: "m", Hashes: []kv.ContentHash{1}, Extra: [][]byte{{9}}}, "extra_keys[0]: must be extra keys in their encoding, or empty"},
	} {
		want := ask(t, w.inProcess, &c.q)
		if lookup.KindOf(want.err) != lookup.ErrInvalid || want.err.Error() != c.want {
			t.Errorf("in process: %v, want %q", want.err, c.want)
		}
		for name, client := range w.remote() {
			if got := ask(t, client, &c.q); !got.same(&want) || unwrapped(got.err) != c.want {
				t.Errorf("%s: %+v, want %q", name, got, c.want)
			}
		}
	}
	for _, f := range []indexclient.Filter{{Model: bad}, {Group: bad}, {Tenant: bad}} {
		_, want := w.inProcess.Workers(t.Context(), f)
		for name, client := range w.remote() {
			_, err := client.Workers(t.Context(), f)
			watched := client.Watch(t.Context(), f, func(*indexclient.Update) error { return nil })
			if lookup.KindOf(want) != lookup.ErrInvalid || unwrapped(err) != want.Error() || unwrapped(watched) != want.Error() {
				t.Errorf("%s, workers of %+v: %v, a watch %v, want %v", name, f, err, watched, want)
			}
		}
	}
}
