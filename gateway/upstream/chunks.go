// SPDX-License-Identifier: Apache-2.0

// Before: a worker's socket. After: [Response.Read].

package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

var (
	// errChunk says that a chunked body is none.
	errChunk = errors.New("malformed chunk")
	// errLater says that what comes next has not come yet.
	errLater = errors.New("not yet")
)

// Limits of what frames a chunk: its size line with extensions, and all trailer lines.
const (
	sizeLimit    = 256
	trailerLimit = headLimit
)

// readChunks reads the content of chunks into b: of the current one, and of those after
// it as far as they have come. It waits only while it has nothing.
func (r *Response) readChunks(b []byte) (int, error) {
	if r.failed != nil {
		return 0, r.failed
	}
	n := 0
	for n < len(b) {
		if r.left == 0 {
			if err := r.nextChunk(n == 0); err != nil {
				if n == 0 {
					return 0, err
				}
				if !errors.Is(err, errLater) {
					r.failed = err // after what is good
				}
				return n, nil
			}
		}
		if n > 0 && r.conn.br.Buffered() == 0 {
			break
		}
		m, err := r.conn.br.Read(b[n:min(int64(len(b)), int64(n)+r.left)])
		n += m
		r.left -= int64(m)
		if err != nil {
			return n, cut(err)
		}
	}
	return n, nil
}

// nextChunk reads up to the data of the next chunk. Unless it is to wait, it does so
// only where all of that has come. [io.EOF]: there is none.
func (r *Response) nextChunk(wait bool) error {
	br := r.conn.br
	if !wait {
		come, _ := br.Peek(br.Buffered())
		if r.inside {
			come = come[min(2, len(come)):]
		}
		if r.last || bytes.IndexByte(come, '\n') < 0 {
			return errLater
		}
	}
	if r.inside {
		line, err := r.line(2)
		if err != nil {
			return err
		}
		if len(line) != 0 {
			return fmt.Errorf("%w: it is longer than its size", errChunk)
		}
		r.inside = false
	}
	if !r.last {
		line, err := r.line(sizeLimit)
		if err != nil {
			return err
		}
		if r.left, err = chunkSize(line); err != nil {
			return err
		}
		if r.left > 0 {
			r.inside = true
			return nil
		}
		r.last = true
		if !wait {
			return errLater
		}
	}
	for room := trailerLimit; ; {
		line, err := r.line(room)
		if err != nil {
			return err
		}
		if len(line) == 0 {
			r.whole = true
			return io.EOF
		}
		room -= len(line) + 2
	}
}

// line reads a line of at most limit bytes, and returns it without its CRLF.
func (r *Response) line(limit int) ([]byte, error) {
	line, err := r.conn.br.ReadSlice('\n')
	switch {
	case err == nil && len(line) > limit, len(line) > sizeLimit && limit <= sizeLimit:
		return nil, fmt.Errorf("%w: a line of over %d bytes", errChunk, limit)
	case err != nil && len(line) == headLimit:
		return nil, fmt.Errorf("%w: a line of over %d bytes", errChunk, headLimit)
	case err != nil:
		return nil, cut(err)
	case len(line) < 2 || line[len(line)-2] != '\r':
		return nil, fmt.Errorf("%w: a line without CRLF", errChunk)
	}
	return line[:len(line)-2], nil
}

// chunkSize reads hexadecimal digits, and passes extensions over.
func chunkSize(line []byte) (int64, error) {
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		line = line[:i]
	}
	line = bytes.TrimRight(line, " \t")
	if len(line) == 0 || len(line) > 15 {
		return 0, fmt.Errorf("%w: a size of %d digits", errChunk, len(line))
	}
	n := int64(0)
	for _, c := range line {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, fmt.Errorf("%w: the size %q", errChunk, line)
		}
		n = n<<4 | int64(c)
	}
	return n, nil
}

// cut makes an end of the connection within a body a fault.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
