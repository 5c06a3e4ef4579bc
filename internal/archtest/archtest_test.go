// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// TestTree holds this repository against the rules.
func TestTree(t *testing.T) {
	tree := os.DirFS("../..")
	found, err := Check(tree)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Error(f)
	}
	for _, s := range Stale(tree) {
		t.Errorf("%s: its exception excuses nothing any more", s)
	}
}

// TestPlanted shows that each rule catches its violation: one fault planted in
// an otherwise clean tree gives exactly the finding that names it.
func TestPlanted(t *testing.T) {
	const head = spdx + "\n\n"
	clean := map[string]string{
		"shard/doc.go":           head + "// Package shard is one.\npackage shard\n",
		"shard/a.go":             head + "package shard\n\nimport _ \"kindex/internal/kv\"\n",
		"relay/wire/wire.go":     head + "// Package wire is one.\npackage wire\n\nimport _ \"kindex/internal/kv\"\n",
		"relay/wire/x_test.go":   head + "package wire\n\nimport (\n\t_ \"kindex/shard\"\n\t_ \"time\"\n)\n",
		"internal/kv/kv.go":      head + "// Package kv is one.\npackage kv\n",
		"internal/kv/kv_test.go": head + "package kv_test\n\nimport _ \"kindex/internal/kv\"\n",
		"cmd/indexsrv/main.go":   head + "// Command indexsrv is one.\npackage main\n\nimport _ \"kindex/indexsrv\"\n",
		"README.md":              "# kindex\n",
	}
	plant := func(name, content, want string) {
		t.Helper()
		tree := fstest.MapFS{}
		for n, c := range clean {
			tree[n] = &fstest.MapFile{Data: []byte(c)}
		}
		if name != "" {
			tree[name] = &fstest.MapFile{Data: []byte(content)}
		}
		found, err := Check(tree)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if want == "" {
			if len(found) != 0 {
				t.Errorf("clean tree: got %q", found)
			}
			return
		}
		if len(found) != 1 || !strings.Contains(found[0], want) {
			t.Errorf("%s: got %q, want one finding with %q", name, found, want)
		}
	}

	plant("", "", "")
	plant("shard/b.go", head+"package shard\n\nimport _ \"kindex/relay/wire\"\n", "shard may not")
	plant("relay/wire/b.go", head+"package wire\n\nimport _ \"kindex/shard\"\n", "relay/wire may not")
	plant("internal/kv/b.go", head+"package kv\n\nimport _ \"kindex/shard\"\n", "internal/kv may not")
	plant("cmd/indexsrv/main.go", head+"// Command indexsrv is one.\npackage main\n\nimport _ \"kindex/shard\"\n", "cmd/indexsrv may not")
	plant("rogue/a.go", head+"// Package rogue is one.\npackage rogue\n", "no arrow begins at rogue")
	plant("shard/b.go", head+"package shard\n\nimport _ \"unsafe\"\n", "imports unsafe")
	plant("shard/b.go", head+"package shard\n\nimport _ \"log/slog\"\n", "knows no network")
	plant("relay/wire/b.go", head+"package wire\n\nimport _ \"syscall\"\n", "system calls")
	plant("shard/b_test.go", head+"package shard\n\nimport _ \"github.com/stretchr/testify/require\"\n", "standard library")
	plant("relay/wire/b.go", head+"package wire\n\nimport t \"time\"\n\nfunc f() { t.Sleep(1) }\n", "time.Sleep")
	plant("relay/wire/b.go", head+"package wire\n\nimport \"fmt\"\n\nfunc f() { fmt.Println() }\n", "fmt.Println")
	plant("relay/wire/b.go", head+"package wire\n\nimport \"flag\"\n\nvar x = flag.String(\"a\", \"\", \"\")\n", "flag.String")
	plant("shard/b.go", "package shard\n", "first line")
	plant("asm/b.s", "TEXT x\n", "first line")
	plant("shard/b.go", head+"// Package shard is two.\npackage shard\n", "2 files carry the package comment")
	plant("shard/doc.go", head+"package shard\n", "0 files carry the package comment")
	plant("shard/b.go", head+"//go:build exotic\n\npackage shard\n", `build tag "exotic"`)
	plant("shard/b.go", head+"package shard\n"+strings.Repeat("\n", maxFileLines), "split it")
	plant("shard/b.go", head+"package shard\n\nfunc f() {\n"+strings.Repeat("\n", maxFuncLines)+"}\n", "func f has")
	plant("cmd/indexsrv/main.go", head+"// Command indexsrv is one.\npackage main\n"+strings.Repeat("\n", maxMainLines), "a main has at most")
	plant("README.md", "see /wor"+"k/here\n", "a path of one machine")
	plant("shard/b.go", head+"package shard\n\n// as in issu"+"e 7.\n", "some tracker")
}

// TestArrows holds the tables against themselves.
func TestArrows(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range arrows {
		if seen[a.from] {
			t.Errorf("%s has two arrows", a.from)
		}
		seen[a.from] = true
		if a.why == "" {
			t.Errorf("%s has no reason", a.from)
		}
	}
	for _, list := range []map[string]string{longFiles, longFuncs} {
		for name, why := range list {
			if why == "" {
				t.Errorf("%s is excused without a reason", name)
			}
		}
	}
}
