//! Host cost of the block bookkeeping: replays a script of operations as fast as it can.
//!
//! usage: replay_speed SCRIPT.json [blake3|sha256|xxh3]
//!
//! The script (made by `tests/speed/against_block_managers.py`) has `block_size`, `num_blocks`
//! (the null block included) and `ticks`; each tick adds requests (names their blocks), allocates
//! them, appends a token to running ones and frees finished ones. For every line on standard
//! input the whole script is replayed on an empty pool and one JSON line is printed: nanoseconds
//! by kind of operation, hit tokens, evicted blocks. Parsing is not timed.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, Write};

use pb_contract::{Clock, HashAlgorithm, PrefixCacheKind, RequestId, TokenId, WallClock};
use pb_kv::{CacheScope, HashedTokens, Hit, KvConfig, PrefixCache, build};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Script {
    block_size: usize,
    num_blocks: usize,
    ticks: Vec<Tick>,
}

/// Operations in the order of a scheduler's step.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tick {
    add: Vec<(u64, Vec<TokenId>)>,
    allocate: Vec<u64>,
    append: Vec<(u64, TokenId)>,
    free: Vec<u64>,
}

#[derive(Default, Serialize)]
struct Measured {
    add_ns: u64,
    allocate_ns: u64,
    append_ns: u64,
    free_ns: u64,
    hit_tokens: usize,
    evicted_blocks: u64,
}

/// A pool and the requests that are waiting or running on it.
struct Replay {
    config: KvConfig,
    kv: Box<dyn PrefixCache>,
    live: BTreeMap<RequestId, HashedTokens>,
    hit_tokens: usize,
}

impl Replay {
    fn add(&mut self, id: RequestId, prompt: &[TokenId]) {
        let mut seq = self.config.sequence(&CacheScope::default());
        seq.extend(prompt);
        self.live.insert(id, seq);
    }

    fn allocate(&mut self, id: RequestId) {
        let seq = &self.live[&id];
        let hit = self.kv.lookup(seq);
        let cached = hit.tokens(self.config.block_size);
        self.hit_tokens += cached;
        let allocated = self.kv.allocate(id, seq, 0, &hit, seq.len() - cached);
        assert!(allocated, "the script fits into the pool");
        self.kv.commit(id, seq, seq.len());
    }

    fn append(&mut self, id: RequestId, token: TokenId) {
        let Some(seq) = self.live.get_mut(&id) else {
            return;
        };
        let computed = seq.len();
        seq.push(token);
        let allocated = self.kv.allocate(id, seq, computed, &Hit::default(), 1);
        assert!(allocated, "the script fits into the pool");
        self.kv.commit(id, seq, computed + 1);
    }

    fn free(&mut self, id: RequestId) {
        if let Some(seq) = self.live.remove(&id) {
            self.kv.finish(id, &seq);
        }
    }
}

fn replay(script: &Script, config: KvConfig) -> Result<Measured, Box<dyn Error>> {
    let mut replay = Replay {
        config,
        kv: build(config)?,
        live: BTreeMap::new(),
        hit_tokens: 0,
    };
    let mut measured = Measured::default();
    let clock = WallClock;
    for tick in &script.ticks {
        let start = clock.now().0;
        for (id, prompt) in &tick.add {
            replay.add(RequestId(*id), prompt);
        }
        let added = clock.now().0;
        for id in &tick.allocate {
            replay.allocate(RequestId(*id));
        }
        let allocated = clock.now().0;
        for &(id, token) in &tick.append {
            replay.append(RequestId(id), token);
        }
        let appended = clock.now().0;
        tick.free.iter().for_each(|&id| replay.free(RequestId(id)));
        measured.add_ns += added - start;
        measured.allocate_ns += allocated - added;
        measured.append_ns += appended - allocated;
        measured.free_ns += clock.now().0 - appended;
    }
    replay.kv.check()?;
    measured.hit_tokens = replay.hit_tokens;
    measured.evicted_blocks = replay.kv.evicted_total();
    Ok(measured)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: replay_speed SCRIPT.json [blake3|sha256|xxh3]";
    let path = arguments.next().ok_or(usage)?;
    let hash = arguments.next().unwrap_or_else(|| "blake3".to_owned());
    let hash: HashAlgorithm = serde_json::from_value(hash.into())?;
    let script: Script = serde_json::from_slice(&std::fs::read(path)?)?;
    let config = KvConfig {
        null_block: true,
        hash,
        ..KvConfig::new(
            script.block_size,
            script.num_blocks,
            PrefixCacheKind::HashChain,
        )
    };
    for line in std::io::stdin().lock().lines() {
        line?;
        println!("{}", serde_json::to_string(&replay(&script, config)?)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}
