// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxConfigFile bounds a configuration file, in bytes.
const maxConfigFile = 4 << 20

// loadFile applies the YAML file at path to c and returns every fault, each
// with the file's name and line.
func (c *Config) loadFile(path string) []error {
	f, err := os.Open(path)
	if err != nil {
		return []error{err}
	}
	defer func() { _ = f.Close() }() // read only: nothing can be lost
	text, err := io.ReadAll(io.LimitReader(f, maxConfigFile+1))
	switch {
	case err != nil:
		return []error{err}
	case len(text) > maxConfigFile:
		return []error{fmt.Errorf("%s: over %s, no configuration is that long", path, formatSize(maxConfigFile))}
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

func (c *Config) loadYAML(path string, text []byte) []error {
	l := &yamlLoad{path: path}
	file, err := parser.ParseBytes(text, 0)
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
	for _, o := range c.options() {
		set[o.name] = o.set
		names = append(names, o.name)
	}
	for _, kv := range l.mapping(file.Docs[0].Body, "the file") {
		key := l.key(kv)
		switch {
		case key == "worker":
			c.Workers = l.workers(kv.Value)
		case set[key] == nil:
			l.faultf(kv.Key, "unknown key %q: must be one of %s, worker", key, strings.Join(names, ", "))
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

// workers reads the list of workers: strings as on the command line, or
// mappings with /register's field names.
func (l *yamlLoad) workers(n ast.Node) []Registration {
	if _, null := n.(*ast.NullNode); null {
		return nil
	}
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		l.faultf(n, "worker: must be a list")
		return nil
	}
	var rs []Registration
	for _, v := range seq.Values {
		var r Registration
		var err error
		if s, text := v.(*ast.StringNode); text {
			r, err = parseWorker(s.Value)
		} else {
			before := len(l.faults)
			r = l.worker(v)
			if len(l.faults) == before {
				err = firstFault(&r)
			}
		}
		if err != nil {
			l.faultf(v, "worker: %v", err)
		}
		rs = append(rs, r)
	}
	return rs
}

func (l *yamlLoad) worker(n ast.Node) Registration {
	var r Registration
	var given []string
	for _, kv := range l.mapping(n, "a worker") {
		key := l.key(kv)
		value, ok := l.scalar(kv.Value, "worker: "+key)
		if !ok {
			continue
		}
		if err := setWorkerField(&r, key, value, &given); err != nil {
			l.faultf(kv.Key, "worker: %v", err)
		} else if _, quoted := kv.Value.(*ast.StringNode); quoted && key == "instance_id" {
			r.Instance = TextID(value)
		}
	}
	return r
}
