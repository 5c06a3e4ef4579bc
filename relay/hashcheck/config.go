// SPDX-License-Identifier: Apache-2.0

package hashcheck

import (
	"encoding/hex"
	"fmt"
	"strings"

	"kindex/internal/enginehash"
)

// Config says what an engine's hashes are held against.
type Config struct {
	Engine string // "vllm" or "sglang"
	// Auto finds the algorithm and the seed out; the next three mean nothing then.
	Auto      bool
	Algorithm enginehash.Algorithm
	// Seed is the text of the engine's PYTHONHASHSEED. "": the default of the
	// releases since 0.29, which xxhash has none of.
	Seed string
	// None is the digest above the first blocks itself, where it is known (vLLM
	// before 0.29 draws it at random); nil: it is made from Seed.
	None []byte
}

const rightForm = "must be auto, off, sha256, sha256_cbor, xxhash or xxhash_cbor with or without :SEED (the engine's PYTHONHASHSEED) or :none=HEX, or sglang"

// Parse reads the value of --hash-check for an engine of that kind. It returns nil
// for off. The error begins with the value.
func Parse(text, engine string) (*Config, error) {
	name, seed, hasSeed := strings.Cut(text, ":")
	switch text {
	case "off", "":
		return nil, nil
	case "auto":
		return &Config{Engine: engine, Auto: true}, nil
	}
	a, err := enginehash.Parse(name)
	if err != nil || hasSeed && (a == enginehash.SGLang || seed == "") {
		return nil, fmt.Errorf("%q %s", text, rightForm)
	}
	if (a == enginehash.SGLang) != (engine == "sglang") {
		return nil, fmt.Errorf("%q: an engine of kind %s does not hash so: it must be auto where engines of both kinds are read", text, engine)
	}
	c := &Config{Engine: engine, Algorithm: a, Seed: seed}
	if digits, ok := strings.CutPrefix(seed, "none="); ok {
		if c.None, err = hex.DecodeString(digits); err != nil || len(c.None) != a.Size() {
			return nil, fmt.Errorf("%q: none= must be followed by %d hexadecimal digits", text, 2*a.Size())
		}
		c.Seed = ""
	}
	return c, nil
}

// CheckForm returns what is wrong with a value of --hash-check, whatever the
// engine.
func CheckForm(text string) error {
	engine := "vllm"
	if text == enginehash.SGLang.String() {
		engine = "sglang"
	}
	_, err := Parse(text, engine)
	return err
}

// scheme is an algorithm with what is above its first blocks.
type scheme struct {
	alg     enginehash.Algorithm
	none    enginehash.Digest
	hasNone bool // false: the seed is not known, or there is none (SGLang)
	seed    string
}

func (c *Config) scheme() scheme {
	s := scheme{alg: c.Algorithm}
	switch {
	case c.Algorithm == enginehash.SGLang:
	case c.None != nil:
		copy(s.none[:], c.None)
		s.hasNone = true
	case c.Seed != "":
		return seeded(c.Algorithm, c.Seed)
	case c.Algorithm.Size() == enginehash.MaxSize:
		return seeded(c.Algorithm, enginehash.DefaultSeed)
	}
	return s
}

func seeded(a enginehash.Algorithm, seed string) scheme {
	return scheme{alg: a, none: a.None(seed), hasNone: true, seed: seed}
}

// likelySeeds are tried when hashes do not fit: the default, and what people set.
var likelySeeds = []string{enginehash.DefaultSeed, "0", "42", "1", "123", "1234", "12345", "2024", "2025", "random", "random-string", ""}

// schemes are all that may explain an engine's first blocks, seed among the seeds.
func schemes(seed string) []scheme {
	out := []scheme{{alg: enginehash.SGLang}}
	for _, a := range enginehash.VLLM() {
		for _, s := range append([]string{seed}, likelySeeds...) {
			out = append(out, seeded(a, s))
		}
	}
	return out
}
