//! Matrix products `c[m][n] = sum over k of a[m][k] * w[n][k]`.
//!
//! Exact: each element is one chain of fused multiply-adds over k in order, starting from
//! zero. Lanes run over n, so neither the tile shape nor the number of rows can change a bit.
//!
//! Fast: bf16 weights, half the traffic, and optionally bf16 activations. With few rows left
//! the chain is cut into 2 or 4 parts to hide latency, so the bits depend on how many rows come
//! together: deliberately not batch invariant.

mod round;
mod step;
mod tile;

use std::ops::Range;

use half::bf16;

use self::step::{Exact, Paired, Step, Widened};
use crate::isa::{Dot, DotJob, Isa, Job};
use crate::lanes::{DotLanes, Lanes};
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
    check(a, m, (n, k), c);
    product(pool, (m, n), c, |rows, panel, out| {
        let w = w.panel(panel);
        // SAFETY: the sizes are checked, and product() hands every cell to one task only.
        unsafe {
            isa.dispatch(GemmJob {
                a,
                k,
                w,
                n,
                rows,
                panel,
                out,
            })
        };
    });
}

/// `c = a w^T` as fast as possible, with bf16 weights and f32 sums.
///
/// With [`Dot::F32`] the activations are taken as they are. With [`Dot::Bf16`] they are rounded
/// to bf16 first, whatever `m` and `isa` are, so the size of that error does not depend on
/// how rows are batched; see [`crate::bounds::bf16_dot_bound`] for what comes on top.
///
/// Bits may change with `m` but not with the thread count. `a` is `[m][k]`, `c` is `[m][n]`,
/// both row-major and dense.
///
/// # Panics
/// When a slice does not hold the values its shape asks for.
pub fn gemm_fast(
    isa: Isa,
    pool: &Pool,
    dot: Dot,
    a: &[f32],
    m: usize,
    w: &PackedBf16,
    c: &mut [f32],
) {
    let k = w.k();
    check(a, m, (w.n(), k), c);
    match dot {
        Dot::F32 => widened_product(isa, pool, a, m, w, c),
        Dot::Bf16 if isa.supports_dot(dot) => {
            round::with_pairs(isa, pool, a, (m, k), |a| {
                paired_product(isa, pool, a, m, w, c)
            });
        }
        Dot::Bf16 => {
            round::with_rounded(isa, pool, a, |a| widened_product(isa, pool, a, m, w, c));
        }
    }
}

fn widened_product(isa: Isa, pool: &Pool, a: &[f32], m: usize, w: &PackedBf16, c: &mut [f32]) {
    let (n, k) = (w.n(), w.k());
    product(pool, (m, n), c, |rows, panel, out| {
        let w = w.panel(panel);
        // SAFETY: the sizes are checked, and product() hands every cell to one task only.
        unsafe {
            isa.dispatch(GemmJob {
                a,
                k,
                w,
                n,
                rows,
                panel,
                out,
            })
        };
    });
}

fn paired_product(isa: Isa, pool: &Pool, a: &[[bf16; 2]], m: usize, w: &PackedBf16, c: &mut [f32]) {
    let (n, k) = (w.n(), w.k().div_ceil(2));
    product(pool, (m, n), c, |rows, panel, out| {
        let w = w.panel(panel);
        // SAFETY: the sizes are checked, and product() hands every cell to one task only.
        unsafe {
            isa.dispatch_dot(GemmJob {
                a,
                k,
                w,
                n,
                rows,
                panel,
                out,
            })
        };
    });
}

fn check(a: &[f32], m: usize, (n, k): (usize, usize), c: &[f32]) {
    assert_eq!(a.len(), m * k, "activations of an {m} x {k} matrix");
    assert_eq!(c.len(), m * n, "outputs of an {m} x {n} matrix");
}

/// Calls `f(rows, panel, output)` for all cells of the output in parallel.
fn product(
    pool: &Pool,
    (m, n): (usize, usize),
    c: &mut [f32],
    f: impl Fn(Range<usize>, usize, SharedMut<f32>) + Sync,
) {
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

/// Product of some rows with one panel of weights. `a` must hold the rows of `k` elements, `w` a
/// panel for them, and `out` the rows of `n` outputs, of which no other task may write this
/// panel's columns.
struct GemmJob<'a, A, W> {
    a: &'a [A],
    k: usize,
    w: &'a [W],
    n: usize,
    rows: Range<usize>,
    panel: usize,
    out: SharedMut<f32>,
}

impl<A, W> GemmJob<'_, A, W> {
    #[inline(always)]
    unsafe fn walk<L: Lanes, S: Step<L, Act = A, Word = W>>(self) {
        let first_col = self.panel * PANEL_WIDTH;
        let width = (self.n - first_col).min(PANEL_WIDTH);
        for row in self.rows.clone().step_by(L::GEMM_ROWS) {
            let rows = (self.rows.end - row).min(L::GEMM_ROWS);
            // SAFETY: rows row..row + rows exist in a and in the output.
            unsafe {
                let args = tile::Tile {
                    a: self.a.as_ptr().add(row * self.k),
                    k: self.k,
                    w: self.w.as_ptr(),
                    c: self.out.at(row * self.n + first_col),
                    ldc: self.n,
                };
                tile::panel_rows::<L, S>(args, rows, width);
            }
        }
    }
}

impl Job for GemmJob<'_, f32, f32> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: passed on from the caller.
        unsafe { self.walk::<L, Exact>() }
    }
}

impl Job for GemmJob<'_, f32, [bf16; 2]> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: passed on from the caller.
        unsafe { self.walk::<L, Widened>() }
    }
}

impl DotJob for GemmJob<'_, [bf16; 2], [bf16; 2]> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: DotLanes>(self) {
        // SAFETY: passed on from the caller.
        unsafe { self.walk::<L, Paired>() }
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
