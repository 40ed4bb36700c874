//! Launch plans: a batch of sequences cut into blocks of threads.

use crate::error::{KernelError, require};

/// Query rows of one tile of prefill, and keys of one tile of either kernel.
const TILE: usize = 64;

/// Queries of one sequence in a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchSeq<'a> {
    /// First row in q and out.
    pub q_row: usize,
    /// Queries; at least one.
    pub q_len: usize,
    /// Position of the first query.
    pub start_pos: usize,
    /// Block of every logical block; covers `start_pos + q_len` tokens.
    pub block_table: &'a [u32],
}

/// `PbSeq` of `paged.cuh`: first row, queries, position of the first, start of the block table.
pub type SeqWords = [u32; 4];

/// Sequences and their block tables, as the kernels read them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Batch {
    seqs: Vec<SeqWords>,
    tables: Vec<u32>,
}

impl Batch {
    fn new(op: &'static str, seqs: &[BatchSeq<'_>]) -> Result<Self, KernelError> {
        let mut batch = Batch::default();
        let mut taken: Vec<_> = seqs.iter().map(|s| (s.q_row, s.q_row + s.q_len)).collect();
        taken.sort_unstable();
        let apart = taken.windows(2).all(|w| w[0].1 <= w[1].0);
        require(apart, op, "sequences", taken, "rows of their own")?;
        for s in seqs {
            require(
                s.q_len > 0,
                op,
                "queries of a sequence",
                s.q_len,
                "at least 1",
            )?;
            let small = s.start_pos + s.q_len <= 1 << 30 && s.q_row + s.q_len <= 1 << 30;
            require(
                small,
                op,
                "sequence",
                (s.q_row, s.q_len, s.start_pos),
                "below 2^30",
            )?;
            let table_at = batch.tables.len() as u32;
            batch.tables.extend(s.block_table);
            batch
                .seqs
                .push([s.q_row as u32, s.q_len as u32, s.start_pos as u32, table_at]);
        }
        Ok(batch)
    }

    /// Checks every sequence against a pool of `blocks` blocks and `rows` rows of queries.
    fn check(
        &self,
        op: &'static str,
        block_size: usize,
        blocks: usize,
        rows: usize,
    ) -> Result<(), KernelError> {
        for (i, [q_row, q_len, start, table_at]) in self.seqs.iter().enumerate() {
            let end_row = (q_row + q_len) as usize;
            require(
                end_row <= rows,
                op,
                "last row",
                end_row,
                format!("at most {rows}"),
            )?;
            let used = ((start + q_len) as usize).div_ceil(block_size);
            let next = self
                .seqs
                .get(i + 1)
                .map_or(self.tables.len(), |s| s[3] as usize);
            let table = &self.tables[*table_at as usize..next];
            require(
                used <= table.len(),
                op,
                "block table",
                table.len(),
                format!("{used} blocks"),
            )?;
            if let Some(block) = table[..used].iter().find(|b| **b as usize >= blocks) {
                require(false, op, "block", block, format!("below {blocks}"))?;
            }
        }
        Ok(())
    }
}

/// A plan of chunks of any length, in one launch. Single queries are chunks too.
#[derive(Clone, Debug)]
pub struct PrefillPlan {
    batch: Batch,
    /// Sequence and first of 64 query rows; a row is a token and a head of the group.
    pub(super) tiles: Vec<[u32; 2]>,
    group: usize,
}

impl PrefillPlan {
    /// Cuts `seqs` into tiles, for `group` query heads per key/value head. Tiles with most keys
    /// come first, so that the last blocks of the launch are short.
    ///
    /// # Errors
    /// When a sequence is empty, or two share rows.
    pub fn new(seqs: &[BatchSeq<'_>], group: usize) -> Result<Self, KernelError> {
        let batch = Batch::new("prefill", seqs)?;
        require(group > 0, "prefill", "group", group, "at least 1")?;
        let mut tiles = Vec::new();
        for (i, s) in seqs.iter().enumerate() {
            for first in (0..s.q_len * group).step_by(TILE) {
                let last_row = (first + TILE).min(s.q_len * group) - 1;
                let keys = s.start_pos + last_row / group + 1;
                tiles.push((std::cmp::Reverse(keys), [i as u32, first as u32]));
            }
        }
        tiles.sort_unstable();
        Ok(PrefillPlan {
            batch,
            tiles: tiles.into_iter().map(|(_, tile)| tile).collect(),
            group,
        })
    }

    /// Whether there is nothing to launch.
    pub fn is_empty(&self) -> bool {
        self.tiles.is_empty()
    }

    /// Sequences, as the kernel reads them.
    pub fn seqs(&self) -> &[SeqWords] {
        &self.batch.seqs
    }

    /// Tiles, likewise.
    pub fn tiles(&self) -> &[[u32; 2]] {
        &self.tiles
    }

    /// Block tables, likewise.
    pub fn tables(&self) -> &[u32] {
        &self.batch.tables
    }

    /// Checks the plan against a pool of `blocks` blocks of `block_size` tokens, `rows` rows of
    /// queries and `group` query heads per key/value head.
    ///
    /// # Errors
    /// When a row or block does not exist, a table is too short, or the group is another.
    pub fn check(
        &self,
        block_size: usize,
        blocks: usize,
        rows: usize,
        group: usize,
    ) -> Result<(), KernelError> {
        let planned = self.group;
        require(
            group == planned,
            "prefill",
            "group",
            group,
            format!("the plan's {planned}"),
        )?;
        self.batch.check("prefill", block_size, blocks, rows)
    }
}

/// A plan of chunks whose keys are split into ranges: for a few queries after a long prefix, which
/// would leave most of a device idle as one tile.
#[derive(Clone, Debug)]
pub struct PrefillSplitPlan {
    whole: PrefillPlan,
    /// Sequence, first row, first key, first token: `PrefillRange` of `prefill.cu`.
    pub(super) ranges: Vec<[u32; 4]>,
    /// First partial result of every token, and the end.
    pub(super) first_partial: Vec<u32>,
    /// Every token as a sequence of one query, for the merge.
    pub(super) tokens: Vec<SeqWords>,
    /// Keys of a range.
    pub(super) split: usize,
}

impl PrefillSplitPlan {
    /// Cuts `seqs` into tiles of 64 rows and ranges of `split` keys. Ranges start at multiples of
    /// `split`, so with one `split` a token gets the same bits in any chunk and any batch.
    ///
    /// # Errors
    /// As [`PrefillPlan::new`]; and when `split` is no multiple of 64.
    pub fn new(seqs: &[BatchSeq<'_>], group: usize, split: usize) -> Result<Self, KernelError> {
        let op = "prefill_split";
        let whole = PrefillPlan::new(seqs, group)?;
        let good = split > 0 && split.is_multiple_of(TILE) && split <= 1 << 30;
        require(good, op, "split", split, "a multiple of 64")?;
        let (mut first_partial, mut tokens, mut starts) = (vec![0u32], Vec::new(), Vec::new());
        let mut partials = 0usize;
        for s in seqs {
            starts.push(tokens.len() as u32);
            for i in 0..s.q_len {
                partials += (s.start_pos + i) / split + 1;
                // A token's partial results are numbered in 32 bits.
                require(
                    partials < 1 << 30,
                    op,
                    "partial results",
                    partials,
                    "below 2^30",
                )?;
                first_partial.push(partials as u32);
                tokens.push([(s.q_row + i) as u32, 1, (s.start_pos + i) as u32, 0]);
            }
        }
        let mut ranges = Vec::new();
        for [seq, first_row] in &whole.tiles {
            let s = &seqs[*seq as usize];
            let last_row = (*first_row as usize + TILE).min(s.q_len * group) - 1;
            let keys = s.start_pos + last_row / group + 1;
            let firsts = (0..keys).step_by(split);
            ranges.extend(firsts.map(|key| [*seq, *first_row, key as u32, starts[*seq as usize]]));
        }
        Ok(PrefillSplitPlan {
            whole,
            ranges,
            first_partial,
            tokens,
            split,
        })
    }

    /// A split that gives about `wanted` blocks of threads for each key/value head: better balance,
    /// at the price of bits that follow the batch.
    pub fn balanced_split(seqs: &[BatchSeq<'_>], group: usize, wanted: usize) -> usize {
        let tile_keys =
            |s: &BatchSeq<'_>| (s.q_len * group).div_ceil(TILE) * (s.start_pos + s.q_len);
        let keys: usize = seqs.iter().map(tile_keys).sum();
        keys.div_ceil(wanted.max(1))
            .next_multiple_of(TILE)
            .max(TILE)
    }

    /// Partial results that a launch of this plan leaves.
    pub fn partials(&self) -> usize {
        // OK because the list starts with the first token's 0.
        *self.first_partial.last().expect("not empty") as usize
    }

    pub(super) fn whole(&self) -> &PrefillPlan {
        &self.whole
    }
}

/// A plan of single queries with their keys split.
#[derive(Clone, Debug)]
pub struct DecodePlan {
    batch: Batch,
    /// Sequence and first key.
    pub(super) items: Vec<[u32; 2]>,
    /// First item of every sequence, and the end.
    pub(super) first_item: Vec<u32>,
    /// Keys per item.
    pub(super) split: usize,
}

impl DecodePlan {
    /// Cuts the keys of every sequence into ranges of `split`. With one fixed `split` a sequence
    /// gets the same bits in any batch.
    ///
    /// # Errors
    /// When a sequence has not exactly one query, or `split` is no multiple of 64.
    pub fn new(seqs: &[BatchSeq<'_>], split: usize) -> Result<Self, KernelError> {
        let op = "decode";
        let batch = Batch::new(op, seqs)?;
        let good = split > 0 && split.is_multiple_of(TILE) && split <= 1 << 30;
        require(good, op, "split", split, "a multiple of 64")?;
        let (mut items, mut first_item) = (Vec::new(), vec![0]);
        for (i, s) in seqs.iter().enumerate() {
            require(s.q_len == 1, op, "queries of a sequence", s.q_len, "1")?;
            let firsts = (0..s.start_pos + 1).step_by(split);
            items.extend(firsts.map(|first| [i as u32, first as u32]));
            first_item.push(items.len() as u32);
        }
        Ok(DecodePlan {
            batch,
            items,
            first_item,
            split,
        })
    }

    /// A split that gives about `wanted` items in all: better balance on a device with room for
    /// as many blocks, at the price of bits that follow the batch.
    pub fn balanced_split(seqs: &[BatchSeq<'_>], wanted: usize) -> usize {
        let keys: usize = seqs.iter().map(|s| s.start_pos + 1).sum();
        keys.div_ceil(wanted.max(1))
            .next_multiple_of(TILE)
            .max(TILE)
    }

    /// The plan with items that nobody merges, up to `items` in all: launches of plans of one
    /// length are alike.
    pub fn padded(mut self, items: usize) -> Self {
        let none = self.batch.seqs.is_empty();
        let items = if none { 0 } else { items.max(self.items.len()) };
        self.items.resize(items, [0, 0]);
        self
    }

    /// Partial results that a launch of this plan leaves.
    pub fn items(&self) -> usize {
        self.items.len()
    }

    /// Sequence and first key of every item, as the kernel reads them.
    pub fn item_words(&self) -> &[[u32; 2]] {
        &self.items
    }

    /// First item of every sequence, and the end, likewise.
    pub fn first_items(&self) -> &[u32] {
        &self.first_item
    }

    /// Keys per item.
    pub fn split(&self) -> usize {
        self.split
    }

    /// Sequences, as the kernels read them.
    pub fn seqs(&self) -> &[SeqWords] {
        &self.batch.seqs
    }

    /// Block tables, likewise.
    pub fn tables(&self) -> &[u32] {
        &self.batch.tables
    }

    /// Checks the plan against a pool of `blocks` blocks of `block_size` tokens and `rows` rows of
    /// queries.
    ///
    /// # Errors
    /// When a row or block does not exist, or a table is too short.
    pub fn check(&self, block_size: usize, blocks: usize, rows: usize) -> Result<(), KernelError> {
        self.batch.check("decode", block_size, blocks, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::{BatchSeq, DecodePlan, PrefillPlan, PrefillSplitPlan};

    fn seq(q_row: usize, q_len: usize, start_pos: usize) -> BatchSeq<'static> {
        BatchSeq {
            q_row,
            q_len,
            start_pos,
            block_table: &[0; 256],
        }
    }

    #[test]
    fn tiles_cover_every_row_and_the_longest_come_first() {
        // 50 tokens of 3 heads: 150 rows, tiles at 0, 64, 128; the second sequence has one tile.
        let plan = PrefillPlan::new(&[seq(0, 50, 0), seq(50, 1, 900)], 3).unwrap();
        assert_eq!(plan.tiles, [[1, 0], [0, 128], [0, 64], [0, 0]]);
    }

    #[test]
    fn items_start_at_multiples_of_the_split() {
        let plan = DecodePlan::new(&[seq(0, 1, 127), seq(1, 1, 128), seq(2, 1, 0)], 64).unwrap();
        let wanted = [[0, 0], [0, 64], [1, 0], [1, 64], [1, 128], [2, 0]];
        assert_eq!(plan.items, wanted);
        assert_eq!(plan.first_item, [0, 2, 5, 6]);
        let padded = plan.clone().padded(9);
        assert_eq!(
            (padded.items(), padded.first_items()),
            (9, plan.first_items())
        );
        assert_eq!(padded.item_words()[..6], wanted);
        assert_eq!(DecodePlan::balanced_split(&[seq(0, 1, 999)], 4), 256);
    }

    #[test]
    fn ranges_cover_what_each_tile_sees_and_tokens_count_their_own() {
        // Positions 126 to 129 after a split at 128: two tokens with one range, two with two. At
        // 20 heads a tile of 64 rows holds 3.2 tokens; the second sequence is one token at 0.
        let seqs = [seq(7, 4, 126), seq(3, 1, 0)];
        let plan = PrefillSplitPlan::new(&seqs, 20, 128).unwrap();
        assert_eq!(plan.first_partial, [0, 1, 2, 4, 6, 7]);
        assert_eq!(plan.partials(), 7);
        let rows: Vec<[u32; 2]> = plan.tokens.iter().map(|t| [t[0], t[2]]).collect();
        assert_eq!(rows, [[7, 126], [8, 127], [9, 128], [10, 129], [3, 0]]);
        let mut ranges = plan.ranges.clone();
        ranges.sort_unstable();
        let wanted = [
            [0, 0, 0, 0],
            [0, 0, 128, 0],
            [0, 64, 0, 0],
            [0, 64, 128, 0],
            [1, 0, 0, 4],
        ];
        assert_eq!(ranges, wanted);
        assert!(PrefillSplitPlan::new(&seqs, 20, 100).is_err());
        assert_eq!(
            PrefillSplitPlan::balanced_split(&[seq(0, 16, 8176)], 4, 32),
            256
        );
    }

    #[test]
    fn impossible_batches_are_refused() {
        assert!(PrefillPlan::new(&[seq(0, 4, 0), seq(3, 1, 0)], 1).is_err());
        assert!(PrefillPlan::new(&[seq(0, 0, 0)], 1).is_err());
        assert!(DecodePlan::new(&[seq(0, 2, 0)], 64).is_err());
        assert!(DecodePlan::new(&[seq(0, 1, 0)], 65).is_err());
        let short = BatchSeq {
            block_table: &[0],
            ..seq(0, 17, 0)
        };
        let plan = PrefillPlan::new(&[short], 1).unwrap();
        assert!(plan.check(16, 1, 17, 1).is_err() && plan.check(32, 1, 17, 1).is_ok());
        assert!(plan.check(32, 1, 16, 1).is_err() && plan.check(32, 0, 17, 1).is_err());
    }
}
