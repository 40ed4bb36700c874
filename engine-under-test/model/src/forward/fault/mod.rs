//! Planted numerical faults: what a later chunk would get wrong if the engine had this defect.
//!
//! Each fault acts where the real defect would: on rotary positions, on the keys and values that
//! attention is given, on how partial results are merged, on what is stored, on the row that
//! logits are taken from. All but [`Fault::KvMantissaCut`] act on runs that do not start at
//! position 0, so that a monolithic prefill is clean and can be compared with.
//!
//! This file decides, on positions alone; [`attention`] carries out. Without a fault neither is
//! entered.

mod attention;

use std::ops::Range;

use pb_contract::{Fault, FaultClass};

pub(super) use attention::Attention;

/// The fault itself if it is one of the forward pass, else none.
pub fn numeric(fault: Fault) -> Fault {
    if fault.class() == Some(FaultClass::Numerics) {
        fault
    } else {
        Fault::None
    }
}

/// The rotary position of the token at `position`, in a run that starts at `start`.
pub(super) fn rotary_position(fault: Fault, start: usize, position: usize) -> usize {
    match fault {
        Fault::RopeRestartsEachChunk => position - start,
        Fault::RopePlusOneAfterFirstChunk if start > 0 => position + 1,
        Fault::RopeMinusOneAfterFirstChunk if start > 0 => position - 1,
        _ => position,
    }
}

/// The batch row whose hidden state gives the logits of row `row`.
pub(super) fn logits_row(fault: Fault, start: usize, row: usize) -> usize {
    if fault == Fault::LogitsRowOffByOne && start > 0 {
        row.saturating_sub(1)
    } else {
        row
    }
}

/// `x` with three bits of mantissa, rounded to nearest even.
pub(super) fn cut_mantissa(x: f32) -> f32 {
    const DROPPED: u32 = f32::MANTISSA_DIGITS - 1 - 3;
    let bits = x.to_bits();
    let half = (1 << (DROPPED - 1)) - 1 + ((bits >> DROPPED) & 1);
    f32::from_bits(bits.wrapping_add(half) >> DROPPED << DROPPED)
}

/// Where a run lies: its first position, its length and the blocks it is stored in.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) block_size: usize,
}

/// Whether attention of a run that starts at `start` differs in this layer. Faults of one layer
/// sit in the middle one.
pub(super) fn touches_attention(fault: Fault, start: usize, layer: usize, layers: usize) -> bool {
    use Fault::*;
    let here = match fault {
        StaleBlockOneLayer | StaleSlotOneLayer | ZeroSlotOneLayer => layer == layers / 2,
        MaskSeesFuture | MaskExcludesSelf | MaskTopLeft | ContextIgnored => true,
        LastOfPreviousChunkMissing | FirstTokenMissing | PartialBlockMissing => true,
        StaleBlock | ZeroSlot | KvHeadModulo | MergeBase2 => true,
        KBlocksSwapped | KAndVBlocksSwapped => true,
        _ => false,
    };
    here && start > 0
}

/// The keys and values that attention is given, as positions of the sequence; `None` is zero.
#[derive(Debug, PartialEq)]
struct Context {
    keys: Vec<Option<usize>>,
    values: Vec<Option<usize>>,
    /// Query `i` sees the first `start + i + 1` of them.
    start: usize,
    /// Every query but the last sees one more.
    one_ahead: bool,
}

impl Context {
    /// What a run of `span` sees under `fault`.
    fn under(fault: Fault, span: Span) -> Context {
        let (start, last) = (span.start, span.start - 1);
        let all: Vec<_> = (0..start + span.len).map(Some).collect();
        let mut context = Context {
            keys: all.clone(),
            values: all,
            start,
            one_ahead: fault == Fault::MaskSeesFuture,
        };
        let partial = start / span.block_size * span.block_size..start;
        match fault {
            Fault::MaskExcludesSelf => context.start = last,
            Fault::MaskTopLeft => context.start = 0,
            Fault::ContextIgnored => context.leave_out(0..start),
            Fault::LastOfPreviousChunkMissing => context.leave_out(last..start),
            Fault::FirstTokenMissing => context.leave_out(0..1),
            Fault::PartialBlockMissing => context.leave_out(partial),
            Fault::ZeroSlot | Fault::ZeroSlotOneLayer => context.replace(last, None),
            Fault::StaleSlotOneLayer => context.replace(last, (last > 0).then_some(last / 2)),
            Fault::StaleBlock | Fault::StaleBlockOneLayer => {
                for (position, by) in stale_block(span) {
                    context.replace(position, by);
                }
            }
            Fault::KBlocksSwapped => swap_blocks(&mut context.keys, span),
            Fault::KAndVBlocksSwapped => {
                swap_blocks(&mut context.keys, span);
                swap_blocks(&mut context.values, span);
            }
            _ => {}
        }
        context
    }

    /// Leaves out positions before the run.
    fn leave_out(&mut self, positions: Range<usize>) {
        self.start -= positions.len();
        self.keys.drain(positions.clone());
        self.values.drain(positions);
    }

    fn replace(&mut self, position: usize, by: Option<usize>) {
        self.keys[position] = by;
        self.values[position] = by;
    }
}

/// The middle whole block of context holds what the first one does; where there is no other whole
/// block, what an unused block does: zeros.
fn stale_block(span: Span) -> Vec<(usize, Option<usize>)> {
    let whole = span.start / span.block_size;
    let stale = whole / 2;
    let slots = if whole > 0 { span.block_size } else { 0 };
    let held = |offset| (stale > 0).then_some(offset);
    (0..slots)
        .map(|offset| (stale * span.block_size + offset, held(offset)))
        .collect()
}

/// Exchanges the first and the last whole block of context.
fn swap_blocks(positions: &mut [Option<usize>], span: Span) {
    let whole = span.start / span.block_size;
    if whole >= 2 {
        for offset in 0..span.block_size {
            positions.swap(offset, (whole - 1) * span.block_size + offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 2: 0 1 | 2 3 | 4 are context, 5 6 7 are new.
    const SPAN: Span = Span {
        start: 5,
        len: 3,
        block_size: 2,
    };

    /// Positions, with 9 for zero.
    fn digits(rows: &[Option<usize>]) -> String {
        rows.iter().map(|p| p.unwrap_or(9).to_string()).collect()
    }

    #[test]
    fn contexts_by_hand() {
        let cases = [
            (Fault::None, "01234567", "01234567", 5),
            (Fault::MaskSeesFuture, "01234567", "01234567", 5),
            (Fault::MaskExcludesSelf, "01234567", "01234567", 4),
            (Fault::MaskTopLeft, "01234567", "01234567", 0),
            (Fault::ContextIgnored, "567", "567", 0),
            (Fault::LastOfPreviousChunkMissing, "0123567", "0123567", 4),
            (Fault::FirstTokenMissing, "1234567", "1234567", 4),
            (Fault::PartialBlockMissing, "0123567", "0123567", 4),
            (Fault::StaleBlock, "01014567", "01014567", 5),
            (Fault::StaleBlockOneLayer, "01014567", "01014567", 5),
            (Fault::StaleSlotOneLayer, "01232567", "01232567", 5),
            (Fault::ZeroSlotOneLayer, "01239567", "01239567", 5),
            (Fault::ZeroSlot, "01239567", "01239567", 5),
            (Fault::KBlocksSwapped, "23014567", "01234567", 5),
            (Fault::KAndVBlocksSwapped, "23014567", "23014567", 5),
        ];
        for (fault, keys, values, start) in cases {
            let context = Context::under(fault, SPAN);
            let got = (digits(&context.keys), digits(&context.values));
            assert_eq!(got, (keys.into(), values.into()), "{fault:?}");
            assert_eq!(context.start, start, "{fault:?}");
            assert_eq!(context.one_ahead, fault == Fault::MaskSeesFuture);
        }
        // A context of whole blocks has no partial one to miss.
        let whole = Span { start: 4, ..SPAN };
        let clean = Context::under(Fault::None, whole);
        assert_eq!(Context::under(Fault::PartialBlockMissing, whole), clean);
    }

    #[test]
    fn the_shortest_contexts_are_defined() {
        for start in 1..4 {
            let span = Span { start, ..SPAN };
            for fault in Fault::ALL {
                let context = Context::under(*fault, span);
                assert!(context.start + 3 <= context.keys.len(), "{fault:?} {start}");
                assert_eq!(context.keys.len(), context.values.len());
            }
        }
    }

    #[test]
    fn positions_and_rows() {
        let plus = Fault::RopePlusOneAfterFirstChunk;
        let minus = Fault::RopeMinusOneAfterFirstChunk;
        assert_eq!(rotary_position(plus, 0, 3), 3);
        assert_eq!(rotary_position(plus, 2, 3), 4);
        assert_eq!(rotary_position(minus, 0, 0), 0);
        assert_eq!(rotary_position(minus, 1, 1), 0);
        assert_eq!(rotary_position(Fault::RopeRestartsEachChunk, 64, 66), 2);
        assert_eq!(logits_row(Fault::LogitsRowOffByOne, 0, 3), 3);
        assert_eq!(logits_row(Fault::LogitsRowOffByOne, 9, 3), 2);
        assert_eq!(logits_row(Fault::LogitsRowOffByOne, 9, 0), 0);
    }

    #[test]
    fn three_bits_of_mantissa() {
        // Steps of 1/8 between 1 and 2; ties go to the even neighbour.
        let cases = [
            (1.0, 1.0),
            (1.05, 1.0),
            (1.0625, 1.0),
            (1.1875, 1.25),
            (1.97, 2.0),
            (-3.3, -3.25),
            (0.0, 0.0),
            (1e-3, 0.000_976_562_5),
        ];
        for (x, want) in cases {
            assert_eq!(cut_mantissa(x), want, "{x}");
        }
    }

    #[test]
    fn one_layer_faults_touch_one_layer() {
        let layers = |fault, start| {
            (0..4)
                .filter(|l| touches_attention(fault, start, *l, 4))
                .count()
        };
        assert_eq!(layers(Fault::StaleBlockOneLayer, 16), 1);
        assert_eq!(layers(Fault::StaleBlock, 16), 4);
        assert_eq!(layers(Fault::StaleBlock, 0), 0);
        assert_eq!(layers(Fault::RopePlusOneAfterFirstChunk, 16), 0);
    }
}
