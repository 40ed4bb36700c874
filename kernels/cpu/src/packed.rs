//! Weight matrices laid out as the GEMM reads them: panels of 48 output columns, and within a
//! panel the 48 weights of one input next to each other. One format serves all instruction
//! sets (48 is three AVX-512 registers), so a packed model does not depend on the CPU.
//!
//! bf16 weights go in pairs: the weights of inputs `2i` and `2i + 1` of a column share a 32-bit
//! word, and the last pair of an odd number of inputs is filled up with zero. That is the
//! operand of a bf16 dot-product instruction, and f32 kernels gain too, because a shift and a
//! mask of one register widen twice as many weights as one widening load.

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
pub struct PackedBf16(Panels<[bf16; 2]>);

#[derive(Clone, Debug)]
struct Panels<T> {
    data: AlignedBuf<T>,
    n: usize,
    k: usize,
}

/// What a panel holds per column: the weights of one or two inputs.
trait Word: Pod {
    /// Inputs per word.
    const INPUTS: usize;
    /// Rounds `x` into place `i < INPUTS`.
    fn set(&mut self, i: usize, x: f32);
    /// The weight at place `i`.
    fn get(&self, i: usize) -> f32;
}

impl Word for f32 {
    const INPUTS: usize = 1;

    fn set(&mut self, _: usize, x: f32) {
        *self = x;
    }

    fn get(&self, _: usize) -> f32 {
        *self
    }
}

impl Word for [bf16; 2] {
    const INPUTS: usize = 2;

    fn set(&mut self, i: usize, x: f32) {
        self[i] = bf16::from_f32(x);
    }

    fn get(&self, i: usize) -> f32 {
        self[i].to_f32()
    }
}

impl<T: Word> Panels<T> {
    fn pack(parts: &[&[f32]], n: usize, k: usize) -> Self {
        let panel = PANEL_WIDTH * k.div_ceil(T::INPUTS);
        let mut data = AlignedBuf::<T>::zeroed(n.div_ceil(PANEL_WIDTH) * panel);
        let dst: &mut [T] = &mut data;
        let mut col = 0;
        for part in parts {
            for row in part.chunks_exact(k.max(1)) {
                let base = col / PANEL_WIDTH * panel + col % PANEL_WIDTH;
                for (i, w) in row.iter().enumerate() {
                    dst[base + i / T::INPUTS * PANEL_WIDTH].set(i % T::INPUTS, *w);
                }
                col += 1;
            }
        }
        Panels { data, n, k }
    }

    fn panel(&self, p: usize) -> &[T] {
        let len = PANEL_WIDTH * self.k.div_ceil(T::INPUTS);
        &self.data[p * len..][..len]
    }

    fn copy_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n, "row {row} of a matrix with {} rows", self.n);
        assert_eq!(out.len(), self.k, "output length");
        let src = self.panel(row / PANEL_WIDTH);
        for (i, o) in out.iter_mut().enumerate() {
            let word = i / T::INPUTS * PANEL_WIDTH + row % PANEL_WIDTH;
            *o = src[word].get(i % T::INPUTS);
        }
    }
}

macro_rules! packed {
    ($name:ident, $word:ty) => {
        impl $name {
            /// Packs row-major `w[n][k]`.
            ///
            /// # Panics
            /// When `w` does not hold `n * k` values.
            pub fn pack(w: &[f32], n: usize, k: usize) -> Self {
                assert_eq!(w.len(), n * k, "weights of a {n} x {k} matrix");
                $name(Panels::pack(&[w], n, k))
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
                $name(Panels::pack(parts, n, k))
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
                self.0.data.len() * size_of::<$word>()
            }

            /// Writes the `k` weights of output `row`, as f32: the embedding gather of a model
            /// whose embedding and output matrix are one.
            ///
            /// # Panics
            /// When `row >= n` or `out` does not hold `k` values.
            pub fn copy_row(&self, row: usize, out: &mut [f32]) {
                self.0.copy_row(row, out);
            }

            /// Panel `p`: 48 words for each input, or pair of inputs.
            pub(crate) fn panel(&self, p: usize) -> &[$word] {
                self.0.panel(p)
            }
        }
    };
}

packed!(PackedF32, f32);
packed!(PackedBf16, [bf16; 2]);

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
    fn bf16_layout_pairs_inputs_and_pads_an_odd_one() {
        let (n, k) = (50, 3);
        let w: Vec<f32> = (0..n * k).map(|i| i as f32).collect();
        let packed = PackedBf16::pack(&w, n, k);
        assert_eq!(packed.bytes(), 2 * PANEL_WIDTH * 4 * 2);
        let pair = |p: usize, i: usize| packed.panel(p)[i].map(|x| x.to_f32());
        // Column 1 holds w[1] = 3, 4, 5; column 49 holds 147, 148, 149.
        assert_eq!(pair(0, 1), [3.0, 4.0]);
        assert_eq!(pair(0, PANEL_WIDTH + 1), [5.0, 0.0]);
        assert_eq!(pair(1, PANEL_WIDTH + 1), [149.0, 0.0]);
        assert_eq!(pair(1, 2), [0.0, 0.0]);
        let mut row = [0.0; 3];
        packed.copy_row(49, &mut row);
        assert_eq!(row, [147.0, 148.0, 149.0]);
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
