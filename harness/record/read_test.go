// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const head = `{"t":1,"k":"header","format":"kvrec/1","engine":"vllm","version":"0.32.0","groups":[{"spec":"SlidingWindowSpec","block_size":32,"window":64},{"spec":"FullAttentionSpec","block_size":16,"window":null}]}`

func TestParse(t *testing.T) {
	f, err := Parse("x", strings.NewReader(strings.Join([]string{
		head,
		`{"t":2,"k":"msg","src":"pub1","f":["","AAAAAAAAAAE=","kA=="]}`,
		"",
		`{"t":3,"k":"state","pending_events":2,"cached":[[18446744073709551615,0,2],[-1,1,1],["00112233445566778899aabbccddeeff",1,1],[7,["GPU","CPU_PINNED"]]]}`,
		`{"t":4,"k":"replay","src":"replay1","tx":["","BQ=="],"rx":[["","AAAAAAAAAAE=","kA=="]],"ended":true}`,
		`{"t":5,"k":"weather","sun":true}`,
		`{"t":6,"k":"ctl","op":"route","id":"a","rank":1}`,
	}, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Lines) != 4 || f.Unknown != 1 || f.Header.MainBlockSize() != 16 {
		t.Fatalf("%d lines, %d of unknown kinds, blocks of %d; want 4, 1, 16", len(f.Lines), f.Unknown, f.Header.MainBlockSize())
	}
	if l := f.Lines[0]; l.N != 2 || l.Msg.Src != "pub1" || len(l.Msg.Frames) != 3 || f.Ranks()[0] != 1 {
		t.Errorf("message: %+v of ranks %v", l, f.Ranks())
	}
	st := f.Lines[1].State
	if st.Pending != 2 || st.Cached[0].Hash != st.Cached[1].Hash || st.Cached[2].Hash != 0x8899aabbccddeeff || len(st.Cached[3].Tiers) != 2 || st.Cached[0].Copies != 2 {
		t.Errorf("state: %+v", st)
	}
	if r := f.Lines[2].Replay; !r.Ended || len(r.Messages) != 1 || string(r.TX[1]) != "\x05" {
		t.Errorf("replay: %+v", r)
	}
}

func TestGarbled(t *testing.T) {
	tests := []struct{ text, want string }{
		{"", "x:1: empty"},
		{"\n\n", "x:1: empty"},
		{"hello", "x:1: not JSON"},
		{`{"t":1,"k":"msg"}`, `x:1: the first line must be a kvrec/1 header, not kind "msg"`},
		{`{"t":1,"k":"header","format":"kvrec/2"}`, `x:1: format "kvrec/2": must be kvrec/1`},
		{head + "\n" + head, "x:2: header: a second header"},
		{head + "\n[]", "x:2:"},
		{head + "\n" + `{"t":1}`, "x:2: k: missing"},
		{head + "\n" + `{"k":"req","id":"a"}`, "x:2: t: missing"},
		{head + "\n" + `{"t":1,"k":"req"} x`, "x:2: not JSON: text after the object"},
		{head + "\n" + `{"t":1,"k":"req","prompt":[1]}`, "x:2: req: id: missing"},
		{head + "\n" + `{"t":1,"k":"req","id":"a","prompt":[-1]}`, "x:2: req: prompt"},
		{head + "\n" + `{"t":1,"k":"resp","id":"a","cached_tokens":"7"}`, "x:2: resp: cached_tokens"},
		{head + "\n" + `{"t":1,"k":"msg","f":[]}`, "x:2: msg: src: missing"},
		{head + "\n" + `{"t":1,"k":"state","cached":[[1]]}`, "x:2: state: cached[0]: 1 elements"},
		{head + "\n" + `{"t":1,"k":"state","cached":[[1.5,0,1]]}`, "x:2: state: cached[0]: hash 1.5"},
		{head + "\n" + `{"t":1,"k":"state","cached":[["xyz",0,1]]}`, "x:2: state: cached[0]: hash"},
		{head + "\n" + `{"t":1,"k":"truth","src":"pub0","seq":1}`, "x:2: truth: events: missing"},
		{head + "\n" + `{"t":1,"k":"ctl"}`, "x:2: ctl: op: missing"},
		{head + "\n" + `{"t":1,"k":"replay","src":"replay0","tx":[],"rx":[["*"]]}`, "x:2: replay: rx[0]: frame 0"},
		{"\x1f\x8b\x00", "x: gzip"},
	}
	for _, test := range tests {
		_, err := Parse("x", strings.NewReader(test.text))
		var re *Error
		if err == nil || !errors.As(err, &re) || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.90q: %v, want one line that begins with %s", test.text, err, test.want)
		}
	}
}

// TestFixtures reads every shipped recording: each has its header and no
// line of an unknown kind.
func TestFixtures(t *testing.T) {
	files, err := filepath.Glob("../testdata/fixtures/given/*.jsonl.gz")
	if err != nil || len(files) < 80 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	for _, p := range files {
		f, err := Read(p)
		if err != nil {
			t.Error(err)
			continue
		}
		if f.Unknown != 0 || f.Header.Engine == "" || len(f.Lines) == 0 {
			t.Errorf("%s: %d unknown lines, engine %q, %d lines", p, f.Unknown, f.Header.Engine, len(f.Lines))
		}
	}
}

// FuzzParse gives Parse anything: it answers, and errors name a place.
func FuzzParse(f *testing.F) {
	f.Add([]byte(head))
	b, err := os.ReadFile("../testdata/fixtures/given/vllm032_prompt_embeds.jsonl.gz")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(head + "\n" + `{"t":3,"k":"state","cached":[[1,0,2],["00112233445566778899aabbccddeeff",1,1],[7,["GPU"]]]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Parse("x", bytes.NewReader(b))
		if err == nil && got.Header.Format != format {
			t.Errorf("read without a header")
		}
		if err != nil && !strings.HasPrefix(err.Error(), "x:") {
			t.Errorf("no place in %v", err)
		}
	})
}
