// SPDX-License-Identifier: Apache-2.0
//! Reader for KVCORP01 corpus files (format: `harness/corpus/doc.go`).
use std::collections::HashMap;
use std::io::Read;

pub const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Lookup,
    Store,
    Remove,
    Clear,
}

/// One operation. Lookup: path of `n` blocks ending at node `at` (`NONE`: empty prompt).
/// Store: the last `n` blocks of the path ending at `at`. Remove: `removed[at..at + n]`.
#[derive(Clone, Copy)]
pub struct Op {
    pub kind: Kind,
    pub worker: u32,
    pub at: u32,
    pub n: u32,
    /// deadline, 1e-9 of the window
    pub due: u32,
}

pub struct Corpus {
    pub workers: u32,
    pub parent: Vec<u32>,
    pub local: Vec<u64>,
    pub seq: Vec<u64>,
    pub ops: Vec<Op>,
    pub removed: Vec<u32>,
}

struct Bytes<'a>(&'a [u8]);
impl Bytes<'_> {
    fn u(&mut self) -> u64 {
        let (mut v, mut shift) = (0, 0);
        loop {
            let b = self.0[0];
            self.0 = &self.0[1..];
            v |= u64::from(b & 127) << shift;
            if b < 128 {
                return v;
            }
            shift += 7;
        }
    }
    fn s(&mut self) -> i64 {
        let v = self.u();
        (v >> 1) as i64 ^ -((v & 1) as i64)
    }
}

pub fn local_hash(content: u64) -> u64 {
    let mut z = (content + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

pub fn chain(parent: Option<u64>, local: u64) -> u64 {
    let Some(p) = parent else { return local };
    let mut b = [0u8; 16];
    b[..8].copy_from_slice(&p.to_le_bytes());
    b[8..].copy_from_slice(&local.to_le_bytes());
    xxhash_rust::xxh3::xxh3_64_with_seed(&b, 1337)
}

impl Corpus {
    pub fn load(path: &str, limit_ops: usize) -> Corpus {
        let mut raw = Vec::new();
        let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("{path}: {e}"));
        zstd::Decoder::new(file).unwrap().read_to_end(&mut raw).unwrap();
        assert_eq!(&raw[..8], b"KVCORP01", "not a corpus file");
        let header_end = 12 + u32::from_le_bytes(raw[8..12].try_into().unwrap()) as usize;
        let meta: serde_json::Value = serde_json::from_slice(&raw[12..header_end]).unwrap();
        let mut sections: HashMap<&[u8], &[u8]> = HashMap::new();
        let mut rest = &raw[header_end..];
        while !rest.is_empty() {
            let n = u64::from_le_bytes(rest[4..12].try_into().unwrap()) as usize;
            sections.insert(&rest[..4], &rest[12..12 + n]);
            rest = &rest[12 + n..];
        }
        let section = |tag: &[u8]| Bytes(sections[tag]);
        let nodes = meta["nodes"].as_u64().unwrap() as usize;
        let mut c = Corpus {
            workers: meta["workers"].as_u64().unwrap() as u32,
            parent: Vec::with_capacity(nodes),
            local: Vec::with_capacity(nodes),
            seq: Vec::with_capacity(nodes),
            ops: Vec::new(),
            removed: Vec::new(),
        };
        let mut depth: Vec<u32> = Vec::with_capacity(nodes);
        let (mut par, mut con, mut content) = (section(b"NPAR"), section(b"NCON"), 0i64);
        for i in 0..nodes as u32 {
            let back = par.u() as u32;
            content += con.s();
            let local = local_hash(content as u64);
            let p = if back == 0 { NONE } else { i - back };
            let above = (p != NONE).then(|| c.seq[p as usize]);
            depth.push(if p == NONE { 1 } else { depth[p as usize] + 1 });
            c.parent.push(p);
            c.local.push(local);
            c.seq.push(chain(above, local));
        }
        let (mut ts, mut wk, mut arg, mut due) = (section(b"OPTS"), section(b"OPWK"), section(b"OPAR"), 0);
        for &k in section(b"OPKD").0.iter().take(limit_ops) {
            due += ts.u();
            let mut op = Op { kind: Kind::Clear, worker: wk.u() as u32, at: NONE, n: 0, due: due as u32 };
            match k {
                0 => {
                    op.kind = Kind::Lookup;
                    let v = arg.u();
                    if v > 0 {
                        op.at = (v - 1) as u32;
                        op.n = depth[op.at as usize];
                    }
                }
                1 => (op.kind, op.at, op.n) = (Kind::Store, arg.u() as u32, arg.u() as u32),
                2 => {
                    (op.kind, op.n, op.at) = (Kind::Remove, arg.u() as u32, c.removed.len() as u32);
                    let mut node = 0;
                    for _ in 0..op.n {
                        node += arg.s();
                        c.removed.push(node as u32);
                    }
                }
                3 => {}
                _ => panic!("operation kind {k}"),
            }
            c.ops.push(op);
        }
        c
    }

    /// The `n` blocks ending at `last`, first block first; returns the node before them.
    pub fn path(&self, last: u32, n: u32, out: &mut Vec<u32>) -> u32 {
        out.clear();
        let mut x = last;
        for _ in 0..n {
            out.push(x);
            x = self.parent[x as usize];
        }
        out.reverse();
        x
    }

    pub fn gone(&self, op: &Op) -> &[u32] {
        &self.removed[op.at as usize..(op.at + op.n) as usize]
    }
}
