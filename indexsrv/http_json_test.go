// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"kindex/internal/jsonscan"
	"kindex/internal/kv"
	"kindex/internal/lookup"
)

// wantQuery is what a body of /query says, read with encoding/json.
type wantQuery struct {
	model, group, tenant, lora, salt string
	tokens                           []uint32
	instances                        []string
	filtered                         bool
	maxResults                       int
	extra                            []string // canonical encodings
}

// errOracle is a body that the oracle refuses.
var errOracle = errors.New("refused")

// oracleQuery reads a body as the contract says, slowly.
func oracleQuery(body []byte) (w wantQuery, err error) {
	if !json.Valid(body) || !utf8.Valid(body) || nesting(body) > jsonscan.MaxNesting {
		return w, errOracle
	}
	members, err := topMembers(body)
	if err != nil {
		return w, err
	}
	text := func(name string, p *string) error {
		raw, ok := members[name]
		if !ok {
			return nil
		}
		if halfSurrogate(raw) || json.Unmarshal(raw, p) != nil || len(*p) > maxNameBytes {
			return errOracle
		}
		return nil
	}
	for name, p := range map[string]*string{
		"model_name": &w.model, "routing_group": &w.group, "tenant_id": &w.tenant, "lora_name": &w.lora, "cache_salt": &w.salt,
	} {
		if err := text(name, p); err != nil {
			return w, err
		}
	}
	if w.model == "" || members["token_ids"] == nil {
		return w, errOracle
	}
	for _, raw := range elements(members["token_ids"], &err) {
		n := integer(raw, &err)
		if err == nil && (n.Sign() < 0 || n.BitLen() > 32) {
			return w, errOracle
		}
		if err == nil {
			w.tokens = append(w.tokens, uint32(n.Uint64()))
		}
	}
	if raw, ok := members["instances"]; ok {
		w.filtered = true
		for _, e := range elements(raw, &err) {
			w.instances = append(w.instances, oracleID(e, &err))
		}
	}
	if raw, ok := members["max_results"]; ok {
		n := integer(raw, &err)
		if err == nil && (n.Sign() <= 0 || n.BitLen() > 31) {
			return w, errOracle
		}
		if err == nil {
			w.maxResults = int(n.Int64())
		}
	}
	if raw, ok := members["extra_keys"]; ok {
		for _, e := range elements(raw, &err) {
			w.extra = append(w.extra, oracleExtra(e, &err))
		}
	}
	return w, err
}

func oracleExtra(raw json.RawMessage, err *error) string {
	var enc []byte
	if string(raw) == "null" {
		return ""
	}
	for _, k := range elements(raw, err) {
		var id string
		if k[0] == '"' {
			if halfSurrogate(k) || json.Unmarshal(k, &id) != nil {
				*err = errOracle
			}
			enc = kv.AppendExtraKey(enc, kv.ExtraKey{Kind: kv.ExtraString, ID: id})
			continue
		}
		pair := elements(k, err)
		if len(pair) != 2 || pair[0][0] != '"' || halfSurrogate(pair[0]) || json.Unmarshal(pair[0], &id) != nil {
			*err = errOracle
			return ""
		}
		n := integer(pair[1], err)
		if *err != nil || !n.IsInt64() {
			*err = errOracle
			return ""
		}
		enc = kv.AppendExtraKey(enc, kv.ExtraKey{Kind: kv.ExtraItem, ID: id, Offset: n.Int64()})
	}
	return string(enc)
}

func oracleID(raw json.RawMessage, err *error) string {
	var s string
	if raw[0] == '"' {
		if halfSurrogate(raw) || json.Unmarshal(raw, &s) != nil || s == "" || len(s) > maxNameBytes {
			*err = errOracle
		}
		return s
	}
	n := integer(raw, err)
	if *err != nil || n.Sign() < 0 || n.BitLen() > 64 {
		*err = errOracle
		return ""
	}
	return n.String()
}

func elements(raw json.RawMessage, err *error) []json.RawMessage {
	var es []json.RawMessage
	if string(raw) == "null" || json.Unmarshal(raw, &es) != nil {
		*err = errOracle
	}
	return es
}

// integer reads a JSON integer of any size; -0 and fractions are none.
func integer(raw json.RawMessage, err *error) *big.Int {
	n, ok := new(big.Int).SetString(string(raw), 10)
	if !ok || string(raw) == "-0" {
		*err = errOracle
		return new(big.Int)
	}
	return n
}

// topMembers returns the members of the top object that are not null. A known
// name given twice is refused, even as null; half a surrogate in a name, too.
func topMembers(body []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errOracle
	}
	known := []string{"token_ids", "model_name", "routing_group", "tenant_id", "lora_name", "cache_salt", "extra_keys", "instances", "max_results"}
	seen := map[string]bool{}
	members := map[string]json.RawMessage{}
	for d.More() {
		at := d.InputOffset()
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok || halfSurrogate(body[at:d.InputOffset()]) {
			return nil, errOracle
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, errOracle
		}
		if !slices.Contains(known, name) {
			continue
		}
		if seen[name] {
			return nil, errOracle
		}
		seen[name] = true
		if string(raw) != "null" {
			members[name] = raw
		}
	}
	return members, nil
}

// halfSurrogate reports whether a JSON string has an escape that is half a
// surrogate pair.
func halfSurrogate(raw []byte) bool {
	var s string
	if json.Unmarshal(bytes.TrimLeft(raw, " \t\r\n,"), &s) != nil {
		return false
	}
	// encoding/json writes U+FFFD for each half; a literal one is found by
	// taking the literal ones out first.
	literal := strings.Count(string(raw), "�") + strings.Count(strings.ToLower(string(raw)), `\ufffd`)
	return strings.Count(s, "�") > literal
}

// nesting returns how deep a valid JSON text is nested.
func nesting(body []byte) int {
	d := json.NewDecoder(bytes.NewReader(body))
	deepest, depth := 0, 0
	for {
		t, err := d.Token()
		if err != nil {
			return deepest
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
			deepest = max(deepest, depth)
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}

// sameAsOracle holds what our scanner reads against the oracle.
func sameAsOracle(body []byte) error {
	q := newQueryScratch(0)
	q.body = body
	q.reset()
	err := q.scan.Object(q.fields)
	want, wantErr := oracleQuery(body)
	if (err != nil) != (wantErr != nil) {
		return fmt.Errorf("got error %w, the oracle %w", orEOF(err), orEOF(wantErr))
	}
	if err != nil {
		if !errors.Is(err, ErrInvalid) || strings.ContainsAny(err.Error(), "\n\r") {
			return fmt.Errorf("a refusal must be one line and ErrInvalid: %w", err)
		}
		return nil
	}
	got := wantQuery{
		model: string(q.model), group: string(q.group), tenant: string(q.tenant), lora: string(q.lora), salt: string(q.salt),
		tokens: q.tokens, filtered: q.filtered, maxResults: q.maxResults,
	}
	for _, id := range q.instances {
		got.instances = append(got.instances, string(id))
	}
	for _, e := range q.extra.all() {
		got.extra = append(got.extra, string(e))
	}
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		return fmt.Errorf("got %+v, the oracle %+v", got, want)
	}
	return nil
}

func orEOF(err error) error {
	if err == nil {
		return io.EOF
	}
	return err
}

// queryBodies are texts of every kind that a client may send.
var queryBodies = []string{
	``, ` `, `{}`, `[]`, `null`, `1`, `"x"`, `{`, `}`, `{"`, `{"a`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{,}`, `{"a" 1}`, `{a:1}`,
	`{"token_ids":[1,2,3],"model_name":"m"}`,
	`{"token_ids":[1,2,3],"model_name":"m"} x`, `{"token_ids":[1,2,3],"model_name":"m"}{}`, "\ufeff{}",
	` { "token_ids" : [ 1 , 2 ,3 ] , "model_name" : "m" } ` + "\n",
	`{"token_ids":[],"model_name":"m"}`, `{"token_ids":null,"model_name":"m"}`, `{"token_ids":{},"model_name":"m"}`, `{"token_ids":"1","model_name":"m"}`, `{"model_name":"m"}`,
	`{"token_ids":[1,],"model_name":"m"}`, `{"token_ids":[,1],"model_name":"m"}`, `{"token_ids":[1 2],"model_name":"m"}`, `{"token_ids":[1`, `{"token_ids":[1]`, `{"token_ids":[`,
	`{"token_ids":[-1],"model_name":"m"}`, `{"token_ids":[-0],"model_name":"m"}`, `{"token_ids":[0],"model_name":"m"}`, `{"token_ids":[00],"model_name":"m"}`, `{"token_ids":[01],"model_name":"m"}`, `{"token_ids":[+1],"model_name":"m"}`,
	`{"token_ids":[4294967295],"model_name":"m"}`, `{"token_ids":[4294967296],"model_name":"m"}`, `{"token_ids":[18446744073709551616],"model_name":"m"}`,
	`{"token_ids":[1.0],"model_name":"m"}`, `{"token_ids":[1e2],"model_name":"m"}`, `{"token_ids":[1e400],"model_name":"m"}`, `{"token_ids":[1.],"model_name":"m"}`, `{"token_ids":[.5],"model_name":"m"}`, `{"token_ids":[1e],"model_name":"m"}`, `{"token_ids":[1e+],"model_name":"m"}`,
	`{"token_ids":[123456789],"model_name":"m"}`, `{"token_ids":[1234567890],"model_name":"m"}`, `{"token_ids":[12345678901],"model_name":"m"}`,
	`{"token_ids":[NaN],"model_name":"m"}`, `{"token_ids":[Infinity],"model_name":"m"}`, `{"token_ids":["1"],"model_name":"m"}`, `{"token_ids":[true],"model_name":"m"}`, `{"token_ids":[null],"model_name":"m"}`, `{"token_ids":[[1]],"model_name":"m"}`, `{"token_ids":[{}],"model_name":"m"}`,
	`{"token_ids":[1],"token_ids":[2],"model_name":"m"}`, `{"token_ids":[1],"token_ids":null,"model_name":"m"}`, `{"token_ids":null,"token_ids":[1],"model_name":"m"}`, `{"x":1,"x":2,"token_ids":[1],"model_name":"m"}`,
	`{"token_ids":[1],"token\u005fids":[2],"model_name":"m"}`, `{"token\u005fids":[2],"model_name":"m"}`, `{"TOKEN_IDS":[2],"model_name":"m"}`,
	`{"token_ids":[1],"model_name":7}`, `{"token_ids":[1],"model_name":null}`, `{"token_ids":[1],"model_name":""}`, `{"token_ids":[1],"model_name":["m"]}`, `{"token_ids":[1],"model_name":true}`,
	`{"token_ids":[1],"model_name":"a\"b\\c\/d\b\f\n\r\t\u0041\u00e9\ud83d\ude00"}`, `{"token_ids":[1],"model_name":"\ud83d"}`, `{"token_ids":[1],"model_name":"\ude00\ud83d"}`, `{"token_ids":[1],"model_name":"\ud83dx"}`, `{"token_ids":[1],"model_name":"\ud83d\u0041"}`, `{"token_ids":[1],"model_name":"\ufffd"}`, `{"token_ids":[1],"model_name":"�"}`,
	`{"token_ids":[1],"model_name":"\x"}`, `{"token_ids":[1],"model_name":"\u12"}`, `{"token_ids":[1],"model_name":"\u12g4"}`, `{"token_ids":[1],"model_name":"\`, `{"token_ids":[1],"model_name":"m`,
	"{\"token_ids\":[1],\"model_name\":\"a\nb\"}", "{\"token_ids\":[1],\"model_name\":\"a\x00b\"}", "{\"token_ids\":[1],\"model_name\":\"\xff\"}", "{\"token_ids\":[1],\"model_name\":\"\xc3\xa9\"}", "{\"\xff\":1,\"token_ids\":[1],\"model_name\":\"m\"}", "{\"x\":\"\xff\",\"token_ids\":[1],\"model_name\":\"m\"}",
	`{"x":"\ud83d","token_ids":[1],"model_name":"m"}`, `{"\ud83d":1,"token_ids":[1],"model_name":"m"}`, `{"x":{"\ud83d":1},"token_ids":[1],"model_name":"m"}`,
	`{"x":{"a":[1,2.5e3,-0,{"b":[]},true,false,null,"\u0041"]},"token_ids":[1],"model_name":"m"}`, `{"x":tru,"token_ids":[1],"model_name":"m"}`, `{"x":nul`, `{"x":[1}`, `{"x":{"a":1]}`, `{"x":{"a"}}`, `{"x":{1:2}}`,
	`{"token_ids":[1],"model_name":"m","routing_group":"g","tenant_id":"t","lora_name":"l","cache_salt":"s"}`, `{"token_ids":[1],"model_name":"m","routing_group":null,"tenant_id":"","lora_name":null}`,
	`{"token_ids":[1],"model_name":"m","max_results":3}`, `{"token_ids":[1],"model_name":"m","max_results":0}`, `{"token_ids":[1],"model_name":"m","max_results":-3}`, `{"token_ids":[1],"model_name":"m","max_results":2147483648}`, `{"token_ids":[1],"model_name":"m","max_results":1.5}`, `{"token_ids":[1],"model_name":"m","max_results":"3"}`,
	`{"token_ids":[1],"model_name":"m","instances":[1,"a",18446744073709551615,"1"]}`, `{"token_ids":[1],"model_name":"m","instances":[]}`, `{"token_ids":[1],"model_name":"m","instances":null}`, `{"token_ids":[1],"model_name":"m","instances":[-1]}`, `{"token_ids":[1],"model_name":"m","instances":[""]}`, `{"token_ids":[1],"model_name":"m","instances":[null]}`, `{"token_ids":[1],"model_name":"m","instances":[1.5]}`, `{"token_ids":[1],"model_name":"m","instances":"1"}`, `{"token_ids":[1],"model_name":"m","instances":[18446744073709551616]}`,
	`{"token_ids":[1],"model_name":"m","extra_keys":[null,["a"],[["b",-3]],[],["c",["d",0],["e",9223372036854775807]]]}`,
	`{"token_ids":[1],"model_name":"m","extra_keys":[["b"]]}`, `{"token_ids":[1],"model_name":"m","extra_keys":[[["b"]]]}`, `{"token_ids":[1],"model_name":"m","extra_keys":[[["b",1,2]]]}`, `{"token_ids":[1],"model_name":"m","extra_keys":[[[]]]}`, `{"token_ids":[1],"model_name":"m","extra_keys":[[[1,"b"]]]}`, `{"token_ids":[1],"model_name":"m","extra_keys":[[["b",1.5]]]}`, `{"token_ids":[1],"model_name":"m","extra_keys":[[["b","c"]]]}`, `{"token_ids":[1],"model_name":"m","extra_keys":[[7]]}`, `{"token_ids":[1],"model_name":"m","extra_keys":["a"]}`, `{"token_ids":[1],"model_name":"m","extra_keys":{}}`, `{"token_ids":[1],"model_name":"m","extra_keys":[[["b",9223372036854775808]]]}`, `{"token_ids":[1],"model_name":"m","extra_keys":[[["b",-9223372036854775808]]]}`, `{"token_ids":[1],"model_name":"m","extra_keys":[[null]]}`, `{"token_ids":[1],"model_name":"m","extra_keys":[[["\ud83d",1]]]}`,
	`{"token_ids":` + strings.Repeat("[", 100_000), `{"x":` + strings.Repeat(`{"a":`, 100_000), strings.Repeat("[", 100_000), `{"x":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `,"token_ids":[1],"model_name":"m"}`, `{"x":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `,"token_ids":[1],"model_name":"m"}`,
	`{"token_ids":[` + strings.Repeat("7,", 999) + `7],"model_name":"m"}`, `{"token_ids":[1],"model_name":"` + strings.Repeat("m", 512) + `"}`, `{"token_ids":[1],"model_name":"` + strings.Repeat("m", 513) + `"}`,
}

// TestQueryBodyOracle reads each body with the scanner and with encoding/json.
func TestQueryBodyOracle(t *testing.T) {
	accepted := 0
	for _, body := range queryBodies {
		if err := sameAsOracle([]byte(body)); err != nil {
			t.Errorf("%.200q: %v", body, err)
		}
		if _, err := oracleQuery([]byte(body)); err == nil {
			accepted++
		}
	}
	if accepted < 20 || accepted > len(queryBodies)-60 {
		t.Errorf("%d of %d bodies are good: the table has lost one side", accepted, len(queryBodies))
	}
}

// FuzzQueryBody is the same over any bytes.
func FuzzQueryBody(f *testing.F) {
	for _, body := range queryBodies {
		if len(body) < 4_096 {
			f.Add([]byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if err := sameAsOracle(body); err != nil {
			t.Errorf("%q: %v", body, err)
		}
	})
}

// TestAppendJSONString holds the encoder against encoding/json.
func TestAppendJSONString(t *testing.T) {
	for _, s := range []string{"", "a", `"\/`, "\x00\x1f\x7f\n", "é😀", "a\xffb", "\xe2\x82", "�", strings.Repeat("x", 300)} {
		var back string
		if err := json.Unmarshal(lookup.AppendJSONString(nil, s), &back); err != nil {
			t.Errorf("%q: %v", s, err)
		}
		var want string
		b, _ := json.Marshal(s)
		if err := json.Unmarshal(b, &want); err != nil || back != want {
			t.Errorf("%q comes back as %q, want %q (%v)", s, back, want, err)
		}
	}
}

func BenchmarkQueryBody(b *testing.B) {
	for _, n := range []int{1_024, 8_192, 131_072} {
		body := []byte(`{"model_name":"m","token_ids":[`)
		for i := range n {
			body = fmt.Appendf(body, "%d,", (i*7919)%128_000)
		}
		body = append(body[:len(body)-1], "]}"...)
		q := newQueryScratch(0)
		q.body = body
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				q.reset()
				if err := q.scan.Object(q.fields); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/token")
		})
	}
}
