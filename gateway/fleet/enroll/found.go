// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"kindex/gateway/fleet"
)

// found is what an engine says of itself. What it does not say is zero.
type found struct {
	url       string // with the scheme that it speaks
	engine    string // fleet.VLLM, fleet.SGLang
	version   string
	models    []string
	adapters  map[string]string
	ranks     int
	blockSize int
	events    fleet.Events
	silent    bool // it did not answer all questions
}

// remember completes what was found with what was known, where the engine did not answer
// all questions: what it did not say this time has not changed for that.
func (f *found) remember(s *fleet.Spec) {
	if !f.silent {
		return
	}
	f.engine = cmp.Or(f.engine, s.Engine)
	f.ranks = cmp.Or(f.ranks, s.Ranks)
	f.blockSize = cmp.Or(f.blockSize, s.BlockSize)
	f.events = cmp.Or(f.events, s.Events)
}

// onto returns the specification of given, completed with what was found.
func (f *found) onto(given *fleet.Spec) *fleet.Spec {
	s := *given
	s.URL = f.url
	if len(s.Models) == 0 {
		s.Models, s.Adapters = f.models, f.adapters
	} else if len(s.Adapters) == 0 {
		for name, base := range f.adapters {
			if slices.Contains(s.Models, base) && !slices.Contains(s.Models, name) {
				if s.Adapters == nil {
					s.Adapters = make(map[string]string)
				}
				s.Adapters[name] = base
			}
		}
	}
	if s.Engine == "" {
		s.Engine = f.engine
	}
	if s.Ranks == 0 {
		s.Ranks = min(max(f.ranks, 1), fleet.MaxRanks)
	}
	if s.BlockSize == 0 {
		s.BlockSize = f.blockSize
	}
	if s.Events == (fleet.Events{}) {
		s.Events = f.events
	}
	return &s
}

// odd says what of f speaks against what was given; "": nothing.
func (f *found) odd(given *fleet.Spec) string {
	var odd []string
	for _, m := range given.Models {
		if len(f.models) > 0 && !slices.Contains(f.models, m) && f.adapters[m] == "" {
			odd = append(odd, fmt.Sprintf("it lists %s, not the model %s", strings.Join(f.models, ", "), m))
		}
	}
	if given.Engine != "" && f.engine != "" && given.Engine != f.engine {
		odd = append(odd, fmt.Sprintf("it says that it is %s, not %s", f.engine, given.Engine))
	}
	if given.Ranks > 0 && f.ranks > 0 && given.Ranks != f.ranks {
		odd = append(odd, fmt.Sprintf("it says that it has %d ranks, not %d", f.ranks, given.Ranks))
	}
	if given.BlockSize > 0 && f.blockSize > 0 && given.BlockSize != f.blockSize {
		odd = append(odd, fmt.Sprintf("it says that its blocks have %d tokens, not %d", f.blockSize, given.BlockSize))
	}
	return strings.Join(odd, "; ")
}

// sameEngine reports whether what is cached at w would be cached at s, as far as can be
// told: adapters come and go.
func sameEngine(w *fleet.Worker, s *fleet.Spec) bool {
	a := w.Spec
	return a.URL == s.URL && a.Engine == s.Engine && len(w.Holders) == max(s.Ranks, 1) && a.BlockSize == s.BlockSize && a.Events == s.Events &&
		slices.Equal(slices.Sorted(slices.Values(a.Models)), slices.Sorted(slices.Values(s.Models)))
}

// describe says in a log what makes an engine another one.
func describe(s *fleet.Spec) string {
	return fmt.Sprintf("%s %s ranks=%d block=%d events=%s", s.Engine, strings.Join(s.Models, " "), s.Ranks, s.BlockSize, cmp.Or(s.Events.Relay, s.Events.Endpoint))
}
