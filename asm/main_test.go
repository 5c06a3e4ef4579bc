// SPDX-License-Identifier: Apache-2.0

package asm

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"os"
	"strings"
	"testing"

	"kindex/asm/asmtest"
	"kindex/asm/internal/cpu"
)

func TestMain(m *testing.M) {
	variants, err := declared(os.DirFS("."))
	if err != nil {
		log.Fatal(err)
	}
	os.Exit(asmtest.Main(m, os.Stdout, variants))
}

// declared returns the kernels by level as the folder's files declare them,
// whatever this build compiles: a function without a body whose name ends in
// AVX512 or AVX2.
func declared(folder fs.FS) (map[string][]string, error) {
	variants := map[string][]string{}
	names, err := fs.Glob(folder, "*.go")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		src, err := fs.ReadFile(folder, name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body != nil {
				continue
			}
			if kernel, ok := strings.CutSuffix(f.Name.Name, "AVX512"); ok {
				variants["avx512"] = append(variants["avx512"], kernel)
			}
			if kernel, ok := strings.CutSuffix(f.Name.Name, "AVX2"); ok {
				variants["avx2"] = append(variants["avx2"], kernel)
			}
		}
	}
	return variants, nil
}

func TestLevels(t *testing.T) {
	asmtest.ForEachLevel(t, func(t *testing.T) {
		if got := t.Name(); got != "TestLevels/"+Level() {
			t.Errorf("level %s in %s", Level(), got)
		}
	})
	before := Level()
	f := func(name, want string) {
		t.Helper()
		for _, fn := range []func(string) error{CheckLevel, SetLevel} {
			if err := fn(name); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: got %v, want one line with %q", name, err, want)
			}
		}
		if Level() != before {
			t.Errorf("%q: level is now %s, want %s still", name, Level(), before)
		}
	}
	const all = "must be auto, avx512, avx2 or generic"
	f("", all)
	f("AVX2", all)
	f("sse", `"sse": `+all)
	f("avx2\n", all)
	for _, name := range cpu.All() {
		if cpu.Lacks(name) != "" {
			f(name, cpu.Lacks(name)+": use auto")
		}
	}
	if err := SetLevel("auto"); err != nil || Level() != before {
		t.Errorf("auto: got %v and level %s, want %s as at start", err, Level(), before)
	}
}
