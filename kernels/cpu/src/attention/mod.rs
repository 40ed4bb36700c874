//! Causal attention over a paged key/value store.
//!
//! Work is described by sequences: some adjacent rows of q, the absolute position of the
//! first, and the blocks that hold the keys. Query `i` sees the keys `0..=start_pos + i`.
//! Nothing beyond a query's last visible key is ever used in arithmetic, so stale or poisoned
//! slots cannot leak through a multiplication by zero.
//!
//! The exact form keeps the whole score row of a query, so each step is one chain in absolute
//! key order and no tile, chunk or block size can show. The fast form walks tiles of keys with
//! an online softmax, and splits the keys of lone decode rows over tasks, merged by
//! log-sum-exp. Both run on the same register tiles.

mod exact;
mod fast;
mod micro;
mod queries;
mod source;

use crate::isa::Isa;
use crate::kv::{KvElem, KvLayerView};
use crate::lanes::LANES;
use crate::pool::{Pool, SharedMut};
use crate::rows::Rows;
use queries::Queries;

/// Query rows (tokens times heads of a group) per task.
const ROWS_PER_TASK: usize = 48;
/// Most rows that any instruction set holds in registers.
const MAX_STRIP: usize = 8;

/// Queries of one sequence in a batch.
#[derive(Clone, Copy, Debug)]
pub struct AttnSeq<'a> {
    /// First row of this sequence in q and in the output.
    pub q_row: usize,
    /// Number of queries.
    pub q_len: usize,
    /// Absolute position of the first query.
    pub start_pos: usize,
    /// Physical block of every logical block; must cover `start_pos + q_len` tokens.
    pub block_table: &'a [u32],
}

impl AttnSeq<'_> {
    /// Keys that exist.
    fn keys(&self) -> usize {
        self.start_pos + self.q_len
    }
}

/// Attention whose bits depend on a query, its keys and values only: not on chunking, batch,
/// block size, block order, thread count or instruction set.
///
/// `q` rows hold `q_heads * d_head` values, `out` is dense `[rows][q_heads * d_head]`. Query
/// head `h` reads key/value head `h / (q_heads / kv_heads)`. Scores are scaled by
/// `1 / sqrt(d_head)`. Elements of the store that have a scale enter as their product with it,
/// rounded to f32. Rows of `out` outside all sequences are left alone.
///
/// # Panics
/// When shapes disagree, a block table is too short or names a block that does not exist, or
/// two sequences share rows.
pub fn attention_exact<T: KvElem>(
    isa: Isa,
    pool: &Pool,
    q: Rows<'_>,
    q_heads: usize,
    kv: KvLayerView<'_, T>,
    seqs: &[AttnSeq<'_>],
    out: &mut [f32],
) {
    check(&q, q_heads, &kv, seqs, out);
    let call = Call {
        q,
        q_heads,
        kv,
        out: SharedMut::new(out),
    };
    let tasks = row_tasks(&call, seqs);
    pool.run(tasks.len(), |i| {
        let task = &tasks[i];
        let (queries, seq) = (call.queries(seqs, task), &seqs[task.seq]);
        source::with_source(
            &call.kv,
            task.kv_head,
            seq.block_table,
            task.keys.end,
            |source| {
                exact::run(isa, &queries, &task.rows, source);
            },
        );
    });
}

/// Attention as fast as possible: online softmax, and keys split over tasks when there are
/// few queries. Bits may change with the batch, but not with the thread count.
///
/// Arguments and panics as for [`attention_exact`].
pub fn attention_fast<T: KvElem>(
    isa: Isa,
    pool: &Pool,
    q: Rows<'_>,
    q_heads: usize,
    kv: KvLayerView<'_, T>,
    seqs: &[AttnSeq<'_>],
    out: &mut [f32],
) {
    check(&q, q_heads, &kv, seqs, out);
    let call = Call {
        q,
        q_heads,
        kv,
        out: SharedMut::new(out),
    };
    let tasks = row_tasks(&call, seqs);
    let (tasks, mut partials) = fast::split_keys(tasks, call.kv.shape.d_head);
    let shared = SharedMut::new(&mut partials);
    pool.run(tasks.len(), |i| {
        let fast::SplitTask { task, partial } = &tasks[i];
        let (queries, seq) = (call.queries(seqs, task), &seqs[task.seq]);
        source::with_source(
            &call.kv,
            task.kv_head,
            seq.block_table,
            task.keys.end,
            |source| {
                // SAFETY: split_keys gives every task its own range of the partial results.
                let to = partial
                    .as_ref()
                    .map(|range| unsafe { shared.at(range.start) });
                fast::run(isa, &queries, task, source, to);
            },
        );
    });
    fast::merge(&tasks, &partials, |task| call.queries(seqs, task));
}

/// What all tasks of one call share.
struct Call<'a, T> {
    q: Rows<'a>,
    q_heads: usize,
    kv: KvLayerView<'a, T>,
    out: SharedMut<f32>,
}

/// A piece of work: some query rows of one sequence and one key/value head.
///
/// Rows count tokens times the heads of the group, token first.
#[derive(Clone, Debug)]
struct Task {
    seq: usize,
    kv_head: usize,
    rows: std::ops::Range<usize>,
    keys: std::ops::Range<usize>,
}

impl<'a, T: KvElem> Call<'a, T> {
    fn group(&self) -> usize {
        self.q_heads / self.kv.shape.kv_heads
    }

    fn queries(&self, seqs: &[AttnSeq<'_>], task: &Task) -> Queries<'a> {
        let (seq, group) = (&seqs[task.seq], self.group());

        Queries {
            q: self.q,
            q_row: seq.q_row,
            start_pos: seq.start_pos,
            group,
            first_head: task.kv_head * group,
            d: self.kv.shape.d_head,
            out: self.out,
            out_stride: self.q_heads * self.kv.shape.d_head,
        }
    }
}

/// Cuts the batch into tasks of about [`ROWS_PER_TASK`] rows, each with all keys it sees.
fn row_tasks<T: KvElem>(call: &Call<'_, T>, seqs: &[AttnSeq<'_>]) -> Vec<Task> {
    let group = call.group();
    let tokens = (ROWS_PER_TASK / group).max(1);
    let mut tasks = Vec::new();
    for (i, seq) in seqs.iter().enumerate() {
        for first in (0..seq.q_len).step_by(tokens) {
            let last = (first + tokens).min(seq.q_len);
            tasks.extend((0..call.kv.shape.kv_heads).map(|kv_head| Task {
                seq: i,
                kv_head,
                rows: first * group..last * group,
                keys: 0..seq.start_pos + last,
            }));
        }
    }
    tasks
}

fn check<T: KvElem>(
    q: &Rows<'_>,
    q_heads: usize,
    kv: &KvLayerView<'_, T>,
    seqs: &[AttnSeq<'_>],
    out: &[f32],
) {
    let (shape, blocks) = (kv.shape, kv.blocks());
    assert!(
        q_heads > 0 && q_heads.is_multiple_of(shape.kv_heads),
        "{q_heads} heads on {shape:?}"
    );
    let width = q_heads * shape.d_head;
    assert_eq!(out.len() % width, 0, "output rows of {width}");
    let mut taken: Vec<_> = seqs.iter().map(|s| (s.q_row, s.q_row + s.q_len)).collect();
    taken.sort_unstable();
    assert!(
        taken.windows(2).all(|w| w[0].1 <= w[1].0),
        "sequences share rows"
    );
    for seq in seqs {
        let end = seq.q_row + seq.q_len;
        assert!(
            end <= out.len() / width,
            "rows up to {end} of {}",
            out.len() / width
        );
        q.check(end, width, "queries");
        let used = seq.keys().div_ceil(shape.block_size);
        assert!(
            used <= seq.block_table.len(),
            "{used} blocks, table has fewer"
        );
        let known = seq.block_table[..used]
            .iter()
            .all(|b| (*b as usize) < blocks);
        assert!(
            known,
            "a block of the table is not among the {blocks} that exist"
        );
    }
}

/// `n` rounded up to whole vectors.
fn padded(n: usize) -> usize {
    n.next_multiple_of(LANES)
}
