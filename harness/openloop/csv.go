// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// The columns of a table, as Azure publishes them; others are not looked at.
const (
	columnTime   = "timestamp"
	columnInput  = "contexttokens"
	columnOutput = "generatedtokens"
)

// timeForms are how tables write instants; fractions of a second are taken after any.
var timeForms = []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05", time.RFC3339}

// parseTable reads rows up to last of a table with a header; its errors begin with the
// line's number. Instants are told from the first row's, and may be before it.
func parseTable(in io.Reader, last int) ([]Row, error) {
	record := &bounded{in: in, left: maxLine, more: errLongRow} // of a record, reading ahead aside
	table := csv.NewReader(record)
	table.ReuseRecord = true
	table.TrimLeadingSpace = true
	header, err := table.Read()
	if err != nil {
		return nil, csvError(err, 1)
	}
	at := map[string]int{columnTime: -1, columnInput: -1, columnOutput: -1}
	for i, name := range header {
		at[strings.ToLower(strings.TrimSpace(strings.TrimPrefix(name, "\ufeff")))] = i
	}
	if at[columnTime] < 0 || at[columnInput] < 0 || at[columnOutput] < 0 {
		return nil, errors.New("1: neither JSON lines ({\"timestamp\", \"input_length\", \"output_length\", \"hash_ids\"}) nor a table that begins with TIMESTAMP,ContextTokens,GeneratedTokens")
	}
	var rows []Row
	var zero time.Time
	for len(rows) <= last {
		record.left = maxLine
		fields, err := table.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, csvError(err, len(rows)+2)
		}
		line, _ := table.FieldPos(0)
		when, ok := parseTime(fields[at[columnTime]])
		if !ok {
			return nil, fmt.Errorf("%d: TIMESTAMP %q: must be like 2023-11-16 18:17:03.9799600", line, fields[at[columnTime]])
		}
		if len(rows) == 0 {
			zero = when
		}
		row := Row{N: len(rows), At: when.Sub(zero)} // saturates
		if row.Input, err = tokens("ContextTokens", fields[at[columnInput]]); err == nil {
			row.Output, err = tokens("GeneratedTokens", fields[at[columnOutput]])
		}
		if err != nil {
			return nil, fmt.Errorf("%d: %w", line, err)
		}
		rows = append(rows, row)
		if len(rows) > maxRows {
			return nil, fmt.Errorf("%d: over %d requests", line, maxRows)
		}
	}
	if len(rows) == 0 {
		return nil, errors.New("2: no request")
	}
	return rows, nil
}

func tokens(name, s string) (int, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
	if err != nil || n > maxTokens {
		return 0, fmt.Errorf("%s %q: must be 0 to %d", name, s, maxTokens)
	}
	return int(n), nil
}

func parseTime(s string) (time.Time, bool) {
	s = strings.TrimSpace(s)
	for _, form := range timeForms {
		if t, err := time.Parse(form, s); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// csvError makes an error begin with its line's number, as far as that is known.
func csvError(err error, line int) error {
	if p, ok := errors.AsType[*csv.ParseError](err); ok {
		return fmt.Errorf("%d: %w", p.Line, p.Err)
	}
	return fmt.Errorf("%d: %w", line, err)
}
