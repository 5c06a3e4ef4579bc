// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// minColumn is how narrow a column is made to fit a screen.
const minColumn = 8

// table is lines of cells under a head, its columns as wide as their widest cell.
type table struct {
	head  []string
	right []bool // columns that are numbers
	rows  [][]string
}

func newTable(columns ...string) *table {
	t := &table{}
	for _, c := range columns {
		name, number := strings.CutPrefix(c, ">")
		t.head = append(t.head, name)
		t.right = append(t.right, number)
	}
	return t
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write writes t within width characters, where that is above 0 and can be: what is
// too wide is cut, the widest columns of text first.
func (t *table) write(w io.Writer, width int) error {
	widths := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(printable(c)))
		}
	}
	for width > 0 {
		sum, widest := 2*(len(widths)-1), -1
		for i, n := range widths {
			sum += n
			if !t.right[i] && n > minColumn && (widest < 0 || n > widths[widest]) {
				widest = i
			}
		}
		if sum <= width || widest < 0 {
			break
		}
		widths[widest] = max(minColumn, widths[widest]-(sum-width))
	}
	var b strings.Builder
	for _, row := range append([][]string{t.head}, t.rows...) {
		cells := make([]string, len(row))
		for i, c := range row {
			c = cut(printable(c), widths[i])
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if t.right[i] {
				cells[i] = pad + c
			} else {
				cells[i] = c + pad
			}
		}
		b.WriteString(strings.TrimRight(strings.Join(cells, "  "), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printable returns s without what would steer a terminal: names come from others.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// cut returns at most n characters of s.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	if n < 2 {
		return string([]rune(s)[:n])
	}
	return string([]rune(s)[:n-1]) + "~"
}

// width is how wide tables may be; 0: any.
func (c *call) width() int {
	if c.Screen == nil {
		return 0
	}
	if w, _, ok := c.Screen(); ok {
		return w
	}
	return 0
}

// writeJSON writes v on one line.
func (c *call) writeJSON(v any) error {
	e := json.NewEncoder(c.Out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// counted is n of what, which is one.
func counted[N int | uint32 | uint64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return grouped(uint64(n)) + " " + what + "s"
}

// grouped is n with its thousands apart.
func grouped(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// size is n bytes in a unit that fits.
func size(n uint64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return strconv.FormatUint(n, 10) + " B"
	}
	v, u := float64(n)/1024, 0
	for v >= 1024 && u < len(units)-1 {
		v, u = v/1024, u+1
	}
	return fmt.Sprintf("%.1f %ciB", v, units[u])
}

// seconds is a span in a unit that fits.
func seconds(s float64) string {
	if s < 0 {
		return "-" + seconds(-s)
	}
	d := time.Duration(min(s, 1e9) * float64(time.Second))
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.0fus", s*1e6)
	case d < time.Second:
		return fmt.Sprintf("%.0fms", s*1e3)
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", s)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}
