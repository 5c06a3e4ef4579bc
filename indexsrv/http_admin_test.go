// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"kindex/internal/kv"
	"kindex/relay/feed"
	"kindex/shard"
)

// TestRegister holds /register against the contract.
func TestRegister(t *testing.T) {
	h := startTestHost(t, func(c *Config) { c.MaxStreams = 20 })
	const ok = `{"status":"ok"}`
	good := func(body string) { t.Helper(); h.want("POST", "/register", body, 201, ok) }
	bad := func(body string, status int, want string) {
		t.Helper()
		if got := h.error("POST", "/register", body, status); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q in it", body, got, want)
		}
	}
	body := func(id, endpoint, more string) string {
		return fmt.Sprintf(`{"instance_id":%s,"endpoint":%s,"model_name":"m","block_size":16%s}`, id, jsonOf(t, endpoint), more)
	}
	good(`{"instance_id":1,"endpoint":"tcp://127.0.0.1:21001","model_name":"m","block_size":16,"replay_endpoint":"tcp://127.0.0.1:22001"}`)
	good(body("2", "tcp://h:1", `,"dp_rank":0,"dp_size":4,"replay_endpoint":"tcp://h:65000"`))
	good(body("2", "tcp://h:9", `,"dp_rank":4,"replay_endpoint":null,"engine":null,"source":""`))
	good(body(`"pod-a"`, "tcp://[::1]:5557", `,"engine":"vllm","source":"zmq"`))
	good(body("1", "tcp://127.0.0.1:21001", `,"routing_group":"g"`))
	good(body("1", "tcp://127.0.0.1:21001", `,"tenant_id":"t"`))
	good(strings.Replace(body("1", "tcp://127.0.0.1:21001", ""), `"m"`, `"m2"`, 1))
	good(body("5", "ipc:///run/engine.sock", `,"unknown_field":{"deep":[1,{}]},"data_parallel":null`))
	good(body("18446744073709551615", "tcp://h:2", ""))
	good(body("6", "tcp://*:31000", `,"engine":"sglang"`))

	bad(body("1", "tcp://127.0.0.1:21001", ""), 409, "instance_id: 1 dp_rank 0 is already registered")
	bad(body(`"1"`, "tcp://127.0.0.1:21001", ""), 409, "already registered")
	bad(body("2", "tcp://h:1", `,"dp_size":6`), 409, "dp_rank 0 is already")
	bad(strings.Replace(body("9", "tcp://h:1", ""), "16", "32", 1), 409, "block_size: must be 16")
	bad(body("9", "tcp://*:31000", ""), 409, "is bound here already")
	bad(body("9", "tcp://0.0.0.0:31000", ""), 409, "is bound here already")
	bad(body("9", "tcp://h:1000", `,"dp_size":12`), 503, "limit of 20")

	for _, missing := range []string{"instance_id", "endpoint", "model_name", "block_size"} {
		var m map[string]any
		if err := json.Unmarshal([]byte(body("9", "tcp://h:1", "")), &m); err != nil {
			t.Fatal(err)
		}
		delete(m, missing)
		bad(jsonOf(t, m), 400, missing+": is missing")
		m[missing] = nil
		bad(jsonOf(t, m), 400, missing+": is missing")
		m[missing] = []int{1}
		bad(jsonOf(t, m), 400, missing+": must be")
		m[missing] = 1.5
		bad(jsonOf(t, m), 400, missing+": must be")
	}
	for _, e := range []string{
		"", "127.0.0.1:21001", "http://h:1", "tcp://", "tcp://h", "tcp://h:", "tcp://h:0", "tcp://h:65536", "tcp://h:-1", "tcp://h:x", "tcp://:1", "tcp://h:1/x",
		"tcp://a b:1", "ipc://", "inproc://x", "tcp://h:1;tcp://g:2", "tcp://h:99999999999999999999", "tcp://h\x00:1", "ipc://" + strings.Repeat("x", 200), "tcp://" + strings.Repeat("h", 1_000) + ":1",
	} {
		bad(body("9", e, ""), 400, "endpoint: ")
	}
	bad(body("9", "tcp://h:65530", `,"dp_size":8`), 400, "endpoint: ")
	bad(body("9", "tcp://h:1", `,"replay_endpoint":"tcp://h:65530","dp_size":8`), 400, "replay_endpoint: ")
	bad(body("9", "tcp://h:1", `,"replay_endpoint":"tcp://*:7"`), 400, "replay_endpoint: ")
	bad(body("9", "tcp://h:1", `,"replay_endpoint":"tcp://h:2","dp_size":2`), 400, "replay_endpoint: tcp://h:2 is also a live endpoint")
	bad(body("9", "tcp://h:1", `,"replay_endpoint":"tcp://h:1"`), 400, "replay_endpoint: ")
	bad(body("9", "ipc:///run/x", `,"dp_size":2`), 400, "endpoint: ")
	for field, values := range map[string][]string{
		"block_size":    {"0", "-16", "65537", "1e400", "18446744073709551616", "16.0", `"16"`, "true"},
		"dp_rank":       {"-1", "65536", "0.5", `"0"`, "99999999999999999999999"},
		"dp_size":       {"0", "-1", "1025", "2.5", "[]"},
		"engine":        {`"trtllm"`, "7", `"VLLM"`},
		"source":        {`"kafka"`, "{}"},
		"routing_group": {"7", `"a\u0000b"`, `"` + strings.Repeat("g", 513) + `"`, "[]"},
		"tenant_id":     {"false", `"\n"`},
		"model_name":    {`""`, "7", `"a\u0007"`, `"` + strings.Repeat("m", 513) + `"`},
		"instance_id":   {`""`, "-1", "1.0", "1e3", "null", "18446744073709551616", "true", "[1]", `"` + strings.Repeat("i", 513) + `"`, `"\u0001"`},
	} {
		for _, v := range values {
			b := map[string]json.RawMessage{"instance_id": []byte("9"), "endpoint": []byte(`"tcp://h:1"`), "model_name": []byte(`"m"`), "block_size": []byte("16")}
			var text []string
			b[field] = []byte(v)
			for k, raw := range b {
				text = append(text, fmt.Sprintf("%q:%s", k, raw))
			}
			bad("{"+strings.Join(text, ",")+"}", 400, field+": ")
		}
	}
	bad(body("9", "tcp://h:1", `,"dp_rank":2,"dp_size":2`), 400, "dp_rank: must be left out where dp_size is 2")
	bad(body("9", "tcp://h:1", `,"source":"relay"`), 400, `endpoint: "tcp://h:1" must be host:port`)
	bad(body("9", "h:1", `,"source":"relay","replay_endpoint":"tcp://h:2"`), 400, "replay_endpoint: must be left out")
	bad(body("9", "h:0", `,"source":"relay"`), 400, `endpoint: "h:0": the port must be 1 to 65535`)
	bad(body("9", "", `,"source":"relay"`), 400, "endpoint: ")
	bad(body("9", "h:1", `,"source":"tcp"`), 400, `source: "tcp": must be one of zmq, relay`)
	bad(body("9", "tcp://h:1", `,"block_size":16`), 400, "block_size: is given twice")
	for _, b := range []string{"", " ", "{", "[]", "null", "7", `"x"`, "{}x", "\xff", `{"instance_id":` + strings.Repeat("[", 100_000)} {
		bad(b, 400, "")
	}
	if got := len(h.Instances("", "")); got != 9 {
		t.Errorf("%d workers stand, want the 9 good ones", got)
	}
}

// TestRegisterHolders: the index's own bound is a clear refusal.
func TestRegisterHolders(t *testing.T) {
	h := startTestHost(t, nil)
	for k := range shard.MaxHolders {
		if _, err := h.idx.AddHolder(kv.ModelKey(k)); err != nil {
			t.Fatalf("holder %d: %v", k, err)
		}
	}
	if got := h.error("POST", "/register", reg("1", "m", ""), 503); !strings.Contains(got, "index full") {
		t.Errorf("got %q", got)
	}
	h.want("GET", "/workers", "", 200, "[]")
	h.error("POST", "/query", query(t, tokens(1, 4), ""), 404)
}

// TestUnregister holds /unregister against the contract.
func TestUnregister(t *testing.T) {
	h := startTestHost(t, nil)
	const ok = `{"status":"ok"}`
	bad := func(body string, status int, want string) {
		t.Helper()
		if got := h.error("POST", "/unregister", body, status); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q in it", body, got, want)
		}
	}
	h.register(reg("1", "m", ""))
	h.register(reg("1", "m", `,"routing_group":"g"`))
	h.register(reg("1", "m2", ""))
	h.register(reg(`"x"`, "m", `,"routing_group":"g1"`))
	h.register(reg("3", "m", `,"routing_group":"g1"`))
	h.register(reg("3", "m", `,"routing_group":"g2"`))
	h.register(strings.Replace(reg("4", "m", `,"dp_size":3`), "21001", "23001", 1))
	r := h.rank("m", "", "1", 0)
	h.put(r, kv.TierDevice, "", "", 1, tokens(1, 8), nil)

	bad(`{"instance_id":9,"model_name":"m"}`, 404, "instance_id: 9 is not registered")
	bad(`{"instance_id":1,"model_name":"zz"}`, 404, "(it is in m2:default, m:default, m:g)")
	bad(`{"instance_id":1,"model_name":"m","routing_group":"zz"}`, 404, "not registered")
	bad(`{"instance_id":1,"model_name":"m","dp_rank":1}`, 404, "dp_rank: ")
	bad(`{"instance_id":1,"model_name":"m","dp_rank":-1}`, 400, "dp_rank: ")
	bad(`{"instance_id":1}`, 400, "model_name: is missing")
	bad(`{"model_name":"m"}`, 400, "instance_id: is missing")
	bad(`{"instance_id":1.5,"model_name":"m"}`, 400, "instance_id: ")
	bad(`x`, 400, "body: ")
	bad(``, 400, "body: is empty")
	bad(`{"instance_id":3,"model_name":"m"}`, 409, "routing_group: must be given, instance 3 stands in m:g1, m:g2")

	h.want("POST", "/unregister", `{"instance_id":1,"model_name":"m"}`, 200, ok)
	if _, err := h.idx.HolderStats(r.holder); err == nil {
		t.Error("the holder is still there when /unregister has answered")
	}
	h.must(200, "POST", "/query", query(t, tokens(1, 8), `,"routing_group":"g"`))
	h.want("POST", "/query", query(t, tokens(1, 8), ""), 200, nobody) // instance 4 has the model
	bad(`{"instance_id":1,"model_name":"m","routing_group":"default"}`, 404, "")
	h.want("POST", "/unregister", `{"instance_id":"1","model_name":"m","routing_group":"g"}`, 200, ok)
	h.error("POST", "/query", query(t, tokens(1, 8), `,"routing_group":"g"`), 404)
	h.want("POST", "/unregister", `{"instance_id":"x","model_name":"m"}`, 200, ok) // the only group it is in
	h.want("POST", "/unregister", `{"instance_id":4,"model_name":"m","dp_rank":1,"unknown":1}`, 200, ok)
	if got := len(h.Instances("m", "default")[0].Listeners); got != 2 {
		t.Errorf("%d listeners are left of instance 4, want 2", got)
	}
	h.want("POST", "/unregister", `{"instance_id":4,"model_name":"m","dp_rank":0}`, 200, ok)
	h.want("POST", "/unregister", `{"instance_id":4,"model_name":"m","dp_rank":2}`, 200, ok)
	h.error("POST", "/query", query(t, tokens(1, 8), ""), 404) // its last rank took the model along
	// A model that is gone may come back with another block size.
	h.register(strings.Replace(reg("1", "m", ""), `"block_size":4`, `"block_size":32`, 1))
}

// TestWorkers holds /workers against the contract, byte for byte.
func TestWorkers(t *testing.T) {
	h := startTestHost(t, nil)
	h.want("GET", "/workers", "", 200, "[]")
	h.register(reg("1", "m", ""))
	h.register(strings.Replace(reg(`"1x"`, "n", `,"dp_size":2,"routing_group":"g","tenant_id":"t"`), "21001", "23001", 1))
	setState(h.rank("m", "", "1", 0), feed.StatePending)
	listener := func(endpoint string) string {
		b := h.Instances("", "")[0].Listeners["0"].Dropped
		return fmt.Sprintf(`{"endpoint":%q,"status":"pending","last_seq":null,"epoch":%d,"gaps":0,"recovered_batches":0,"lost_batches":0,"restarts":0,"duplicates":0,"orphans":0,"memberships":0,"dropped":%s,"last_error":"","shard":0,"node":0}`,
			endpoint, h.Instances("", "")[0].Listeners["0"].Epoch, jsonOf(t, b))
	}
	one := `{"instance_id":1,"source":"zmq","status":"pending","model_name":"m","routing_group":"default","block_size":4,"endpoints":{"0":"tcp://127.0.0.1:21001"},"listeners":{"0":` + listener("tcp://127.0.0.1:21001") + `}}`
	two := `{"instance_id":"1x","source":"zmq","status":"pending","model_name":"n","routing_group":"g","tenant_id":"t","block_size":4,"endpoints":{"0":"tcp://127.0.0.1:23001","1":"tcp://127.0.0.1:23002"},"listeners":{"0":` +
		listener("tcp://127.0.0.1:23001") + `,"1":` + listener("tcp://127.0.0.1:23002") + `}}`
	h.want("GET", "/workers", "", 200, "["+one+","+two+"]")
	h.want("GET", "/workers?model_name=m", "", 200, "["+one+"]")
	h.want("GET", "/workers?routing_group=g", "", 200, "["+two+"]")
	h.want("GET", "/workers?model_name=m&routing_group=g", "", 200, "[]")
	h.want("GET", "/workers?model_name=&routing_group=default", "", 200, "["+one+"]")
	if !strings.Contains(one, `"dropped":{"`) || !strings.Contains(one, `"malformed":0`) {
		t.Errorf("no drop counters in %s", one)
	}
}
