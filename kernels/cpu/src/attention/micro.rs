//! Register tiles of attention: scores of up to 8 query rows with 16 keys, and weighted sums
//! of values for up to 8 rows. Each output element is one multiply-add chain (over the head
//! dimension, or over keys in absolute order), whatever the tile.

use super::source::{KeyTile, Source};
use crate::kv::{KvElem, KvScaling};
use crate::lanes::{LANES, Lanes, load_elem};

/// `s[r][0..16] = q[r] . key` for the 16 keys of one tile and `rows` rows.
///
/// # Safety
/// `q` must hold `rows * d` values, `s` must have `rows` rows of 16 values, `lds` apart, and
/// the tile must exist.
#[inline(always)]
pub(super) unsafe fn scores<L: Lanes, T: KvElem>(
    rows: usize,
    q: *const f32,
    d: usize,
    keys: KeyTile<T>,
    s: *mut f32,
    lds: usize,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        match rows {
            1 => scores_tile::<L, T, 1>(q, d, keys, s, lds),
            2 => scores_tile::<L, T, 2>(q, d, keys, s, lds),
            3 => scores_tile::<L, T, 3>(q, d, keys, s, lds),
            4 => scores_tile::<L, T, 4>(q, d, keys, s, lds),
            5 if L::ATTN_ROWS > 4 => scores_tile::<L, T, 5>(q, d, keys, s, lds),
            6 if L::ATTN_ROWS > 4 => scores_tile::<L, T, 6>(q, d, keys, s, lds),
            7 if L::ATTN_ROWS > 4 => scores_tile::<L, T, 7>(q, d, keys, s, lds),
            8 if L::ATTN_ROWS > 4 => scores_tile::<L, T, 8>(q, d, keys, s, lds),
            _ => unreachable!("a strip of {rows} rows"),
        }
    }
}

#[inline(always)]
unsafe fn scores_tile<L: Lanes, T: KvElem, const R: usize>(
    q: *const f32,
    d: usize,
    keys: KeyTile<T>,
    s: *mut f32,
    lds: usize,
) {
    // SAFETY: the caller promises R rows of q and s and d dimensions of 16 keys.
    unsafe {
        let mut acc = [L::splat(0.0); R];
        let scale = match T::SCALING {
            KvScaling::None => L::splat(1.0),
            KvScaling::PerLayer => L::splat(*keys.scales),
            KvScaling::PerToken => L::load(keys.scales),
        };
        for i in 0..d {
            let mut key = load_elem::<L, T>(keys.first.add(i * keys.stride));
            if T::SCALING != KvScaling::None {
                key = L::mul(key, scale);
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = L::fma(L::splat(*q.add(r * d + i)), key, *acc);
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            L::store(*acc, s.add(r * lds));
        }
    }
}

/// Weights of a strip of rows: `p[r][j]` belongs to key `first + j`.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    pub(super) p: *const f32,
    pub(super) ldp: usize,
    pub(super) first: usize,
}

/// `acc[r][..] += p[r][key] * value[key][..]` over `keys` in order, for `rows` rows.
///
/// # Safety
/// All keys must exist and have a weight, and `acc` must hold `rows` rows of
/// `source.v_width` values.
#[inline(always)]
pub(super) unsafe fn add_values<L: Lanes, T: KvElem>(
    rows: usize,
    w: Weights,
    source: &Source<'_, T>,
    keys: std::ops::Range<usize>,
    acc: *mut f32,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        match rows {
            1 => columns::<L, T, 1, 4>(w, source, keys, acc),
            2 => columns::<L, T, 2, 4>(w, source, keys, acc),
            3 => columns::<L, T, 3, 4>(w, source, keys, acc),
            4 => columns::<L, T, 4, 4>(w, source, keys, acc),
            5 if L::ATTN_ROWS > 4 => columns::<L, T, 5, 2>(w, source, keys, acc),
            6 if L::ATTN_ROWS > 4 => columns::<L, T, 6, 2>(w, source, keys, acc),
            7 if L::ATTN_ROWS > 4 => columns::<L, T, 7, 2>(w, source, keys, acc),
            8 if L::ATTN_ROWS > 4 => columns::<L, T, 8, 2>(w, source, keys, acc),
            _ => unreachable!("a strip of {rows} rows"),
        }
    }
}

/// Walks the head dimension in tiles of `NV` vectors where registers allow, else of one.
#[inline(always)]
unsafe fn columns<L: Lanes, T: KvElem, const R: usize, const NV: usize>(
    w: Weights,
    source: &Source<'_, T>,
    keys: std::ops::Range<usize>,
    acc: *mut f32,
) {
    let mut col = 0;
    // SAFETY: every tile ends at or before v_width.
    unsafe {
        while L::ATTN_VECS > 1 && col + NV * LANES <= source.v_width {
            values_tile::<L, T, R, NV>(w, source, keys.clone(), col, acc);
            col += NV * LANES;
        }
        while col < source.v_width {
            values_tile::<L, T, R, 1>(w, source, keys.clone(), col, acc);
            col += LANES;
        }
    }
}

#[inline(always)]
unsafe fn values_tile<L: Lanes, T: KvElem, const R: usize, const NV: usize>(
    w: Weights,
    source: &Source<'_, T>,
    keys: std::ops::Range<usize>,
    col: usize,
    out: *mut f32,
) {
    let width = source.v_width;
    // SAFETY: the caller promises the keys, their weights, R rows of out, and
    // col + 16 * NV <= width.
    unsafe {
        let mut acc = [[L::splat(0.0); NV]; R];
        for (r, acc) in acc.iter_mut().enumerate() {
            for (v, acc) in acc.iter_mut().enumerate() {
                *acc = L::load(out.add(r * width + col + v * LANES));
            }
        }
        let mut key = keys.start;
        while key < keys.end {
            let found = source.value_run(key);
            let run = found.adjacent.min(keys.end - key);
            let p = w.p.add(key - w.first);
            for j in 0..run {
                let mut value = [L::splat(0.0); NV];
                for (v, value) in value.iter_mut().enumerate() {
                    *value = load_elem::<L, T>(found.first.add(j * width + col + v * LANES));
                    *value = match T::SCALING {
                        KvScaling::None => *value,
                        KvScaling::PerLayer => L::mul(*value, L::splat(*found.scales)),
                        KvScaling::PerToken => L::mul(*value, L::splat(*found.scales.add(j))),
                    };
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let weight = L::splat(*p.add(r * w.ldp + j));
                    for (acc, value) in acc.iter_mut().zip(value) {
                        *acc = L::fma(weight, value, *acc);
                    }
                }
            }
            key += run;
        }
        for (r, acc) in acc.iter().enumerate() {
            for (v, acc) in acc.iter().enumerate() {
                L::store(*acc, out.add(r * width + col + v * LANES));
            }
        }
    }
}

/// Turns `scores[..visible]` into `e^(score - shift)` in place and returns the 16 partial sums
/// (key `j` of the slice in lane `j % 16`). Weights up to the next multiple of 16 become zero.
///
/// # Safety
/// `scores` must be valid up to the next multiple of 16.
#[inline(always)]
pub(super) unsafe fn exp_row<L: Lanes>(scores: *mut f32, visible: usize, shift: f32) -> L {
    // SAFETY: accesses stay below visible rounded up to 16.
    unsafe {
        let shift = L::splat(shift);
        let mut sums = L::splat(0.0);
        for j in (0..visible).step_by(LANES) {
            let p = crate::math::exp(L::sub(L::load(scores.add(j)), shift));
            L::store(p, scores.add(j));
            sums = L::add(sums, p);
        }
        sums
    }
}

/// Hides the keys from `visible` to the next multiple of 16 and returns the largest score.
///
/// # Safety
/// `scores` must be valid up to the next multiple of 16, and `visible` must not be 0.
#[inline(always)]
pub(super) unsafe fn mask_and_max<L: Lanes>(scores: *mut f32, visible: usize) -> f32 {
    // SAFETY: accesses stay below visible rounded up to 16.
    unsafe {
        for j in visible..visible.next_multiple_of(LANES) {
            *scores.add(j) = f32::NEG_INFINITY;
        }
        let mut best = L::splat(f32::NEG_INFINITY);
        for j in (0..visible).step_by(LANES) {
            best = L::max(best, L::load(scores.add(j)));
        }
        crate::math::max(best)
    }
}
