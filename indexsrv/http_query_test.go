// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"kindex/internal/kv"
	"kindex/relay/feed"
)

func reg(id, model string, more string) string {
	return fmt.Sprintf(`{"instance_id":%s,"endpoint":"tcp://127.0.0.1:21001","model_name":%q,"block_size":4%s}`, id, model, more)
}

func query(t *testing.T, ts []uint32, more string) string {
	t.Helper()
	return `{"model_name":"m","token_ids":` + jsonOf(t, ts) + more + `}`
}

const nobody = `{"scores":{},"frequencies":[],"instances":{}}`

// TestQueryReplies holds replies against the contract, byte for byte.
func TestQueryReplies(t *testing.T) {
	h := startTestHost(t, nil)
	h.register(reg("1", "m", ""))
	h.register(strings.Replace(reg(`"a\"b"`, "m", `,"dp_size":3`), "21001", "22001", 1))
	h.register(reg("7", "m", `,"routing_group":"g"`))
	h.register(reg("7", "m", `,"tenant_id":"t"`))
	h.register(reg("7", "other", ""))
	one := h.rank("m", "", "1", 0)
	h.put(one, kv.TierDevice, "", "", 11, tokens(1, 16), nil)
	h.put(one, kv.TierHost, "", "", 11, tokens(1, 20), nil)
	h.put(one, kv.TierDisk, "", "", 11, tokens(1, 24), nil)
	r0, r2 := h.rank("m", "", `a"b`, 0), h.rank("m", "", `a"b`, 2)
	h.put(r0, kv.TierDevice, "", "", 1, tokens(1, 4), nil)
	h.put(r2, kv.TierHost, "", "", 1, tokens(1, 12), nil)

	const worker1 = `"1":{"longest_matched":24,"gpu":16,"cpu":20,"disk":24,"dp":{"0":16}}`
	const workerAB = `"a\"b":{"longest_matched":12,"gpu":4,"cpu":12,"disk":12,"dp":{"0":4,"2":0}}`
	full := `{"scores":{"1":{"0":16},"a\"b":{"0":4}},"frequencies":[],"instances":{` + worker1 + `,` + workerAB + `}}`
	h.want("POST", "/query", query(t, tokens(1, 24), ""), 200, full)
	h.want("POST", "/query", query(t, tokens(1, 27), ""), 200, full) // the tail fills no block
	h.want("POST", "/query", query(t, tokens(1, 40), ""), 200, full)
	h.want("POST", "/query", query(t, tokens(1, 24), `,"routing_group":"default","tenant_id":"default","unknown":{"x":[1]}`), 200, full)
	h.want("POST", "/query", query(t, tokens(1, 24), `,"routing_group":"","lora_name":"","cache_salt":""`), 200, full)
	h.want("POST", "/query", query(t, tokens(1, 24), `,"instances":[1]`), 200,
		`{"scores":{"1":{"0":16}},"frequencies":[],"instances":{`+worker1+`}}`)
	h.want("POST", "/query", query(t, tokens(1, 24), `,"instances":["zz","1",5]`), 200,
		`{"scores":{"1":{"0":16}},"frequencies":[],"instances":{`+worker1+`}}`)
	h.want("POST", "/query", query(t, tokens(1, 24), `,"instances":["a\"b"]`), 200,
		`{"scores":{"a\"b":{"0":4}},"frequencies":[],"instances":{`+workerAB+`}}`)
	h.want("POST", "/query", query(t, tokens(1, 24), `,"max_results":1`), 200,
		`{"scores":{"1":{"0":16}},"frequencies":[],"instances":{`+worker1+`}}`)
	h.want("POST", "/query", query(t, tokens(1, 24), `,"max_results":9`), 200, full)
	h.want("POST", "/query", query(t, tokens(1, 4), ""), 200,
		`{"scores":{"1":{"0":4},"a\"b":{"0":4}},"frequencies":[],"instances":{"1":{"longest_matched":4,"gpu":4,"cpu":4,"disk":4,"dp":{"0":4}},"a\"b":{"longest_matched":4,"gpu":4,"cpu":4,"disk":4,"dp":{"0":4,"2":0}}}}`)
	h.want("POST", "/query", query(t, tokens(1, 3), ""), 200, nobody)
	h.want("POST", "/query", query(t, nil, `,"x":1`), 400, `{"error":"token_ids: is missing"}`)
	h.want("POST", "/query", `{"model_name":"m","token_ids":[]}`, 200, nobody)
	h.want("POST", "/query", query(t, tokens(2, 24), ""), 200, nobody)
	h.want("POST", "/query", query(t, tokens(1, 24), `,"routing_group":"g"`), 200, nobody)
	h.want("POST", "/query", query(t, tokens(1, 24), `,"tenant_id":"t"`), 200, nobody)

	// Only host or disk copies: in instances, not in scores.
	h.take(r0, kv.TierDevice, 1)
	h.want("POST", "/query", query(t, tokens(1, 24), `,"instances":["a\"b"]`), 200,
		`{"scores":{},"frequencies":[],"instances":{"a\"b":{"longest_matched":12,"gpu":0,"cpu":12,"disk":12,"dp":{"2":0}}}}`)

	// A rank without content makes its worker degraded, too.
	setState(h.rank("m", "", `a"b`, 1), feed.StateFailed)
	h.want("POST", "/query", query(t, tokens(1, 24), `,"instances":["a\"b"]`), 200,
		`{"scores":{},"frequencies":[],"instances":{"a\"b":{"longest_matched":12,"gpu":0,"cpu":12,"disk":12,"dp":{"2":0},"degraded":true}}}`)
}

// TestQueryByHash asks with hashes of either sign.
func TestQueryByHash(t *testing.T) {
	h := startTestHost(t, nil)
	h.register(reg("1", "m", ""))
	r := h.rank("m", "", "1", 0)
	h.put(r, kv.TierDevice, "", "", 11, tokens(1, 12), nil)
	h.put(r, kv.TierDevice, "ad", "s", 21, tokens(1, 8), nil)
	bare := kv.Blocks{Tokens: tokens(1, 12), BlockSize: 4}
	unsigned := bare.AppendHashes(nil, kv.HashSeed)
	signed := make([]int64, len(unsigned))
	for i, c := range unsigned {
		signed[i] = int64(c)
	}
	answer := func(n int) string {
		return fmt.Sprintf(`{"scores":{"1":{"0":%d}},"frequencies":[],"instances":{"1":{"longest_matched":%[1]d,"gpu":%[1]d,"cpu":%[1]d,"disk":%[1]d,"dp":{"0":%[1]d}}}}`, n)
	}
	ask := func(hashes any, more string) string {
		return `{"model_name":"m","block_hashes":` + jsonOf(t, hashes) + more + `}`
	}
	h.want("POST", "/query_by_hash", ask(unsigned, ""), 200, answer(12))
	h.want("POST", "/query_by_hash", ask(signed, ""), 200, answer(12))
	h.want("POST", "/query_by_hash", ask(signed[:2], ""), 200, answer(8))
	h.want("POST", "/query_by_hash", ask(signed[1:], ""), 200, nobody)
	h.want("POST", "/query_by_hash", ask([]int{}, ""), 200, nobody)
	// A namespace's hashes are made with its seed, and found only under it.
	named := bare.AppendHashes(nil, kv.ContentSeed("ad", "s"))
	h.want("POST", "/query_by_hash", ask(named, `,"lora_name":"ad","cache_salt":"s"`), 200, answer(8))
	h.want("POST", "/query_by_hash", ask(named, ""), 200, nobody)
	h.want("POST", "/query_by_hash", ask(unsigned, `,"lora_name":"ad","cache_salt":"s"`), 200, nobody)
}

// TestNamespaces: equal tokens under another name, or with other extra keys,
// never match.
func TestNamespaces(t *testing.T) {
	h := startTestHost(t, nil)
	h.register(reg("1", "m", ""))
	r := h.rank("m", "", "1", 0)
	image := func(ids ...string) [][]byte {
		e := make([][]byte, len(ids))
		for i, id := range ids {
			if id != "" {
				e[i] = kv.AppendExtraKey(nil, kv.ExtraKey{Kind: kv.ExtraItem, ID: id, Offset: int64(-4 * i)})
			}
		}
		return e
	}
	h.put(r, kv.TierDevice, "", "", 10, tokens(1, 16), nil)
	h.put(r, kv.TierDevice, "x", "", 20, tokens(1, 12), nil)
	h.put(r, kv.TierDevice, "", "s", 30, tokens(1, 8), nil)
	h.put(r, kv.TierDevice, "", "", 40, tokens(100, 12), image("i1", "i1", ""))
	h.put(r, kv.TierDevice, "", "", 50, tokens(100, 8), image("i2", "i2"))
	f := func(first int, more string, want int) {
		t.Helper()
		var reply struct {
			Scores map[string]map[string]int `json:"scores"`
		}
		if err := json.Unmarshal([]byte(h.must(200, "POST", "/query", query(t, tokens(first, 16), more))), &reply); err != nil {
			t.Fatal(err)
		}
		if got := reply.Scores["1"]["0"]; got != want {
			t.Errorf("%d%s: got %d, want %d", first, more, got, want)
		}
	}
	f(1, ``, 16)
	f(1, `,"lora_name":"x"`, 12)
	f(1, `,"cache_salt":"s"`, 8)
	f(1, `,"lora_name":"x","cache_salt":"s"`, 0)
	f(1, `,"lora_name":"s"`, 0)
	f(100, ``, 0)
	f(100, `,"extra_keys":[[["i1",0]],[["i1",-4]],null,null]`, 12)
	f(100, `,"extra_keys":[[["i2",0]],[["i2",-4]],null,null]`, 8)
	f(100, `,"extra_keys":[[["i1",0]],[["i2",-4]],null,null]`, 4)
	f(100, `,"extra_keys":[[["i1",0]],[["i1",-5]],null,null]`, 4)
	f(100, `,"extra_keys":[["i1"],["i1"],null,null]`, 0)
	f(1, `,"extra_keys":[]`, 16)
	f(1, `,"extra_keys":[null,null,null,[]]`, 16)

	// By hash, extra keys fold into hashes made of tokens alone.
	hashes := (&kv.Blocks{Tokens: tokens(100, 12), BlockSize: 4}).AppendHashes(nil, kv.HashSeed)
	got := h.must(200, "POST", "/query_by_hash", `{"model_name":"m","block_hashes":`+jsonOf(t, hashes)+`,"extra_keys":[[["i1",0]],[["i1",-4]],null]}`)
	if !strings.Contains(got, `"longest_matched":12`) {
		t.Errorf("by hash with extra keys: got %s, want 12 tokens", got)
	}
	// One entry for each block, or also for the tail that is none.
	h.must(200, "POST", "/query", `{"model_name":"m","token_ids":[1,2,3,4,5],"extra_keys":[null,null]}`)
	h.must(200, "POST", "/query", `{"model_name":"m","token_ids":[1,2,3,4,5],"extra_keys":[null]}`)
	if e := h.error("POST", "/query", `{"model_name":"m","token_ids":[1,2,3,4,5],"extra_keys":[null,null,null]}`, 400); e != "extra_keys: must have one entry per block, 1, and has 3" {
		t.Errorf("got %q", e)
	}
	h.error("POST", "/query", `{"model_name":"m","token_ids":[1,2,3,4],"extra_keys":[null,null]}`, 400)
	h.error("POST", "/query", query(t, tokens(1, 16), `,"extra_keys":[null]`), 400)
}

// TestMaxResults keeps the deepest, in order.
func TestMaxResults(t *testing.T) {
	h := startTestHost(t, nil)
	for id := range 8 {
		h.register(reg(fmt.Sprint(id), "m", ""))
		h.put(h.rank("m", "", fmt.Sprint(id), 0), kv.Tier(id%2), "", "", 1, tokens(1, 4*(1+id*5%8)), nil)
	}
	var reply struct {
		Instances map[string]struct {
			Longest int `json:"longest_matched"`
		} `json:"instances"`
	}
	if err := json.Unmarshal([]byte(h.must(200, "POST", "/query", query(t, tokens(1, 64), `,"max_results":3`))), &reply); err != nil {
		t.Fatal(err)
	}
	// id*5%8 is 7, 6, 5 for ids 3, 6, 1.
	want := map[string]int{"3": 32, "6": 28, "1": 24}
	for id, n := range want {
		if got := reply.Instances[id].Longest; got != n {
			t.Errorf("instance %s: got %d, want %d", id, got, n)
		}
	}
	if len(reply.Instances) != 3 {
		t.Errorf("got %d instances, want 3", len(reply.Instances))
	}
}
