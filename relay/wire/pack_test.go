// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"math"
)

// The values that pack writes, beside nil, bool, int, uint64, string, []byte.
type (
	list  []any
	pairs []any // key, value, key, value, ...
	raw   []byte
)

// pack is a second, plainer encoder: tests write payloads with it that no
// engine would.
func pack(v any) []byte {
	switch v := v.(type) {
	case nil:
		return []byte{nilByte}
	case bool:
		if v {
			return []byte{0xc3}
		}
		return []byte{0xc2}
	case int:
		return appendInt(nil, int64(v))
	case uint64:
		return appendUint(nil, v)
	case float64:
		return binary.BigEndian.AppendUint64([]byte{float64b}, math.Float64bits(v))
	case string:
		return appendText(nil, v)
	case []byte:
		return appendBinary(nil, v)
	case raw:
		return v
	case list:
		out := appendArray(nil, len(v))
		for _, x := range v {
			out = append(out, pack(x)...)
		}
		return out
	case pairs:
		out := appendMap(nil, len(v)/2, len(v)/2)
		for _, x := range v {
			out = append(out, pack(x)...)
		}
		return out
	}
	panic(fmt.Sprintf("pack: %T", v))
}

// batchOf packs a batch of the given events.
func batchOf(events ...any) []byte { return pack(list{1.5, list(events), 0}) }
