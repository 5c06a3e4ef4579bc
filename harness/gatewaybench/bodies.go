// SPDX-License-Identifier: Apache-2.0

// Before: a seed. After: client.go, which sends them.

package gatewaybench

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Shape of the prompts: so many different ones, each beginning with one of so many heads.
const (
	model        = "mock-model"
	prompts      = 256
	heads        = 8
	answerTokens = 16
)

// sizes of the kinds' prompts, and of their shared heads, in bytes.
var sizes = map[string]struct{ whole, head int }{
	Small: {128, 64}, Large: {8192, 4096}, Chat: {2048, 1024}, Stream: {2048, 1024}, Fresh: {128, 64},
}

var vocabulary = strings.Fields("alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar papa quebec romeo sierra tango uniform victor whiskey xray yankee zulu")

// text makes n bytes of words.
func text(rng *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(vocabulary[rng.IntN(len(vocabulary))])
		b.WriteByte(' ')
	}
	return strings.TrimSpace(b.String()[:n])
}

// serial marks where a number takes the place of digits, in prompts of which none comes
// twice.
const serial = "#000000000000"

// path is where a kind's requests go.
func path(kind string) string {
	if kind == Chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// requests are a kind's, whole, as they are put onto a connection to host.
func requests(kind, host string, seed uint64) [][]byte {
	rng := rand.New(rand.NewPCG(seed, 0x626f6479)) //nolint:gosec // seeded on purpose
	size := sizes[kind]
	var head [heads]string
	for i := range head {
		head[i] = text(rng, size.head)
	}
	out := make([][]byte, prompts)
	for i := range out {
		prompt := head[i%heads] + " " + text(rng, size.whole-size.head)
		if kind == Fresh {
			prompt = serial + prompt[len(serial):]
		}
		asked := `"prompt":"` + prompt + `"`
		if kind == Chat {
			asked = `"messages":[{"role":"user","content":"` + prompt + `"}]`
		}
		body := `{"model":"` + model + `","max_tokens":` + strconv.Itoa(answerTokens) + "," + asked
		if kind == Stream {
			body += `,"stream":true`
		}
		body += "}"
		out[i] = fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path(kind), host, len(body), body)
	}
	return out
}

// number writes n over a request's [serial]; where is its first digit.
func number(request []byte, where int, n uint64) {
	for i := len(serial) - 2; i >= 0; i-- {
		request[where+i] = byte('0' + n%10)
		n /= 10
	}
}

// answer is what the worker's answer to a kind is, its body alone.
func answer(kind string) string {
	const usage = `"usage":{"prompt_tokens":32,"completion_tokens":16,"total_tokens":48}`
	switch kind {
	case Chat:
		return `{"id":"chatcmpl-mock","object":"chat.completion","created":0,"model":"` + model + `","choices":[{"index":0,"message":{"role":"assistant","content":"mock answer of a few words"},"finish_reason":"stop"}],` + usage + `}`
	case Stream:
		return strings.Repeat(chunk, answerTokens) + lastChunk
	}
	return `{"id":"cmpl-mock","object":"text_completion","created":0,"model":"` + model + `","choices":[{"index":0,"text":"mock answer of a few words","logprobs":null,"finish_reason":"stop"}],` + usage + `}`
}

// The events of a streamed answer.
const (
	chunk     = "data: {\"id\":\"cmpl-mock\",\"object\":\"text_completion\",\"created\":0,\"model\":\"" + model + "\",\"choices\":[{\"index\":0,\"text\":\"x\",\"finish_reason\":null}]}\n\n"
	lastChunk = "data: [DONE]\n\n"
)
