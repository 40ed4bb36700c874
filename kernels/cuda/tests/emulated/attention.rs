//! Attention at the shapes that engines meet, and under every way of cutting the work.

use half::{bf16, f16};
use pb_kernels_cuda::check::shapes::{
    AttentionShape, BLOCKS, CHUNKS, GROUPS, HEAD_DIMS, PREFIXES, decode_shapes, prefill_shapes,
    split_shapes,
};
use pb_kernels_cuda::{E4m3, Emulator};

use crate::case::{Case, Chunk, Sizes};
use crate::common::{Stored, Value, accept, bits, f64s, library};
use crate::formulas::{Head, attention};

/// One shape and element type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) sizes: Sizes,
    pub(crate) chunk: Chunk,
    dtype: usize,
}

fn prefill_matches<T: Value, S: Stored<T>>(shape: Shape, seed: u64) {
    let Some(library) = library() else { return };
    let case = Case::<T, S>::new(seed, shape.sizes, &[shape.chunk]);
    let got = case.prefill(&Emulator::new(library)).unwrap();
    let what = format!("prefill {}{} {shape:?}", T::NAME, S::SUFFIX);
    accept(&what, &f64s(&got), &case.expected());
}

fn check(shape: Shape, seed: u64) {
    match shape.dtype {
        0 => prefill_matches::<bf16, bf16>(shape, seed),
        1 => prefill_matches::<f16, f16>(shape, seed),
        _ => prefill_matches::<bf16, E4m3>(shape, seed),
    }
}

/// Every chunk with every prefix; the other sizes go round, each at a pace of its own, so that
/// every pair of (head dimension, group) and (block size, prefix) occurs too.
pub(crate) fn covering() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (i, len) in CHUNKS.into_iter().enumerate() {
        for (j, prefix) in PREFIXES.into_iter().enumerate() {
            let n = i * PREFIXES.len() + j;
            // Long rows take their time; they need no second head to be told apart.
            let kv_heads = if prefix == 2048 && len == 128 { 1 } else { 2 };
            shapes.push(Shape {
                sizes: Sizes {
                    d: HEAD_DIMS[(n / 4 + n) % 2],
                    group: GROUPS[(n + n / 8) % 4],
                    kv_heads,
                    block: BLOCKS[(n / 4 + j) % 3],
                },
                chunk: Chunk { prefix, len },
                dtype: n % 3,
            });
        }
    }
    shapes
}

#[test]
fn the_covering_set_has_the_pairs_it_claims() {
    let shapes = covering();
    for d in HEAD_DIMS {
        for group in GROUPS {
            let has = |s: &Shape| s.sizes.d == d && s.sizes.group == group;
            assert!(shapes.iter().any(has), "d {d}, group {group}");
        }
    }
    for block in BLOCKS {
        for prefix in PREFIXES {
            let has = |s: &Shape| s.sizes.block == block && s.chunk.prefix == prefix;
            assert!(shapes.iter().any(has), "block {block}, prefix {prefix}");
        }
    }
}

#[test]
fn prefill_of_short_prefixes_is_attention() {
    for (i, shape) in covering().into_iter().enumerate() {
        if shape.chunk.prefix <= 1 {
            check(shape, i as u64);
        }
    }
}

#[test]
fn prefill_of_long_prefixes_is_attention() {
    for (i, shape) in covering().into_iter().enumerate() {
        if shape.chunk.prefix > 1 {
            check(shape, i as u64);
        }
    }
}

/// Every one of `shapes`, each in the plain order of threads and in two drawn ones.
pub(crate) fn all_are_attention(shapes: &[AttentionShape]) {
    let Some(library) = library() else { return };
    let devices = [0, 1, 2].map(|seed| {
        let device = Emulator::new(library);
        device.permute(seed);
        device
    });
    let (mut of_rule, mut of_bound) = (0.0f64, 0.0f64);
    for shape in shapes {
        let judged = shape.judge(&devices).unwrap();
        assert!(judged.passes(), "{judged:?}");
        // OK because it has just passed.
        let verdict = judged.outcome.unwrap();
        (of_rule, of_bound) = (of_rule.max(verdict.of_rule), of_bound.max(verdict.of_bound));
    }
    let count = shapes.len();
    println!(
        "{count} shapes: {:.0} % of the rule, {:.0} % of the bound",
        100.0 * of_rule,
        100.0 * of_bound
    );
}

#[test]
#[ignore = "all 480 shapes in three element types and three orders of threads: minutes"]
fn prefill_at_every_shape_is_attention() {
    all_are_attention(&prefill_shapes());
}

#[test]
#[ignore = "chunks after long prefixes at every store, keys split, in three orders: minutes"]
fn prefill_with_split_keys_at_every_store_is_attention() {
    all_are_attention(&split_shapes());
}

#[test]
#[ignore = "all 90 shapes with three splits and in three orders of threads: minutes"]
fn decode_at_every_shape_is_attention() {
    all_are_attention(&decode_shapes());
}

/// Single queries of several lengths in one launch.
fn decode_matches<T: Value, S: Stored<T>>(sizes: Sizes, split: usize) {
    let Some(library) = library() else { return };
    let chunks = PREFIXES.map(|prefix| Chunk { prefix, len: 1 });
    let case = Case::<T, S>::new(sizes.group as u64, sizes, &chunks);
    let got = case.decode(&Emulator::new(library), split).unwrap();
    let what = format!("decode {}{} {sizes:?} split {split}", T::NAME, S::SUFFIX);
    accept(&what, &f64s(&got), &case.expected());
}

#[test]
fn decode_is_attention() {
    for (i, group) in [1, 3, 4, 8, 16].into_iter().enumerate() {
        for (j, d) in HEAD_DIMS.into_iter().enumerate() {
            let sizes = Sizes {
                d,
                group,
                kv_heads: 2,
                block: BLOCKS[(i + j) % 3],
            };
            let split = [64, 256, 4096][i % 3];
            match (i + j) % 3 {
                0 => decode_matches::<bf16, bf16>(sizes, split),
                1 => decode_matches::<f16, f16>(sizes, split),
                _ => decode_matches::<bf16, E4m3>(sizes, split),
            }
        }
    }
}

/// What is handed to another implementation is the problem itself.
#[test]
fn the_rows_of_a_case_are_its_problem_and_its_kernel_can_be_launched_again() {
    let Some(library) = library() else { return };
    let sizes = Sizes {
        d: 64,
        group: 3,
        kv_heads: 2,
        block: 8,
    };
    for len in [1, 5] {
        let case = Case::<bf16, bf16>::new(9, sizes, &[Chunk { prefix: 20, len }]);
        let [q, k, v] = case.rows();
        let heads = |x: &[f32], head: usize, tokens: usize| -> Vec<Vec<f64>> {
            let row = |t: usize| x[(t * 2 + head) * 64..][..64].iter().map(|x| f64::from(*x));
            (0..tokens).map(|t| row(t).collect()).collect()
        };
        let mut want = Vec::new();
        for (i, q) in q.chunks_exact(64).enumerate() {
            let (kv, visible) = (i % 6 / 3, 20 + i / 6 + 1);
            let (k, v) = (heads(&k, kv, visible), heads(&v, kv, visible));
            let q: Vec<f64> = q.iter().map(|x| f64::from(*x)).collect();
            let all = attention::<bf16>(&Head {
                q: &q,
                k: &k,
                v: &v,
            });
            want.extend(all.iter().map(|e| e.exact));
        }
        let expected: Vec<f64> = case.expected().iter().map(|e| e.exact).collect();
        assert!(want == expected, "{len} queries");
        let device = Emulator::new(library);
        let twice = case.launches(&device, |launch| launch().and_then(|()| launch()));
        assert!(matches!(twice, Ok(Ok(()))), "{twice:?}");
    }
}

#[test]
fn a_mixed_batch_is_one_launch() {
    let Some(library) = library() else { return };
    let sizes = Sizes {
        d: 64,
        group: 3,
        kv_heads: 3,
        block: 16,
    };
    let chunks = [(33, 40), (130, 1), (0, 17), (0, 1)].map(|(prefix, len)| Chunk { prefix, len });
    let case = Case::<bf16, bf16>::new(5, sizes, &chunks);
    let got = case.prefill(&Emulator::new(library)).unwrap();
    accept("mixed batch", &f64s(&got), &case.expected());
}

#[test]
fn cutting_a_prompt_changes_no_bit() {
    let Some(library) = library() else { return };
    let sizes = Sizes {
        d: 64,
        group: 4,
        kv_heads: 1,
        block: 16,
    };
    let chunk = Chunk {
        prefix: 60,
        len: 90,
    };
    let case = Case::<bf16, bf16>::new(6, sizes, &[chunk]);
    let device = Emulator::new(library);
    let whole = bits(&case.prefill(&device).unwrap());
    for lens in [&[1, 15, 16, 17, 41][..], &[64, 26], &[89, 1]] {
        let parts = case.prefill_in(&device, lens, None).unwrap();
        assert!(bits(&parts) == whole, "cut {lens:?}");
    }
}

#[test]
fn a_fixed_split_gives_the_same_bits_in_any_batch() {
    let Some(library) = library() else { return };
    let sizes = Sizes {
        d: 64,
        group: 4,
        kv_heads: 2,
        block: 16,
    };
    let batch = [300, 70, 9].map(|prefix| Chunk { prefix, len: 1 });
    let case = Case::<bf16, bf16>::new(7, sizes, &batch);
    let device = Emulator::new(library);
    let together = case.decode(&device, 128).unwrap();
    let apart = case.decode_each(&device, 128).unwrap();
    assert!(bits(&together) == bits(&apart));
    // The very thing that a split by count would not give.
    let other = case.decode(&device, 64).unwrap();
    assert!(
        bits(&other) != bits(&together),
        "another split would be another order of sums"
    );
}

/// Prefill and decode of one case under several orders of threads and blocks.
fn order_shows_nothing<T: Value, S: Stored<T>>(sizes: Sizes) {
    let Some(library) = library() else { return };
    let chunks = [
        Chunk {
            prefix: 70,
            len: 40,
        },
        Chunk { prefix: 3, len: 2 },
    ];
    let case = Case::<T, S>::new(8, sizes, &chunks);
    let single = [
        Chunk {
            prefix: 200,
            len: 1,
        },
        Chunk { prefix: 5, len: 1 },
    ];
    let singles = Case::<T, S>::new(9, sizes, &single);
    let run = |seed: u64| {
        let device = Emulator::new(library);
        device.permute(seed);
        let (a, b) = (
            case.prefill(&device).unwrap(),
            singles.decode(&device, 64).unwrap(),
        );
        [bits(&a), bits(&b)]
    };
    let plain = run(0);
    for seed in 1..=3 {
        assert!(run(seed) == plain, "{}{} seed {seed}", T::NAME, S::SUFFIX);
    }
}

#[test]
fn the_order_of_threads_shows_nothing() {
    let sizes = |d, group, block| Sizes {
        d,
        group,
        kv_heads: 2,
        block,
    };
    order_shows_nothing::<bf16, bf16>(sizes(64, 3, 16));
    order_shows_nothing::<f16, f16>(sizes(128, 1, 8));
    order_shows_nothing::<bf16, E4m3>(sizes(64, 4, 32));
}
