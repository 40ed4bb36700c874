//! Prefill with its keys in ranges: a few queries after a long prefix.

use half::{bf16, f16};
use pb_kernels_cuda::{E4m3, Emulator, Library};

use crate::case::{Case, Chunk, Sizes};
use crate::common::{Stored, Value, accept, all_files, bits, f64s, judge, library};

const SIZES: Sizes = Sizes {
    d: 64,
    group: 3,
    kv_heads: 2,
    block: 16,
};

fn chunk(prefix: usize, len: usize) -> Chunk {
    Chunk { prefix, len }
}

fn split_matches<T: Value, S: Stored<T>>(sizes: Sizes, chunks: &[Chunk], split: usize) {
    let Some(library) = library() else { return };
    let case = Case::<T, S>::new(21, sizes, chunks);
    let got = case.prefill_split(&Emulator::new(library), split).unwrap();
    let what = format!(
        "{}{} {sizes:?} {chunks:?} split {split}",
        T::NAME,
        S::SUFFIX
    );
    accept(&what, &f64s(&got), &case.expected());
}

#[test]
fn prefill_with_split_keys_is_attention() {
    // The last range has one key, is full, or is cut by the chunk; one sequence has one range.
    split_matches::<bf16, bf16>(SIZES, &[chunk(256, 1), chunk(3, 2)], 128);
    split_matches::<bf16, bf16>(SIZES, &[chunk(495, 17)], 64);
    let wide = Sizes {
        d: 128,
        group: 8,
        block: 8,
        ..SIZES
    };
    split_matches::<f16, f16>(wide, &[chunk(250, 15)], 64);
    let e4m3 = Sizes { group: 4, ..SIZES };
    split_matches::<bf16, E4m3>(e4m3, &[chunk(600, 40), chunk(0, 1)], 256);
}

#[test]
fn cutting_a_prompt_changes_no_bit_of_split_prefill() {
    let Some(library) = library() else { return };
    let case = Case::<bf16, bf16>::new(22, SIZES, &[chunk(120, 40)]);
    let device = Emulator::new(library);
    let whole = bits(&case.prefill_in(&device, &[40], Some(64)).unwrap());
    // Cuts before, at and behind the start of the range at 128.
    for lens in [&[7, 33][..], &[8, 32], &[9, 31], &[1, 15, 16, 8]] {
        let parts = case.prefill_in(&device, lens, Some(64)).unwrap();
        assert!(bits(&parts) == whole, "cut {lens:?}");
    }
    for seed in 1..=2 {
        device.permute(seed);
        let again = case.prefill_in(&device, &[9, 31], Some(64)).unwrap();
        assert!(bits(&again) == whole, "order {seed}");
    }
    let other = case.prefill_in(&device, &[40], Some(128)).unwrap();
    assert!(
        bits(&other) != whole,
        "another split is another order of sums"
    );
}

#[test]
fn one_range_has_the_bits_of_prefill() {
    let Some(library) = library() else { return };
    let case = Case::<bf16, bf16>::new(23, SIZES, &[chunk(90, 38), chunk(0, 5)]);
    let device = Emulator::new(library);
    let plain = case.prefill(&device).unwrap();
    assert!(bits(&case.prefill_split(&device, 128).unwrap()) == bits(&plain));
    // f16 shows more of the sums than bf16, and more rows show more.
    let case = Case::<f16, f16>::new(23, SIZES, &[chunk(0, 192)]);
    let plain = case.prefill(&device).unwrap();
    assert!(bits(&case.prefill_split(&device, 192).unwrap()) == bits(&plain));
}

/// Keys after the end of a range, which then count twice.
#[test]
fn ranges_that_overlap_are_caught() {
    let Some(faulty) = all_files(&["PB_FAULT_SPLIT"]) else {
        return;
    };
    let case = Case::<bf16, bf16>::new(24, SIZES, &[chunk(200, 5)]);
    let verdict = |library: &Library, split| {
        let got = case.prefill_split(&Emulator::new(library), split).unwrap();
        judge(&f64s(&got), &case.expected())
    };
    assert!(!verdict(&faulty, 64).passes());
    assert!(
        verdict(&faulty, 256).passes(),
        "one range has nothing to overlap"
    );
}
