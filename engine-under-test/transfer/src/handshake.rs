//! Whether the KV of one engine means the same in another.
//!
//! Every part of the cache identity is compared, and what differs is either something that a
//! re-layout bridges and the sink allows, or a refusal that names the field and both values. What
//! is not compared cannot be refused, and shows as wrong text long after (vllm #42895, LMCache
//! #1133), so there is no field without a row here.

use std::ops::Range;

use pb_contract::KvDtype;
use pb_kv::CacheIdentity;

use crate::convert::{self, Conversion};
use crate::geometry::{GeometryError, KvGeometry, Leg, Segment, legs};

/// What one rank of an engine says about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    /// Weights, positions, storage and arithmetic.
    pub identity: CacheIdentity,
    /// Layers.
    pub layers: usize,
    /// KV heads of the whole model.
    pub kv_heads: usize,
    /// Elements of one head's key or value.
    pub d_head: usize,
    /// Ranks that share the heads.
    pub tp_degree: usize,
    /// Which of them this is.
    pub tp_rank: usize,
}

impl Peer {
    /// The shape of its blocks.
    pub fn geometry(&self) -> KvGeometry {
        KvGeometry {
            layers: self.layers,
            kv_heads: self.kv_heads,
            d_head: self.d_head,
            block_size: self.identity.engine.block_size,
            dtype: self.identity.kv.dtype,
            tp_degree: self.tp_degree,
        }
    }

    /// Scale of the keys and of the values of `layer`; 1 where there is none.
    fn scales(&self, layer: usize) -> [f32; 2] {
        let scale = |i: usize| self.identity.kv.scales.get(i).copied().unwrap_or(1.0);
        [scale(2 * layer), scale(2 * layer + 1)]
    }

    fn check(&self) -> Result<(), Refusal> {
        let geometry = self.geometry();
        geometry.check()?;
        if self.tp_rank >= self.tp_degree {
            return Err(Refusal::Geometry(GeometryError::Rank {
                rank: self.tp_rank,
                tp_degree: self.tp_degree,
            }));
        }
        let scales = &self.identity.kv.scales;
        let count = match self.identity.kv.dtype {
            KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2 => 2 * self.layers,
            _ => 0,
        };
        // A wide type has no use for scales, and an engine may leave those of 1 out.
        if !scales.is_empty() && scales.len() != count {
            return Err(Refusal::Scales {
                found: scales.len(),
                expected: count,
            });
        }
        if let Some(bad) = scales.iter().find(|s| !s.is_finite() || **s < 0.0) {
            return Err(Refusal::Scale { value: *bad });
        }
        Ok(())
    }
}

/// Which differences a side lets the re-layout bridge. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    /// Blocks of another size.
    pub block_size: bool,
    /// Another degree of tensor parallelism.
    pub tp_degree: bool,
    /// Another element type, or other fp8 scales.
    pub dtype: Conversion,
    /// Another arithmetic or other kernels: the decode engine would have computed slightly other
    /// values itself.
    pub arithmetic: bool,
}

/// Why two engines do not exchange KV.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// A part of the identity differs.
    #[error("{field} differs: source has {source_value}, sink has {sink_value}; {fix}")]
    Differs {
        /// Dotted name of the field.
        field: &'static str,
        /// The source's value.
        source_value: String,
        /// The sink's value.
        sink_value: String,
        /// What would help.
        fix: &'static str,
    },
    /// A shape that is none.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Not two scales for each layer.
    #[error("kv.scales has {found} entries, expected {expected} (keys and values of each layer)")]
    Scales {
        /// Entries.
        found: usize,
        /// Entries needed.
        expected: usize,
    },
    /// A scale that scales nothing.
    #[error("kv.scales holds {value}: a scale is finite and not negative")]
    Scale {
        /// The scale.
        value: f32,
    },
    /// The rank has no heads for the other.
    #[error(
        "source tp_rank {source_rank} of {source_degree} holds no KV head for sink tp_rank \
         {sink_rank} of {sink_degree}: connect to a rank that `legs` names"
    )]
    NoHeads {
        /// Source rank.
        source_rank: usize,
        /// Source ranks.
        source_degree: usize,
        /// Sink rank.
        sink_rank: usize,
        /// Sink ranks.
        sink_degree: usize,
    },
    /// The other side refused; its words.
    #[error("refused by the peer: {reason}")]
    ByPeer {
        /// Its refusal.
        reason: String,
    },
}

/// What a source rank and a sink rank have agreed on.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreement {
    /// Blocks of the source.
    pub source: KvGeometry,
    /// Blocks of the sink.
    pub sink: KvGeometry,
    /// Heads that all of the source rank's blocks hold, by their number in the model.
    pub source_heads: Range<usize>,
    /// Heads of the sink rank.
    pub sink_heads: Range<usize>,
    /// Heads that move.
    pub heads: Range<usize>,
    /// Scales of the sink, keys and values of each layer.
    pub sink_scales: Vec<[f32; 2]>,
    /// Scales of the source, likewise.
    pub source_scales: Vec<[f32; 2]>,
    /// How many legs the sink rank has in all.
    pub sink_legs: usize,
}

impl Agreement {
    /// What is sent of one layer of one block of the source: its segment of the moving heads.
    pub fn cell(&self) -> Segment {
        self.source.segment(self.heads.len())
    }

    /// The runs of bytes of a source segment that make a cell.
    pub fn source_pieces(&self) -> Vec<Range<usize>> {
        let first = self.source_heads.start;
        let whole = self.source.segment(self.source_heads.len());
        whole.pieces(self.heads.start - first..self.heads.end - first)
    }

    /// The runs of bytes of a sink segment that the heads of this leg are.
    pub fn sink_pieces(&self) -> Vec<Range<usize>> {
        let first = self.sink_heads.start;
        let whole = self.sink.segment(self.sink_heads.len());
        whole.pieces(self.heads.start - first..self.heads.end - first)
    }

    /// Whether a cell is, byte for byte, a segment of the sink.
    pub fn is_direct(&self) -> bool {
        let same_scales = self.source_scales == self.sink_scales;
        self.cell() == self.sink.segment(self.sink_heads.len()) && same_scales
    }
}

/// One row of the comparison.
struct Row {
    field: &'static str,
    values: [String; 2],
    allowed: bool,
    fix: &'static str,
}

/// A row that must be equal.
fn equal<T: PartialEq + std::fmt::Debug>(field: &'static str, values: [&T; 2]) -> Row {
    Row {
        field,
        allowed: values[0] == values[1],
        values: values.map(|v| format!("{v:?}")),
        fix: "KV of one cannot be used by the other",
    }
}

/// A row that may differ when the sink bridges it.
fn bridged<T: PartialEq + std::fmt::Debug>(
    field: &'static str,
    values: [&T; 2],
    allow: bool,
    fix: &'static str,
) -> Row {
    let mut row = equal(field, values);
    row.allowed |= allow;
    row.fix = fix;
    row
}

/// All rows, in the order in which they are refused.
fn rows(source: &Peer, sink: &Peer, allow: &Allow) -> Vec<Row> {
    let (a, b) = (&source.identity, &sink.identity);
    let mut weights = equal("weights", [&a.weights, &b.weights]);
    weights.values = [&a.weights, &b.weights].map(|w| hex(w));
    let (p, q) = (&a.positional, &b.positional);
    let bits = [p.rope_theta.to_bits(), q.rope_theta.to_bits()];
    let mut theta = equal("positional.rope_theta", [&bits[0], &bits[1]]);
    theta.values = [p.rope_theta, q.rope_theta].map(|t| format!("{t:?}"));
    vec![
        weights,
        equal("layers", [&source.layers, &sink.layers]),
        equal("kv_heads", [&source.kv_heads, &sink.kv_heads]),
        equal("d_head", [&source.d_head, &sink.d_head]),
        theta,
        equal(
            "positional.rope_scaling",
            [&p.rope_scaling, &q.rope_scaling],
        ),
        equal("positional.offset", [&p.offset, &q.offset]),
        equal(
            "positional.max_position",
            [&p.max_position, &q.max_position],
        ),
        equal(
            "positional.sliding_window",
            [&p.sliding_window, &q.sliding_window],
        ),
        equal("kv.layout", [&a.kv.layout, &b.kv.layout]),
        dtype_row(a.kv.dtype, b.kv.dtype, allow.dtype),
        scales_row(source, sink, allow.dtype),
        bridged(
            "engine.block_size",
            [&a.engine.block_size, &b.engine.block_size],
            allow.block_size,
            "allow block_size to have blocks re-laid out",
        ),
        bridged(
            "tp_degree",
            [&source.tp_degree, &sink.tp_degree],
            allow.tp_degree,
            "allow tp_degree to have heads shared out anew",
        ),
        bridged(
            "engine.numerics",
            [&a.engine.numerics, &b.engine.numerics],
            allow.arithmetic,
            "allow arithmetic if values that differ by rounding will do",
        ),
        bridged(
            "engine.revision",
            [&a.engine.revision, &b.engine.revision],
            allow.arithmetic,
            "allow arithmetic if values that differ by rounding will do",
        ),
    ]
}

fn dtype_row(source: KvDtype, sink: KvDtype, allow: Conversion) -> Row {
    let needed = convert::needed(source, sink);
    let fix = match needed {
        None => "there is no rule for this conversion",
        Some(Conversion::Rounded) => "allow dtype = rounded to have values rounded",
        Some(_) => "allow dtype = exact to have values widened",
    };
    let mut row = equal("kv.dtype", [&source, &sink]);
    row.allowed = needed.is_some_and(|n| n <= allow);
    row.fix = fix;
    row
}

/// Equal fp8 types with other scales hold other codes for one value.
fn scales_row(source: &Peer, sink: &Peer, allow: Conversion) -> Row {
    let (a, b) = (&source.identity.kv, &sink.identity.kv);
    let layers = 0..source.layers.max(sink.layers);
    let same = layers.clone().all(|l| source.scales(l) == sink.scales(l));
    let mut row = bridged(
        "kv.scales",
        [&a.scales, &b.scales],
        same || a.dtype != b.dtype || allow == Conversion::Rounded,
        "allow dtype = rounded to have values quantised anew",
    );
    let first = layers.clone().find(|&l| source.scales(l) != sink.scales(l));
    let first = first.unwrap_or(0);
    row.values = [source, sink].map(|p| format!("{:?} in layer {first}", p.scales(first)));
    row
}

/// Compares a source rank with a sink rank. Both sides call it, each with what it allows.
///
/// # Errors
/// [`Refusal`]: the first field that differs and is not allowed to.
pub fn agree(source: &Peer, sink: &Peer, allow: &Allow) -> Result<Agreement, Refusal> {
    source.check()?;
    sink.check()?;
    for row in rows(source, sink, allow) {
        if !row.allowed {
            let [source_value, sink_value] = row.values;
            return Err(Refusal::Differs {
                field: row.field,
                source_value,
                sink_value,
                fix: row.fix,
            });
        }
    }
    let (from, to) = (source.geometry(), sink.geometry());
    let all: Vec<Leg> = legs(&from, &to, sink.tp_rank);
    let mine = all.iter().find(|leg| leg.source_rank == source.tp_rank);
    let leg = mine.ok_or(Refusal::NoHeads {
        source_rank: source.tp_rank,
        source_degree: source.tp_degree,
        sink_rank: sink.tp_rank,
        sink_degree: sink.tp_degree,
    })?;
    let scales = |peer: &Peer| (0..peer.layers).map(|l| peer.scales(l)).collect();
    Ok(Agreement {
        source: from,
        sink: to,
        source_heads: from.heads(source.tp_rank),
        sink_heads: to.heads(sink.tp_rank),
        heads: leg.heads.clone(),
        sink_scales: scales(sink),
        source_scales: scales(source),
        sink_legs: all.len(),
    })
}

/// Lower-case hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
