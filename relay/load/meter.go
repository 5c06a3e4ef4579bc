// SPDX-License-Identifier: Apache-2.0

package load

// Before this file: the sources, one goroutine each. After it: subscriptions,
// which read the newest reading of a rank, and GetLoads.

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Ask asks an engine's own service for its load. It returns one reading a rank,
// of which it sets what the engine said; Taken may be left zero, Sample is not
// looked at.
type Ask func(ctx context.Context) ([]Reading, error)

// Get reads a path of an engine's HTTP server: at most limit bytes.
type Get func(ctx context.Context, path string, limit int) (status int, body []byte, err error)

// Config says what a [Meter] reads. At least one source must be there.
type Config struct {
	Engine string // "vllm" or "sglang": what is looked for first
	Ranks  int    // data-parallel ranks, 1 or more

	// Metrics is the engine's HTTP server: http://host:port, or with a path, which
	// then is the only one read.
	Metrics string
	Token   string // bearer token for Metrics; "" sends none
	// Loads is SGLang's load socket: tcp://host:port; rank r's is at port + r.
	Loads string
	// Get, where it is there, reads a path of the engine's HTTP server in Metrics' stead,
	// which is empty then: by somebody else's connections.
	Get Get
	// Ask is asked when neither of them is configured.
	Ask Ask

	Interval time.Duration // between readings; default 250 ms, at least 10 ms
	Timeout  time.Duration // of one request; default 2 s
	MaxBody  int64         // bytes of one answer; default 8 MiB
}

// Limits of a [Config].
const (
	MaxRanks    = 1024
	minInterval = 10 * time.Millisecond
)

var errNoSource = errors.New("no source of load: give metrics=http://host:port, loads=tcp://host:port or grpc=host:port")

func (c *Config) setDefaults() {
	if c.Interval == 0 {
		c.Interval = 250 * time.Millisecond
	}
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Second
	}
	if c.MaxBody == 0 {
		c.MaxBody = 8 << 20
	}
}

// Validate returns all that is wrong with c, one line each.
func (c *Config) Validate() error {
	var errs []error
	if c.Engine != "vllm" && c.Engine != "sglang" {
		errs = append(errs, fmt.Errorf("engine %q: must be vllm or sglang", c.Engine))
	}
	if c.Ranks < 1 || c.Ranks > MaxRanks {
		errs = append(errs, fmt.Errorf("ranks %d: must be 1 to %d", c.Ranks, MaxRanks))
	}
	if c.Interval != 0 && c.Interval < minInterval {
		errs = append(errs, fmt.Errorf("load-interval %v: must be %v or more", c.Interval, minInterval))
	}
	if c.Timeout < 0 || c.MaxBody < 0 {
		errs = append(errs, errors.New("timeouts and limits must not be negative"))
	}
	if c.Metrics != "" {
		if err := checkMetrics(c.Metrics); err != nil {
			errs = append(errs, err)
		}
	}
	if c.Loads != "" {
		if _, err := loadEndpoints(c.Loads, max(c.Ranks, 1)); err != nil {
			errs = append(errs, err)
		}
	}
	if c.Metrics != "" && c.Get != nil {
		errs = append(errs, errors.New("metrics must be empty where get is there"))
	}
	if c.Metrics == "" && c.Loads == "" && c.Ask == nil && c.Get == nil {
		errs = append(errs, errNoSource)
	}
	return errors.Join(errs...)
}

func checkMetrics(text string) error {
	u, err := url.Parse(text)
	port := uint64(1)
	if err == nil && u.Port() != "" {
		port, err = strconv.ParseUint(u.Port(), 10, 16)
	}
	switch {
	case err != nil, port == 0, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.User != nil, u.Fragment != "":
		return fmt.Errorf("metrics=%s: must be http://host:port or https://host:port, with or without a path", strings.ToValidUTF8(text, "?"))
	}
	return nil
}

// Meter keeps the readings of one engine.
//
// Concurrency: any goroutine may call its methods.
type Meter struct {
	cfg   Config
	ranks []rank
	pull  *puller // of HTTP or Ask; nil without
	push  *socket // of the load socket; nil without

	version  atomic.Pointer[string]
	failures [numFailures]atomic.Uint64
	good     atomic.Uint64
	lastErr  atomic.Pointer[string] // nil while the last reading was good
}

// rank is what one rank's sources said last. mu orders them; now is for readers.
type rank struct {
	now    atomic.Pointer[Reading]
	output atomic.Int64 // when its events last came, Unix ns

	mu     sync.Mutex
	pulled *Reading
	pushed *Reading
	sample uint64
	window window
	notify func()
}

// Failure is why a reading failed.
type Failure uint8

// The kinds of failures, as a metric's label says them.
const (
	FailTransport Failure = iota // no connection, no answer in time, or it broke off
	FailStatus                   // an answer that is not 200, redirects included
	FailTooLarge                 // an answer beyond the limit
	FailMalformed                // an answer that cannot be read
	FailEmpty                    // an answer that says nothing of any rank of ours
	FailSocket                   // a message of the load socket that cannot be read
	numFailures
)

// String returns the metric label of f.
func (f Failure) String() string {
	return [numFailures]string{"transport", "status", "too_large", "malformed", "empty", "socket"}[f]
}

// Failures returns all kinds of failures.
func Failures() []Failure {
	return []Failure{FailTransport, FailStatus, FailTooLarge, FailMalformed, FailEmpty, FailSocket}
}

// Stats are a meter's counters and state.
type Stats struct {
	Good     uint64 // readings taken: HTTP answers, socket messages
	Failures [numFailures]uint64
	Source   string // where it reads, "" until found
	LastErr  string // "" while the last reading was good
}

// New returns a meter that reads nothing, and holds nothing open, until [Meter.Run].
func New(cfg Config) (*Meter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	m := &Meter{cfg: cfg, ranks: make([]rank, cfg.Ranks)}
	switch {
	case cfg.Metrics != "", cfg.Get != nil:
		m.pull = newHTTPPuller(m)
	case cfg.Ask != nil && cfg.Loads == "":
		m.pull = newAskPuller(m)
	}
	if cfg.Loads != "" {
		m.push = &socket{m: m, silence: silenceLimit}
	}
	return m, nil
}

// Run reads until ctx ends. It never fails: an engine that cannot be read is
// counted, and tried again.
func (m *Meter) Run(ctx context.Context) {
	var wg sync.WaitGroup
	if m.pull != nil {
		wg.Go(func() { m.pull.run(ctx) })
	}
	if m.push != nil {
		wg.Go(func() { m.push.run(ctx) })
	}
	wg.Wait()
}

// Pull takes one reading of all ranks now, for whoever has a pace of his own and does
// not call Run. One call at a time; it takes no longer than the timeout.
//
// Errors: what kept it from a reading, counted.
func (m *Meter) Pull(ctx context.Context) error {
	if m.pull == nil {
		return errNoSource
	}
	err := m.pull.once(ctx)
	if err != nil {
		m.failed(kindOf(err), err)
		m.pull.miss()
		return err
	}
	m.pull.fails = 0
	return nil
}

// Rank returns the newest reading of a rank, or nil while there is none or where
// there is no such rank. A nil meter has none. It does not allocate.
func (m *Meter) Rank(i int) *Reading {
	if m == nil || i < 0 || i >= len(m.ranks) {
		return nil
	}
	return m.ranks[i].now.Load()
}

// Output tells that events of a rank came at now, which shows that its engine
// runs. It does not block.
func (m *Meter) Output(i int, now time.Time) {
	if m == nil || i < 0 || i >= len(m.ranks) {
		return
	}
	m.ranks[i].output.Store(now.UnixNano())
}

// Readings appends the newest readings of all ranks that have one.
func (m *Meter) Readings(dst []*Reading) []*Reading {
	if m == nil {
		return dst
	}
	for i := range m.ranks {
		if r := m.Rank(i); r != nil {
			dst = append(dst, r)
		}
	}
	return dst
}

// Version returns the engine's version as its answers say, or "".
func (m *Meter) Version() string {
	if m == nil || m.version.Load() == nil {
		return ""
	}
	return *m.version.Load()
}

// Stats returns the counters.
func (m *Meter) Stats() Stats {
	s := Stats{Good: m.good.Load()}
	for i := range s.Failures {
		s.Failures[i] = m.failures[i].Load()
	}
	if e := m.lastErr.Load(); e != nil {
		s.LastErr = *e
	}
	if m.pull != nil {
		s.Source = *m.pull.source.Load()
	}
	return s
}

func (m *Meter) failed(f Failure, err error) {
	m.failures[f].Add(1)
	text := err.Error()
	m.lastErr.Store(&text)
}

// took publishes what one pull said, which may be of several ranks.
func (m *Meter) took(rs []Reading) {
	for i := range rs {
		r := &rs[i]
		if r.Rank < 0 || r.Rank >= len(m.ranks) {
			continue
		}
		m.ranks[r.Rank].take(r, false)
	}
	m.good.Add(1)
	m.lastErr.Store(nil)
}

// take publishes one reading of rank k. A reading that is as old as the one
// before it is the same one.
func (k *rank) take(r *Reading, pushed bool) {
	if fn := k.publish(r, pushed); fn != nil {
		fn()
	}
}

// publish returns whom to tell, if anybody.
func (k *rank) publish(r *Reading, pushed bool) (notify func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	last := &k.pulled
	if pushed {
		last = &k.pushed
	}
	if *last != nil && !r.Taken.After((*last).Taken) {
		return nil
	}
	if !pushed {
		k.window.rates(r)
		activity(r, *last)
	}
	*last = r
	m := merge(k.pulled, k.pushed)
	if m == k.pulled || m == k.pushed {
		c := *m
		m = &c
	}
	k.sample++
	m.Sample, m.events = k.sample, &k.output
	before := k.now.Swap(m)
	if before != nil && !before.paces(m) {
		return nil
	}
	return k.notify
}

// activity notes when the engine last showed output.
func activity(r, last *Reading) {
	if !r.ReportsSteps {
		return
	}
	r.Output = r.Taken
	if last != nil && last.ReportsSteps && last.Running.Value > 0 && last.totals.still(&r.totals) {
		r.Output = last.Output
	}
}

// still reports whether the engine has done nothing between two readings.
func (a *totals) still(b *totals) bool {
	return a.generated == b.generated && a.prompt == b.prompt && a.steps == b.steps
}
