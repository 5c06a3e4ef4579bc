// SPDX-License-Identifier: Apache-2.0

// Before: front_http.go, which has text. After: nothing.

package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// tokenizer makes a token of each word: word wN is token N where the vocabulary has
// one, any other word is one of the vocabulary's by its hash. Equal words are equal
// tokens in every engine of a vocabulary. The way back knows the words wN alone.
//
// Concurrency: any goroutine.
type tokenizer struct {
	vocabulary uint32
	item       int  // tokens of an item
	pads       bool // they are made of its name
}

func (c *Config) words() tokenizer {
	return tokenizer{uint32(c.Vocabulary), c.ImageTokens, c.radix()}
}

// of returns one word's token.
func (t tokenizer) of(word string) uint32 {
	if len(word) > 1 && word[0] == 'w' {
		if n, err := strconv.ParseUint(word[1:], 10, 32); err == nil && n < uint64(t.vocabulary) {
			return uint32(n)
		}
	}
	return firstWord + uint32(xxh3.HashString(word)%uint64(t.vocabulary-firstWord))
}

// append adds a text's tokens to dst.
//
// Cost: about 20 ns a word.
func (t tokenizer) append(dst []uint32, text string) []uint32 {
	for from := 0; from < len(text); {
		r, n := rune(text[from]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRuneInString(text[from:])
		}
		if unicode.IsSpace(r) {
			from += n
			continue
		}
		past := from + n
		for past < len(text) {
			r, n := rune(text[past]), 1
			if r >= utf8.RuneSelf {
				r, n = utf8.DecodeRuneInString(text[past:])
			}
			if unicode.IsSpace(r) {
				break
			}
			past += n
		}
		dst = append(dst, t.of(text[from:past]))
		from = past
	}
	return dst
}

// text returns the words of tokens.
func (tokenizer) text(tokens []uint32) string {
	var b strings.Builder
	for i, token := range tokens {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(word(token))
	}
	return b.String()
}

func word(token uint32) string { return "w" + strconv.FormatUint(uint64(token), 10) }

// message is one of a chat.
type message struct {
	Role  string
	Parts []messagePart
}

// messagePart is a text, or an item that is none.
type messagePart struct {
	Text string
	Item string // what names it; "": the part is Text
}

// chat returns a chat's tokens: the beginning, then for each message its role, its
// words and an end; and, so that the answer follows, the role that answers. An item
// takes as many tokens as items say; these hold its place, or are all the same token
// made of its name.
func (t tokenizer) chat(messages []message, answer bool) (tokens []uint32, found []Item) {
	n := 2
	for i := range messages {
		n += 2
		for _, p := range messages[i].Parts {
			n += len(p.Text) / 6
		}
	}
	out := append(make([]uint32, 0, n), bosWord)
	for i := range messages {
		out = append(out, t.of("<|"+messages[i].Role+"|>"))
		for _, p := range messages[i].Parts {
			if p.Item == "" {
				out = t.append(out, p.Text)
				continue
			}
			it := Item{itemID(p.Item), len(out), max(t.item, 1)}
			token := uint32(itemWord)
			if t.pads {
				token = uint32(xxh3.HashString(it.ID) % itemPads)
			}
			for range it.Length {
				out = append(out, token)
			}
			found = append(found, it)
		}
		out = append(out, eosWord)
	}
	if answer {
		out = append(out, t.of("<|assistant|>"))
	}
	return out, found
}

// itemPads bounds the tokens that SGLang makes of an item's hash.
const itemPads = 1 << 30

// itemID names an item by its content, or by where that is.
func itemID(of string) string {
	sum := sha256.Sum256([]byte(of))
	return hex.EncodeToString(sum[:])
}
