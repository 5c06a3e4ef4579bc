// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// BlocksPerID is how many blocks one hash id of a trace stands for: 512 tokens.
const BlocksPerID = TokensPerID / DefaultBlockSize

// TokensPerID is how many tokens one hash id of a trace stands for.
const TokensPerID = 512

// DefaultBlockSize is the block size of simulated workers, in tokens.
const DefaultBlockSize = 128

// Row is one request of a trace, as Mooncake publishes them.
type Row struct {
	Timestamp uint64   `json:"timestamp"`     // ms
	Input     uint64   `json:"input_length"`  // tokens
	Output    uint64   `json:"output_length"` // tokens
	IDs       []uint64 `json:"hash_ids"`      // each a prefix's 512 tokens, equal for equal ones
}

// The bounds of a trace. Chosen: 80 times the published ones.
const (
	maxRows       = 1_000_000
	maxRowTokens  = 1 << 26
	maxRowIDs     = 1 << 17
	maxTime       = 1 << 40 // ms
	maxLine       = 4 << 20 // bytes
	maxTraceBytes = 1 << 30
)

// ReadTrace reads a trace, one JSON object a line, gzipped or plain.
//
// Errors: one line that names the file, the line and what is wrong.
func ReadTrace(name string) ([]Row, error) {
	f, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	rows, err := readTrace(f)
	if err != nil {
		return nil, fmt.Errorf("%s:%w", name, err)
	}
	return rows, nil
}

// readTrace reads a trace, gzipped or plain; its errors begin with the line's number.
func readTrace(f io.Reader) ([]Row, error) {
	in := bufio.NewReaderSize(f, 1<<16)
	if head, _ := in.Peek(2); !bytes.Equal(head, []byte{0x1f, 0x8b}) {
		return parseTrace(io.LimitReader(in, maxTraceBytes))
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("1: %w", err)
	}
	return parseTrace(io.LimitReader(z, maxTraceBytes))
}

// parseTrace reads lines; its errors begin with the line's number.
func parseTrace(r io.Reader) ([]Row, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 1<<16), maxLine)
	var rows []Row
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		row := Row{Timestamp: maxTime + 1}
		if err := json.Unmarshal(line, &row); err != nil {
			return nil, fmt.Errorf("%d: not a request ({\"timestamp\", \"input_length\", \"output_length\", \"hash_ids\"}): %w", n, err)
		}
		if err := row.valid(); err != nil {
			return nil, fmt.Errorf("%d: %w", n, err)
		}
		rows = append(rows, row)
		if len(rows) > maxRows {
			return nil, fmt.Errorf("%d: over %d requests", n, maxRows)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%d: %w", n+1, err)
	}
	if len(rows) == 0 {
		return nil, errors.New("1: no request")
	}
	return rows, nil
}

func (r *Row) valid() error {
	switch {
	case r.Timestamp > maxTime:
		return fmt.Errorf("timestamp: must be there and at most %d ms", maxTime)
	case r.Input > maxRowTokens:
		return fmt.Errorf("input_length %d: must be at most %d", r.Input, maxRowTokens)
	case r.Output > maxRowTokens:
		return fmt.Errorf("output_length %d: must be at most %d", r.Output, maxRowTokens)
	case len(r.IDs) > maxRowIDs:
		return fmt.Errorf("%d hash_ids: must be at most %d", len(r.IDs), maxRowIDs)
	}
	return nil
}
