// SPDX-License-Identifier: Apache-2.0

package openloop

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"kindex/harness/trial"
)

// Prompts are the forms that a prompt may be sent in.
var Prompts = []string{PromptTokens, PromptText, PromptChat}

// The forms of prompts.
const (
	PromptTokens = "tokens" // token ids to /v1/completions
	PromptText   = "text"   // words to /v1/completions
	PromptChat   = "chat"   // words to /v1/chat/completions
)

// Options are what a replay is told.
type Options struct {
	Trace     string // file, or [Conversation], or [Generated]
	Rows      Range
	Speedup   float64
	OneByOne  bool          // each request after the answer before, instead of at its time
	For       time.Duration // no request is due later; 0: all are sent
	URL       string        // of the endpoint, without /v1
	Model     string        // "": the first that the endpoint names
	Prompt    string        // of [Prompts]
	Vocab     uint64        // token ids are below it
	Words     string        // file of words for text prompts; "": the usual ones
	Share     int           // leading tokens that rows without ids have in common
	MaxOutput int           // bounds every answer, in tokens; 0: as the trace says
	IgnoreEOS bool          // ask for answers of exactly the trace's length
	Headers   http.Header
	Workers   string // response header that names the worker
	Oracle    string // URL of the mock fleet's admin API
	Reset     bool   // empty the fleet's caches first
	BlockSize int    // of prefix reuse, in tokens; 0: the fleet's, else 16
	Shape     Shape  // of the fleet, for the oracle; none: as the fleet says
	InFlight  int    // requests at once; more are dropped
	Timeout   time.Duration
	Late      time.Duration // bound of the replay's own p99 lateness
	TTFT, ITL time.Duration // the SLO
	Out       string        // folder; "": nothing is written
	Seed      uint64

	// Watch is told twice a second how far the replay is, and once more at its end, by one
	// goroutine; nil: nobody is.
	Watch func(*Standing)
}

// DefaultOptions are those of a replay that is told nothing but its URL.
func DefaultOptions() Options {
	return Options{
		Trace: Conversation, Rows: Range{0, math.MaxInt}, Speedup: 1, Prompt: PromptTokens, Vocab: 30_000, IgnoreEOS: true, Headers: http.Header{},
		Workers: "x-kindex-worker", InFlight: 4_096, Timeout: 5 * time.Minute, Late: 100 * time.Millisecond,
		TTFT: 500 * time.Millisecond, ITL: 50 * time.Millisecond, Seed: 1,
	}
}

// The bounds of options that have no natural ones. Chosen.
const (
	maxInFlight = 1 << 16
	minVocab    = 1 << 8
	maxVocab    = 1 << 31
)

// Validate returns what cannot be, naming the flag.
func (o *Options) Validate() error {
	switch {
	case o.URL == "":
		return fmt.Errorf("--url: give the endpoint's address, like http://127.0.0.1:8000")
	case !(o.Speedup > 0) || math.IsInf(o.Speedup, 0): // NaN is neither
		return fmt.Errorf("--speedup %v: must be positive and finite", o.Speedup)
	case !slices.Contains(Prompts, o.Prompt):
		return fmt.Errorf("--prompt %q: must be %s", o.Prompt, trial.OneOf(Prompts))
	case o.Vocab < minVocab || o.Vocab > maxVocab:
		return fmt.Errorf("--vocab %d: must be %d to %d", o.Vocab, minVocab, maxVocab)
	case o.Share < 0 || o.Share%TokensPerID != 0 || o.Share > maxTokens:
		return fmt.Errorf("--share %d: must be a multiple of %d and at most %d", o.Share, TokensPerID, maxTokens)
	case o.MaxOutput < 0:
		return fmt.Errorf("--max-output %d: must not be negative", o.MaxOutput)
	case o.BlockSize < 0 || o.BlockSize > 1<<16:
		return fmt.Errorf("--block-size %d: must be 1 to %d tokens", o.BlockSize, 1<<16)
	case o.InFlight < 1 || o.InFlight > maxInFlight:
		return fmt.Errorf("--max-in-flight %d: must be 1 to %d", o.InFlight, maxInFlight)
	case o.For < 0:
		return fmt.Errorf("--for %v: must not be negative", o.For)
	case o.Reset && o.Oracle == "":
		return fmt.Errorf("--reset: needs --oracle, the fleet's admin address")
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"timeout", o.Timeout}, {"late", o.Late}, {"slo-ttft", o.TTFT}, {"slo-itl", o.ITL}} {
		if d.value <= 0 {
			return fmt.Errorf("--%s %v: must be positive", d.name, d.value)
		}
	}
	if err := baseURL("--url", &o.URL); err != nil {
		return err
	}
	if o.Oracle != "" {
		return baseURL("--oracle", &o.Oracle)
	}
	return nil
}

// baseURL checks an address and takes off what comes after it.
func baseURL(flag string, s *string) error {
	text := *s
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%s %q: must be an address like http://127.0.0.1:8000", flag, *s)
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")
	*s = u.String()
	return nil
}

// Range is rows from First to Last, both counted in; from 0.
type Range struct{ First, Last int }

// String implements [flag.Value].
func (r *Range) String() string {
	if r.Last == math.MaxInt {
		if r.First == 0 {
			return "all"
		}
		return fmt.Sprintf("%d-", r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Set implements [flag.Value].
func (r *Range) Set(s string) error {
	if s == "all" {
		*r = Range{0, math.MaxInt}
		return nil
	}
	from, to, ok := strings.Cut(s, "-")
	if !ok {
		from, to, ok = strings.Cut(s, ":")
	}
	a, err := strconv.ParseUint(from, 10, 31)
	b := uint64(math.MaxInt)
	if err == nil && to != "" {
		b, err = strconv.ParseUint(to, 10, 31)
	}
	if !ok || err != nil || b < a {
		return fmt.Errorf("must be FIRST-LAST, FIRST- or all, both counted in and from 0, like 0-1999")
	}
	r.First, r.Last = int(a), int(b)
	return nil
}
