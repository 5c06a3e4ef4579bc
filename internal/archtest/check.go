// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"sort"
	"strconv"
	"strings"
)

// Check returns what breaks the rules in the tree of fsys, one line each, sorted.
//
// Errors: what cannot be read or parsed.
func Check(fsys fs.FS) ([]string, error) {
	c := checker{packages: map[string]*pkg{}}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipDir(name, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || !isText(name) {
			return nil
		}
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		return c.file(name, data)
	})
	if err != nil {
		return nil, err
	}
	c.packageComments()
	sort.Strings(c.found)
	return c.found, nil
}

// skipDir reports whether a folder is not part of the tree: built things,
// version control, environments, test data.
func skipDir(full, base string) bool {
	switch full {
	case ".", ".ci":
		return false
	case "bin":
		return true
	}
	return strings.HasPrefix(base, ".") || base == "testdata" || base == "__pycache__"
}

func isText(name string) bool {
	switch path.Ext(name) {
	case ".go", ".s", ".h", ".md", ".yml", ".yaml", ".proto", ".py", ".sh":
		return true
	}
	return path.Dir(name) == ".ci" || path.Base(name) == "Makefile"
}

type checker struct {
	found    []string
	packages map[string]*pkg // by folder
}

// pkg counts one folder's package comments. External test packages share it.
type pkg struct {
	files, tests             int
	comments, testsCommented []string
}

func (c *checker) addf(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

// file applies every rule that needs one file alone.
func (c *checker) file(name string, data []byte) error {
	c.words(name, data)
	ext := path.Ext(name)
	if ext != ".go" && ext != ".s" {
		return nil
	}
	first, _, _ := bytes.Cut(data, []byte("\n"))
	if ext == ".s" || !isGenerated(data) {
		if string(first) != spdx {
			c.addf("%s: the first line is not %q", name, spdx)
		}
	}
	if ext == ".s" {
		return nil
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, data, parser.ParseComments)
	if err != nil {
		return err
	}
	c.imports(name, f)
	c.calls(name, fset, f)
	if err := c.constraints(name, f); err != nil {
		return err
	}
	c.count(name, f)
	if !isGenerated(data) {
		c.lengths(name, data, fset, f)
	}
	return nil
}

func isGenerated(data []byte) bool {
	head := data[:min(len(data), 512)]
	return bytes.Contains(head, []byte("// Code generated ")) && bytes.Contains(head, []byte(" DO NOT EDIT."))
}

func (c *checker) words(name string, data []byte) {
	for _, w := range words {
		for n, line := range bytes.Split(data, []byte("\n")) {
			if hit := w.pattern.Find(line); hit != nil {
				c.addf("%s:%d: %q: %s", name, n+1, hit, w.why)
			}
		}
	}
}

func isTest(name string) bool { return strings.HasSuffix(name, "_test.go") }

// mayUnsafe excuses, besides the files that say it in their name, the kernels and
// what the protobuf compiler wrote.
func mayUnsafe(name string) bool {
	return strings.Contains(path.Base(name), "_unsafe") || strings.HasSuffix(name, ".pb.go") ||
		allows([]string{"asm/..."}, path.Dir(name))
}

// imports holds f against the arrows, the doors and the rule on unsafe.
func (c *checker) imports(name string, f *ast.File) {
	dir := path.Dir(name)
	rule, ruled := arrowOf(dir)
	if !ruled {
		c.addf("%s: no arrow begins at %s: give the new part its place in internal/archtest/arrows.go", name, dir)
	}
	for _, spec := range f.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser accepted it: cannot happen
		}
		if imported == "unsafe" && !mayUnsafe(name) {
			c.addf("%s: imports unsafe: that lives in files named *_unsafe.go", name)
		}
		for _, d := range doors {
			if allows(d.imports, imported) && d.guards(dir, isTest(name)) {
				c.addf("%s: imports %s: %s", name, imported, d.why)
			}
		}
		ours, ok := strings.CutPrefix(imported, module+"/")
		if !ok || !ruled || ours == dir || strings.HasPrefix(ours, dir+"/") {
			continue
		}
		if !allows(rule.to, ours) && (!isTest(name) || !allows(testsMayImport, ours)) {
			c.addf("%s: imports %s: %s may not: %s", name, ours, rule.from, rule.why)
		}
	}
}

// guards reports whether a file of dir may not use d. Tests may use what they
// need, except where nobody may.
func (d *door) guards(dir string, test bool) bool {
	if d.within != nil {
		return !test && allows(d.within, dir)
	}
	if len(d.only) == 0 {
		return true
	}
	return !test && !allows(d.only, dir)
}

// calls holds f against the bans. Tests are free.
func (c *checker) calls(name string, fset *token.FileSet, f *ast.File) {
	if isTest(name) {
		return
	}
	local := map[string]string{} // name in this file -> import path
	for _, spec := range f.Imports {
		p := strings.Trim(spec.Path.Value, `"`)
		as := path.Base(p)
		if spec.Name != nil {
			as = spec.Name.Name
		}
		local[as] = p
	}
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		for _, b := range bans {
			if local[x.Name] == b.pkg && b.names.MatchString(sel.Sel.Name) && !allows(b.except, path.Dir(name)) {
				c.addf("%s:%d: %s.%s: %s", name, fset.Position(sel.Pos()).Line, b.pkg, sel.Sel.Name, b.why)
			}
		}
		return true
	})
}

// constraints holds the build tags of f against the list of all.
func (c *checker) constraints(name string, f *ast.File) error {
	for _, g := range f.Comments {
		if g.Pos() > f.Package {
			break
		}
		for _, line := range g.List {
			if !constraint.IsGoBuild(line.Text) {
				continue
			}
			expr, err := constraint.Parse(line.Text)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			expr.Eval(func(tag string) bool {
				if !tags[tag] {
					c.addf("%s: build tag %q is not in the list of all tags", name, tag)
				}
				return false
			})
		}
	}
	return nil
}

// lengths holds f against the budgets.
func (c *checker) lengths(name string, data []byte, fset *token.FileSet, f *ast.File) {
	lines := bytes.Count(data, []byte("\n"))
	if f.Name.Name == "main" && strings.HasPrefix(name, "cmd/") && !isTest(name) && lines > maxMainLines {
		c.addf("%s: %d lines, a main has at most %d: move the work to the package it starts", name, lines, maxMainLines)
	}
	if lines > maxFileLines && longFiles[name] == "" {
		c.addf("%s: %d lines, over %d: split it, or give the reason in longFiles", name, lines, maxFileLines)
	}
	if isTest(name) {
		return
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1
		if n > maxFuncLines && longFuncs[name+":"+fn.Name.Name] == "" {
			c.addf("%s: func %s has %d lines, over %d: split it, or give the reason in longFuncs", name, fn.Name.Name, n, maxFuncLines)
		}
	}
}

// count notes whether f carries its package's comment.
func (c *checker) count(name string, f *ast.File) {
	dir := path.Dir(name)
	p := c.packages[dir]
	if p == nil {
		p = &pkg{}
		c.packages[dir] = p
	}
	commented := f.Doc != nil && strings.TrimSpace(f.Doc.Text()) != ""
	switch {
	case isTest(name):
		p.tests++
		if commented {
			p.testsCommented = append(p.testsCommented, path.Base(name))
		}
	default:
		p.files++
		if commented {
			p.comments = append(p.comments, path.Base(name))
		}
	}
}

// packageComments wants one comment in each package: in the package proper
// where it has files, else in one of its tests.
func (c *checker) packageComments() {
	for dir, p := range c.packages {
		comments := p.comments
		if p.files == 0 {
			comments = p.testsCommented
		}
		if len(comments) != 1 {
			sort.Strings(comments)
			c.addf("%s: %d files carry the package comment %v: exactly one must", dir, len(comments), comments)
		}
	}
}

// Stale returns the exceptions that excuse nothing in fsys any more, so that the
// lists only shrink by themselves.
func Stale(fsys fs.FS) []string {
	var stale []string
	for name := range longFiles {
		data, err := fs.ReadFile(fsys, name)
		if errors.Is(err, fs.ErrNotExist) || bytes.Count(data, []byte("\n")) <= maxFileLines {
			stale = append(stale, name)
		}
	}
	for key := range longFuncs {
		name, _, _ := strings.Cut(key, ":")
		if _, err := fs.Stat(fsys, name); err != nil {
			stale = append(stale, key)
		}
	}
	sort.Strings(stale)
	return stale
}
