// SPDX-License-Identifier: Apache-2.0

// Before: rank.go, which has requests and a clock. After: cache.go.

package engine

import "slices"

// limits are what bounds a pass.
type limits struct {
	budget   int  // tokens that one pass computes
	running  int  // requests that hold blocks at once
	byChunk  bool // a waiting request is let in as soon as its first share fits
	lateName bool // SGLang: blocks are cached when their pass ends; of an answer when the request ends
}

// scheduler decides what each pass computes. It knows no clock: whoever has one
// calls schedule, lets the time of the pass go by, and calls settle.
//
// # Rules
//
// A pass has a budget of tokens. Running requests come first, in the order in
// which they were let in; each gets what it has not computed yet, as far as the
// budget goes: one token once its prompt is done, a share of the prompt before.
// Where no block is free for it, the request that came last is preempted, if need
// be the request itself: its blocks are free again, those that are cached can be
// found until they are taken, and it waits at the head. In a pass without
// preemption waiting requests are let in then, first come, first served, until one
// does not fit: neither unless its whole prompt does.
//
// A request that is let in finds what is cached of its prompt, but never its last
// token. A block is cached as soon as it is due to be whole, so that a request
// further back in the same pass already finds it.
//
// Concurrency: one goroutine at a time.
// Source: vLLM 0.32's v1/core/sched/scheduler.py and v1/core/kv_cache_manager.py.
type scheduler struct {
	cache   *Cache
	limits  limits
	waiting []*job
	running []*job
	pass    pass // the one in the air

	preempted uint64 // times, since the rank began
}

// pass is what one pass computes.
type pass struct {
	jobs     []*job // in the order in which they were scheduled
	prompt   int    // tokens of prompts, and of answers that are computed again
	prompts  int    // requests that these are of
	largest  int    // of these the most of one request
	decoding int    // requests that compute the token they gave last
}

// schedule begins a pass: it hands the budget out, takes the blocks for it, and
// reports whether there is anything to compute. Nobody is let in who is not ready.
func (s *scheduler) schedule(ready func(*job) bool) bool {
	s.pass = pass{jobs: s.pass.jobs[:0]}
	budget := s.limits.budget
	if s.goOn(&budget) {
		s.letIn(&budget, ready)
	}
	return len(s.pass.jobs) > 0
}

// goOn hands the budget to running requests, and reports whether none of them had
// to be preempted.
func (s *scheduler) goOn(budget *int) bool {
	whole := true
	for i := 0; i < len(s.running) && *budget > 0; i++ {
		j := s.running[i]
		n := min(len(j.tokens)-j.computed, *budget)
		if n == 0 {
			continue
		}
		for !s.cache.room(&j.sequence, j.computed+n) {
			whole = false
			last := s.running[len(s.running)-1]
			s.preempt(last)
			if last == j {
				return false
			}
		}
		s.compute(j, n)
		*budget -= n
	}
	return whole
}

// preempt takes the blocks of the request that came last.
func (s *scheduler) preempt(j *job) {
	s.running[len(s.running)-1] = nil
	s.running = s.running[:len(s.running)-1]
	s.cache.end(&j.sequence)
	j.stats.Preempted++
	s.preempted++
	s.waiting = slices.Insert(s.waiting, 0, j)
}

// letIn hands the rest of the budget to waiting requests.
func (s *scheduler) letIn(budget *int, ready func(*job) bool) {
	in := 0
	for ; in < len(s.waiting) && *budget > 0 && len(s.running) < s.limits.running; in++ {
		j := s.waiting[in]
		if !ready(j) {
			break
		}
		j.prompt = len(j.Tokens)
		hits, loaded := s.cache.hits(&j.sequence)
		found := (hits + loaded) * s.cache.size
		n := min(len(j.tokens)-found, *budget)
		must := len(j.tokens)
		if s.limits.byChunk {
			must = found + n
		}
		if !s.cache.fits(&j.sequence, hits, hits+loaded, must, found+n) {
			break
		}
		s.cache.adopt(&j.sequence, hits, hits+loaded)
		if j.Report {
			s.cache.again(&j.sequence, hits)
		}
		s.cache.load(&j.sequence, hits, loaded)
		if !s.cache.room(&j.sequence, found+n) {
			panic("a share of a prompt that fits does not fit")
		}
		if j.stats.Preempted == 0 {
			j.stats.Cached, j.stats.Loaded = found, loaded*s.cache.size
		}
		j.target = len(j.tokens)
		s.running = append(s.running, j)
		s.compute(j, n)
		*budget -= n
	}
	s.waiting = slices.Delete(s.waiting, 0, in)
}

// compute puts a share of j into the pass. Its blocks are there.
func (s *scheduler) compute(j *job, n int) {
	p := &s.pass
	p.jobs = append(p.jobs, j)
	j.share = n
	if j.computed < j.target {
		p.prompt += n
		p.prompts++
		p.largest = max(p.largest, n)
	} else {
		p.decoding++
	}
	if !s.limits.lateName {
		s.cache.cover(&j.sequence, j.computed+n)
	}
}

// settle ends a pass. next gives the token that comes after all those of a job,
// and whether that ends it. The outputs are returned in order: they are due once
// the pass's events are out.
func (s *scheduler) settle(next func(*job) Output) []delivery {
	var out []delivery
	for _, j := range s.pass.jobs {
		if j.over {
			continue // aborted meanwhile
		}
		j.computed += j.share
		j.share = 0
		if s.limits.lateName && j.computed <= j.target {
			s.cache.cover(&j.sequence, j.computed)
		}
		if j.computed < len(j.tokens) {
			continue
		}
		first := j.computed == j.target
		o := next(j)
		out = append(out, delivery{j, o})
		switch {
		case o.Finish != "":
			s.leave(j)
		case first && s.limits.lateName:
			s.cache.asked(&j.sequence)
		}
	}
	clear(s.pass.jobs)
	s.pass.jobs = s.pass.jobs[:0]
	s.running = slices.DeleteFunc(s.running, func(j *job) bool { return j.over })
	return out
}

// delivery is an output and whose it is.
type delivery struct {
	job    *job
	output Output
}

// leave ends a job that runs or waits. The caller takes it out of its list.
func (s *scheduler) leave(j *job) {
	if s.limits.lateName && len(j.blocks) > 0 {
		s.cache.cover(&j.sequence, j.computed)
		s.cache.asked(&j.sequence)
	}
	s.cache.end(&j.sequence)
	j.over = true
}

// remove ends the job of an id, and returns it if there is one.
func (s *scheduler) remove(id string) *job {
	for _, list := range []*[]*job{&s.waiting, &s.running} {
		for i, j := range *list {
			if j.ID == id {
				*list = slices.Delete(*list, i, i+1)
				s.leave(j)
				return j
			}
		}
	}
	return nil
}

// removeAll ends every job and returns them, those that run first.
func (s *scheduler) removeAll() []*job {
	all := slices.Concat(s.running, s.waiting)
	for _, j := range all {
		s.leave(j)
	}
	s.running, s.waiting = nil, nil
	return all
}
