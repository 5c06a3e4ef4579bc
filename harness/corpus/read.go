// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// The bounds of a file. The published corpus of 320 million block operations is
// within a quarter of each.
const (
	MaxBytes    = 2 << 30 // decompressed
	MaxBlockOps = 1 << 31
	MaxWorkers  = 1 << 15
	maxNodes    = 1 << 30
	maxHeader   = 1 << 20 // bytes
	maxWindow   = 64 << 20
)

// ReadFile reads a corpus.
//
// Errors: one line that names the file and what is wrong.
func ReadFile(name string) (*Corpus, error) {
	f, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	c, err := Read(bufio.NewReaderSize(f, 1<<16))
	if err != nil {
		return nil, fmt.Errorf("%s: not a corpus (%s): %w", name, magic, err)
	}
	return c, nil
}

// openRegular opens a regular file: to open anything else may wait for ever.
func openRegular(name string) (*os.File, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	return os.Open(name)
}

// Read reads a corpus. What it allocates is in proportion to what r really holds.
func Read(r io.Reader) (*Corpus, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxBytes), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	in := &io.LimitedReader{R: z, N: MaxBytes}
	h, sections, err := split(in)
	if err != nil {
		if in.N <= 0 {
			return nil, fmt.Errorf("over %d bytes decompressed", MaxBytes)
		}
		return nil, err
	}
	return parse(h, sections)
}

// split takes the header and the sections apart.
func split(in io.Reader) (header, map[string][]byte, error) {
	var h header
	var head [12]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return h, nil, fmt.Errorf("the first bytes: %w", err)
	}
	if string(head[:8]) != magic {
		return h, nil, fmt.Errorf("begins with %q", head[:8])
	}
	n := binary.LittleEndian.Uint32(head[8:])
	if n > maxHeader {
		return h, nil, fmt.Errorf("a header of %d bytes: must be at most %d", n, maxHeader)
	}
	js, err := readN(in, uint64(n))
	if err != nil {
		return h, nil, fmt.Errorf("the header: %w", err)
	}
	if err := json.Unmarshal(js, &h); err != nil {
		return h, nil, fmt.Errorf("the header: %w", err)
	}
	sections := map[string][]byte{}
	for {
		if _, err := io.ReadFull(in, head[:]); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return h, nil, fmt.Errorf("a section's head: %w", err)
		}
		tag := string(head[:4])
		switch {
		case !slices.Contains(tags[:], tag):
			return h, nil, fmt.Errorf("section %q: must be one of %v", tag, tags)
		case sections[tag] != nil:
			return h, nil, fmt.Errorf("section %s twice", tag)
		}
		if sections[tag], err = readN(in, binary.LittleEndian.Uint64(head[4:])); err != nil {
			return h, nil, fmt.Errorf("section %s: %w", tag, err)
		}
	}
	for _, tag := range tags {
		if sections[tag] == nil {
			return h, nil, fmt.Errorf("section %s is missing", tag)
		}
	}
	return h, sections, nil
}

// readN reads n bytes, never allocating far beyond what there is.
func readN(in io.Reader, n uint64) ([]byte, error) {
	if n > MaxBytes {
		return nil, fmt.Errorf("%d bytes: must be at most %d", n, MaxBytes)
	}
	var b bytes.Buffer
	b.Grow(int(min(n, 1<<20)))
	got, err := io.Copy(&b, io.LimitReader(in, int64(n)))
	if err != nil {
		return nil, err
	}
	if uint64(got) != n {
		return nil, fmt.Errorf("%d of %d bytes: %w", got, n, io.ErrUnexpectedEOF)
	}
	if n == 0 {
		return []byte{}, nil
	}
	return b.Bytes(), nil
}

// ints takes numbers off a section's front. The first fault stays.
type ints struct {
	tag  string
	data []byte
	err  error
}

func (s *ints) u(most uint64) uint64 {
	v, n := binary.Uvarint(s.data)
	return s.took(v, n, v > most, most)
}

func (s *ints) took(v uint64, n int, over bool, most uint64) uint64 {
	switch {
	case s.err != nil:
		return 0
	case n <= 0:
		s.err = fmt.Errorf("section %s: cut, or no number", s.tag)
		return 0
	case over:
		s.err = fmt.Errorf("section %s: a number past %d", s.tag, most)
		return 0
	}
	s.data = s.data[n:]
	return v
}

// step reads a signed difference to before and returns the sum, 0 to most.
func (s *ints) step(before, most int64) int64 {
	d, n := binary.Varint(s.data)
	v := before + d
	return int64(s.took(uint64(v), n, v < 0 || v > most || d > most || d < -most, uint64(most)))
}

func (s *ints) end() error {
	if s.err == nil && len(s.data) > 0 {
		s.err = fmt.Errorf("section %s: %d bytes too many", s.tag, len(s.data))
	}
	return s.err
}

// parse makes the sections a corpus.
func parse(h header, sections map[string][]byte) (*Corpus, error) {
	if h.Workers < 1 || h.Workers > MaxWorkers {
		return nil, fmt.Errorf("the header: workers %d: must be 1 to %d", h.Workers, MaxWorkers)
	}
	// Every number takes a byte or more, so the counts bound themselves.
	if n := min(len(sections["NPAR"]), len(sections["NCON"]), maxNodes); h.Nodes < 0 || h.Nodes > int64(n) {
		return nil, fmt.Errorf("the header: nodes %d: the sections hold at most %d", h.Nodes, n)
	}
	c := &Corpus{Source: h.Source, Workers: h.Workers, BlockSize: h.BlockSize}
	if err := c.parseNodes(int(h.Nodes), sections); err != nil {
		return nil, err
	}
	if err := c.parseOps(sections); err != nil {
		return nil, err
	}
	got := c.Counts()
	if h.Ops != 0 && h.Ops != got.Ops || h.BlockOps != 0 && h.BlockOps != got.BlockOps {
		return nil, fmt.Errorf("the header: %d operations, %d block operations: the sections hold %d and %d", h.Ops, h.BlockOps, got.Ops, got.BlockOps)
	}
	return c, nil
}

func (c *Corpus) parseNodes(nodes int, sections map[string][]byte) error {
	par, con := ints{tag: "NPAR", data: sections["NPAR"]}, ints{tag: "NCON", data: sections["NCON"]}
	c.Parents, c.Contents = make([]uint32, nodes), make([]uint32, nodes)
	content := int64(0)
	for i := range nodes {
		c.Parents[i] = NoNode
		if d := par.u(uint64(i)); d > 0 {
			c.Parents[i] = uint32(i) - uint32(d)
		}
		content = con.step(content, int64(NoNode))
		c.Contents[i] = uint32(content)
		if err := first(par.err, con.err); err != nil {
			return err
		}
	}
	return first(par.end(), con.end())
}

// first returns the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Corpus) parseOps(sections map[string][]byte) error {
	kinds := sections["OPKD"]
	ts, wk, ar := ints{tag: "OPTS", data: sections["OPTS"]}, ints{tag: "OPWK", data: sections["OPWK"]}, ints{tag: "OPAR", data: sections["OPAR"]}
	if n := min(len(ts.data), len(wk.data)); len(kinds) > n {
		return fmt.Errorf("section OPKD: %d operations: the others hold at most %d", len(kinds), n)
	}
	depth := c.depths()
	nodes := uint64(len(c.Parents))
	c.Ops = make([]Op, len(kinds))
	var total int64
	due := uint64(0)
	for i, k := range kinds {
		due += ts.u(Window - due)
		op := Op{Due: uint32(due), Kind: Kind(k), Worker: uint16(wk.u(uint64(c.Workers - 1))), At: NoNode}
		switch op.Kind {
		case Lookup:
			if v := ar.u(nodes); v > 0 {
				op.At = uint32(v - 1)
				op.N = depth[op.At]
			}
		case Store:
			if nodes == 0 {
				return fmt.Errorf("operation %d: a stored event, and no nodes", i)
			}
			op.At = uint32(ar.u(nodes - 1))
			op.N = uint32(ar.u(uint64(depth[op.At])))
			if op.N == 0 && ar.err == nil {
				return fmt.Errorf("operation %d: a stored event of no blocks", i)
			}
		case Remove:
			op.At = uint32(len(c.Removed))
			op.N = uint32(ar.u(uint64(len(ar.data))))
			node := int64(0)
			for range op.N {
				node = ar.step(node, int64(nodes)-1)
				c.Removed = append(c.Removed, uint32(node))
				if ar.err != nil {
					break
				}
			}
		case Clear:
		default:
			return fmt.Errorf("operation %d: kind %d: must be 0 to %d", i, k, Clear)
		}
		if err := first(ts.err, wk.err, ar.err); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
		if total += int64(op.N); total > MaxBlockOps {
			return fmt.Errorf("over %d block operations", MaxBlockOps)
		}
		c.Ops[i] = op
	}
	return first(ts.end(), wk.end(), ar.end())
}
