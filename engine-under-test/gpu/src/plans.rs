//! Which kernel computes the attention of which rows.
//!
//! In `exact` one kernel computes all of them, so that a row has one order of sums whatever is with
//! it. In `fast` single tokens are split over their keys, and so are chunks that would hold a step
//! up: a tile of prefill walks through all its keys, and a few tiles with a long prefix leave most
//! of a device idle.

use pb_contract::Numerics;
use pb_kernels_cuda::KernelError;
use pb_kernels_cuda::ops::{BatchSeq, DecodePlan, LoraPlan, PrefillPlan, PrefillSplitPlan};
use pb_model::config::LlamaConfig;

use crate::batch::Batch;

/// Blocks of threads that a decode launch should have at least: a few for every multiprocessor of
/// a large GPU.
pub(crate) const DECODE_ITEMS: usize = 512;

/// Blocks of prefill that a large GPU runs at once: two for each of some 130 multiprocessors, whose
/// shared memory holds no more at heads of 128.
const PREFILL_BLOCKS: usize = 256;

/// Keys of a range of prefill at least. A range of 64 rows leaves 4 bytes a row and dimension,
/// which the merge reads again; its keys and values then have twice as many bytes as these two, at
/// 16 bits.
const PREFILL_SPLIT_MIN: usize = 256;

/// The plans of a step.
pub(crate) struct Plans {
    /// Chunks whose tiles walk through all their keys.
    pub(crate) prefill: PrefillPlan,
    /// Chunks whose keys are split.
    pub(crate) split: PrefillSplitPlan,
    /// Single tokens of `fast`.
    pub(crate) decode: DecodePlan,
    pub(crate) lora: LoraPlan,
}

impl Plans {
    /// Plans for `batch`.
    pub(crate) fn new(
        batch: &Batch<'_>,
        config: &LlamaConfig,
        numerics: Numerics,
    ) -> Result<Self, KernelError> {
        let (fast, group) = (numerics == Numerics::Fast, config.group());
        let singles = batch.seqs(|c| fast && !c.is_prefill && c.tokens.len() == 1);
        let chunks = batch.seqs(|c| !(fast && !c.is_prefill && c.tokens.len() == 1));
        let keys = prefill_split(&chunks, group, config.kv_heads);
        let is_long = |c: &BatchSeq<'_>| fast && is_long(c, keys);
        let (long, whole): (Vec<_>, Vec<_>) = chunks.into_iter().partition(is_long);
        let items = DecodePlan::balanced_split(&singles, DECODE_ITEMS);
        Ok(Plans {
            prefill: PrefillPlan::new(&whole, group)?,
            split: PrefillSplitPlan::new(&long, group, keys)?,
            decode: DecodePlan::new(&singles, items)?,
            lora: LoraPlan::new(&batch.adapters),
        })
    }
}

/// Keys of a range so that `chunks` fill a large GPU evenly: those of a block's share of the work.
fn prefill_split(chunks: &[BatchSeq<'_>], group: usize, kv_heads: usize) -> usize {
    let wanted = PREFILL_BLOCKS.div_ceil(kv_heads);
    PrefillSplitPlan::balanced_split(chunks, group, wanted).max(PREFILL_SPLIT_MIN)
}

/// Whether a chunk has keys for a range of `keys` and half of another: less would not be worth a
/// merge.
fn is_long(chunk: &BatchSeq<'_>, keys: usize) -> bool {
    2 * (chunk.start_pos + chunk.q_len) >= 3 * keys
}

#[cfg(test)]
mod tests {
    use super::{BatchSeq, is_long, prefill_split};

    /// Of each chunk (tokens, position of the first) whether it is split, and the size of ranges,
    /// with 8 heads of keys and values and groups of 4: a tile has 16 tokens.
    fn chosen(chunks: &[(usize, usize)]) -> (Vec<bool>, usize) {
        let seq = |(q_len, start_pos): &(usize, usize)| BatchSeq {
            q_row: 0,
            q_len: *q_len,
            start_pos: *start_pos,
            block_table: &[],
        };
        let seqs: Vec<_> = chunks.iter().map(seq).collect();
        let keys = prefill_split(&seqs, 4, 8);
        (seqs.iter().map(|s| is_long(s, keys)).collect(), keys)
    }

    #[test]
    fn chunks_are_split_where_they_would_leave_a_device_idle() {
        // One tile with 8192 keys: 32 ranges for each of 8 heads.
        assert_eq!(chosen(&[(16, 8176)]), (vec![true], 256));
        // 32 tiles and 8 heads are all that fits: a tile's keys are a block's share.
        assert_eq!(chosen(&[(512, 7680)]), (vec![false], 8192));
        assert_eq!(chosen(&[(2048, 0)]).0, [false]);
        // Half of that: two ranges each.
        assert_eq!(chosen(&[(256, 7936)]), (vec![true], 4096));
        // Short prompts are whole, however few.
        assert_eq!(chosen(&[(300, 0)]).0, [false]);
        // 64 tiles of 1024 keys, and one that would go on alone for 32 thousand.
        let (split, keys) = chosen(&[(1024, 0), (16, 32_752)]);
        assert_eq!((split, keys), (vec![false, true], 3072));
        // The same one among tiles of its length, which fill the device.
        assert_eq!(chosen(&[(512, 32_256), (16, 32_752)]).0, [false, false]);
    }
}
