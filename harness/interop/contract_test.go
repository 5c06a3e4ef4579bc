// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"kindex/relay/wire"
)

// TestDynamoContract asks both the same requests in the same order and compares
// the statuses, which clients branch on. Where ours is another one, it is what
// our contract promises and says why it is better.
func TestDynamoContract(t *testing.T) {
	if !inNamespace(t, 5*time.Minute, func() {
		dynamoEnv.install(t)
		buildIndexsrv(t)
	}) {
		return
	}
	both := startBoth(t)
	p := newPublisher(t, "", nil, wire.ReplayBare)
	reg := fmt.Sprintf(`"endpoint":%q,"replay_endpoint":%q`, p.Live, p.Replay)
	post, get := http.MethodPost, http.MethodGet
	for i, step := range []struct {
		method, path, body string
		ours, theirs       int
		why                string // where they differ
	}{
		{get, "/health", "", 200, 200, ""},
		{get, "/workers", "", 200, 200, ""},
		{get, "/dump", "", 200, 200, ""},
		{get, "/peers", "", 200, 200, ""},
		{get, "/metrics", "", 200, 200, ""},
		{post, "/query", `{"token_ids":[1],"model_name":"m"}`, 404, 404, ""},
		{post, "/query_by_hash", `{"block_hashes":[1],"model_name":"m"}`, 404, 404, ""},
		{post, "/register", `{"instance_id":1,"model_name":"m","block_size":16,` + reg + `}`, 201, 201, ""},
		{post, "/register", `{"instance_id":1,"model_name":"m","block_size":16,` + reg + `}`, 409, 409, ""},
		{post, "/register", `{"instance_id":2,"model_name":"m","block_size":32,` + reg + `}`, 409, 409, ""},
		{post, "/register", `{"instance_id":2,"model_name":"m","block_size":16,"endpoint":"nonsense"}`, 400, 400, ""},
		{post, "/register", `{"instance_id":2,"model_name":"m","block_size":16,"endpoint":"tcp://127.0.0.1"}`, 400, 400, ""},
		{post, "/register", `{"instance_id":2,"model_name":"m","block_size":16,"replay_endpoint":"junk","endpoint":"tcp://127.0.0.1:1"}`, 400, 400, ""},
		{post, "/register", `{"instance_id":1,"dp_rank":1,"model_name":"m","block_size":16,` + reg + `}`, 201, 201, ""},
		{post, "/register", `{"instance_id":3,"model_name":"m","routing_group":"g","block_size":32,` + reg + `}`, 201, 201, ""},
		{post, "/register", `{"instance_id":4,"model_name":"m","block_size":16,"colour":"red",` + reg + `}`, 201, 201, ""},
		{post, "/query", `{"token_ids":[1],"model_name":"m"}`, 200, 200, ""},
		{post, "/query", `{"token_ids":[],"model_name":"m"}`, 200, 200, ""},
		{post, "/query", `{"token_ids":[1],"model_name":"m","colour":"red"}`, 200, 200, ""},
		{post, "/query", `{"token_ids":[1],"model_name":"m","lora_name":null}`, 200, 200, ""},
		{post, "/query", `{"token_ids":[1],"model_name":"m","routing_group":"g"}`, 200, 200, ""},
		{post, "/query", `{"token_ids":[1],"model_name":"m","routing_group":"h"}`, 404, 404, ""},
		{post, "/query_by_hash", `{"block_hashes":[-583561804111958748],"model_name":"m"}`, 200, 200, ""},
		{post, "/query", `{"token_ids":[1`, 400, 400, ""},
		{post, "/query", `{`, 400, 400, ""},
		{post, "/query", `{"token_ids":[-1],"model_name":"m"}`, 400, 422, "one status for what cannot be right"},
		{post, "/query", `{"token_ids":[4294967296],"model_name":"m"}`, 400, 422, "one status for what cannot be right"},
		{post, "/query", `{"token_ids":"1","model_name":"m"}`, 400, 422, "one status for what cannot be right"},
		{post, "/query", `{"model_name":"m"}`, 400, 422, "one status for what cannot be right"},
		{post, "/query_by_hash", `{"block_hashes":[9223372036854775808],"model_name":"m"}`, 200, 422, "hashes of either sign"},
		{post, "/query_by_hash", `{"block_hashes":[1.5],"model_name":"m"}`, 400, 422, "one status for what cannot be right"},
		{post, "/register", `{"instance_id":"a","model_name":"m","block_size":16,` + reg + `}`, 201, 422, "ids may be strings"},
		{post, "/register", `{"instance_id":5,"model_name":"zero","block_size":0,` + reg + `}`, 400, 201, "a block holds tokens"},
		{post, "/register", `{"instance_id":1,"model_name":"other","block_size":16,` + reg + `}`, 201, 409, "an id may stand in two models"},
		{post, "/register_peer", `{"url":"http://127.0.0.1:1"}`, 201, 201, ""},
		{post, "/deregister_peer", `{"url":"http://127.0.0.1:1"}`, 200, 200, ""},
		{post, "/deregister_peer", `{"url":"http://127.0.0.1:1"}`, 404, 404, ""},
		{get, "/query", "", 405, 405, ""},
		{get, "/nowhere", "", 404, 404, ""},
		{post, "/unregister", `{"instance_id":77,"model_name":"m"}`, 404, 404, ""},
		{post, "/unregister", `{"instance_id":1,"model_name":"m","routing_group":"default","dp_rank":7}`, 404, 404, ""},
		{post, "/unregister", `{"instance_id":1,"model_name":"m","routing_group":"default","dp_rank":1}`, 200, 200, ""},
		{post, "/unregister", `{"instance_id":3,"model_name":"m","routing_group":"g"}`, 200, 200, ""},
		{post, "/unregister", `{"instance_id":1,"model_name":"m"}`, 200, 200, ""},
		{post, "/unregister", `{"instance_id":1,"model_name":"m"}`, 404, 404, ""},
	} {
		for _, side := range []struct {
			name string
			*client
			want int
		}{{"ours", both.ours, step.ours}, {"the peer", both.theirs, step.theirs}} {
			if got := side.status(t, step.method, step.path, step.body); got != side.want {
				t.Errorf("step %d, %s: %s %s %s: got status %d, want %d", i, side.name, step.method, step.path, step.body, got, side.want)
			}
		}
		if (step.ours != step.theirs) != (step.why != "") {
			t.Errorf("step %d: the peer's %d is not ours, %d: that needs a reason", i, step.theirs, step.ours)
		}
	}
}

// status sends body as it is, JSON or not.
func (c *client) status(t *testing.T, method, path, body string) int {
	t.Helper()
	req, err := http.NewRequest(method, c.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
