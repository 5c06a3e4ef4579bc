// SPDX-License-Identifier: Apache-2.0

// Before: what became of each request, and what the gateway tells of itself. After: a
// drill's result.

package drill

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"kindex/harness/proc"
)

const (
	gatewayWatchEvery = 50 * time.Millisecond
	gaugesTime        = time.Second      // until every gauge is back at 0
	foretold          = 24               // prompts that are asked one after another at the end
	learnTime         = time.Second      // until what an answer told is held against the index
	moreGoroutines    = 64               // idle connections to engines come and go
	idleTime          = 30 * time.Second // until goroutines of clients that have gone are gone
)

// gatewayWatch reads all the while what a gateway says of its workers.
type gatewayWatch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu       sync.Mutex
	away     bool      // the gateway is down on purpose
	unwell   time.Time // the sick worker was first told to be passed over, since armed
	well     time.Time // told to be well again, since expected
	expected time.Time
	armed    bool
	seen     int
	negative string
	slowest  time.Duration
}

func (f *gatewayFace) watched(ctx context.Context) *gatewayWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &gatewayWatch{cancel: cancel}
	w.done.Go(func() {
		for pause(ctx, gatewayWatchEvery) == nil {
			began := time.Now()
			all, err := f.workers(ctx)
			w.take(all, err, time.Since(began))
		}
	})
	f.r.e.later(func() error { w.stop(); return nil })
	return w
}

func (w *gatewayWatch) stop() {
	w.cancel()
	w.done.Wait()
}

func (w *gatewayWatch) take(all []gatewayWorker, err error, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || w.away {
		return
	}
	w.seen++
	w.slowest = max(w.slowest, took)
	now := time.Now()
	for i := range all {
		a := &all[i]
		for _, h := range a.Holders {
			if h.InFlight < 0 || h.Prefill < 0 || h.Streams < 0 || h.Unread < 0 {
				w.negative = fmt.Sprintf("%s: %+v", a.Instance, h)
			}
		}
		if a.Instance != workerName(0) {
			continue
		}
		if w.armed && !a.well() && w.unwell.IsZero() {
			w.unwell = now
		}
		if !w.expected.IsZero() && a.well() && w.well.IsZero() {
			w.well = now
		}
	}
}

// arm begins to look when the sick worker is passed over.
func (w *gatewayWatch) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed, w.unwell = true, time.Time{}
}

// expect begins to look when it is well again.
func (w *gatewayWatch) expect(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expected, w.well = at, time.Time{}
}

// excluded returns when the sick worker was first passed over since arm.
func (w *gatewayWatch) excluded() (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unwell, !w.unwell.IsZero()
}

// returned returns when it was first well again since expect; zero: it was not seen.
func (w *gatewayWatch) returned() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.well
}

// tries reads how often each request was tried, by its id, out of the access log.
func (f *gatewayFace) tries() (map[string]int, error) {
	file, err := os.Open(f.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	out := map[string]int{}
	for in := bufio.NewScanner(file); in.Scan(); {
		var l struct {
			ID    string `json:"id"`
			Tries int    `json:"tries"`
		}
		if json.Unmarshal(in.Bytes(), &l) == nil { // a line that is being written
			out[l.ID] = l.Tries
		}
	}
	return out, nil
}

// outage is a fault of the sick engine, as a gateway's clients may meet it.
type outage struct {
	from, well time.Time     // when it began, and when the engine was well again
	out        time.Duration // how long it may be given new requests; 0: for ever
	back       time.Duration // how long it may be given none once it is well; 0: for ever
	breaks     bool          // streams that had begun there may break off
}

// sick reports whether a is an answer of the engine that has the fault.
func (f *gatewayFace) sick(a *asked) bool { return f.ids[a.worker] == workerName(0) }

// routing judges by which worker new requests were given to.
func (f *gatewayFace) routing(o *outage, all []*asked, tries map[string]int) (string, error) {
	var errs []error
	last, back := time.Duration(-1), time.Duration(-1)
	judged := 0
	for _, a := range all {
		since := a.sent.Sub(o.from)
		switch {
		case since < 0:
		case a.sent.Before(o.well):
			if since > o.out {
				judged++
			}
			if f.sick(a) || tries[a.id] > 1 { // an answer of somebody else's, who was not asked first
				last = max(last, since)
			}
		case f.sick(a) && a.ok():
			if took := a.sent.Sub(o.well); back < 0 || took < back {
				back = took
			}
		}
	}
	said := "never given a request under the fault"
	if last >= 0 {
		said = "last given a request " + round(last).String() + " into the fault"
	}
	if at, ok := f.watch.excluded(); ok && at.Before(o.well) {
		said += ", passed over after " + round(at.Sub(o.from)).String()
	}
	w := f.r.e.waits
	if limit := f.r.e.within(o.out); o.out > 0 {
		if last > limit && last > w.allows(limit, o.from, o.from.Add(last)) {
			errs = append(errs, fmt.Errorf("given a request %s into the fault, of which programs waited %s for a CPU: the rule allows %s", round(last), round(w.of(o.from, o.from.Add(last))), o.out))
		}
		if judged == 0 {
			errs = append(errs, errors.New("no request was sent while it had to be out of routing"))
		}
	}
	if limit := f.r.e.within(o.back); o.back > 0 {
		switch {
		case back < 0:
			errs = append(errs, errors.New("it is well again and is given no request"))
		case back > limit && back > w.allows(limit, o.well, o.well.Add(back)):
			errs = append(errs, fmt.Errorf("given a request %s after it was well again, of which programs waited %s for a CPU: the rule allows %s", round(back), round(w.of(o.well, o.well.Add(back))), o.back))
		}
	}
	if back >= 0 {
		said += ", again " + round(back).String() + " after it was well"
	}
	if at := f.watch.returned(); !at.IsZero() {
		said += " (told so after " + round(at.Sub(o.well)).String() + ")"
	}
	return said, errors.Join(errs...)
}

// answers judges whether everybody was answered, and in time.
func (f *gatewayFace) answers(o *outage, all []*asked, tries map[string]int) (string, error) {
	var errs []error
	ok, broken, retried := 0, 0, 0
	var longest time.Duration
	var firsts []time.Duration
	for _, a := range all {
		took := a.end.Sub(a.sent)
		longest = max(longest, took)
		if tries[a.id] > 1 {
			retried++
		}
		if limit := f.r.e.within(endTime); took > limit && took > f.r.e.waits.allows(limit, a.sent, a.end) {
			errs = append(errs, fmt.Errorf("request %s ended after %s", a.id, round(took)))
		}
		switch {
		case a.ok():
			ok++
			firsts = append(firsts, a.first.Sub(a.sent))
		case o.breaks && a.status == 200 && f.sick(a) && a.sent.Before(o.well) && a.end.After(o.from):
			broken++
		default:
			errs = append(errs, fmt.Errorf("request %s, sent %s into the fault, was not answered: status %d of %q: %.200s", a.id, round(a.sent.Sub(o.from)), a.status, f.ids[a.worker], a.fault))
		}
	}
	said := fmt.Sprintf("%d of %d answered (%d by another worker than the first)", ok, len(all), retried)
	if broken > 0 {
		said += fmt.Sprintf(", %d streams that had begun there broke off", broken)
	}
	slices.Sort(firsts)
	if n := len(firsts); n > 0 {
		said += fmt.Sprintf(", first token p50 %s p99 %s", round(firsts[n/2]), round(firsts[n*99/100]))
	} else {
		errs = append(errs, errors.New("nobody was answered"))
	}
	if len(errs) > maxWrong {
		errs = append(errs[:maxWrong], fmt.Errorf("and %d more", len(errs)-maxWrong))
	}
	return said + ", longest " + round(longest).String(), errors.Join(errs...)
}

// settle ends the load, and judges all that a gateway must come back to.
func (r *gatewayRig) settle(ctx context.Context, forgets bool) (string, error) {
	var ending sync.WaitGroup
	for _, f := range r.faces {
		ending.Go(f.load.end)
	}
	ending.Wait()
	silent := time.Now()
	said, err := r.tell(func(f *gatewayFace) (string, error) {
		return "", errors.Join(f.zero(ctx, silent), f.equal(ctx, silent, forgets))
	})
	var errs []error
	for _, f := range r.faces { // one gateway's questions change what the other one finds
		text, ferr := f.foretells(ctx, forgets)
		if ferr != nil {
			ferr = fmt.Errorf("%s: %w", f.name, ferr)
		}
		errs = append(errs, ferr)
		said += "; " + f.name + ": " + text
	}
	err = errors.Join(err, r.each(func(f *gatewayFace) error { return f.flat(ctx) }))
	return said[min(len(said), 2):], errors.Join(err, errors.Join(errs...))
}

// zero demands that no gauge counts a request.
func (f *gatewayFace) zero(ctx context.Context, silent time.Time) error {
	for {
		left, err := f.left(ctx)
		if err != nil {
			return err
		}
		at := time.Now()
		if left == "" {
			break
		}
		if limit := f.r.e.within(gaugesTime); at.Sub(silent) > limit && at.Sub(silent) > f.r.e.waits.allows(limit, silent, at) {
			return fmt.Errorf("gauges %s after the last request: %s", round(at.Sub(silent)), left)
		}
		if err := pause(ctx, gatewayWatchEvery); err != nil {
			return err
		}
	}
	f.watch.mu.Lock()
	defer f.watch.mu.Unlock()
	if f.watch.negative != "" {
		return fmt.Errorf("a gauge below 0: %s", f.watch.negative)
	}
	if f.watch.seen == 0 {
		return errors.New("the gateway never told of its workers")
	}
	return nil
}

// flat demands that the gateway's goroutines have gone with their requests.
func (f *gatewayFace) flat(ctx context.Context) error {
	now := 0.0
	if err := proc.Until(ctx, idleTime, func() bool {
		var err error
		now, err = f.gauge(ctx, "go_goroutines")
		return err == nil && now <= f.goroutines+moreGoroutines
	}); err != nil {
		return fmt.Errorf("%.0f goroutines %s after the last request, %.0f before the load: %w", now, idleTime, f.goroutines, err)
	}
	return nil
}

// left says which gauges are not 0.
func (f *gatewayFace) left(ctx context.Context) (string, error) {
	all, err := f.workers(ctx)
	if err != nil {
		return "", err
	}
	for i := range all {
		for _, h := range all[i].Holders {
			if h.InFlight != 0 || h.Prefill != 0 || h.Streams != 0 {
				return fmt.Sprintf("%s: %d requests, %d tokens to prefill, %d streams", all[i].Instance, h.InFlight, h.Prefill, h.Streams), nil
			}
		}
	}
	gauges, err := f.gauges(ctx)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"kindex_gateway_requests_in_flight", "kindex_gateway_admitted_in_flight", "kindex_gateway_queue_length"} {
		if v, ok := gauges[name]; !ok || v != 0 {
			return fmt.Sprintf("%s is %v (told: %v)", name, v, ok), nil
		}
	}
	return "", nil
}

// ofInstance observes one engine of several at an index.
type ofInstance struct {
	index *indexHost
	id    string
}

func (o ofInstance) observe(ctx context.Context) (map[int]observation, error) {
	return o.index.observeOf(ctx, o.id)
}

// equal demands that the gateway's index holds what each silent engine does. Of an engine
// whose publisher forgets to tell again, that is not to be known.
func (f *gatewayFace) equal(ctx context.Context, silent time.Time, forgets bool) error {
	var errs []error
	for i, l := range f.r.engines {
		if forgets && i == 0 {
			continue
		}
		floor := []uint64{max(l.Newest(0), 1) - 1}
		if _, err := exactWithin(ctx, ofInstance{f.index, workerName(i)}, l, floor, silent, f.r.e.within(newLifeTime), 4*gatewayWatchEvery, f.r.e.waits); err != nil {
			errs = append(errs, fmt.Errorf("the index of %s: %w", workerName(i), err))
		}
	}
	return errors.Join(errs...)
}

// foretells holds what the gateway expects of each request's answer against what the
// answer says, one request after another. Where a publisher forgot to tell, answers teach
// what is there: then the second asking counts, and the first may find more.
func (f *gatewayFace) foretells(ctx context.Context, forgets bool) (string, error) {
	seed := f.r.e.o.Seed
	rng := rand.New(rand.NewPCG(seed, 21)) //nolint:gosec // seeded on purpose
	sum, more := 0, 0
	var errs []error
	for i := range foretold {
		prompt := askPrompt(rng, seed)
		for pass := range 2 {
			want, got, worker, err := f.foretell(ctx, prompt, fmt.Sprintf("%s-end-%d-%d", f.name, i, pass))
			switch {
			case err != nil:
				return "", err
			case forgets && pass == 0 && want < got:
				more++
				if err := pause(ctx, learnTime); err != nil {
					return "", err
				}
			case want != got:
				errs = append(errs, fmt.Errorf("%d tokens expected of %s, %d reported, of a prompt of %d", want, worker, got, len(prompt)))
			}
			sum += got
		}
	}
	said := fmt.Sprintf("%d of %d requests reported what was foretold (%d cached tokens)", 2*foretold-len(errs)-more, 2*foretold, sum)
	if more > 0 {
		said += fmt.Sprintf(", %d more, which was learned", more)
	}
	if len(errs) > maxWrong {
		errs = append(errs[:maxWrong], fmt.Errorf("and %d more", len(errs)-maxWrong))
	}
	return said, errors.Join(errs...)
}

// foretell asks for one token and returns how many of the prompt's were expected to be
// cached, and how many were.
func (f *gatewayFace) foretell(ctx context.Context, prompt []uint32, id string) (want, got int, worker string, err error) {
	resp, err := f.load.post(ctx, id, map[string]any{"model": modelName, "prompt": prompt, "max_tokens": 1}, true)
	if err != nil {
		return 0, 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		return 0, 0, "", errors.Join(err, errors.New("answered "+strconv.Itoa(resp.StatusCode)+": "+string(b[:min(len(b), 200)])))
	}
	var answer struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	var decision struct {
		Candidates []struct {
			Cached int `json:"cached_tokens"`
		} `json:"candidates"`
	}
	err = errors.Join(json.Unmarshal(b, &answer), json.Unmarshal([]byte(resp.Header.Get("X-Kindex-Explain")), &decision))
	if err == nil && len(decision.Candidates) == 0 {
		err = errors.New("a decision without its record")
	}
	if err != nil {
		return 0, 0, "", err
	}
	return decision.Candidates[0].Cached, answer.Usage.Details.Cached, f.ids[resp.Header.Get("X-Kindex-Worker")], nil
}
