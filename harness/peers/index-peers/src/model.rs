// SPDX-License-Identifier: Apache-2.0
//! The exact answer: which workers hold which block, as bit sets.
use crate::corpus::{Corpus, Kind, Op};
use serde_json::{json, Value};

pub struct Model {
    words: usize,
    bits: Vec<u64>,
}

impl Model {
    pub fn new(workers: u32, blocks: usize) -> Self {
        let words = workers.div_ceil(64) as usize;
        Model { words, bits: vec![0; words * blocks] }
    }
    pub fn slots(&self) -> usize {
        self.words * 64
    }
    fn word(&mut self, block: u32, worker: u32) -> &mut u64 {
        &mut self.bits[block as usize * self.words + worker as usize / 64]
    }
    /// whether the worker did not hold the block
    pub fn add(&mut self, block: u32, worker: u32) -> bool {
        let (w, bit) = (self.word(block, worker), 1 << (worker % 64));
        let new = *w & bit == 0;
        *w |= bit;
        new
    }
    /// whether the worker held the block
    pub fn drop(&mut self, block: u32, worker: u32) -> bool {
        let (w, bit) = (self.word(block, worker), 1 << (worker % 64));
        let held = *w & bit != 0;
        *w &= !bit;
        held
    }
    pub fn has(&self, block: u32, worker: u32) -> bool {
        self.bits[block as usize * self.words + worker as usize / 64] >> (worker % 64) & 1 == 1
    }
    pub fn apply(&mut self, c: &Corpus, op: &Op) {
        match op.kind {
            Kind::Lookup => {}
            Kind::Store => {
                let mut x = op.at;
                for _ in 0..op.n {
                    self.add(x, op.worker);
                    x = c.parent[x as usize];
                }
            }
            Kind::Remove => c.gone(op).iter().for_each(|&x| {
                self.drop(x, op.worker);
            }),
            Kind::Clear => (0..c.parent.len() as u32).for_each(|x| {
                self.drop(x, op.worker);
            }),
        }
    }
    /// (memberships, distinct blocks) held
    pub fn size(&self) -> (u64, u64) {
        let members = self.bits.iter().map(|b| u64::from(b.count_ones())).sum();
        let distinct = self.bits.chunks(self.words).filter(|c| c.iter().any(|&b| b != 0)).count();
        (members, distinct as u64)
    }
    /// Leading blocks of `path` each worker holds, up to its first absent one.
    pub fn scores(&self, path: &[u32], out: &mut Vec<u32>) {
        out.clear();
        out.resize(self.slots(), 0);
        for word in 0..self.words {
            let mut alive = !0u64;
            for (i, &x) in path.iter().enumerate() {
                let now = alive & self.bits[x as usize * self.words + word];
                let mut left = alive & !now;
                while left != 0 {
                    out[word * 64 + left.trailing_zeros() as usize] = i as u32;
                    left &= left - 1;
                }
                alive = now;
                if alive == 0 {
                    break;
                }
            }
            while alive != 0 {
                out[word * 64 + alive.trailing_zeros() as usize] = path.len() as u32;
                alive &= alive - 1;
            }
        }
    }
}

#[derive(Default)]
pub struct Verdict {
    lookups: u64,
    wrong: u64,
    scores: u64,
    high: u64,
    low: u64,
    best_wrong: u64,
}

impl Verdict {
    pub fn compare(&mut self, want: &[u32], got: &[u32]) {
        let before = self.high + self.low;
        for (&w, &g) in want.iter().zip(got) {
            self.scores += u64::from(w > 0 || g > 0);
            self.high += u64::from(g > w);
            self.low += u64::from(g < w);
        }
        self.lookups += 1;
        self.wrong += u64::from(self.high + self.low > before);
        self.best_wrong += u64::from(want.iter().max() != got.iter().max());
    }
    pub fn json(&self) -> Value {
        json!({"lookups": self.lookups, "lookups_wrong": self.wrong, "worker_scores": self.scores,
            "scores_too_high": self.high, "scores_too_low": self.low, "lookups_best_depth_wrong": self.best_wrong})
    }
}
