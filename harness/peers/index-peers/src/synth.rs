// SPDX-License-Identifier: Apache-2.0
//! Two made-up workloads: holes (evictions from the middle of prompts) and decode churn.
use crate::corpus::{chain, local_hash};
use crate::index::Index;
use crate::lanes::Lanes;
use crate::model::{Model, Verdict};
use crate::modes::score_into;
use crate::util::{live_bytes, nanos, percentiles, Rng};
use crate::Opts;
use serde_json::{json, Value};
use std::collections::VecDeque;
use std::time::Instant;

/// Blocks (sequence hash, local hash) and their numbers in the model.
type Prompt = (Vec<(u64, u64)>, Vec<u32>);

/// (sequence hash, local hash) of blocks with these contents below `parent`.
fn below(parent: Option<u64>, contents: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut above = parent;
    let mut block = |c| {
        let local = local_hash(c);
        let seq = chain(above, local);
        above = Some(seq);
        (seq, local)
    };
    contents.map(&mut block).collect()
}

/// 64 workers, 200 prompts of 64 blocks (20 groups share their first 16). Each step one worker
/// either uses a prompt (40%) or loses 1-12 random blocks it holds; then one prompt is looked up.
fn holes_one<I: Index>(seed: u64, steps: usize, restore: &str, make: &dyn Fn() -> I) -> Value {
    const WORKERS: usize = 64;
    let (mut l, mut rng) = (Lanes::new(make(), 1), Rng(seed));
    let mut prompts: Vec<Prompt> = Vec::new();
    for p in 0..200u64 {
        let content = |i: u64| if i < 16 { p / 10 * 16 + i } else { 1_000_000 + p * 64 + i };
        // block number in the model: shared heads first, then each prompt's own tail
        let number = |i: u64| if i < 16 { p / 10 * 16 + i } else { 320 + p * 48 + i - 16 };
        prompts.push((below(None, (0..64).map(content)), (0..64).map(|i| number(i) as u32).collect()));
    }
    let seq_of: rustc_hash::FxHashMap<u32, u64> =
        prompts.iter().flat_map(|(b, n)| n.iter().copied().zip(b.iter().map(|x| x.0))).collect();
    let (mut m, mut v) = (Model::new(WORKERS as u32, 320 + 200 * 48), Verdict::default());
    let mut holds: Vec<Vec<u32>> = vec![Vec::new(); WORKERS];
    let (mut want, mut got, mut id, mut stores, mut removed) = (vec![], vec![], 0, 0u64, 0u64);
    for step in 0..steps {
        let w = rng.below(WORKERS);
        if rng.below(100) < 40 && (restore != "never" || step < steps / 2) {
            let (blocks, numbers) = &prompts[rng.below(prompts.len())];
            let absent = |m: &Model, i: usize| !m.has(numbers[i], w as u32);
            let mut i = 0;
            while i < 64 {
                let from = i;
                while i < 64 && (absent(&m, i) || (restore == "suffix" && i > from)) {
                    if m.add(numbers[i], w as u32) {
                        holds[w].push(numbers[i]);
                    }
                    i += 1;
                }
                if i > from {
                    let parent = from.checked_sub(1).map(|p| blocks[p].0);
                    l.send(w as u32, l.index.store(w as u32, id, parent, &blocks[from..i]));
                    (id, stores) = (id + 1, stores + 1);
                }
                i += 1;
            }
        } else {
            let mut gone = Vec::new();
            for _ in 0..(1 + rng.below(12)).min(holds[w].len()) {
                let k = rng.below(holds[w].len());
                let block = holds[w].swap_remove(k);
                m.drop(block, w as u32);
                gone.push(seq_of[&block]);
            }
            removed += gone.len() as u64;
            l.send(w as u32, l.index.remove(w as u32, id, &gone));
            id += 1;
        }
        l.flush();
        let (blocks, numbers) = &prompts[rng.below(prompts.len())];
        m.scores(numbers, &mut want);
        let q: Vec<_> = blocks.iter().map(|b| I::hash(b.1)).collect();
        score_into(&*l.index, &q, m.slots(), &mut got);
        v.compare(&want, &got);
    }
    l.stop();
    let mut j = v.json();
    j["store_events"] = json!(stores);
    j["removed_blocks"] = json!(removed);
    j
}

pub fn holes<I: Index>(o: &Opts, make: &dyn Fn() -> I) -> Value {
    let steps = o.n("limit-ops").min(20_000);
    let run = |restore| holes_one(o.n("seed") as u64, steps, restore, make);
    json!({"steps": steps, "absent_blocks_stored_again": run("absent"),
        "whole_suffix_stored_again": run("suffix"), "never_stored_again_after_half": run("never")})
}

/// 64 prompts of 64 blocks (16 shared) on 8 workers. A round: each worker stores 16 decode blocks,
/// one event each, below a prompt's last block, and evicts its oldest 16 (last first) once it
/// holds 4,096 of them; then each worker's newest sequence is looked up twice, timed.
pub fn churn<I: Index>(o: &Opts, make: &dyn Fn() -> I) -> Value {
    let (workers, decode, keep, rounds) = (8u32, 16u64, 256usize, o.n("rounds"));
    let live0 = live_bytes();
    let mut l = Lanes::new(make(), o.lanes());
    let prompts: Vec<Vec<(u64, u64)>> =
        (0..64u64).map(|p| below(None, (0..64).map(|i| if i < 16 { i } else { 10_000 + p * 1000 + i }))).collect();
    for (w, p) in (0..workers).flat_map(|w| prompts.iter().map(move |p| (w, p))) {
        l.send(w, l.index.store(w, 0, None, p));
    }
    let mut tails: Vec<VecDeque<(usize, u64)>> = (0..workers).map(|_| VecDeque::with_capacity(keep + 2)).collect();
    let (mut rng, mut content, mut wrong, mut blocks, mut series) =
        (Rng(o.n("seed") as u64), 1u64 << 40, 0u64, 0u64, vec![]);
    let mut times: Vec<u32> = Vec::with_capacity(1 << 20);
    l.flush();
    let (own, mut cpu) = ((1 << 22) + 200_000, l.cpu_secs());
    let tail_of = |p: usize, first: u64| below(Some(prompts[p][63].0), first..first + decode);
    for round in 1..=rounds {
        for (w, tails) in (0..workers).zip(&mut tails) {
            let (p, first) = (rng.below(64), content);
            content += decode;
            let mut parent = prompts[p][63].0;
            for b in tail_of(p, first) {
                l.send(w, l.index.store(w, content, Some(parent), &[b]));
                parent = b.0;
            }
            tails.push_back((p, first));
            blocks += decode;
            if tails.len() > keep {
                let (p, first) = tails.pop_front().unwrap();
                let gone: Vec<u64> = tail_of(p, first).iter().rev().map(|b| b.0).collect();
                l.send(w, l.index.remove(w, content, &gone));
                blocks += decode;
            }
        }
        l.flush();
        if o.n("cleanup-every") > 0 && round % o.n("cleanup-every") == 0 {
            l.cleanup();
        }
        for k in 0..2 * workers {
            let w = k % workers;
            let &(p, first) = tails[w as usize].back().unwrap();
            let seq = prompts[p].iter().copied().chain(tail_of(p, first));
            let q: Vec<_> = seq.map(|b| I::hash(b.1)).collect();
            let t = Instant::now();
            let found = l.index.find(&q);
            times.push(nanos(t.elapsed()));
            let mut mine = 0;
            l.index.scores(&found, |x, s| {
                if x == w {
                    mine = s
                }
            });
            wrong += u64::from(mine as usize != q.len());
        }
        if round % (rounds / 8).max(1) == 0 {
            let now = l.cpu_secs();
            series.push(json!({"round": round, "latency": percentiles(times.clone()), "live_bytes": live_bytes() - live0 - own,
                "memberships": workers as usize * (16 + 64 * 48) + tails.iter().map(VecDeque::len).sum::<usize>() * decode as usize,
                "event_cpu_ns_per_block": (now - cpu) * 1e9 / blocks as f64, "facts": l.index.facts()}));
            times.clear();
            (blocks, cpu) = (0, l.cpu_secs());
        }
    }
    let before = l.cpu_secs();
    let swept = l
        .cleanup()
        .then(|| json!({"live_bytes": live_bytes() - live0 - own, "lane_cpu_ms": (l.cpu_secs() - before) * 1e3}));
    l.stop();
    json!({"rounds": rounds, "cleanup_every": o.n("cleanup-every"), "wrong_scores": wrong, "series": series, "after_own_cleanup": swept})
}
