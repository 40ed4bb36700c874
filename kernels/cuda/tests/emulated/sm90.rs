//! Prefill by wgmma: the shapes and the promises of prefill, and faults of its own.

use half::{bf16, f16};
use pb_kernels_cuda::check::shapes::prefill_sm90_shapes;
use pb_kernels_cuda::ops::PrefillBy;
use pb_kernels_cuda::{E4m3, Emulator, FaultKind, KernelError, Library};

use crate::attention::{all_are_attention, covering};
use crate::case::{Case, Chunk, Sizes};
use crate::common::{Value, Verdict, accept, bits, f64s, judge, library, variant};

const SIZES: Sizes = Sizes {
    d: 64,
    group: 3,
    kv_heads: 3,
    block: 16,
};

fn chunks<const N: usize>(chunks: [(usize, usize); N]) -> [Chunk; N] {
    chunks.map(|(prefix, len)| Chunk { prefix, len })
}

fn matches<T: Value>(seed: u64, sizes: Sizes, chunks: &[Chunk]) {
    let Some(library) = library() else { return };
    let case = Case::<T, T>::new(seed, sizes, chunks);
    let got = case.prefill_by(&Emulator::new(library), PrefillBy::Wgmma);
    let what = format!("prefill_sm90 {} {sizes:?} {chunks:?}", T::NAME);
    accept(&what, &f64s(&got.unwrap()), &case.expected());
}

fn covering_matches(long: bool) {
    for (i, shape) in covering().into_iter().enumerate() {
        if (shape.chunk.prefix > 1) == long {
            match i % 2 {
                0 => matches::<bf16>(i as u64, shape.sizes, &[shape.chunk]),
                _ => matches::<f16>(i as u64, shape.sizes, &[shape.chunk]),
            }
        }
    }
}

#[test]
fn prefill_by_wgmma_of_short_prefixes_is_attention() {
    covering_matches(false);
}

#[test]
fn prefill_by_wgmma_of_long_prefixes_is_attention() {
    covering_matches(true);
}

#[test]
#[ignore = "all 480 shapes in two element types and three orders of threads: minutes"]
fn prefill_by_wgmma_at_every_shape_is_attention() {
    all_are_attention(&prefill_sm90_shapes());
}

/// Sequences of one tile of the plan, of two and of three, so that blocks of threads have pairs
/// and single tiles, and some end at once.
#[test]
fn a_mixed_batch_is_one_launch_of_pairs_of_tiles() {
    let batch = chunks([(33, 40), (130, 1), (0, 17), (127, 60), (0, 1), (300, 43)]);
    matches::<bf16>(5, SIZES, &batch);
    let wide = Sizes {
        d: 128,
        group: 4,
        kv_heads: 1,
        block: 64,
    };
    matches::<f16>(6, wide, &batch);
}

#[test]
fn cutting_a_prompt_changes_no_bit_of_prefill_by_wgmma() {
    let Some(library) = library() else { return };
    for (d, group, block) in [(64, 4, 16), (128, 3, 8)] {
        let sizes = Sizes {
            d,
            group,
            kv_heads: 1,
            block,
        };
        let case = Case::<bf16, bf16>::new(6, sizes, &chunks([(90, 110)]));
        let device = Emulator::new(library);
        device.take_prefill(PrefillBy::Wgmma);
        let whole = bits(&case.prefill(&device).unwrap());
        // Before, at and behind the start of the tile of keys at 128; rows in either warpgroup.
        for lens in [&[1, 15, 16, 17, 61][..], &[37, 73], &[38, 72], &[39, 71]] {
            let parts = case.prefill_in(&device, lens, None).unwrap();
            assert!(bits(&parts) == whole, "d {d}, cut {lens:?}");
        }
        device.take_prefill(PrefillBy::Mma);
        let other = bits(&case.prefill(&device).unwrap());
        assert!(other != whole, "the other kernel has another order of sums");
    }
}

#[test]
fn the_order_of_threads_shows_nothing_in_prefill_by_wgmma() {
    let Some(library) = library() else { return };
    for (d, group, block) in [(64, 3, 16), (128, 1, 32)] {
        let sizes = Sizes {
            d,
            group,
            kv_heads: 2,
            block,
        };
        let case = Case::<f16, f16>::new(8, sizes, &chunks([(270, 50), (3, 2)]));
        let run = |seed: u64| {
            let device = Emulator::new(library);
            device.permute(seed);
            bits(&case.prefill_by(&device, PrefillBy::Wgmma).unwrap())
        };
        let plain = run(0);
        for seed in 1..=4 {
            assert!(run(seed) == plain, "d {d}, order {seed}");
        }
    }
}

#[test]
fn a_store_of_8_bits_keeps_the_other_kernel() {
    let Some(library) = library() else { return };
    let case = Case::<bf16, E4m3>::new(9, SIZES, &chunks([(20, 9)]));
    let device = Emulator::new(library);
    let plain = bits(&case.prefill(&device).unwrap());
    device.take_prefill(PrefillBy::Wgmma);
    assert!(bits(&case.prefill(&device).unwrap()) == plain);
    let refused = case.prefill_by(&device, PrefillBy::Wgmma).unwrap_err();
    assert!(
        refused.to_string().contains("expected 16 bits"),
        "{refused}"
    );
}

fn fault_case() -> Case<bf16, bf16> {
    Case::new(31, SIZES, &chunks([(290, 50), (0, 17)]))
}

fn faulty(fault: &str) -> Option<Library> {
    variant("prefill_sm90.cu", &["PB_ONE_SHAPE", fault])
}

fn verdict(library: &Library) -> Verdict {
    let case = fault_case();
    let got = case.prefill_by(&Emulator::new(library), PrefillBy::Wgmma);
    judge(&f64s(&got.expect("no fault of memory")), &case.expected())
}

#[test]
fn wrong_results_of_prefill_by_wgmma_are_caught() {
    let Some(right) = faulty("PB_NO_FAULT") else {
        return;
    };
    assert!(verdict(&right).passes());
    for fault in ["PB_FAULT_MASK", "PB_FAULT_HEADS", "PB_FAULT_SM90_STRIDE"] {
        let Some(library) = faulty(fault) else { return };
        let verdict = verdict(&library);
        assert!(!verdict.passes(), "{fault}: {verdict:?}");
    }
}

#[test]
fn faults_of_order_in_prefill_by_wgmma_are_caught_in_every_order() {
    use FaultKind::*;
    for (fault, kinds) in [
        ("PB_FAULT_SM90_COPY", &[PendingCopy][..]),
        ("PB_FAULT_SM90_PROXY", &[MissingFence]),
        ("PB_FAULT_SM90_FENCE", &[MissingFence]),
        ("PB_FAULT_SM90_WAIT", &[PendingProduct]),
        ("PB_FAULT_SM90_BUFFER", &[Race]),
        // Who reads first finds what nobody has written, or waited for.
        ("PB_FAULT_SM90_BARRIER", &[Race, Uninitialised, PendingCopy]),
    ] {
        let Some(library) = faulty(fault) else { return };
        for seed in 0..4 {
            let device = Emulator::new(&library);
            device.permute(seed);
            match fault_case().prefill_by(&device, PrefillBy::Wgmma) {
                Err(KernelError::Fault(found)) => {
                    let good = kinds.contains(&found.kind);
                    assert!(good, "{fault}, order {seed}: {found}");
                }
                other => panic!("{fault}, order {seed}: {:?}", other.map(|_| "passes")),
            }
        }
    }
}
