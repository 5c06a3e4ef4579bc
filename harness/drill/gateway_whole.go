// SPDX-License-Identifier: Apache-2.0

// Before: drill.go. After: gateway.go: what befalls a gateway as a whole.

package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	servingTime   = 10 * time.Second // until a gateway serves that was started again
	steadyTimes   = 2                // its p99, in times of the steady one
	steadyMore    = 500 * time.Millisecond
	gatewayAway   = 500 * time.Millisecond
	gatewayAgain  = 6 * time.Second // load behind the restart
	overloadAsked = 512
	// overloadBlocks are fewer than the streams need at once, so that some wait.
	overloadBlocks = 1_536
	overloadSpan   = time.Second // in which they come
	overloadLong   = 128         // tokens of an answer, half as many more at most
	overloadMost   = 1.5         // of an engine's share of what is in flight, in means
	overloadTime   = 30 * time.Second
)

const gatewayRestartedRule = "both gateways are killed with -9 under load and started again: each serves within 10 s of its start; of requests from then on p99 of the first token is at most twice the steady one and 0.5 s, and all are answered, each within 12 s" + afterwards

const overloadRule = "512 streams come within 1 s to each gateway, and to one that sheds: all are answered within 30 s, or with worker-overload-shed refused by 503 with Retry-After; when most are in flight no engine has over 1.5 times the mean" + afterwards

func gatewayRestarted(ctx context.Context, e *Env) (string, error) {
	r, err := e.beginGateway(ctx, nil)
	if err != nil {
		return "", err
	}
	killed := time.Now()
	if err := r.each(func(f *gatewayFace) error {
		f.watch.leave(true)
		f.index.proc.Kill()
		return nil
	}); err != nil {
		return "", err
	}
	if err := pause(ctx, gatewayAway); err != nil {
		return "", err
	}
	started := time.Now()
	if err := r.each(func(f *gatewayFace) error { return f.start(ctx) }); err != nil {
		return "", err
	}
	for _, f := range r.faces {
		f.watch.leave(false)
	}
	if err := pause(ctx, gatewayAgain); err != nil {
		return "", err
	}
	after, serr := r.settle(ctx, false)
	said, err := r.tell(func(f *gatewayFace) (string, error) { return f.cameBack(killed, started) })
	return said + "; at the end: " + after, errors.Join(err, serr)
}

// leave tells that the gateway is down on purpose, or not any more.
func (w *gatewayWatch) leave(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away = on
}

// cameBack judges a gateway that was killed and started again.
func (f *gatewayFace) cameBack(killed, started time.Time) (string, error) {
	var before, behind []*asked
	all := f.load.ended()
	slices.SortFunc(all, func(a, b *asked) int { return a.sent.Compare(b.sent) })
	serving := time.Duration(-1)
	var from time.Time
	lost := 0
	for _, a := range all {
		switch {
		case a.sent.Before(killed):
			if a.end.Before(killed) {
				before = append(before, a)
			}
		case serving < 0 && !a.ok():
			lost++
		case serving < 0:
			serving, from = a.first.Sub(started), a.sent
			behind = append(behind, a)
		default:
			behind = append(behind, a)
		}
	}
	if serving < 0 {
		return "", errors.New("it serves nobody")
	}
	var errs []error
	w := f.r.e.waits
	if limit := f.r.e.within(servingTime); serving > limit && serving > w.allows(limit, started, started.Add(serving)) {
		errs = append(errs, fmt.Errorf("serves %s after its start: the rule allows %s", round(serving), servingTime))
	}
	steady, p99 := firstToken(before), firstToken(behind)
	if limit := f.r.e.within(steadyTimes*steady + steadyMore); p99 > limit && p99 > w.allows(limit, from, from.Add(gatewayAgain)) {
		errs = append(errs, fmt.Errorf("p99 of the first token is %s, it was %s: the rule allows %s", round(p99), round(steady), round(limit)))
	}
	tries, terr := f.tries()
	answered, aerr := f.answers(&outage{from: killed, well: started}, behind, tries)
	said := fmt.Sprintf("serves %s after its start (%d requests lost meanwhile), p99 of the first token %s, before %s; since then %s", round(serving), lost, round(p99), round(steady), answered)
	return said, errors.Join(errors.Join(errs...), terr, aerr)
}

// firstToken is the p99 of requests' time to their first token.
func firstToken(all []*asked) time.Duration {
	var firsts []time.Duration
	for _, a := range all {
		if a.ok() {
			firsts = append(firsts, a.first.Sub(a.sent))
		}
	}
	slices.Sort(firsts)
	if len(firsts) == 0 {
		return 0
	}
	return firsts[len(firsts)*99/100]
}

func overload(ctx context.Context, e *Env) (string, error) {
	r, err := e.gatewayRig(ctx, nil, overloadBlocks)
	if err != nil {
		return "", err
	}
	sheds, err := r.newFace(ctx, "shedding", false, "--worker-overload-shed")
	if err != nil {
		return "", err
	}
	var told []string
	var errs []error
	r.faces = append(r.faces, sheds)
	for i, f := range r.faces {
		said, err := f.flood(ctx, e.o.Seed+uint64(i)<<32, f == sheds)
		if err != nil {
			err = fmt.Errorf("%s: %w", f.name, err)
		}
		told, errs = append(told, f.name+": "+said), append(errs, err)
	}
	after, err := r.settle(ctx, false)
	return strings.Join(told, "; ") + "; at the end: " + after, errors.Join(errors.Join(errs...), err)
}

// flood sends all the streams, and judges how they fare.
func (f *gatewayFace) flood(ctx context.Context, seed uint64, sheds bool) (string, error) {
	rng := rand.New(rand.NewPCG(seed, 31)) //nolint:gosec // seeded on purpose
	began := time.Now()
	for n := range overloadAsked {
		if err := pause(ctx, time.Until(began.Add(time.Duration(n)*overloadSpan/overloadAsked))); err != nil {
			return "", err
		}
		f.load.send(fmt.Sprintf("%s-flood-%d", f.name, n), askPrompt(rng, seed), overloadLong+rng.IntN(overloadLong/2))
	}
	peak := f.peak(ctx)
	var errs []error
	ok, shed := 0, 0
	var longest time.Duration
	for _, a := range f.load.ended() {
		took := a.end.Sub(a.sent)
		longest = max(longest, took)
		switch {
		case a.ok():
			ok++
		case sheds && a.status == http.StatusServiceUnavailable && a.retryAfter != "":
			shed++
		default:
			errs = append(errs, fmt.Errorf("stream %s was not answered: status %d, retry after %q: %.200s", a.id, a.status, a.retryAfter, a.fault))
		}
		if limit := f.r.e.within(overloadTime); took > limit && took > f.r.e.waits.allows(limit, a.sent, a.end) {
			errs = append(errs, fmt.Errorf("stream %s ended after %s", a.id, round(took)))
		}
	}
	if len(errs) > maxWrong {
		errs = append(errs[:maxWrong], fmt.Errorf("and %d more", len(errs)-maxWrong))
	}
	most, sum := int64(0), int64(0)
	for _, n := range peak {
		most, sum = max(most, n), sum+n
	}
	share := float64(most) * float64(len(peak)) / float64(max(sum, 1))
	if share > overloadMost {
		errs = append(errs, fmt.Errorf("with %d in flight one engine has %.2f times the mean: %v", sum, share, peak))
	}
	said := fmt.Sprintf("%d of %d answered", ok, overloadAsked)
	if sheds {
		said += fmt.Sprintf(", %d refused", shed)
	}
	return said + fmt.Sprintf(", longest %s, at most %v in flight", round(longest), peak), errors.Join(errs...)
}

// peak watches until all streams have ended, and returns what each engine had in flight
// of this gateway when it was most.
func (f *gatewayFace) peak(ctx context.Context) []int64 {
	ended := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() { f.load.under.Wait(); close(ended) })
	defer waiting.Wait()
	var peak []int64
	most := int64(-1)
	for {
		select {
		case <-ended:
			return peak
		default:
		}
		if all, err := f.workers(ctx); err == nil {
			sum, now := int64(0), make([]int64, len(all))
			for i := range all {
				now[i] = all[i].InFlight
				sum += now[i]
			}
			if sum > most {
				most, peak = sum, now
			}
		}
		_ = pause(ctx, gatewayWatchEvery/2)
	}
}
