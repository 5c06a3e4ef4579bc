// SPDX-License-Identifier: Apache-2.0

//go:build tokenizer && cgo

// Before: local.go, with a text. After: the library of tools/tokenizer-rs.

package prompt

/*
#cgo LDFLAGS: ${SRCDIR}/../../tools/tokenizer-rs/target/release/libkindex_tokenizer.a -lm -ldl -lpthread
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern void *kindex_tokenizer_open(const uint8_t *json, size_t len, uint8_t *why, size_t why_size, size_t *told);
extern int64_t kindex_tokenizer_encode(const void *t, const uint8_t *text, size_t len, bool special, uint32_t *out, size_t room);
extern size_t kindex_tokenizer_size(const void *t);
extern int64_t kindex_tokenizer_decode(const void *t, const uint32_t *ids, size_t n, uint8_t *out, size_t room);
extern void kindex_tokenizer_close(void *t);
*/
import "C"

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"
)

// maxTokenizer bounds the bytes of a tokenizer.json: the largest known have 35 MB.
const maxTokenizer = 256 << 20

// OpenTokenizer reads a tokenizer.json, or the one in a folder.
//
// Errors: one line, beginning with the name of the option.
func OpenTokenizer(path string) (*NativeTokenizer, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "tokenizer.json")
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("tokenizer: %w", err)
	case info.Size() == 0 || info.Size() > maxTokenizer:
		return nil, fmt.Errorf("tokenizer: %s: %d bytes: must be a tokenizer.json of 1 to %d bytes", path, info.Size(), maxTokenizer)
	}
	json, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	var why [512]byte
	var told C.size_t
	t := C.kindex_tokenizer_open((*C.uint8_t)(unsafe.SliceData(json)), C.size_t(len(json)), (*C.uint8_t)(&why[0]), C.size_t(len(why)), &told)
	if t == nil {
		return nil, fmt.Errorf("tokenizer: %s: not a tokenizer.json: %s", path, strings.ReplaceAll(strings.ToValidUTF8(string(why[:told]), "?"), "\n", " "))
	}
	return &NativeTokenizer{t}, nil
}

// NativeTokenizer is a tokenizer in this process.
//
// Concurrency: any goroutine, until Close.
type NativeTokenizer struct{ t unsafe.Pointer }

// Encode implements [Tokenizer].
//
// Cost: 3 to 9 MB of text a second, with one call into the library and, where dst has no
// room for a token of each byte, at most one more.
func (n *NativeTokenizer) Encode(dst []uint32, text []byte, special bool) ([]uint32, error) {
	dst = slices.Grow(dst, len(text)/2+16)
	for {
		room := dst[len(dst):cap(dst)]
		got := C.kindex_tokenizer_encode(n.t, (*C.uint8_t)(unsafe.SliceData(text)), C.size_t(len(text)), C.bool(special),
			(*C.uint32_t)(unsafe.SliceData(room)), C.size_t(len(room)))
		switch {
		case got == -1:
			return dst, errors.New("the text is not UTF-8")
		case got < 0:
			return dst, errors.New("the tokenizer failed")
		case int(got) <= len(room):
			return dst[:len(dst)+int(got)], nil
		}
		dst = slices.Grow(dst, int(got))
	}
}

// Texts returns n texts of tokens from all over the vocabulary.
func (n *NativeTokenizer) Texts(count int) []string {
	const each = 48
	size := int(C.kindex_tokenizer_size(n.t))
	var out []string
	var room [each * 256]byte
	rng := rand.New(rand.NewPCG(uint64(size), 0))
	for range count {
		var ids [each]uint32
		for i := range ids {
			ids[i] = uint32(rng.IntN(max(size, 1)))
		}
		got := C.kindex_tokenizer_decode(n.t, (*C.uint32_t)(&ids[0]), each, (*C.uint8_t)(&room[0]), C.size_t(len(room)))
		if got > 0 && int(got) <= len(room) {
			out = append(out, string(room[:got]))
		}
	}
	return out
}

// Close frees the tokenizer: nobody may use it any more.
func (n *NativeTokenizer) Close() {
	C.kindex_tokenizer_close(n.t)
	n.t = nil
}
