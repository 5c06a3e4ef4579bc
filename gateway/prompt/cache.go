// SPDX-License-Identifier: Apache-2.0

// Before: resolve.go. After: nothing.

package prompt

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"
)

// key is what tokens are kept under: a hash of all that was asked, with how much that
// was.
type key struct {
	a, b uint64
	n    int // bytes, or messages
}

// seed keeps keys from being foreseen.
var seed = rand.Uint64()

// then returns the key of what follows k.
func (k key) then(b []byte, n int) key {
	h := xxh3.Hash128Seed(b, k.a^bits.RotateLeft64(k.b, 29)^uint64(k.n)*0x9E37_79B9_7F4A_7C15)
	return key{h.Lo, h.Hi ^ k.b*0xD6E8_FEB8_6659_FD93, n}
}

// root returns the key of what stands before a prompt: pool, kind of question, model
// and options.
func root(kind byte, parts ...[]byte) key {
	k := key{a: seed, b: uint64(kind)}
	for _, p := range parts {
		k = k.then(p, len(p))
	}
	return k
}

// step is how many bytes of a text are hashed together: a text's key is made of the
// keys of its begins, so that one pass finds all begins that are known.
const step = 256

// texts appends the keys of text's begins, of 0, 1, 2... steps, to dst, and returns the
// key of the whole.
func texts(dst []key, from key, text []byte) ([]key, key) {
	k := from
	dst = append(dst, k)
	n := 0
	for ; len(text)-n >= step; n += step {
		k = k.then(text[n:n+step], n+step)
		dst = append(dst, k)
	}
	return dst, k.then(text[n:], len(text)).whole()
}

// whole tells a text's key from that of the begin of a longer one.
func (k key) whole() key {
	k.b = ^k.b
	return k
}

// entry is one prompt's tokens. It is immutable but for its place.
type entry struct {
	key    key
	begin  key // of the whole steps of a text; n below 0: it is no text
	length int // of the text, bytes; of a chat, messages
	from   int // where the window begins that the next question about its end repeats
	tokens []uint32
	partly bool // of a chat, only up to what is not text

	newer, older *entry
}

func (e *entry) bytes() int64 { return int64(4*len(e.tokens)) + 256 }

// cache keeps the tokens that were used last, up to a bound.
//
// Concurrency: any goroutine.
type cache struct {
	mu      sync.Mutex
	limit   int64
	used    int64
	evicted uint64
	all     map[key]*entry
	begins  map[key]*entry // texts, the newest of each begin
	newest  *entry
	oldest  *entry
}

func newCache(limit int64) *cache {
	return &cache{limit: limit, all: make(map[key]*entry), begins: make(map[key]*entry)}
}

// get returns what is kept under k, or nil.
func (c *cache) get(k key) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.all[k]
	if e != nil {
		c.unlink(e)
		c.link(e)
	}
	return e
}

// begin returns the longest text that is kept and that text begins with, or nil. keys
// are those of text's begins.
func (c *cache) begin(keys []key, text []byte) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, k := range slices.Backward(keys) {
		e := c.begins[k]
		if e == nil || e.length >= len(text) {
			continue
		}
		if k.then(text[i*step:e.length], e.length).whole() == e.key {
			c.unlink(e)
			c.link(e)
			return e
		}
	}
	return nil
}

// put keeps e in the place of what had its key. What is larger than a quarter of all is
// not kept.
func (c *cache) put(e *entry) {
	if e.bytes() > c.limit/4 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.all[e.key]; old != nil {
		c.remove(old)
	}
	c.all[e.key] = e
	if e.begin.n >= 0 {
		c.begins[e.begin] = e
	}
	c.used += e.bytes()
	c.link(e)
	for c.used > c.limit {
		c.remove(c.oldest)
		c.evicted++
	}
}

// drop forgets what is kept under k.
func (c *cache) drop(k key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.all[k]; e != nil {
		c.remove(e)
	}
}

func (c *cache) remove(e *entry) {
	delete(c.all, e.key)
	if c.begins[e.begin] == e {
		delete(c.begins, e.begin)
	}
	c.used -= e.bytes()
	c.unlink(e)
}

func (c *cache) link(e *entry) {
	e.newer, e.older = nil, c.newest
	if c.newest != nil {
		c.newest.newer = e
	}
	c.newest = e
	if c.oldest == nil {
		c.oldest = e
	}
}

func (c *cache) unlink(e *entry) {
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		c.newest = e.older
	}
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		c.oldest = e.newer
	}
	e.newer, e.older = nil, nil
}

func (c *cache) size() (entries int, bytes int64, evicted uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all), c.used, c.evicted
}
