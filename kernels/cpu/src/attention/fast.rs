//! Fast attention: tiles of 256 keys with an online softmax, so that scores stay in the first
//! level cache; and split keys, so that one decode row keeps more than one thread busy.
//!
//! The number of splits depends on the batch only, never on the thread count.

use std::ops::Range;

use super::micro::{Weights, add_values, exp_row, mask_and_max, scores};
use super::queries::Queries;
use super::source::{AnySource, Source};
use super::{MAX_STRIP, Task};
use crate::buffer::with_scratch;
use crate::isa::{Isa, Job};
use crate::kv::KvElem;
use crate::lanes::portable::VArray;
use crate::lanes::{LANES, Lanes};
use crate::math;

/// Keys per softmax tile.
const TILE: usize = 256;
/// Fewest keys worth a split of their own.
const SPLIT_KEYS: usize = 256;
/// With this many tasks or more, keys are not split.
const ENOUGH_TASKS: usize = 8;

/// A task, and where its unnormalised result goes if other tasks hold the rest of its keys.
pub(super) struct SplitTask {
    pub(super) task: Task,
    pub(super) partial: Option<Range<usize>>,
}

/// Values of one partial row: its maximum, its sum, and the d weighted values.
fn partial_width(d: usize) -> usize {
    d + 2
}

/// Splits the keys of tasks when there are too few tasks; returns the room for partials too.
pub(super) fn split_keys(tasks: Vec<Task>, d: usize) -> (Vec<SplitTask>, Vec<f32>) {
    let wanted = ENOUGH_TASKS.div_ceil(tasks.len().max(1));
    let mut used = 0;
    let mut out = Vec::with_capacity(tasks.len());
    for task in tasks {
        let keys = task.keys.end;
        let splits = wanted.min(keys / SPLIT_KEYS);
        if splits <= 1 {
            out.push(SplitTask {
                task,
                partial: None,
            });
            continue;
        }
        let step = keys.div_ceil(splits).next_multiple_of(TILE);
        for start in (0..keys).step_by(step) {
            let len = task.rows.len() * partial_width(d);
            let part = Task {
                keys: start..(start + step).min(keys),
                ..task.clone()
            };
            out.push(SplitTask {
                task: part,
                partial: Some(used..used + len),
            });
            used += len;
        }
    }
    (out, vec![0.0; used])
}

/// Computes the rows and keys of `task`, to the output or to `partial`.
pub(super) fn run<T: KvElem>(
    isa: Isa,
    queries: &Queries<'_>,
    task: &Task,
    source: AnySource<'_, T>,
    partial: Option<*mut f32>,
) {
    match source {
        AnySource::Direct(source) => run_on(isa, queries, task, source, partial),
        AnySource::Copied(source) => run_on(isa, queries, task, source, partial),
    }
}

fn run_on<T: KvElem>(
    isa: Isa,
    queries: &Queries<'_>,
    task: &Task,
    source: Source<'_, T>,
    partial: Option<*mut f32>,
) {
    let width = source.v_width;
    with_scratch(MAX_STRIP * (queries.d + width + TILE), |scratch| {
        let (q, rest) = scratch.split_at_mut(MAX_STRIP * queries.d);
        let (acc, s) = rest.split_at_mut(MAX_STRIP * width);
        let job = FastJob {
            queries,
            task,
            source,
            partial,
            q,
            acc,
            s,
        };
        // SAFETY: the scratch has the sizes the job names, and the caller checked the table.
        unsafe { isa.dispatch(job) };
    });
}

/// Needs `q` of 8 rows of d, `acc` of 8 rows of `v_width`, `s` of 8 rows of [`TILE`], a source
/// that has the task's keys, and room for the task's rows at `partial` if there is one.
struct FastJob<'a, T> {
    queries: &'a Queries<'a>,
    task: &'a Task,
    source: Source<'a, T>,
    partial: Option<*mut f32>,
    q: &'a mut [f32],
    acc: &'a mut [f32],
    s: &'a mut [f32],
}

/// Running maximum and sum of the weights of each row of a strip.
struct Running {
    max: [f32; MAX_STRIP],
    sum: [f32; MAX_STRIP],
}

impl<T: KvElem> Job for FastJob<'_, T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(mut self) {
        let all = self.task.rows.clone();
        for first in all.clone().step_by(L::ATTN_ROWS) {
            let rows = (all.end - first).min(L::ATTN_ROWS);
            // SAFETY: the rows exist and the buffers have the sizes promised to this job.
            unsafe { self.strip::<L>(first, rows) };
        }
    }
}

impl<T: KvElem> FastJob<'_, T> {
    #[inline(always)]
    unsafe fn strip<L: Lanes>(&mut self, first: usize, rows: usize) {
        let (queries, d) = (self.queries, self.queries.d);
        let width = self.source.v_width;
        let (q, acc) = (self.q.as_mut_ptr(), self.acc.as_mut_ptr());
        let end = queries.visible(first + rows - 1).min(self.task.keys.end);
        let mut state = Running {
            max: [f32::NEG_INFINITY; MAX_STRIP],
            sum: [0.0; MAX_STRIP],
        };
        // SAFETY: rows <= 8, so all accesses lie in the buffers promised to this job.
        unsafe {
            for r in 0..rows {
                queries.load_scaled::<L>(first + r, q.add(r * d));
            }
            std::ptr::write_bytes(acc, 0, rows * width);
            for start in (self.task.keys.start..end).step_by(TILE) {
                self.tile::<L>(first, rows, start..(start + TILE).min(end), &mut state);
            }
            for r in 0..rows {
                let mine = acc.add(r * width);
                let Some(partial) = self.partial else {
                    queries.store::<L>(first + r, mine, state.sum[r]);
                    continue;
                };
                let to = partial.add((first + r - self.task.rows.start) * partial_width(d));
                *to = state.max[r];
                *to.add(1) = state.sum[r];
                std::ptr::copy_nonoverlapping(mine, to.add(2), d);
            }
        }
    }

    /// Adds one tile of keys to the running softmax of a strip.
    #[inline(always)]
    unsafe fn tile<L: Lanes>(
        &mut self,
        first: usize,
        rows: usize,
        keys: Range<usize>,
        state: &mut Running,
    ) {
        let (queries, source) = (self.queries, &self.source);
        let width = source.v_width;
        let (q, acc, s) = (
            self.q.as_mut_ptr(),
            self.acc.as_mut_ptr(),
            self.s.as_mut_ptr(),
        );
        let seen = |r: usize| queries.visible(first + r).clamp(keys.start, keys.end);
        // SAFETY: the tile has at most TILE keys, all of which exist, and starts at a multiple
        // of 16, so all accesses lie in the buffers promised to this job.
        unsafe {
            for tile in keys.start / LANES..keys.end.div_ceil(LANES) {
                let to = s.add(tile * LANES - keys.start);
                scores::<L, T>(rows, q, queries.d, source.key_tile(tile), to, TILE);
            }
            for r in 0..rows {
                let (row, visible) = (s.add(r * TILE), seen(r) - keys.start);
                if visible > 0 {
                    let best = mask_and_max::<L>(row, visible);
                    let alpha = state.shift::<L>(r, best, acc.add(r * width), width);
                    let sums = exp_row::<L>(row, visible, state.max[r]);
                    state.sum[r] = state.sum[r] * alpha + math::sum(sums);
                }
            }
            let fewest = seen(0);
            let weights = Weights {
                p: s,
                ldp: TILE,
                first: keys.start,
            };
            add_values::<L, T>(rows, weights, source, keys.start..fewest, acc);
            for r in 1..rows {
                if seen(r) > fewest {
                    let weights = Weights {
                        p: s.add(r * TILE),
                        ..weights
                    };
                    add_values::<L, T>(1, weights, source, fewest..seen(r), acc.add(r * width));
                }
            }
        }
    }
}

impl Running {
    /// Raises the maximum of row `r` to `best` if that is larger, scales its accumulators to
    /// match, and returns the scale.
    #[inline(always)]
    unsafe fn shift<L: Lanes>(&mut self, r: usize, best: f32, acc: *mut f32, n: usize) -> f32 {
        let old = self.max[r];
        if old >= best {
            return 1.0;
        }
        self.max[r] = best;
        let mut scale = [0.0f32; LANES];
        // SAFETY: the caller promises n (a multiple of 16) accumulators.
        unsafe {
            let alpha = math::exp(L::splat(old - best));
            L::store(alpha, scale.as_mut_ptr());
            for i in (0..n).step_by(LANES) {
                L::store(L::mul(L::load(acc.add(i)), alpha), acc.add(i));
            }
        }
        scale[0]
    }
}

/// Joins the partial results of split tasks: each is weighted by `e^(its max - common max)`.
pub(super) fn merge<'q>(
    tasks: &[SplitTask],
    partials: &[f32],
    queries: impl Fn(&Task) -> Queries<'q>,
) {
    let split: Vec<_> = tasks
        .iter()
        .filter_map(|t| Some((&t.task, t.partial.clone()?.start)))
        .collect();
    let same = |a: &Task, b: &Task| (a.seq, a.kv_head, &a.rows) == (b.seq, b.kv_head, &b.rows);
    for parts in split.chunk_by(|a, b| same(a.0, b.0)) {
        let task = parts[0].0;
        let queries = queries(task);
        let width = partial_width(queries.d);
        let mut acc = vec![0.0f32; queries.d];
        for r in task.rows.clone() {
            let at = (r - task.rows.start) * width;
            let rows = || {
                parts
                    .iter()
                    .map(|(_, start)| &partials[start + at..][..width])
            };
            let max = rows().fold(f32::NEG_INFINITY, |m, p| m.max(p[0]));
            let mut sum = 0.0;
            acc.fill(0.0);
            for part in rows() {
                let weight = math::exp_f32(part[0] - max);
                sum += weight * part[1];
                for (a, v) in acc.iter_mut().zip(&part[2..]) {
                    *a += weight * v;
                }
            }
            // SAFETY: array lanes run on every CPU, acc holds d values, and all tasks are
            // done, so nobody else writes the output.
            unsafe { queries.store::<VArray>(r, acc.as_ptr(), sum) };
        }
    }
}
