//! Re-layout against an oracle that writes and reads blocks element by element, front to back.

use std::ops::Range;

use pb_contract::{KvDtype, Stream};
use pb_transfer::{Allow, Conversion, Peer, Relayout, RelayoutError, Side, agree, legs};

use crate::engines::{at_rank, peer, with_dtype};
use crate::scalars::{nearest, widen};

const LAYERS: usize = 2;
const KV_HEADS: usize = 4;
const D_HEAD: usize = 3;

/// `[layer][side][token][head][d]`: the bits of every element in the source's type.
pub(crate) struct Tensor {
    pub(crate) tokens: usize,
    bits: Vec<u32>,
    /// int8: the bits of the scale of each `[layer][side][token][head]`.
    scales: Vec<u32>,
}

impl Tensor {
    pub(crate) fn random(tokens: usize, dtype: KvDtype, stream: &mut Stream) -> Tensor {
        let rows = LAYERS * 2 * tokens * KV_HEADS;
        let mut bits = || loop {
            let x = stream.normal() as f32;
            match dtype {
                KvDtype::F32 => return x.to_bits(),
                KvDtype::Int8 => return stream.below(256) as u32,
                _ => {}
            }
            if let Some(code) = nearest(dtype, f64::from(x)) {
                return code;
            }
        };
        let elems = (0..rows * D_HEAD).map(|_| bits()).collect();
        let scales = (0..rows).map(|_| (stream.unit_f64() as f32).to_bits());
        Tensor {
            tokens,
            bits: elems,
            scales: scales.collect(),
        }
    }

    fn row(&self, layer: usize, side: usize, token: usize, head: usize) -> usize {
        ((layer * 2 + side) * self.tokens + token) * KV_HEADS + head
    }
}

/// Calls `scale(side, head, slot)` and `elem(side, head, slot, d)` in the order in which a segment
/// of the documented layout has them.
fn walk(
    peer: &Peer,
    heads: Range<usize>,
    visit: &mut dyn FnMut(usize, Option<usize>, usize, Option<usize>),
) {
    let block_size = peer.identity.engine.block_size;
    for side in 0..2 {
        match peer.identity.kv.dtype {
            KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2 => visit(side, None, 0, None),
            KvDtype::Int8 => {
                for head in heads.clone() {
                    (0..block_size).for_each(|slot| visit(side, Some(head), slot, None));
                }
            }
            _ => {}
        }
        for head in heads.clone() {
            if side == 0 {
                for d in 0..D_HEAD {
                    (0..block_size).for_each(|slot| visit(side, Some(head), slot, Some(d)));
                }
            } else {
                for slot in 0..block_size {
                    (0..D_HEAD).for_each(|d| visit(side, Some(head), slot, Some(d)));
                }
            }
        }
    }
}

/// The segment of `layer` and `block` that holds `heads` of the tensor; elements through `map`.
pub(crate) fn segment(
    peer: &Peer,
    heads: Range<usize>,
    tensor: &Tensor,
    [layer, block]: [usize; 2],
    map: &dyn Fn(u32, usize) -> u32,
) -> Vec<u8> {
    let (dtype, block_size) = (peer.identity.kv.dtype, peer.identity.engine.block_size);
    let mut out = Vec::new();
    walk(peer, heads, &mut |side, head, slot, d| {
        let token = block * block_size + slot;
        let used = token < tensor.tokens;
        let row = |head| tensor.row(layer, side, token, head);
        match (head, d) {
            (None, _) => {
                let scale = peer.identity.kv.scales[2 * layer + side];
                out.extend(scale.to_le_bytes());
            }
            (Some(head), None) => {
                let scale = if used { tensor.scales[row(head)] } else { 0 };
                out.extend(scale.to_le_bytes());
            }
            (Some(head), Some(d)) => {
                let bits = if used {
                    map(tensor.bits[row(head) * D_HEAD + d], side)
                } else {
                    0
                };
                out.extend(&bits.to_le_bytes()[..dtype.bytes()]);
            }
        }
    });
    out
}

/// What the sink must hold of an element, by the rules of the two types.
pub(crate) fn converted(source: &Peer, sink: &Peer, layer: usize, bits: u32, side: usize) -> u32 {
    let (from, to) = (source.identity.kv.dtype, sink.identity.kv.dtype);
    let scale = |p: &Peer| p.identity.kv.scales.get(2 * layer + side).copied();
    let (theirs, ours) = (scale(source).unwrap_or(1.0), scale(sink).unwrap_or(1.0));
    if from == to && theirs == ours {
        return bits;
    }
    let value = widen(from, bits) as f32 * theirs;
    nearest(to, f64::from(value / ours)).expect("a value in range")
}

/// One sink rank's segments from all its legs, compared with the oracle's.
fn check(source: &Peer, sink: &Peer, tokens: usize, stream: &mut Stream) {
    let allow = Allow {
        block_size: true,
        tp_degree: true,
        dtype: Conversion::Rounded,
        arithmetic: false,
    };
    let tensor = Tensor::random(tokens, source.identity.kv.dtype, stream);
    let (from, to) = (source.geometry(), sink.geometry());
    for rank in 0..sink.tp_degree {
        let sink = at_rank(sink.clone(), sink.tp_degree, rank);
        let heads = to.heads(rank);
        for [layer, block] in
            (0..LAYERS).flat_map(|l| (0..to.blocks_for(tokens)).map(move |b| [l, b]))
        {
            let size = to.segment(heads.len()).bytes();
            let mut got = vec![0xa5; size];
            for leg in legs(&from, &to, rank) {
                let source = at_rank(source.clone(), source.tp_degree, leg.source_rank);
                let agreement = agree(&source, &sink, &allow).unwrap();
                assert_eq!(agreement.heads, leg.heads);
                let theirs = from.heads(leg.source_rank);
                // What the source has, cut to the pieces that move.
                let cells: Vec<Vec<u8>> = (0..from.blocks_for(tokens))
                    .map(|b| {
                        let whole =
                            segment(&source, theirs.clone(), &tensor, [layer, b], &|x, _| x);
                        let pieces = agreement.source_pieces();
                        pieces.into_iter().flat_map(|p| whole[p].to_vec()).collect()
                    })
                    .collect();
                let cell = |b: usize| cells[b].as_slice();
                let relayout = Relayout::new(&agreement);
                relayout
                    .fill(layer, block, tokens, &cell, &mut got)
                    .unwrap();
                if agreement.is_direct() {
                    assert_eq!(cells[block], got, "a direct cell is the sink's segment");
                }
            }
            let map = |bits, side| converted(source, &sink, layer, bits, side);
            let expected = segment(&sink, heads.clone(), &tensor, [layer, block], &map);
            assert_eq!(got, expected, "rank {rank}, layer {layer}, block {block}");
        }
    }
}

const TYPES: [KvDtype; 6] = [
    KvDtype::F32,
    KvDtype::Bf16,
    KvDtype::F16,
    KvDtype::Fp8E4m3,
    KvDtype::Fp8E5m2,
    KvDtype::Int8,
];

#[test]
fn every_pair_of_block_sizes_and_degrees_keeps_every_element() {
    let mut stream = Stream::new(5, "relayout");
    for (from, to) in [1, 3, 4, 16]
        .into_iter()
        .flat_map(|a| [1, 3, 4, 16].map(|b| (a, b)))
    {
        for (p, d) in [1, 2, 4, 8]
            .into_iter()
            .flat_map(|a| [1, 2, 4, 8].map(|b| (a, b)))
        {
            for dtype in [KvDtype::F32, KvDtype::Int8, KvDtype::Fp8E4m3] {
                let [source, sink] = [(from, p), (to, d)].map(|(block_size, degree)| {
                    let peer = peer([LAYERS, KV_HEADS, D_HEAD], block_size);
                    at_rank(with_dtype(peer, dtype, 1.0), degree, 0)
                });
                let tokens = 1 + stream.below(13) as usize;
                check(&source, &sink, tokens, &mut stream);
            }
        }
    }
}

#[test]
fn every_pair_of_element_types_rounds_as_the_formats_say() {
    let mut stream = Stream::new(6, "dtypes");
    for (from, to) in TYPES.into_iter().flat_map(|a| TYPES.map(|b| (a, b))) {
        if (from == KvDtype::Int8) != (to == KvDtype::Int8) {
            continue; // No rule; the handshake's table says so.
        }
        for (scale, block_sizes) in [(1.0, [4, 4]), (0.03, [4, 6]), (0.7, [6, 4])] {
            let shape = [LAYERS, KV_HEADS, D_HEAD];
            let source = with_dtype(peer(shape, block_sizes[0]), from, 0.05);
            let sink = with_dtype(peer(shape, block_sizes[1]), to, scale);
            check(&source, &sink, 9, &mut stream);
        }
    }
}

/// Moves a single value through a re-layout.
fn move_one(value: f32, to: KvDtype, scale: f32) -> Result<Vec<u8>, RelayoutError> {
    let source = peer([1, 1, 1], 1);
    let mut sink = source.clone();
    sink.identity.kv.dtype = to;
    if to.bytes() == 1 {
        sink.identity.kv.scales = vec![scale; 2];
    }
    let allow = Allow {
        dtype: Conversion::Rounded,
        ..Allow::default()
    };
    let relayout = Relayout::new(&agree(&source, &sink, &allow).unwrap());
    let cell: Vec<u8> = [value.to_le_bytes(); 2].concat();
    let mut out = vec![0; sink.geometry().segment(1).bytes()];
    relayout.fill(0, 0, 1, &|_| &cell, &mut out)?;
    Ok(out)
}

#[test]
fn a_value_out_of_range_is_refused_and_not_saturated() {
    let cases = [
        (65_519.0, KvDtype::F16, 1.0, true),
        (65_520.0, KvDtype::F16, 1.0, false),
        (f32::INFINITY, KvDtype::F16, 1.0, true),
        (f32::MAX, KvDtype::Bf16, 1.0, false),
        (464.0, KvDtype::Fp8E4m3, 1.0, true),
        (465.0, KvDtype::Fp8E4m3, 1.0, false),
        (-930.0, KvDtype::Fp8E4m3, 2.0, false),
        (928.0, KvDtype::Fp8E4m3, 2.0, true),
        (f32::INFINITY, KvDtype::Fp8E4m3, 1.0, false),
        (61_439.0, KvDtype::Fp8E5m2, 1.0, true),
        (61_440.0, KvDtype::Fp8E5m2, 1.0, false),
        (f32::NEG_INFINITY, KvDtype::Fp8E5m2, 1.0, false),
    ];
    for (value, to, scale, fits) in cases {
        let moved = move_one(value, to, scale);
        assert_eq!(moved.is_ok(), fits, "{value} to {to:?}: {moved:?}");
    }
    let text = move_one(465.0, KvDtype::Fp8E4m3, 1.0)
        .unwrap_err()
        .to_string();
    assert_eq!(
        text,
        "key 465 of token 0, layer 0, KV head 0 is out of the range of the sink's Fp8E4m3 at \
         scale 1"
    );
    // NaN is a value of every type, and stays one.
    for to in [
        KvDtype::Bf16,
        KvDtype::F16,
        KvDtype::Fp8E4m3,
        KvDtype::Fp8E5m2,
    ] {
        let moved = move_one(f32::NAN, to, 1.0).unwrap();
        let start = moved.len() - to.bytes();
        let code = moved[start..]
            .iter()
            .rev()
            .fold(0, |n, b| n << 8 | u32::from(*b));
        assert!(widen(to, code).is_nan(), "{to:?}");
    }
}

#[test]
fn a_segment_with_another_scale_than_agreed_is_refused() {
    let source = with_dtype(peer([1, 1, 1], 1), KvDtype::Fp8E4m3, 0.5);
    let relayout = Relayout::new(&agree(&source, &source, &Allow::default()).unwrap());
    let segment = source.geometry().segment(1);
    let mut cell = vec![0; segment.bytes()];
    for (side, scale) in [(Side::Key, 0.5f32), (Side::Value, 0.25)] {
        let at = segment.scale_at(side, 0, 0).unwrap();
        cell[at..at + 4].copy_from_slice(&scale.to_le_bytes());
    }
    let mut out = vec![0; segment.bytes()];
    let error = relayout.fill(0, 0, 1, &|_| &cell, &mut out).unwrap_err();
    assert_eq!(
        error,
        RelayoutError::Scale {
            side: "value",
            layer: 0,
            found: 0.25,
            expected: 0.5625,
        }
    );
}
