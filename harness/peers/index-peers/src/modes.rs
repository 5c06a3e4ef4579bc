// SPDX-License-Identifier: Apache-2.0
//! The measurements over a corpus file.
use crate::corpus::{Corpus, Kind, Op, NONE};
use crate::index::Index;
use crate::lanes::Lanes;
use crate::model::{Model, Verdict};
use crate::util::{live_bytes, my_cpu_ns, nanos, percentiles};
use crate::Opts;
use serde_json::{json, Value};
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn event<I: Index>(index: &I, c: &Corpus, i: usize, path: &mut Vec<u32>) -> I::Msg {
    let Op { kind, worker, at, n, .. } = c.ops[i];
    match kind {
        Kind::Store => {
            let before = c.path(at, n, path);
            let blocks: Vec<_> = path.iter().map(|&x| (c.seq[x as usize], c.local[x as usize])).collect();
            let parent = (before != NONE).then(|| c.seq[before as usize]);
            index.store(worker, i as u64, parent, &blocks)
        }
        Kind::Remove => {
            let blocks: Vec<_> = c.gone(&c.ops[i]).iter().map(|&x| c.seq[x as usize]).collect();
            index.remove(worker, i as u64, &blocks)
        }
        Kind::Clear => index.clear(worker, i as u64),
        Kind::Lookup => unreachable!(),
    }
}

fn events<I: Index>(index: &I, c: &Corpus, range: Range<usize>) -> Vec<(u32, I::Msg)> {
    let mut path = Vec::new();
    let is_event = |i: &usize| c.ops[*i].kind != Kind::Lookup;
    range.filter(is_event).map(|i| (c.ops[i].worker, event(index, c, i, &mut path))).collect()
}

/// The prompts of the look-ups in a range of operations, end to end in one array.
struct Prompts<H> {
    blocks: Vec<H>,
    spans: Vec<(usize, usize)>,
}
impl<H: Copy> Prompts<H> {
    fn new(c: &Corpus, range: Range<usize>, hash: impl Fn(u64) -> H) -> Self {
        let (mut p, mut path) = (Prompts { blocks: vec![], spans: vec![] }, vec![]);
        for op in c.ops[range].iter().filter(|op| op.kind == Kind::Lookup) {
            c.path(op.at, op.n, &mut path);
            p.spans.push((p.blocks.len(), path.len()));
            p.blocks.extend(path.iter().map(|&x| hash(c.local[x as usize])));
        }
        p
    }
    fn len(&self) -> usize {
        self.spans.len()
    }
    fn get(&self, i: usize) -> &[H] {
        let (at, n) = self.spans[i % self.spans.len()];
        &self.blocks[at..at + n]
    }
}

fn event_blocks(c: &Corpus, range: Range<usize>) -> f64 {
    c.ops[range].iter().filter(|op| op.kind != Kind::Lookup).map(|op| op.n as usize).sum::<usize>() as f64
}

fn load<I: Index>(l: &mut Lanes<I>, c: &Corpus, range: Range<usize>, backlog: usize) {
    let mut path = Vec::new();
    for i in range {
        if c.ops[i].kind != Kind::Lookup {
            let msg = event(&*l.index, c, i, &mut path);
            l.send(c.ops[i].worker, msg);
            if i & 63 == 0 {
                l.at_most_waiting(backlog);
            }
        }
    }
    l.flush();
}

/// Every event preloaded in the lanes' queues, then drained.
pub fn write<I: Index>(c: &Corpus, o: &Opts, make: &dyn Fn() -> I) -> Value {
    let mut l = Lanes::closed(make(), o.lanes());
    for (w, msg) in events(&*l.index, c, 0..c.ops.len()) {
        l.send(w, msg);
    }
    std::thread::sleep(Duration::from_millis(100));
    let (start, before) = (Instant::now(), l.cpu_secs());
    l.open();
    l.flush();
    let (wall, cpu) = (start.elapsed().as_secs_f64(), l.cpu_secs() - before);
    l.stop();
    let blocks = event_blocks(c, 0..c.ops.len());
    json!({"block_ops": blocks, "block_ops_per_lane_cpu_s": (blocks / cpu).round(), "cpu_ns_per_block": cpu * 1e9 / blocks,
        "block_ops_per_wall_s": (blocks / wall).round(), "wall_s": wall, "lane_cpu_s": cpu})
}

/// `threads` threads look every prompt up once each; per-call times, then CPU per look-up
/// without a clock read around each call.
fn time_lookups<I: Index>(index: &I, q: &Prompts<I::Hash>, threads: usize) -> Value {
    let one = || {
        (0..q.len().min(2000)).for_each(|i| drop(black_box(index.find(q.get(i)))));
        let mut times = Vec::with_capacity(q.len());
        for i in 0..q.len() {
            let t = Instant::now();
            let found = black_box(index.find(q.get(i)));
            times.push(nanos(t.elapsed()));
            drop(found);
        }
        let c0 = my_cpu_ns();
        (0..q.len()).for_each(|i| drop(black_box(index.find(q.get(i)))));
        let c1 = my_cpu_ns();
        let bare = (0..q.len()).all(|i| black_box(index.find_bare(q.get(i))).is_some());
        (times, c1 - c0, if bare { Some(my_cpu_ns() - c1) } else { None })
    };
    let per: Vec<_> = std::thread::scope(|s| {
        let hs: Vec<_> = (0..threads).map(|_| s.spawn(one)).collect();
        hs.into_iter().map(|h| h.join().unwrap()).collect()
    });
    let n = (q.len() * threads) as f64;
    let cpu = per.iter().map(|p| p.1).sum::<u64>() as f64;
    let bare: Option<u64> = per.iter().map(|p| p.2).sum();
    let blocks = (q.blocks.len() * threads) as f64;
    json!({"cpu_ns_per_lookup": cpu / n, "cpu_ns_per_lookup_no_result_map": bare.map(|b| b as f64 / n),
        "prompt_block_ops_per_cpu_s": (blocks * 1e9 / cpu).round(), "prompt_blocks_mean": blocks / n,
        "latency": percentiles(per.into_iter().flat_map(|p| p.0).collect())})
}

pub fn lookup<I: Index>(c: &Corpus, o: &Opts, make: &dyn Fn() -> I) -> Value {
    let (half, end) = (c.ops.len() / 2, c.ops.len());
    let mut l = Lanes::new(make(), o.lanes());
    load(&mut l, c, 0..half, 4096);
    let at_half = time_lookups(&*l.index, &Prompts::new(c, half..end, I::hash), o.n("query-threads").max(1));
    load(&mut l, c, half..end, 4096);
    let full = time_lookups(&*l.index, &Prompts::new(c, 0..end, I::hash), o.n("query-threads").max(1));
    l.stop();
    json!({"half_load_later_lookups": at_half, "full_load_all_lookups": full})
}

/// First half loaded; then the lanes apply the second half as fast as they can while the query
/// threads go round the second half's prompts.
pub fn contend<I: Index>(c: &Corpus, o: &Opts, make: &dyn Fn() -> I) -> Value {
    let (half, end) = (c.ops.len() / 2, c.ops.len());
    let mut l = Lanes::new(make(), o.lanes());
    load(&mut l, c, 0..half, 4096);
    let (q, evs, index) = (Prompts::new(c, half..end, I::hash), events(&*l.index, c, half..end), l.index.clone());
    let before = l.cpu_secs();
    let done = AtomicBool::new(false);
    let one = || {
        let (mut times, cpu, mut i) = (Vec::with_capacity(1 << 20), my_cpu_ns(), 0);
        while !done.load(Ordering::Relaxed) {
            let t = Instant::now();
            let found = black_box(index.find(q.get(i)));
            times.push(nanos(t.elapsed()));
            drop(found);
            i += 1;
        }
        (times, my_cpu_ns() - cpu)
    };
    let start = Instant::now();
    let per: Vec<_> = std::thread::scope(|s| {
        let hs: Vec<_> = (0..o.n("query-threads").max(1)).map(|_| s.spawn(one)).collect();
        evs.into_iter().for_each(|(w, msg)| l.send(w, msg));
        l.flush();
        done.store(true, Ordering::Relaxed);
        hs.into_iter().map(|h| h.join().unwrap()).collect()
    });
    let (wall, blocks) = (start.elapsed().as_secs_f64(), event_blocks(c, half..end));
    let lane_cpu = l.cpu_secs() - before;
    l.stop();
    let (cpu, times) = per.into_iter().fold((0, vec![]), |(c, mut t), p| {
        t.extend(p.0);
        (c + p.1, t)
    });
    json!({"cpu_ns_per_lookup": cpu as f64 / times.len() as f64, "write_block_ops_per_lane_cpu_s": (blocks / lane_cpu).round(),
        "write_block_ops_per_wall_s": (blocks / wall).round(), "wall_s": wall, "latency": percentiles(times)})
}

fn wait_until(start: Instant, due: Duration) {
    loop {
        let now = start.elapsed();
        if now >= due {
            return;
        }
        match (due - now).checked_sub(Duration::from_micros(150)) {
            Some(d) if d > Duration::from_micros(50) => std::thread::sleep(d),
            _ => std::hint::spin_loop(),
        }
    }
}

/// Whole corpus in order. With a window: open loop, every operation issued at its deadline scaled
/// to the window. Without: as fast as it goes, at most 4,096 events waiting. Look-ups run on the
/// issuing thread, or on `--query-threads` threads of their own.
pub fn in_order<I: Index>(c: &Corpus, o: &Opts, make: &dyn Fn() -> I, window: Option<Duration>) -> Value {
    let mut l = Lanes::new(make(), o.lanes());
    let (q, evs) = (Prompts::new(c, 0..c.ops.len(), I::hash), events(&*l.index, c, 0..c.ops.len()));
    let (mut evs, index, before) = (evs.into_iter(), l.index.clone(), l.cpu_secs());
    let last = c.ops.last().map_or(1, |op| op.due.max(1));
    let start = Instant::now() + Duration::from_millis(50);
    std::thread::sleep(Duration::from_millis(50));
    // look-up i: service time, time from its deadline to its end
    let find = |i: usize, due: Duration, out: &mut (Vec<u32>, Vec<u32>)| {
        let t = Instant::now();
        let found = black_box(index.find(q.get(i)));
        out.0.push(nanos(t.elapsed()));
        out.1.push(nanos(start.elapsed().saturating_sub(due)));
        drop(found);
    };
    let (tx, rx) = flume::unbounded::<(usize, Duration)>();
    let find = &find;
    let (out, issued, wall, front_cpu) = std::thread::scope(|s| {
        let querier = |rx: flume::Receiver<(usize, Duration)>| {
            s.spawn(move || {
                let mut out = (vec![], vec![]);
                rx.iter().for_each(|(i, due)| find(i, due, &mut out));
                (out, my_cpu_ns())
            })
        };
        let queriers: Vec<_> = (0..o.n("query-threads")).map(|_| querier(rx.clone())).collect();
        let (mut out, mut looked, cpu) = ((vec![], vec![]), 0, my_cpu_ns());
        for (i, op) in c.ops.iter().enumerate() {
            let due = window.map_or(Duration::ZERO, |w| w.mul_f64(f64::from(op.due) / f64::from(last)));
            match window {
                Some(_) => wait_until(start, due),
                None if i & 63 == 0 => l.at_most_waiting(4096),
                None => {}
            }
            if op.kind != Kind::Lookup {
                let (w, msg) = evs.next().unwrap();
                l.send(w, msg);
                continue;
            }
            if queriers.is_empty() {
                find(looked, due, &mut out);
            } else {
                tx.send((looked, due)).unwrap();
            }
            looked += 1;
        }
        drop(tx);
        let (issued, mut cpu) = (start.elapsed().as_secs_f64(), my_cpu_ns() - cpu);
        for h in queriers {
            let ((a, b), c) = h.join().unwrap();
            out.0.extend(a);
            out.1.extend(b);
            cpu += c;
        }
        l.flush();
        (out, issued, start.elapsed().as_secs_f64(), cpu as f64 / 1e9)
    });
    let lane_cpu = l.cpu_secs() - before;
    l.stop();
    let blocks = c.ops.iter().map(|op| op.n as usize).sum::<usize>() as f64;
    let Some(w) = window.map(|w| w.as_secs_f64()) else {
        return json!({"block_ops": blocks, "block_ops_per_cpu_s": (blocks / (front_cpu + lane_cpu)).round(),
            "lane_cpu_s": lane_cpu, "issue_and_lookup_cpu_s": front_cpu,
            "block_ops_per_wall_s": (blocks / wall).round(), "wall_s": wall, "latency": percentiles(out.0)});
    };
    json!({"window_s": w, "offered_block_ops_per_s": (blocks / w).round(),
        "achieved_block_ops_per_s": (blocks / wall).round(), "achieved_over_offered": w / wall,
        "issued_over_window": issued / w, "done_over_window": wall / w,
        "kept_up": issued <= 1.01 * w && wall <= 1.10 * w, "lane_cpu_s": lane_cpu,
        "lookup_service": percentiles(out.0), "lookup_due_to_done": percentiles(out.1)})
}

pub fn memory<I: Index>(c: &Corpus, o: &Opts, make: &dyn Fn() -> I) -> Value {
    let mut m = Model::new(c.workers, c.parent.len());
    c.ops.iter().for_each(|op| m.apply(c, op));
    let (members, distinct) = m.size();
    drop(m);
    let live0 = live_bytes();
    let mut l = Lanes::new(make(), o.lanes());
    let empty = live_bytes() - live0;
    load(&mut l, c, 0..c.ops.len(), 512);
    let held = l.held();
    let bytes = |live: i64| json!({"live_bytes": live, "per_membership": live as f64 / members as f64, "per_distinct_block": live as f64 / distinct as f64});
    let (loaded, facts) = (live_bytes() - live0, l.index.facts());
    let cpu = l.cpu_secs();
    let cleaned = l.cleanup().then(|| (live_bytes() - live0, (l.cpu_secs() - cpu) * 1e3, l.index.facts()));
    l.stop();
    json!({"memberships": members, "distinct_blocks": distinct, "memberships_by_index": held, "empty_index_live_bytes": empty, "loaded": bytes(loaded),
    "facts": facts, "after_own_cleanup": cleaned.map(|x| {
        let mut v = bytes(x.0);
        v["cleanup_lane_cpu_ms"] = json!(x.1);
        v["facts"] = x.2;
        v
    })})
}

pub fn score_into<I: Index>(index: &I, q: &[I::Hash], slots: usize, out: &mut Vec<u32>) {
    out.clear();
    out.resize(slots, 0);
    index.scores(&index.find(q), |w, s| out[w as usize] = s);
}

/// Every look-up of the corpus against the model, all earlier events applied first.
pub fn exact<I: Index>(c: &Corpus, o: &Opts, make: &dyn Fn() -> I) -> Value {
    let mut l = Lanes::new(make(), o.lanes());
    let (mut m, mut v) = (Model::new(c.workers, c.parent.len()), Verdict::default());
    let (mut path, mut want, mut got, mut dirty) = (vec![], vec![], vec![], false);
    for (i, op) in c.ops.iter().enumerate() {
        if op.kind != Kind::Lookup {
            let msg = event(&*l.index, c, i, &mut path);
            l.send(op.worker, msg);
            m.apply(c, op);
            dirty = true;
            continue;
        }
        if std::mem::take(&mut dirty) {
            l.flush();
        }
        c.path(op.at, op.n, &mut path);
        let q: Vec<_> = path.iter().map(|&x| I::hash(c.local[x as usize])).collect();
        m.scores(&path, &mut want);
        score_into(&*l.index, &q, m.slots(), &mut got);
        v.compare(&want, &got);
    }
    l.flush();
    let (held, size) = (l.held(), m.size());
    l.stop();
    let mut j = v.json();
    j["memberships_exact_and_by_index"] = json!([size.0, held]);
    j
}
