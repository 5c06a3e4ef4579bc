// SPDX-License-Identifier: Apache-2.0
//! index-peers: replays a KVCORP01 corpus into published prefix indexes and prints figures.
//! `index-peers --indexer X --mode Y --corpus FILE ... --json`; see README.md.
mod corpus;
mod index;
mod lanes;
mod model;
mod modes;
mod synth;
mod util;

use corpus::Corpus;
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, PositionalIndexer};
use index::{v1, v2, Dynamo, Index, Radix, SmgChain, SmgPositional, SmgSharded};
use serde_json::{json, Value};
use std::collections::HashMap;
use std::time::Duration;

#[global_allocator]
static ALLOC: util::Counting = util::Counting;

const USAGE: &str =
    "index-peers --indexer crtc|smg-chain|smg-chain-sharded|smg-positional|dynamo-positional|dynamo-radix
  --mode write|lookup|contend|mixed|replay|memory|exact|churn   --corpus FILE (all modes but churn)
  [--lanes N=1] [--query-threads N] [--window-ms T=6000] [--limit-ops N] [--seed S=7] [--runs N=1]
  [--max-workers N=256 (smg-chain)] [--shards N=2] [--jump N=8 (dynamo-positional)]
  [--rounds N=4000] [--cleanup-every N=0 (churn)] [--json]";

/// Every numeric option and its default.
const NUMBERS: [(&str, u64); 12] = [
    ("lanes", 1),
    ("query-threads", 0),
    ("window-ms", 6000),
    ("limit-ops", u64::MAX),
    ("seed", 7),
    ("runs", 1),
    ("max-workers", 256),
    ("shards", 2),
    ("jump", 8),
    ("rounds", 4000),
    ("cleanup-every", 0),
    ("json", 0),
];

pub struct Opts(HashMap<String, String>);

impl Opts {
    fn parse() -> Opts {
        let mut given = HashMap::new();
        let mut it = std::env::args().skip(1).peekable();
        while let Some(a) = it.next() {
            let name = a.strip_prefix("--").unwrap_or_else(|| usage(&a));
            if !["indexer", "mode", "corpus"].contains(&name) && !NUMBERS.iter().any(|n| n.0 == name) {
                usage(&a);
            }
            given.insert(name.to_string(), it.next_if(|v| !v.starts_with("--")).unwrap_or_default());
        }
        Opts(given)
    }
    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
    pub fn n(&self, name: &str) -> usize {
        let default = NUMBERS.iter().find(|n| n.0 == name).unwrap().1;
        self.0.get(name).map_or(default as usize, |v| v.parse().unwrap_or_else(|_| usage(name)))
    }
    pub fn lanes(&self) -> usize {
        self.n("lanes").max(1)
    }
}

fn usage(what: &str) -> ! {
    eprintln!("bad or missing argument: {what}\n{USAGE}");
    std::process::exit(2)
}

fn run<I: Index>(c: Option<&Corpus>, o: &Opts, make: &dyn Fn() -> I) -> Value {
    let c = || c.unwrap_or_else(|| usage("--corpus"));
    match o.text("mode") {
        "write" => modes::write(c(), o, make),
        "lookup" => modes::lookup(c(), o, make),
        "contend" => modes::contend(c(), o, make),
        "mixed" => modes::in_order(c(), o, make, None),
        "replay" => modes::in_order(c(), o, make, Some(Duration::from_millis(o.n("window-ms") as u64))),
        "memory" => modes::memory(c(), o, make),
        "exact" => json!({"corpus": modes::exact(c(), o, make), "holes": synth::holes(o, make)}),
        "churn" => synth::churn(o, make),
        _ => usage("--mode"),
    }
}

fn main() {
    let o = Opts::parse();
    if ["memory", "churn"].contains(&o.text("mode")) {
        util::count_from_here();
    }
    let path = o.text("corpus");
    let c = (!path.is_empty()).then(|| Corpus::load(path, o.n("limit-ops")));
    let (c, workers) = (c.as_ref(), c.as_ref().map_or(0, |c| c.workers).max(64));
    let (slots, shards, jump) = (o.n("max-workers"), o.n("shards"), o.n("jump"));
    let mut runs = Vec::new();
    for _ in 0..o.n("runs") {
        let load = util::load_average();
        let mut r = match o.text("indexer") {
            "crtc" => run(c, &o, &|| Dynamo(ConcurrentRadixTreeCompressed::new())),
            "dynamo-positional" => run(c, &o, &|| Dynamo(PositionalIndexer::new(jump))),
            "dynamo-radix" => run(c, &o, &|| Dynamo(Radix::new())),
            "smg-chain" => run(c, &o, &|| SmgChain::new(v2::ChainIndex::with_max_workers(slots), workers)),
            "smg-chain-sharded" => {
                run(c, &o, &|| SmgSharded::new(v2::ShardedChainIndex::new(shards, slots), workers))
            }
            "smg-positional" => run(c, &o, &|| SmgPositional::new(v1::PositionalIndexer::new(jump), workers)),
            _ => usage("--indexer"),
        };
        r["load_average_1m"] = json!([load, util::load_average()]);
        runs.push(r);
    }
    let out = json!({"indexer": o.text("indexer"), "mode": o.text("mode"), "corpus": path.rsplit('/').next(),
        "lanes": o.lanes(), "query_threads": o.n("query-threads"), "allocator": "mimalloc", "runs": runs,
        "versions": {"dynamo-kv-router": "1.6.1", "kv-index": "2.0.0", "kv-index (positional)": "1.7.0"}});
    println!("{}", if o.0.contains_key("json") { out.to_string() } else { format!("{out:#}") });
}
