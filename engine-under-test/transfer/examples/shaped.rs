//! One side of a transfer over a network that a script has shaped; see `tests/netns/shaped.py`.
//!
//! ```text
//! shaped sink at=IP:PORT stall_ms=9000 layers=32 heads=1 d_head=16 blocks=512
//! shaped source to=IP:PORT stall_ms=9000 layers=32 heads=1 d_head=16 blocks=512 connections=1 \
//!     lease_ms=9000
//! ```
//!
//! The source reads lines `GRANULARITY BLOCKS LAYER_NS [STRETCH]`, does one transfer for each, and
//! prints one line of JSON, as does the sink. The prefill is a clock that seals a layer of all
//! blocks every `LAYER_NS`. With `STRETCH` it is a thread that computes for so long, and then seals
//! and posts: in bulk once at the end, by layers after each, so that posting delays the next layer.
//! All times are taken to be stretched by that factor, so posting is made to take `STRETCH` times
//! as long too. Instants are of the machine's monotonic clock, which both sides share.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use pb_contract::{BlockId, Clock, KvDtype, Nanos, Numerics, RequestId, WallClock};
use pb_kv::{CacheIdentity, EngineFormat, KvFormat, Positional};
use pb_transfer::{
    Allow, Defect, Granularity, HostMemory, Lend, Memory, Mode, Peer, Region, SinkAgent, SinkEvent,
    SinkOptions, SourceAgent, SourceEvent, SourceOptions, Span, TcpOptions, TcpTransport,
    TcpTransportListener, TransferId,
};
use serde_json::json;

type Outcome<T> = Result<T, Box<dyn Error>>;

const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK_TOKENS: usize = 16;

/// `key=value` arguments.
struct Args(BTreeMap<String, String>);

impl Args {
    fn get<T: FromStr>(&self, key: &str) -> Outcome<T>
    where
        T::Err: Error + 'static,
    {
        let value = self
            .0
            .get(key)
            .ok_or_else(|| format!("{key}=... is missing"))?;
        Ok(value
            .parse::<T>()
            .map_err(|e| format!("{key}={value}: {e}"))?)
    }
}

struct Side {
    peer: Peer,
    region: Region,
    memory: Arc<HostMemory>,
    blocks: u32,
    clock: Arc<dyn Clock>,
}

impl Side {
    fn new(args: &Args) -> Outcome<Side> {
        let (layers, blocks): (usize, u32) = (args.get("layers")?, args.get("blocks")?);
        let peer = Peer {
            identity: CacheIdentity {
                weights: [7; 32],
                positional: Positional {
                    rope_theta: 1e5,
                    rope_scaling: vec![],
                    offset: 0,
                    max_position: 131_072,
                    sliding_window: None,
                },
                kv: KvFormat {
                    dtype: KvDtype::Bf16,
                    scales: vec![],
                    layout: "block image 1".to_owned(),
                },
                engine: EngineFormat {
                    numerics: Numerics::Exact,
                    block_size: BLOCK_TOKENS,
                    revision: "shaped".to_owned(),
                },
            },
            layers,
            kv_heads: args.get("heads")?,
            d_head: args.get("d_head")?,
            tp_degree: 1,
            tp_rank: 0,
        };
        let cell = peer.geometry().segment(peer.kv_heads).bytes();
        let bytes = cell * layers * blocks as usize;
        Ok(Side {
            region: Region::layer_major(0, blocks, cell as u64),
            memory: Arc::new(HostMemory::new(bytes)),
            peer,
            blocks,
            clock: Arc::new(WallClock),
        })
    }

    fn place(&self) -> (Arc<dyn Memory>, Region) {
        (Arc::clone(&self.memory) as Arc<dyn Memory>, self.region)
    }

    /// What lies in a cell, the same on both sides.
    fn pattern(&self, block: u32, layer: u32) -> Vec<u8> {
        let seed = block * 7 + layer * 3;
        let bytes = self.region.segment_bytes() as u32;
        (0..bytes).map(|i| (i * 31 + seed) as u8).collect()
    }
}

fn say(line: &serde_json::Value) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn source(args: &Args) -> Outcome<()> {
    let side = Side::new(args)?;
    let layers = side.peer.layers as u32;
    for (block, layer) in Span::whole(side.blocks, layers).iter() {
        let at = side.region.offset(BlockId(block), layer);
        side.memory.write(at, &side.pattern(block, layer))?;
    }
    let options = TcpOptions {
        connections: args.get("connections")?,
        stall: Duration::from_millis(args.get("stall_ms")?),
    };
    let to: SocketAddr = args.get("to")?;
    let transport = TcpTransport::connect(to, 1, options, Arc::clone(&side.clock))?;
    let options = SourceOptions {
        allow: Allow::default(),
        lease: Nanos::from_millis(args.get("lease_ms")?),
        first_id: 1,
        handshake: PATIENCE,
        defect: Defect::None,
    };
    let (peer, clock) = (&side.peer, Arc::clone(&side.clock));
    let transport = Box::new(transport);
    let mut agent = SourceAgent::connect(transport, peer, side.place(), clock, &options)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let granularity = match words.next() {
            Some("bulk") => Granularity::Bulk,
            Some("layer") => Granularity::Layer,
            other => return Err(format!("{other:?} is neither bulk nor layer").into()),
        };
        let mut number = || {
            words
                .next()
                .ok_or("too few numbers")?
                .parse::<u64>()
                .map_err(|_| "no number")
        };
        let (blocks, layer_ns) = (number()? as u32, number()?);
        let prompt = Prompt {
            granularity,
            blocks,
            layer_ns,
            stretch: words.next().map(str::parse).transpose()?,
        };
        say(&transfer(&mut agent, &side, &prompt)?)?;
    }
    Ok(())
}

/// What is computed and sent, and how.
struct Prompt {
    granularity: Granularity,
    blocks: u32,
    layer_ns: u64,
    stretch: Option<u64>,
}

/// Computes and sends one prompt.
fn transfer(agent: &mut SourceAgent, side: &Side, prompt: &Prompt) -> Outcome<serde_json::Value> {
    let blocks = prompt.blocks;
    let granularity = prompt.granularity;
    let id = agent.lend(Lend {
        request: RequestId(1),
        tokens: u64::from(blocks) * BLOCK_TOKENS as u64,
        blocks: (0..blocks).map(BlockId).collect(),
        mode: Mode::Push,
        granularity,
    });
    let mut ended = false;
    // The sink has room and has asked before the prefill begins, as it does when it is not full.
    while agent.queue_depth() > 0 && !ended {
        ended = step(agent, PATIENCE);
    }
    let begin = side.clock.now();
    let (prefill_end, post_ns, over) = match prompt.stretch {
        None => clocked(agent, side, prompt, id)?,
        Some(stretch) => computed(agent, side, prompt, (id, stretch))?,
    };
    ended |= over;
    while !ended {
        let left = agent
            .next_deadline()
            .map(|at| at.saturating_sub(side.clock.now()));
        ended = step(agent, left.unwrap_or(Nanos::from_secs(1)).to_duration());
    }
    let rows = agent.take_rows();
    let row = rows.last().ok_or("a transfer without a row")?;
    Ok(json!({
        "begin_ns": begin.0, "prefill_end_ns": prefill_end.0, "end_ns": side.clock.now().0,
        "post_ns": post_ns,
        "ended": row.ended, "cause": row.cause, "granularity": row.granularity,
        "tokens": row.tokens, "bytes": row.bytes, "frames": row.frames,
        "descriptors": row.descriptors, "resent_cells": row.resent_cells,
    }))
}

/// Layer `layer` of all blocks.
fn slice(prompt: &Prompt, layer: u32) -> Span {
    Span {
        block: 0,
        blocks: prompt.blocks,
        layer,
        layers: 1,
    }
}

/// When a prefill ended, what sealing and posting took of its thread, unstretched, in ns, and
/// whether the lease has ended.
type Computed = (Nanos, u64, bool);

/// A prefill that is a clock. Sealing and posting happen beside it.
fn clocked(
    agent: &mut SourceAgent,
    side: &Side,
    prompt: &Prompt,
    id: TransferId,
) -> Outcome<Computed> {
    let (layers, begin) = (side.peer.layers as u32, side.clock.now());
    let mut ended = false;
    for layer in 0..layers {
        let due = begin + Nanos(u64::from(layer + 1) * prompt.layer_ns);
        while side.clock.now() < due {
            let left = due.saturating_sub(side.clock.now());
            ended |= step(agent, left.to_duration());
        }
        if layer + 1 == layers {
            agent.prefill_ended(id);
        }
        agent.seal(id, slice(prompt, layer))?;
    }
    let end = begin + Nanos(u64::from(layers) * prompt.layer_ns);
    Ok((end, 0, ended))
}

/// A prefill that is a busy thread, which also seals and posts.
fn computed(
    agent: &mut SourceAgent,
    side: &Side,
    prompt: &Prompt,
    (id, stretch): (TransferId, u64),
) -> Outcome<Computed> {
    let layers = side.peer.layers as u32;
    let busy = |ns: u64| {
        let until = side.clock.now() + Nanos(ns);
        while side.clock.now() < until {
            std::hint::spin_loop();
        }
    };
    let (mut post_ns, mut ended) = (0, false);
    for layer in 0..layers {
        busy(prompt.layer_ns);
        let last = layer + 1 == layers;
        let span = match prompt.granularity {
            Granularity::Layer => slice(prompt, layer),
            _ if !last => continue,
            _ => Span::whole(prompt.blocks, layers),
        };
        let at = side.clock.now();
        if last {
            agent.prefill_ended(id);
        }
        agent.seal(id, span)?;
        ended |= step(agent, Duration::ZERO);
        let took = side.clock.now().saturating_sub(at).0;
        post_ns += took;
        if !last {
            busy(took * (stretch - 1));
        }
    }
    Ok((side.clock.now(), post_ns, ended))
}

/// One step; whether the lease ended.
fn step(agent: &mut SourceAgent, timeout: Duration) -> bool {
    let events = agent.step(timeout);
    let freed = |event: &SourceEvent| matches!(event, SourceEvent::Freed { .. });
    events.iter().any(freed)
}

fn sink(args: &Args) -> Outcome<()> {
    let side = Side::new(args)?;
    let at: SocketAddr = args.get("at")?;
    let mut listener = TcpTransportListener::bind(at, PATIENCE, Arc::clone(&side.clock))?;
    say(&json!({ "listening": listener.address()?.to_string() }))?;
    let transport = listener.accept(PATIENCE)?.ok_or("nobody connects")?;
    let options = SinkOptions {
        allow: Allow::default(),
        blocks: side.blocks,
        transfers: 1,
        window_cells: 4096,
        stall: Nanos::from_millis(args.get("stall_ms")?),
        retries: 0,
        handshake: PATIENCE,
        defect: Defect::None,
    };
    let (peer, clock) = (&side.peer, Arc::clone(&side.clock));
    let transport = Box::new(transport);
    let mut agent = SinkAgent::connect(transport, peer, side.place(), clock, &options)?;
    loop {
        let due = agent
            .next_deadline()
            .map(|at| at.saturating_sub(side.clock.now()));
        let wait = due.unwrap_or(Nanos::from_secs(1)).max(Nanos(1));
        for event in agent.step(wait.to_duration()) {
            match event {
                SinkEvent::Reserve(offer) => {
                    agent.reserved(offer.id, (0..offer.blocks).map(BlockId).collect());
                }
                SinkEvent::Started { blocks, .. } => {
                    let now = side.clock.now();
                    say(&json!({ "started_ns": now.0, "right": check(&side, &blocks)? }))?;
                }
                SinkEvent::Failed { cause, .. } => {
                    let now = side.clock.now();
                    say(&json!({ "failed_ns": now.0, "cause": cause.name() }))?;
                }
                SinkEvent::Down(_) => return Ok(()),
                #[allow(unreachable_patterns, reason = "a sink that claims has one more")]
                _ => {}
            }
        }
    }
}

/// Whether every cell is as the source computed it; the blocks are emptied for the next one.
fn check(side: &Side, blocks: &[BlockId]) -> Outcome<bool> {
    let mut right = true;
    let mut cell = vec![0; side.region.segment_bytes() as usize];
    let zero = cell.clone();
    for (b, layer) in Span::whole(blocks.len() as u32, side.peer.layers as u32).iter() {
        let at = side.region.offset(blocks[b as usize], layer);
        side.memory.read(at, &mut cell)?;
        right &= cell == side.pattern(b, layer);
        side.memory.write(at, &zero)?;
    }
    Ok(right)
}

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let role = words.next().unwrap_or_default();
    let mut args = BTreeMap::new();
    for word in words {
        let (key, value) = word
            .split_once('=')
            .ok_or(format!("{word}: expected KEY=VALUE"))?;
        args.insert(key.to_owned(), value.to_owned());
    }
    match role.as_str() {
        "source" => source(&Args(args)),
        "sink" => sink(&Args(args)),
        other => Err(format!("{other:?}: expected source or sink").into()),
    }
}
