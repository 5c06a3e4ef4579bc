// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// MaxFile bounds a configuration file, in bytes.
const MaxFile = 4 << 20

// loadFile applies the YAML file at path and returns every fault, each with the
// file's name and line.
func (c *Command) loadFile(path string) []error {
	f, err := os.Open(path)
	if err != nil {
		return []error{err}
	}
	defer func() { _ = f.Close() }() // read only: nothing can be lost
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	switch {
	case err != nil:
		return []error{err}
	case len(text) > MaxFile:
		return []error{fmt.Errorf("%s: over %s, no configuration is that long", path, FormatSize(MaxFile))}
	}
	return c.loadYAML(path, text)
}

// yamlLoad gathers the faults of one file.
type yamlLoad struct {
	path   string
	faults []error
}

func (l *yamlLoad) faultf(n ast.Node, format string, args ...any) {
	l.faults = append(l.faults, fmt.Errorf("%s:%d: %s", l.path, n.GetToken().Position.Line, fmt.Sprintf(format, args...)))
}

func (c *Command) loadYAML(path string, text []byte) []error {
	l := &yamlLoad{path: path}
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return []error{yamlError(path, err)}
	}
	if len(file.Docs) > 1 && file.Docs[1].Body != nil {
		l.faultf(file.Docs[1].Body, "a second document: the file must have one")
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return l.faults // empty: all defaults
	}
	set := map[string]func(string) error{}
	var names []string
	for _, o := range c.Options {
		set[o.Name] = o.Set
		names = append(names, o.Name)
	}
	seen := map[string]int{}
	for _, kv := range l.mapping(file.Docs[0].Body, "the file") {
		key := l.key(kv)
		switch line := kv.Key.GetToken().Position.Line; {
		case seen[key] != 0:
			l.faultf(kv.Key, "%s: given twice, the first time in line %d: give it once", key, seen[key])
			continue
		default:
			seen[key] = line
		}
		switch {
		case key == c.List.Name:
			c.List.Clear()
			l.list(kv.Value, &c.List)
		case set[key] == nil:
			l.faultf(kv.Key, "unknown key %q: must be one of %s, %s", key, strings.Join(names, ", "), c.List.Name)
		default:
			if s, ok := l.scalar(kv.Value, key); ok {
				if err := set[key](s); err != nil {
					l.faultf(kv.Value, "%s: %v", key, err)
				}
			}
		}
	}
	return l.faults
}

// yamlError cuts the parser's excerpt down to one line.
func yamlError(path string, err error) error {
	var y yaml.Error
	if errors.As(err, &y) && y.GetToken() != nil {
		return fmt.Errorf("%s:%d: %s", path, y.GetToken().Position.Line, firstLine(y.GetMessage()))
	}
	return fmt.Errorf("%s: %s", path, firstLine(err.Error()))
}

// plainScalar is what means itself in YAML without quotes; microseconds are written with a µ.
var plainScalar = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9µ/._:+%-]*$`)

// yamlScalar writes s so that it is read back as it is.
func yamlScalar(s string) string {
	if plainScalar.MatchString(s) && !strings.HasSuffix(s, ":") && !strings.EqualFold(s, "null") {
		return s
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a text always can be
	return strings.TrimSpace(b.String())
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

func (l *yamlLoad) mapping(n ast.Node, what string) []*ast.MappingValueNode {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	l.faultf(n, "%s must be a mapping of names to values", what)
	return nil
}

func (l *yamlLoad) key(kv *ast.MappingValueNode) string {
	if s, ok := kv.Key.(*ast.StringNode); ok {
		return s.Value
	}
	return kv.Key.GetToken().Value
}

// scalar returns the text of a plain or quoted value.
func (l *yamlLoad) scalar(n ast.Node, what string) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	l.faultf(n, "%s: must be one plain value", what)
	return "", false
}

// list reads the values of list: texts as on the command line, or mappings.
func (l *yamlLoad) list(n ast.Node, list *List) {
	if _, null := n.(*ast.NullNode); null {
		return
	}
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		l.faultf(n, "%s: must be a list", list.Name)
		return
	}
	for _, v := range seq.Values {
		var err error
		if s, text := v.(*ast.StringNode); text {
			err = list.Add(s.Value)
		} else {
			err = l.item(v, list)
		}
		if err != nil {
			l.faultf(v, "%s: %v", list.Name, err)
		}
	}
}

// item reads one mapping of list.
func (l *yamlLoad) item(n ast.Node, list *List) error {
	set, end := list.Begin()
	before := len(l.faults)
	for _, kv := range l.mapping(n, "a "+list.Name) {
		key := l.key(kv)
		value, ok := l.scalar(kv.Value, list.Name+": "+key)
		if !ok {
			continue
		}
		_, quoted := kv.Value.(*ast.StringNode)
		if err := set(key, value, quoted); err != nil {
			l.faultf(kv.Key, "%s: %v", list.Name, err)
		}
	}
	if len(l.faults) > before {
		return nil
	}
	return end()
}
