//! What is carried.

use std::str::FromStr;

use pb_contract::{BlockId, KvDtype, Numerics, Stream};
use pb_kv::{CacheIdentity, EngineFormat, KvFormat, Positional};
use pb_transfer::{CellSet, Descriptor, Peer, Region, Span};

use crate::Outcome;
use crate::arms::Arm;

/// Memory of each side: the largest payload.
pub(crate) const MEMORY_BYTES: usize = 256 << 20;
/// Frames of every transport here, so that they are compared with the same cells in a frame.
pub(crate) const FRAME_BYTES: usize = 1 << 20;
/// What is sent before the clock starts, so that windows and buffers have grown.
pub(crate) const WARM_UP_BYTES: usize = 16 << 20;
const MESSAGES_BYTES: usize = 64 << 20;
const BLOCK_TOKENS: usize = 16;

/// A cache whose blocks are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kv {
    pub(crate) name: &'static str,
    pub(crate) layers: u32,
    pub(crate) kv_heads: usize,
    pub(crate) d_head: usize,
    pub(crate) blocks: u32,
}

const SMOLLM2: Kv = Kv {
    name: "smollm2",
    layers: 30,
    kv_heads: 3,
    d_head: 64,
    blocks: 728,
};
const LLAMA_8B: Kv = Kv {
    name: "llama-8b",
    layers: 32,
    kv_heads: 8,
    d_head: 128,
    blocks: 128,
};

impl Kv {
    /// One layer of one block: keys and values, bf16.
    pub(crate) fn cell_bytes(&self) -> usize {
        2 * self.kv_heads * self.d_head * BLOCK_TOKENS * 2
    }
}

/// Where the blocks of a request lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Blocks with all their layers, one after the other: an empty engine.
    InOrder,
    /// The same in any order: an engine that has served for a while.
    Scattered,
    /// A tensor for each layer, blocks in any order, as in vLLM.
    ScatteredLayers,
}

/// What is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// Messages of so many bytes.
    Messages(usize),
    /// A cache of 256 MiB.
    Kv(Kv, Layout),
}

impl Payload {
    pub(crate) fn all(quick: bool) -> Vec<Payload> {
        if quick {
            return vec![
                Payload::Messages(1 << 20),
                Payload::Kv(LLAMA_8B, Layout::Scattered),
            ];
        }
        let sizes = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
        let layouts = [Layout::InOrder, Layout::Scattered, Layout::ScatteredLayers];
        let caches = [SMOLLM2, LLAMA_8B]
            .into_iter()
            .flat_map(|kv| layouts.map(|layout| Payload::Kv(kv, layout)));
        sizes
            .map(Payload::Messages)
            .into_iter()
            .chain(caches)
            .collect()
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Payload::Messages(bytes) if *bytes < 1 << 20 => format!("{} KiB", bytes >> 10),
            Payload::Messages(bytes) => format!("{} MiB", bytes >> 20),
            Payload::Kv(kv, Layout::InOrder) => format!("{} in order", kv.name),
            Payload::Kv(kv, Layout::Scattered) => format!("{} scattered", kv.name),
            Payload::Kv(kv, Layout::ScatteredLayers) => format!("{} by layer", kv.name),
        }
    }

    /// Bytes that are timed.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Payload::Messages(_) => MESSAGES_BYTES,
            Payload::Kv(kv, _) => kv.cell_bytes() * (kv.blocks * kv.layers) as usize,
        }
    }

    /// Where cells lie.
    pub(crate) fn region(&self) -> Region {
        match self {
            Payload::Messages(bytes) => {
                Region::block_major(0, 0, 1, (*bytes).min(FRAME_BYTES) as u64)
            }
            Payload::Kv(kv, Layout::ScatteredLayers) => {
                Region::layer_major(0, kv.blocks, kv.cell_bytes() as u64)
            }
            Payload::Kv(kv, _) => Region::block_major(0, 0, kv.layers, kv.cell_bytes() as u64),
        }
    }

    /// The blocks of the request, in its order; the same on both sides.
    pub(crate) fn table(&self) -> Vec<BlockId> {
        let (blocks, scattered) = match self {
            Payload::Messages(_) => {
                let cell = self.region().segment_bytes() as usize;
                ((MESSAGES_BYTES / cell) as u32, false)
            }
            Payload::Kv(kv, layout) => (kv.blocks, *layout != Layout::InOrder),
        };
        let mut table: Vec<BlockId> = (0..blocks).map(BlockId).collect();
        let mut stream = Stream::new(1, "blocks");
        for i in (1..table.len()).rev().filter(|_| scattered) {
            table.swap(i, stream.below(i as u64 + 1) as usize);
        }
        table
    }

    /// The frames, in the order and of the size in which a source sends them. Messages that are
    /// shorter than a frame are frames of their own.
    pub(crate) fn frames(&self) -> Vec<Span> {
        let region = self.region();
        let (blocks, layers, cells) = match self {
            Payload::Messages(_) => (self.table().len() as u32, 1, 1),
            Payload::Kv(kv, _) => (kv.blocks, kv.layers, FRAME_BYTES / kv.cell_bytes()),
        };
        let mut left = CellSet::new(blocks, layers);
        for (block, layer) in Span::whole(blocks, layers).iter() {
            left.insert(block, layer);
        }
        let mut frames = Vec::new();
        while let Some(span) = left.next_span(region.order(), cells as u64) {
            for (block, layer) in span.iter() {
                left.remove(block, layer);
            }
            frames.push(span);
        }
        frames
    }

    /// The first frames, until they have `bytes` bytes or more, with the ranges of their cells.
    pub(crate) fn part(&self, bytes: usize) -> Vec<(Span, Vec<Descriptor>)> {
        let (region, table) = (self.region(), self.table());
        let segment = 0..region.segment_bytes() as usize;
        let whole = std::slice::from_ref(&segment);
        let mut left = bytes as u64;
        let mut part = Vec::new();
        for span in self.frames() {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(span.cells() * region.segment_bytes());
            part.push((span, region.descriptors(&table, span, whole)));
        }
        part
    }

    /// Bytes of that part.
    pub(crate) fn part_bytes(&self, bytes: usize) -> usize {
        let cells: u64 = self.part(bytes).iter().map(|(span, _)| span.cells()).sum();
        cells as usize * self.region().segment_bytes() as usize
    }

    /// Ranges before neighbours are merged, and after.
    pub(crate) fn descriptors(&self) -> [usize; 2] {
        let all = self.part(self.bytes());
        let cells = all.iter().map(|(span, _)| span.cells() as usize);
        let merged = all.iter().map(|(_, ranges)| ranges.len());
        [cells.sum(), merged.sum()]
    }
}

impl FromStr for Payload {
    type Err = String;

    fn from_str(s: &str) -> Result<Payload, String> {
        let found = Payload::all(false).into_iter().find(|p| p.name() == s);
        found.ok_or_else(|| format!("{s} is no payload"))
    }
}

/// One timed thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) payload: Payload,
    /// By two agents, with checksums.
    pub(crate) verified: bool,
}

impl Job {
    /// What an arm does with a payload.
    pub(crate) fn of(arm: Arm, payload: Payload) -> Vec<Job> {
        let job = |verified| Job { payload, verified };
        match payload {
            Payload::Kv(..) if arm.is_transport() => vec![job(false), job(true)],
            _ => vec![job(false)],
        }
    }

    /// As a line for the other process.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", u8::from(self.verified), self.payload.name())
    }

    pub(crate) fn parse(line: &str) -> Outcome<Job> {
        let (verified, payload) = line.trim().split_once(' ').ok_or("no job")?;
        Ok(Job {
            payload: payload.parse()?,
            verified: verified == "1",
        })
    }
}

/// An engine with such a cache.
pub(crate) fn peer(kv: &Kv) -> Peer {
    Peer {
        identity: CacheIdentity {
            weights: [7; 32],
            positional: Positional {
                rope_theta: 1e5,
                rope_scaling: vec![],
                offset: 0,
                max_position: 16_384,
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
                revision: "throughput".to_owned(),
            },
        },
        layers: kv.layers as usize,
        kv_heads: kv.kv_heads,
        d_head: kv.d_head,
        tp_degree: 1,
        tp_rank: 0,
    }
}
