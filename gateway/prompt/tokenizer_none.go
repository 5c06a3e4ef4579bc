// SPDX-License-Identifier: Apache-2.0

//go:build !tokenizer || !cgo

package prompt

import "errors"

// OpenTokenizer opens a tokenizer in this process: see the build with the tag.
//
// Errors: always, in this build.
func OpenTokenizer(string) (*NativeTokenizer, error) {
	return nil, errors.New("tokenizer: this program was built without one: `make tokenizer` builds one that has it")
}

// NativeTokenizer is the one that a build with the tag tokenizer has.
type NativeTokenizer struct{}

// Encode implements [Tokenizer].
func (*NativeTokenizer) Encode(dst []uint32, _ []byte, _ bool) ([]uint32, error) {
	return dst, errors.New("there is none")
}

// Texts returns none.
func (*NativeTokenizer) Texts(int) []string { return nil }

// Close does nothing.
func (*NativeTokenizer) Close() {}
