// SPDX-License-Identifier: Apache-2.0

// Before: front_http.go, which has text. After: nothing.

package engine

import (
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
type tokenizer struct{ vocabulary uint32 }

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
	Role string
	Text string
}

// chat returns a chat's tokens: the beginning, then for each message its role, its
// words and an end; and, so that the answer follows, the role that answers.
func (t tokenizer) chat(messages []message, answer bool) []uint32 {
	n := 2
	for i := range messages {
		n += 2 + len(messages[i].Text)/6
	}
	out := append(make([]uint32, 0, n), bosWord)
	for i := range messages {
		out = append(out, t.role(messages[i].Role))
		out = append(t.append(out, messages[i].Text), eosWord)
	}
	if answer {
		out = append(out, t.role("assistant"))
	}
	return out
}

func (t tokenizer) role(name string) uint32 { return t.of("<|" + name + "|>") }
