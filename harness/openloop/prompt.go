// SPDX-License-Identifier: Apache-2.0

// Before: a row. After: body.go.

package openloop

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"unicode/utf8"
)

// The bounds of a file of words.
const (
	minWords     = 16 // else blocks would be alike by chance
	maxWords     = 1 << 20
	maxWordBytes = 16 << 20
)

// Keys of what no id of a trace stands for. Published ids are small.
const (
	keyOwn    = 1 << 63               // of one row alone
	keyShared = 1<<63 | 1<<62         // common to rows without ids
	keyRowBit = 20                    // a row's own keys: its number, then the id's place
	lowToken  = 16                    // smaller ones are many models' special tokens
	golden    = 0x9E37_79B9_7F4A_7C15 // splitmix64's step
)

// usualWords are what text prompts are made of: short, one token each for a tokenizer
// of words that knows them and mostly for those of models.
var usualWords = []string{
	"alpha", "bravo", "charlie", "delta", "echo", "golf", "hotel", "india",
	"kilo", "lima", "mike", "november", "oscar", "papa", "romeo", "sierra",
}

// prompts makes prompts of rows. Equal keys in equal places give equal tokens.
//
// Concurrency: any goroutine.
type prompts struct {
	seed  uint64
	vocab uint64
	words []string
	share int // ids that rows without any have in common
}

// readWords reads a file of words with blanks between, each of which the endpoint's
// tokenizer must know; without a name it returns the usual ones.
func readWords(name string) ([]string, error) {
	if name == "" {
		return usualWords, nil
	}
	st, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--words: %w", err)
	case !st.Mode().IsRegular() || st.Size() > maxWordBytes:
		return nil, fmt.Errorf("--words %s: must be a file of at most %d bytes", name, maxWordBytes)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("--words: %w", err)
	}
	var all []string
	for f := range bytes.FieldsSeq(b) {
		if !utf8.Valid(f) || bytes.ContainsFunc(f, func(c rune) bool { return c < ' ' || c == '"' || c == '\\' }) {
			return nil, fmt.Errorf("--words %s: %q: must be UTF-8 without quotes, backslashes and control characters", name, f)
		}
		all = append(all, string(f))
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(all)))
	if len(distinct) < minWords || len(all) > maxWords {
		return nil, fmt.Errorf("--words %s: %d distinct words: must be %d to %d", name, len(distinct), minWords, maxWords)
	}
	return all, nil
}

// key names what the k-th TokensPerID tokens of a row's prompt are. A row whose ids are
// too few for its length goes on with tokens of its own.
func (p *prompts) key(r *Row, k int) uint64 {
	switch {
	case k < len(r.IDs):
		return r.IDs[k]
	case len(r.IDs) == 0 && k < p.share:
		return keyShared | uint64(k)
	default:
		return keyOwn | uint64(r.N)<<keyRowBit | uint64(k)
	}
}

// source is splitmix64.
type source uint64

func (s *source) next() uint64 {
	*s += golden
	z := uint64(*s)
	z = (z ^ z>>30) * 0xBF58_476D_1CE4_E5B9
	z = (z ^ z>>27) * 0x94D0_49BB_1331_11EB
	return z ^ z>>31
}

// of starts the stream of a key's tokens.
func (p *prompts) of(key uint64) source {
	s := source(p.seed)
	s = source(s.next() ^ key)
	return source(s.next())
}

// appendTokens appends a prompt's token ids with commas between, and returns their
// number. Cost: some nanoseconds a token; no allocation where dst has room.
func (p *prompts) appendTokens(dst []byte, r *Row) []byte {
	left := max(r.Input, 1)
	span := p.vocab - lowToken
	for k := 0; left > 0; k++ {
		s := p.of(p.key(r, k))
		n := min(left, TokensPerID)
		for range n {
			// The upper half of the product: no division, and no bias to speak of.
			dst = strconv.AppendUint(dst, lowToken+(s.next()>>32)*span>>32, 10)
			dst = append(dst, ',')
		}
		left -= n
	}
	return dst[:len(dst)-1]
}

// appendText appends a prompt's words with blanks between: as many as tokens.
func (p *prompts) appendText(dst []byte, r *Row) []byte {
	left := max(r.Input, 1)
	span := uint64(len(p.words))
	for k := 0; left > 0; k++ {
		s := p.of(p.key(r, k))
		n := min(left, TokensPerID)
		for range n {
			dst = append(dst, p.words[(s.next()>>32)*span>>32]...)
			dst = append(dst, ' ')
		}
		left -= n
	}
	return dst[:len(dst)-1]
}

// appendIDs appends a prompt's token ids.
func (p *prompts) appendIDs(dst []uint32, r *Row) []uint32 {
	left := max(r.Input, 1)
	span := p.vocab - lowToken
	for k := 0; left > 0; k++ {
		s := p.of(p.key(r, k))
		n := min(left, TokensPerID)
		for range n {
			dst = append(dst, uint32(lowToken+(s.next()>>32)*span>>32))
		}
		left -= n
	}
	return dst
}
