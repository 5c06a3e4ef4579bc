// SPDX-License-Identifier: Apache-2.0
//! Event lanes: OS threads that drain a queue each; a worker is bound to a lane round robin in
//! order of its first event, so its events keep their order.
use crate::index::Index;
use crate::util::cpu_ns_of;
use flume::Sender;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub struct Lanes<I: Index> {
    pub index: Arc<I>,
    queues: Vec<Sender<I::Msg>>,
    threads: Vec<JoinHandle<()>>,
    gate: Arc<AtomicBool>,
    lane_of: Vec<usize>,
    bound: usize,
}

impl<I: Index> Lanes<I> {
    /// Lanes that wait for `open` before they take anything.
    pub fn closed(index: I, lanes: usize) -> Self {
        let (index, gate) = (Arc::new(index), Arc::new(AtomicBool::new(false)));
        let mut l = Lanes { index, queues: vec![], threads: vec![], gate, lane_of: vec![], bound: 0 };
        for _ in 0..lanes {
            let (tx, rx) = flume::unbounded();
            let (index, gate) = (l.index.clone(), l.gate.clone());
            l.queues.push(tx);
            l.threads.push(std::thread::spawn(move || {
                while !gate.load(Ordering::Acquire) {
                    std::thread::park_timeout(Duration::from_millis(20));
                }
                index.run_lane(rx);
            }));
        }
        l
    }

    pub fn new(index: I, lanes: usize) -> Self {
        let l = Self::closed(index, lanes);
        l.open();
        l
    }

    pub fn open(&self) {
        self.gate.store(true, Ordering::Release);
        self.threads.iter().for_each(|t| t.thread().unpark());
    }

    pub fn send(&mut self, worker: u32, msg: I::Msg) {
        let w = worker as usize;
        if self.lane_of.len() <= w {
            self.lane_of.resize(w + 1, usize::MAX);
        }
        if self.lane_of[w] == usize::MAX {
            self.lane_of[w] = self.bound % self.queues.len();
            self.bound += 1;
        }
        self.queues[self.lane_of[w]].send(msg).unwrap();
    }

    pub fn waiting(&self) -> usize {
        self.queues.iter().map(Sender::len).sum()
    }

    pub fn at_most_waiting(&self, n: usize) {
        while self.waiting() > n {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    pub fn flush(&self) {
        let acks = self.queues.iter().map(|q| {
            let (tx, rx) = tokio::sync::oneshot::channel();
            q.send(I::flush(tx)).unwrap();
            rx
        });
        for ack in acks.collect::<Vec<_>>() {
            ack.blocking_recv().unwrap();
        }
    }

    /// The index's own maintenance on lane 0; false where it has none.
    pub fn cleanup(&self) -> bool {
        let Some(msg) = I::cleanup() else { return false };
        self.queues[0].send(msg).unwrap();
        self.flush();
        true
    }

    pub fn held(&self) -> usize {
        self.index.held(&self.queues)
    }

    pub fn cpu_secs(&self) -> f64 {
        self.threads.iter().map(cpu_ns_of).sum::<u64>() as f64 / 1e9
    }

    /// End the lanes once their queues are empty.
    pub fn stop(self) {
        self.queues.iter().for_each(|q| q.send(I::stop()).unwrap());
        self.threads.into_iter().for_each(|t| t.join().unwrap());
    }
}
