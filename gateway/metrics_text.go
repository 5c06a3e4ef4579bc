// SPDX-License-Identifier: Apache-2.0

package gateway

import "strconv"

// exposition is Prometheus' text, written by hand: thousands of series of a large fleet
// are a fraction of a millisecond each thousand, and no object each.
type exposition struct {
	b    []byte
	name string
}

// family begins the series of one name, which is given without its prefix.
func (e *exposition) family(name, kind, help string) {
	e.name = "kindex_gateway_" + name
	e.b = append(append(append(append(append(e.b, "# HELP "...), e.name...), ' '), help...), '\n')
	e.b = append(append(append(append(append(e.b, "# TYPE "...), e.name...), ' '), kind...), '\n')
}

// value adds a series; labels are names and values by turns.
func (e *exposition) value(v float64, labels ...string) {
	e.series(labels)
	if v == float64(int64(v)) {
		e.b = strconv.AppendInt(e.b, int64(v), 10)
	} else {
		e.b = strconv.AppendFloat(e.b, v, 'g', -1, 64)
	}
	e.b = append(e.b, '\n')
}

// count adds a series of a counter.
func (e *exposition) count(n uint64, labels ...string) {
	e.series(labels)
	e.b = append(strconv.AppendUint(e.b, n, 10), '\n')
}

func (e *exposition) series(labels []string) {
	e.b = append(e.b, e.name...)
	for i := 0; i+1 < len(labels); i += 2 {
		if i == 0 {
			e.b = append(e.b, '{')
		} else {
			e.b = append(e.b, ',')
		}
		e.b = append(append(e.b, labels[i]...), '=', '"')
		e.b = appendLabel(e.b, labels[i+1])
		e.b = append(e.b, '"')
	}
	if len(labels) > 0 {
		e.b = append(e.b, '}')
	}
	e.b = append(e.b, ' ')
}

// one is a family of one series.
func (e *exposition) one(name, kind, help string, v float64) {
	e.family(name, kind, help)
	e.value(v)
}

// counter is a counter of one series.
func (e *exposition) counter(name, help string, n uint64) {
	e.family(name, "counter", help)
	e.count(n)
}

// appendLabel appends s as a label's value may be.
func appendLabel(b []byte, s string) []byte {
	for i := range len(s) {
		switch c := s[i]; c {
		case '\\', '"':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		default:
			b = append(b, c)
		}
	}
	return b
}
