// SPDX-License-Identifier: Apache-2.0

package corpus

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"
)

const magic = "KVCORP01"

// header is the file's JSON.
type header struct {
	Counts
	BlockSize int            `json:"block_size"`
	Format    string         `json:"format"`
	Source    map[string]any `json:"source"`
	Workers   int            `json:"workers"`
}

// Section is one part of a file, decompressed.
type Section struct {
	Tag  string
	Data []byte
}

// the sections' tags, in the file's order.
var tags = [...]string{"NPAR", "NCON", "OPKD", "OPTS", "OPWK", "OPAR"}

// Tags returns the sections' tags in the file's order.
func Tags() []string { return slices.Clone(tags[:]) }

// Sections returns c as the file holds it, in order.
func (c *Corpus) Sections() []Section {
	var npar, ncon, opkd, opts, opwk, opar []byte
	var before int64
	for i, p := range c.Parents {
		d := uint64(0)
		if p != NoNode {
			d = uint64(uint32(i) - p)
		}
		npar = binary.AppendUvarint(npar, d)
		ncon = binary.AppendVarint(ncon, int64(c.Contents[i])-before)
		before = int64(c.Contents[i])
	}
	due := uint32(0)
	for i := range c.Ops {
		op := &c.Ops[i]
		opkd = append(opkd, byte(op.Kind))
		opts = binary.AppendUvarint(opts, uint64(op.Due-due))
		due = op.Due
		opwk = binary.AppendUvarint(opwk, uint64(op.Worker))
		switch op.Kind {
		case Lookup:
			v := uint64(0)
			if op.N > 0 {
				v = uint64(op.At) + 1
			}
			opar = binary.AppendUvarint(opar, v)
		case Store:
			opar = binary.AppendUvarint(opar, uint64(op.At))
			opar = binary.AppendUvarint(opar, uint64(op.N))
		case Remove:
			opar = binary.AppendUvarint(opar, uint64(op.N))
			node := int64(0)
			for _, x := range c.Gone(op) {
				opar = binary.AppendVarint(opar, int64(x)-node)
				node = int64(x)
			}
		case Clear:
		}
	}
	out := make([]Section, 0, len(tags))
	for i, data := range [...][]byte{npar, ncon, opkd, opts, opwk, opar} {
		out = append(out, Section{tags[i], data})
	}
	return out
}

// Write writes c as one zstd frame. Equal corpora of equal Source give equal bytes.
func Write(w io.Writer, c *Corpus) error {
	js, err := json.Marshal(header{c.Counts(), c.BlockSize, magic, c.Source, c.Workers})
	if err != nil {
		return err
	}
	// One goroutine: the frame must not depend on timing.
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(4<<20))
	if err != nil {
		return err
	}
	head := append([]byte(magic), binary.LittleEndian.AppendUint32(nil, uint32(len(js)))...)
	parts := [][]byte{head, js}
	for _, s := range c.Sections() {
		parts = append(parts, binary.LittleEndian.AppendUint64([]byte(s.Tag), uint64(len(s.Data))), s.Data)
	}
	for _, p := range parts {
		if _, err := z.Write(p); err != nil {
			return err
		}
	}
	return z.Close()
}
