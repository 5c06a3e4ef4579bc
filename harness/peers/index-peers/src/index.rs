// SPDX-License-Identifier: Apache-2.0
//! One face over the published indexes: how to build its event messages, run its event lane and
//! ask it a question. Events and questions are built before any timing starts.
use dynamo_kv_router::indexer::{KvIndexerMetrics, SyncIndexer, WorkerLookupStats, WorkerTask};
use dynamo_kv_router::protocols as dp;
use dynamo_kv_router::{LocalBlockHash, OverlapScores, RadixTree, RouterEvent};
use flume::{Receiver, Sender};
use serde_json::{json, Value};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

pub type Ack = oneshot::Sender<()>;

pub trait Index: Send + Sync + 'static {
    type Msg: Send + 'static;
    type Hash: Copy + Send + Sync + 'static;
    type Found;
    fn hash(local: u64) -> Self::Hash;
    /// Blocks are (sequence hash, local hash), in path order.
    fn store(&self, worker: u32, id: u64, parent: Option<u64>, blocks: &[(u64, u64)]) -> Self::Msg;
    fn remove(&self, worker: u32, id: u64, blocks: &[u64]) -> Self::Msg;
    fn clear(&self, worker: u32, id: u64) -> Self::Msg;
    fn flush(ack: Ack) -> Self::Msg;
    fn stop() -> Self::Msg;
    /// The index's own maintenance, run on an event lane; `None`: it has none.
    fn cleanup() -> Option<Self::Msg>;
    fn run_lane(&self, rx: Receiver<Self::Msg>);
    fn find(&self, q: &[Self::Hash]) -> Self::Found;
    fn scores(&self, found: &Self::Found, f: impl FnMut(u32, u32));
    /// A lookup that builds no result map, where the crate offers one.
    fn find_bare(&self, _q: &[Self::Hash]) -> Option<u32> {
        None
    }
    /// (worker, block) memberships the index says it holds.
    fn held(&self, lanes: &[Sender<Self::Msg>]) -> usize;
    fn facts(&self) -> Value {
        Value::Null
    }
}

fn event(worker: u32, id: u64, data: dp::KvCacheEventData) -> WorkerTask {
    WorkerTask::Event(RouterEvent::new(u64::from(worker), dp::KvCacheEvent { event_id: id, dp_rank: 0, data }))
}

/// Dynamo's concurrent indexes; a lane is the crate's own `worker` loop.
pub struct Dynamo<T: SyncIndexer>(pub T);

impl<T: SyncIndexer> Index for Dynamo<T> {
    type Msg = WorkerTask;
    type Hash = LocalBlockHash;
    type Found = OverlapScores;
    fn hash(local: u64) -> LocalBlockHash {
        LocalBlockHash(local)
    }
    fn store(&self, w: u32, id: u64, parent: Option<u64>, blocks: &[(u64, u64)]) -> WorkerTask {
        let blocks = blocks.iter().map(|&(seq, local)| dp::KvCacheStoredBlockData {
            block_hash: dp::ExternalSequenceBlockHash(seq),
            tokens_hash: LocalBlockHash(local),
            mm_extra_info: None,
        });
        let parent_hash = parent.map(dp::ExternalSequenceBlockHash);
        let data = dp::KvCacheStoreData { parent_hash, start_position: None, blocks: blocks.collect() };
        event(w, id, dp::KvCacheEventData::Stored(data))
    }
    fn remove(&self, w: u32, id: u64, blocks: &[u64]) -> WorkerTask {
        let block_hashes = blocks.iter().map(|&b| dp::ExternalSequenceBlockHash(b)).collect();
        event(w, id, dp::KvCacheEventData::Removed(dp::KvCacheRemoveData { block_hashes }))
    }
    fn clear(&self, w: u32, id: u64) -> WorkerTask {
        event(w, id, dp::KvCacheEventData::Cleared)
    }
    fn flush(ack: Ack) -> WorkerTask {
        WorkerTask::Flush(ack)
    }
    fn stop() -> WorkerTask {
        WorkerTask::Terminate
    }
    fn cleanup() -> Option<WorkerTask> {
        Some(WorkerTask::CleanupStaleChildren)
    }
    fn run_lane(&self, rx: Receiver<WorkerTask>) {
        self.0.worker(rx, None).unwrap();
    }
    fn find(&self, q: &[LocalBlockHash]) -> OverlapScores {
        self.0.find_matches(q, false)
    }
    fn scores(&self, found: &OverlapScores, mut f: impl FnMut(u32, u32)) {
        found.scores.iter().for_each(|(w, &s)| f(w.worker_id as u32, s));
    }
    fn held(&self, lanes: &[Sender<WorkerTask>]) -> usize {
        let ask = |lane: &Sender<WorkerTask>| {
            let (tx, rx) = oneshot::channel();
            lane.send(WorkerTask::Stats(tx)).unwrap();
            rx.blocking_recv().unwrap().worker_blocks.iter().map(|x| x.1).sum::<usize>()
        };
        lanes.iter().map(ask).sum()
    }
}

/// Dynamo's single-threaded RadixTree behind one lock, given the face of the concurrent ones.
pub struct Radix(Mutex<Rcs>);
struct Rcs(RadixTree);
// SAFETY: the tree's reference counts are touched only by whoever holds the mutex, and no
// reference-counted part of it leaves the lock.
unsafe impl Send for Rcs {}

impl Radix {
    pub fn new() -> Self {
        Radix(Mutex::new(Rcs(RadixTree::new())))
    }
}

impl SyncIndexer for Radix {
    fn worker(&self, rx: Receiver<WorkerTask>, _: Option<Arc<KvIndexerMetrics>>) -> anyhow::Result<()> {
        while let Ok(task) = rx.recv() {
            match task {
                WorkerTask::Event(e) => drop(self.0.lock().unwrap().0.apply_event(e)),
                WorkerTask::Flush(ack) => drop(ack.send(())),
                WorkerTask::Stats(tx) => {
                    let all = (dp::WorkerWithDpRank::new(0, 0), self.0.lock().unwrap().0.current_size());
                    drop(tx.send(WorkerLookupStats { worker_blocks: vec![all] }));
                }
                WorkerTask::Terminate => break,
                _ => {}
            }
        }
        Ok(())
    }
    fn find_matches(&self, q: &[LocalBlockHash], early_exit: bool) -> OverlapScores {
        self.0.lock().unwrap().0.find_matches(q.to_vec(), early_exit)
    }
}

/// An SMG index: worker names interned up front, one block map per worker kept by the lane the
/// worker is bound to.
macro_rules! smg {
    ($name:ident, $msg:ident, $krate:ident, $index:ty, $map:ty, $bare:expr, $facts:expr) => {
        pub struct $name {
            index: $index,
            ids: Vec<u32>,
            worker_of: rustc_hash::FxHashMap<u32, u32>,
        }
        pub enum $msg {
            Store(u32, Option<$krate::SequenceHash>, Vec<$krate::StoredBlock>),
            Remove(u32, Vec<$krate::SequenceHash>),
            Clear(u32),
            Flush(Ack),
            Stop,
        }
        impl $name {
            pub fn new(index: $index, workers: u32) -> Self {
                let ids: Vec<u32> =
                    (0..workers).map(|w| index.intern_worker(&format!("http://worker-{w}")).unwrap()).collect();
                let worker_of = ids.iter().zip(0..).map(|(&id, w)| (id, w)).collect();
                $name { index, ids, worker_of }
            }
        }
        impl Index for $name {
            type Msg = $msg;
            type Hash = $krate::ContentHash;
            type Found = $krate::OverlapScores;
            fn hash(local: u64) -> Self::Hash {
                $krate::ContentHash(local)
            }
            fn store(&self, w: u32, _: u64, parent: Option<u64>, blocks: &[(u64, u64)]) -> $msg {
                let block = |&(seq, local): &(u64, u64)| $krate::StoredBlock {
                    seq_hash: $krate::SequenceHash(seq),
                    content_hash: $krate::ContentHash(local),
                };
                let parent = parent.map($krate::SequenceHash);
                $msg::Store(w, parent, blocks.iter().map(block).collect())
            }
            fn remove(&self, w: u32, _: u64, blocks: &[u64]) -> $msg {
                $msg::Remove(w, blocks.iter().map(|&b| $krate::SequenceHash(b)).collect())
            }
            fn clear(&self, w: u32, _: u64) -> $msg {
                $msg::Clear(w)
            }
            fn flush(ack: Ack) -> $msg {
                $msg::Flush(ack)
            }
            fn stop() -> $msg {
                $msg::Stop
            }
            fn cleanup() -> Option<$msg> {
                None
            }
            fn run_lane(&self, rx: Receiver<$msg>) {
                let mut maps: Vec<$map> = self.ids.iter().map(|_| Default::default()).collect();
                for msg in rx.iter() {
                    match msg {
                        $msg::Store(w, parent, blocks) => {
                            let (id, map) = (self.ids[w as usize], &mut maps[w as usize]);
                            let _ = self.index.apply_stored(id, &blocks, parent, map);
                        }
                        $msg::Remove(w, blocks) => {
                            let (id, map) = (self.ids[w as usize], &mut maps[w as usize]);
                            self.index.apply_removed(id, &blocks, map);
                        }
                        $msg::Clear(w) => {
                            let (id, map) = (self.ids[w as usize], &mut maps[w as usize]);
                            self.index.apply_cleared(id, map);
                        }
                        $msg::Flush(ack) => drop(ack.send(())),
                        $msg::Stop => return,
                    }
                }
            }
            fn find(&self, q: &[Self::Hash]) -> Self::Found {
                self.index.find_matches(q, false)
            }
            fn scores(&self, found: &Self::Found, mut f: impl FnMut(u32, u32)) {
                found.scores.iter().for_each(|(id, &s)| f(self.worker_of[id], s));
            }
            fn find_bare(&self, q: &[Self::Hash]) -> Option<u32> {
                let bare: fn(&$index, &[Self::Hash]) -> Option<u32> = $bare;
                bare(&self.index, q)
            }
            fn held(&self, _: &[Sender<$msg>]) -> usize {
                self.index.current_size()
            }
            fn facts(&self) -> Value {
                let facts: fn(&$index) -> Value = $facts;
                facts(&self.index)
            }
        }
    };
}

macro_rules! bare {
    () => {
        |index, q| {
            let mut best = 0;
            index.score_into(q, |h| h.0, false, |_, s| best = best.max(s));
            Some(best)
        }
    };
}
macro_rules! chain_facts {
    () => {
        |index| {
            let s = index.stats();
            json!({"runs_live": s.runs_live, "runs_allocated": s.runs_allocated, "blocks_live": s.blocks_live,
                "arena_bytes": s.arena_bytes, "arena_free_bytes": s.arena_free_bytes, "arena_chunk_bytes": s.arena_chunk_bytes,
                "header_bytes": s.header_bytes, "slab_bytes": s.slab_bytes})
        }
    };
}

pub use smg_index as v2;
pub use smg_index_v1 as v1;
smg!(SmgChain, ChainMsg, v2, v2::ChainIndex, v2::ChainBlockMap, bare!(), chain_facts!());
smg!(SmgSharded, ShardedMsg, v2, v2::ShardedChainIndex, v2::ChainBlockMap, bare!(), chain_facts!());
smg!(
    SmgPositional,
    PosMsg,
    v1,
    v1::PositionalIndexer,
    PosMap,
    |_, _| None,
    |index| json!({"entries": index.entry_count()})
);
type PosMap = rustc_hash::FxHashMap<v1::SequenceHash, (usize, v1::ContentHash, v1::SequenceHash)>;
