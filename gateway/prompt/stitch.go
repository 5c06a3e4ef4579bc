// SPDX-License-Identifier: Apache-2.0

// Before: flight.go, with what is known of a prompt's begin and what was asked about
// its end. After: nothing.

package prompt

import "unicode/utf8"

const (
	// least is how many tokens in a row must be the same in all three for two to be
	// joined: several words of text, or a message and its marks.
	least = 8
	// longText is how long a text must be for its end to be asked for alone.
	longText = 2 << 10
	// windowLeast and windowMost bound what is repeated of the known prompt, bytes. The
	// window of one turn is what the next one begins with: it moves only when it has
	// grown over the upper bound.
	windowLeast = 512
	windowMost  = 4 << 10
)

// join returns the tokens of a prompt that continues one with the tokens whole, of
// whose end the window has the tokens before, and with what is new the tokens after;
// not ok where they do not fit together. See the package's comment for why it is right.
func join(whole, before, after []uint32) (tokens []uint32, ok bool) {
	kept := 0 // of before, which after begins with
	for kept < len(before) && kept < len(after) && before[kept] == after[kept] {
		kept++
	}
	same := 0 // of before's end, which whole ends with
	for same < len(before) && same < len(whole) && before[len(before)-1-same] == whole[len(whole)-1-same] {
		same++
	}
	gone := len(before) - kept // at the end of before, and so of whole
	if same-gone < least {
		return nil, false
	}
	n := len(whole) - gone
	tokens = make([]uint32, 0, n+len(after)-kept)
	tokens = append(tokens, whole[:n]...)
	return append(tokens, after[kept:]...), true
}

// window returns where in a text a window begins that ends at end: at a space or line
// break, windowLeast bytes before it or somewhat more; 0 where there is none.
func window(text []byte, end int) int {
	for i := end - windowLeast; i > 0 && i > end-windowMost/2; i-- {
		if text[i] == ' ' || text[i] == '\n' {
			return i
		}
	}
	for i := max(end-windowMost/2, 0); i < end; i++ {
		if utf8.RuneStart(text[i]) {
			return i
		}
	}
	return 0
}
