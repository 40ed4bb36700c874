//! Weight matrices laid out as the GEMM reads them: panels of 48 output columns, and within a
//! panel the 48 weights of one input next to each other. One format serves all instruction
//! sets (48 is three AVX-512 registers), so a packed model does not depend on the CPU.

use bytemuck::Pod;
use half::bf16;

use crate::buffer::AlignedBuf;

/// Output columns per panel.
pub const PANEL_WIDTH: usize = 48;

/// Weights in f32, for the exact kernels. Logical shape `[n][k]`: n outputs, k inputs.
#[derive(Clone, Debug)]
pub struct PackedF32(Panels<f32>);

/// Weights in bf16 (rounded to nearest even), for the fast kernels. Logical shape `[n][k]`.
#[derive(Clone, Debug)]
pub struct PackedBf16(Panels<bf16>);

#[derive(Clone, Debug)]
struct Panels<T> {
    data: AlignedBuf<T>,
    n: usize,
    k: usize,
}

impl<T: Pod> Panels<T> {
    fn pack(parts: &[&[f32]], n: usize, k: usize, convert: impl Fn(f32) -> T) -> Self {
        let mut data = AlignedBuf::zeroed(n.div_ceil(PANEL_WIDTH) * PANEL_WIDTH * k);
        let dst: &mut [T] = &mut data;
        let mut col = 0;
        for part in parts {
            for row in part.chunks_exact(k.max(1)) {
                let base = col / PANEL_WIDTH * PANEL_WIDTH * k + col % PANEL_WIDTH;
                for (i, w) in row.iter().enumerate() {
                    dst[base + i * PANEL_WIDTH] = convert(*w);
                }
                col += 1;
            }
        }
        Panels { data, n, k }
    }

    fn copy_row(&self, row: usize, out: &mut [f32], convert: impl Fn(T) -> f32) {
        assert!(row < self.n, "row {row} of a matrix with {} rows", self.n);
        assert_eq!(out.len(), self.k, "output length");
        let base = row / PANEL_WIDTH * PANEL_WIDTH * self.k + row % PANEL_WIDTH;
        let src: &[T] = &self.data;
        for (i, o) in out.iter_mut().enumerate() {
            *o = convert(src[base + i * PANEL_WIDTH]);
        }
    }
}

macro_rules! packed {
    ($name:ident, $elem:ty, $to:expr, $from:expr) => {
        impl $name {
            /// Packs row-major `w[n][k]`.
            ///
            /// # Panics
            /// When `w` does not hold `n * k` values.
            pub fn pack(w: &[f32], n: usize, k: usize) -> Self {
                assert_eq!(w.len(), n * k, "weights of a {n} x {k} matrix");
                $name(Panels::pack(&[w], n, k, $to))
            }

            /// Packs several row-major matrices `[n_i][k]` stacked on top of each other, such
            /// as q, k and v, so that one call computes them all.
            ///
            /// # Panics
            /// When a part is not a whole number of rows of `k` values.
            pub fn pack_parts(parts: &[&[f32]], k: usize) -> Self {
                assert!(k > 0, "a row has no values");
                assert!(parts.iter().all(|p| p.len() % k == 0), "rows of {k} values");
                let n = parts.iter().map(|p| p.len() / k).sum();
                $name(Panels::pack(parts, n, k, $to))
            }

            /// Output columns.
            pub fn n(&self) -> usize {
                self.0.n
            }

            /// Inputs per output.
            pub fn k(&self) -> usize {
                self.0.k
            }

            /// Memory held, in bytes, padding included.
            pub fn bytes(&self) -> usize {
                self.0.data.len() * size_of::<$elem>()
            }

            /// Writes the `k` weights of output `row`, as f32: the embedding gather of a model
            /// whose embedding and output matrix are one.
            ///
            /// # Panics
            /// When `row >= n` or `out` does not hold `k` values.
            pub fn copy_row(&self, row: usize, out: &mut [f32]) {
                self.0.copy_row(row, out, $from);
            }

            /// Panel `p` as `[k][48]` values.
            pub(crate) fn panel(&self, p: usize) -> &[$elem] {
                let len = PANEL_WIDTH * self.0.k;
                &self.0.data[p * len..][..len]
            }
        }
    };
}

packed!(PackedF32, f32, |x| x, |x| x);
packed!(PackedBf16, bf16, bf16::from_f32, bf16::to_f32);

#[cfg(test)]
mod tests {
    use super::{PANEL_WIDTH, PackedBf16, PackedF32};

    #[test]
    fn layout_is_panel_then_input_then_column() {
        let (n, k) = (50, 3);
        let w: Vec<f32> = (0..n * k).map(|i| i as f32).collect();
        let packed = PackedF32::pack(&w, n, k);
        assert_eq!(packed.bytes(), 2 * PANEL_WIDTH * k * 4);
        // Column 47, input 2 is w[47][2] = 143; column 49 is the second of panel 1.
        assert_eq!(packed.panel(0)[2 * PANEL_WIDTH + 47], 143.0);
        assert_eq!(packed.panel(1)[2 * PANEL_WIDTH + 1], 149.0);
        assert_eq!(packed.panel(1)[2 * PANEL_WIDTH + 2], 0.0);
        let mut row = [0.0; 3];
        packed.copy_row(48, &mut row);
        assert_eq!(row, [144.0, 145.0, 146.0]);
    }

    #[test]
    fn parts_stack_in_order() {
        let (a, b) = ([1.0f32, 2.0, 3.0, 4.0], [5.0f32, 6.0]);
        let packed = PackedF32::pack_parts(&[&a, &b], 2);
        assert_eq!(packed.n(), 3);
        let mut row = [0.0; 2];
        packed.copy_row(2, &mut row);
        assert_eq!(row, [5.0, 6.0]);
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        // bf16 steps near 1 are 2^-7; a tie goes to the even neighbour.
        let ulp = 2f32.powi(-7);
        let w = [1.0 + 0.5 * ulp, 1.0 + 1.5 * ulp, 1.0 + 0.6 * ulp];
        let mut row = [0.0; 3];
        PackedBf16::pack(&w, 1, 3).copy_row(0, &mut row);
        assert_eq!(row, [1.0, 1.0 + 2.0 * ulp, 1.0 + ulp]);
    }
}
