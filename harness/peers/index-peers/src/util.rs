// SPDX-License-Identifier: Apache-2.0
//! Allocator with an optional live-byte counter, thread CPU clocks, percentiles, random numbers.
use mimalloc::MiMalloc;
use serde_json::{json, Value};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

/// mimalloc for every indexer; counts requested bytes once `count_from_here` was called
/// (only modes `memory` and `churn` do; elsewhere it costs one predicted branch).
pub struct Counting;
static ON: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicI64 = AtomicI64::new(0);

fn count(delta: i64) {
    if ON.load(Relaxed) {
        LIVE.fetch_add(delta, Relaxed);
    }
}

// SAFETY: every call goes to mimalloc with the caller's own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        count(l.size() as i64);
        MiMalloc.alloc(l)
    }
    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        count(l.size() as i64);
        MiMalloc.alloc_zeroed(l)
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        count(-(l.size() as i64));
        MiMalloc.dealloc(p, l);
    }
    unsafe fn realloc(&self, p: *mut u8, l: Layout, n: usize) -> *mut u8 {
        count(n as i64 - l.size() as i64);
        MiMalloc.realloc(p, l, n)
    }
}

pub fn count_from_here() {
    ON.store(true, Relaxed);
}
pub fn live_bytes() -> i64 {
    LIVE.load(Relaxed)
}
pub fn load_average() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').take(1).collect()
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec for the call to fill.
    assert_eq!(unsafe { libc::clock_gettime(id, &mut t) }, 0);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// CPU nanoseconds of the calling thread.
pub fn my_cpu_ns() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU nanoseconds of another live thread.
pub fn cpu_ns_of<T>(h: &std::thread::JoinHandle<T>) -> u64 {
    use std::os::unix::thread::JoinHandleExt;
    let mut id: libc::clockid_t = 0;
    // SAFETY: the handle keeps the thread joinable, so its pthread_t is valid.
    assert_eq!(unsafe { libc::pthread_getcpuclockid(h.as_pthread_t(), &mut id) }, 0);
    clock(id)
}

/// Nearest-rank percentiles of nanosecond samples.
pub fn percentiles(mut v: Vec<u32>) -> Value {
    if v.is_empty() {
        return Value::Null;
    }
    v.sort_unstable();
    let at = |p: f64| v[((p * v.len() as f64).ceil() as usize).clamp(1, v.len()) - 1];
    json!({"samples": v.len(), "p50_ns": at(0.5), "p99_ns": at(0.99), "p999_ns": at(0.999), "max_ns": v[v.len() - 1]})
}

pub fn nanos(d: std::time::Duration) -> u32 {
    d.as_nanos().min(u128::from(u32::MAX)) as u32
}

pub struct Rng(pub u64);
impl Rng {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        (crate::corpus::local_hash(self.0) % n as u64) as usize
    }
}
