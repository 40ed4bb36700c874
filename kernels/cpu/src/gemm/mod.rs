//! Matrix products `c[m][n] = sum over k of a[m][k] * w[n][k]`.
//!
//! Exact: each element is one chain of fused multiply-adds over k in order, starting from
//! zero. Lanes run over n, so neither the tile shape nor the number of rows can change a bit.
//!
//! Fast: bf16 weights, half the traffic. With few rows left the chain is cut into 2 or 4 parts
//! to hide latency, so the bits depend on how many rows come together: deliberately not batch
//! invariant.

mod tile;

use std::ops::Range;

use half::bf16;

use crate::isa::{Isa, Job};
use crate::lanes::Lanes;
use crate::packed::{PANEL_WIDTH, PackedBf16, PackedF32};
use crate::pool::{Pool, SharedMut};

/// Rows per task. At 2304 bytes a row (hidden size 576) they stay in the second-level cache
/// while all panels pass by, and so do the page translations of the output. A multiple of 24:
/// a whole number of tiles of 8, 6 and 4 rows.
const ROWS_PER_TASK: usize = 144;
/// Tasks per thread, so that a thread which lost its core does not hold up the region.
const TASKS_PER_THREAD: usize = 16;

/// `c = a w^T` with the bits fixed by `a`'s row, `w` and nothing else.
///
/// `a` is `[m][k]`, `c` is `[m][n]`, both row-major and dense.
///
/// # Panics
/// When a slice does not hold the values its shape asks for.
pub fn gemm_exact(isa: Isa, pool: &Pool, a: &[f32], m: usize, w: &PackedF32, c: &mut [f32]) {
    let (n, k) = (w.n(), w.k());
    product(pool, a, (m, n, k), c, |rows, panel, out| {
        let job = GemmJob::<f32, false> {
            a,
            k,
            w: w.panel(panel),
            n,
            rows,
            panel,
            out,
        };
        // SAFETY: product() checked all sizes, and hands every cell to one task only.
        unsafe { isa.dispatch(job) };
    });
}

/// `c = a w^T` as fast as possible; f32 activations and sums, bf16 weights.
///
/// Bits may change with `m` but not with the thread count. `a` is `[m][k]`, `c` is `[m][n]`,
/// both row-major and dense.
///
/// # Panics
/// When a slice does not hold the values its shape asks for.
pub fn gemm_fast(isa: Isa, pool: &Pool, a: &[f32], m: usize, w: &PackedBf16, c: &mut [f32]) {
    let (n, k) = (w.n(), w.k());
    product(pool, a, (m, n, k), c, |rows, panel, out| {
        let job = GemmJob::<bf16, true> {
            a,
            k,
            w: w.panel(panel),
            n,
            rows,
            panel,
            out,
        };
        // SAFETY: product() checked all sizes, and hands every cell to one task only.
        unsafe { isa.dispatch(job) };
    });
}

/// Checks sizes, and calls `f(rows, panel, output)` for all cells of the output in parallel.
fn product(
    pool: &Pool,
    a: &[f32],
    (m, n, k): (usize, usize, usize),
    c: &mut [f32],
    f: impl Fn(Range<usize>, usize, SharedMut<f32>) + Sync,
) {
    assert_eq!(a.len(), m * k, "activations of an {m} x {k} matrix");
    assert_eq!(c.len(), m * n, "outputs of an {m} x {n} matrix");
    let grid = Grid::new(m, n.div_ceil(PANEL_WIDTH), pool.threads());
    let out = SharedMut::new(c);
    pool.run(grid.tasks(), |task| {
        let (panels, rows) = grid.task(task);
        for panel in panels {
            f(rows.clone(), panel, out);
        }
    });
}

/// How a product is cut into tasks. Rows are cut at fixed places, because the fast product's
/// bits depend on them; only the panels of a task depend on the thread count.
struct Grid {
    m: usize,
    panels: usize,
    panels_per_task: usize,
}

impl Grid {
    fn new(m: usize, panels: usize, threads: usize) -> Self {
        let wanted = threads * TASKS_PER_THREAD;
        let cells = panels * m.div_ceil(ROWS_PER_TASK);
        let panels_per_task = if threads == 1 { panels } else { cells / wanted };
        Grid {
            m,
            panels,
            panels_per_task: panels_per_task.clamp(1, panels.max(1)),
        }
    }

    fn column_tasks(&self) -> usize {
        self.panels.div_ceil(self.panels_per_task)
    }

    fn tasks(&self) -> usize {
        self.column_tasks() * self.m.div_ceil(ROWS_PER_TASK)
    }

    /// Panels and rows of a task; all panels pass by one block of rows before the next.
    fn task(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let (row, col) = (task / self.column_tasks(), task % self.column_tasks());
        let (panel, first) = (col * self.panels_per_task, row * ROWS_PER_TASK);
        (
            panel..(panel + self.panels_per_task).min(self.panels),
            first..(first + ROWS_PER_TASK).min(self.m),
        )
    }
}

/// Product of some rows with one panel of weights, in chains that are cut into parts when
/// `SPLIT`. `a` must hold the rows, `w` a panel `[k][48]`, and `out` the rows of `n` outputs,
/// of which no other task may write this panel's columns.
struct GemmJob<'a, T, const SPLIT: bool> {
    a: &'a [f32],
    k: usize,
    w: &'a [T],
    n: usize,
    rows: Range<usize>,
    panel: usize,
    out: SharedMut<f32>,
}

impl<T, const SPLIT: bool> Job for GemmJob<'_, T, SPLIT> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let first_col = self.panel * PANEL_WIDTH;
        let width = (self.n - first_col).min(PANEL_WIDTH);
        for row in self.rows.clone().step_by(L::GEMM_ROWS) {
            let rows = (self.rows.end - row).min(L::GEMM_ROWS);
            // SAFETY: rows row..row + rows exist in a and in the output.
            unsafe {
                let a = self.a.as_ptr().add(row * self.k);
                let c = self.out.at(row * self.n + first_col);
                let args = tile::Tile {
                    a,
                    k: self.k,
                    w: self.w.as_ptr(),
                    c,
                    ldc: self.n,
                };
                tile::panel_rows::<L, T, SPLIT>(args, rows, width);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Grid;

    #[test]
    fn the_grid_covers_every_cell_once() {
        for (m, panels, threads) in [
            (1, 12, 2),
            (512, 4, 2),
            (512, 64, 1),
            (9, 1, 4),
            (290, 300, 4),
            (0, 3, 2),
            (7, 0, 2),
        ] {
            let grid = Grid::new(m, panels, threads);
            let mut seen = vec![0; m * panels];
            for t in 0..grid.tasks() {
                let (cols, rows) = grid.task(t);
                for p in cols {
                    for r in rows.clone() {
                        seen[r * panels + p] += 1;
                    }
                }
            }
            assert!(seen.iter().all(|x| *x == 1), "{m} x {panels} on {threads}");
        }
    }
}
