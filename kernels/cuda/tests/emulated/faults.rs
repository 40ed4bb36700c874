//! Planted faults of the kernels: a test that cannot find them would prove nothing.

use half::bf16;
use pb_kernels_cuda::check::shapes::{AttentionShape, Types, Work};
use pb_kernels_cuda::{DeviceExt, Emulator, FaultKind, KernelError, Library, ops};

use crate::case::{Case, Chunk, Sizes};
use crate::common::{Rng, Verdict, f64s, judge, typed, variant};

const SIZES: Sizes = Sizes {
    d: 64,
    group: 3,
    kv_heads: 3,
    block: 16,
};

fn case() -> Case<bf16, bf16> {
    let chunks = [(130, 20), (0, 17)].map(|(prefix, len)| Chunk { prefix, len });
    Case::new(31, SIZES, &chunks)
}

fn decode_case() -> Case<bf16, bf16> {
    let chunks = [(400, 1), (10, 1)].map(|(prefix, len)| Chunk { prefix, len });
    Case::new(32, SIZES, &chunks)
}

/// One file with a fault, in its smallest build.
fn faulty(file: &str, fault: &str) -> Option<Library> {
    variant(file, &["PB_ONE_SHAPE", fault])
}

/// How far off prefill is.
fn prefill_verdict(library: &Library) -> Verdict {
    let case = case();
    let got = case
        .prefill(&Emulator::new(library))
        .expect("no fault of memory");
    judge(&f64s(&got), &case.expected())
}

fn kind<T>(result: Result<T, KernelError>) -> Option<FaultKind> {
    match result {
        Ok(_) => None,
        Err(KernelError::Fault(fault)) => Some(fault.kind),
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn the_small_builds_are_right_without_a_fault() {
    let Some(prefill) = faulty("prefill.cu", "PB_NO_FAULT") else {
        return;
    };
    assert!(prefill_verdict(&prefill).passes());
    let Some(decode) = faulty("decode.cu", "PB_NO_FAULT") else {
        return;
    };
    let case = decode_case();
    let got = case.decode(&Emulator::new(&decode), 128).unwrap();
    assert!(judge(&f64s(&got), &case.expected()).passes());
}

#[test]
fn a_mask_off_by_one_is_caught() {
    let Some(library) = faulty("prefill.cu", "PB_FAULT_MASK") else {
        return;
    };
    let verdict = prefill_verdict(&library);
    assert!(!verdict.passes(), "{verdict:?}");
}

#[test]
fn the_judge_of_shapes_refuses_a_wrong_kernel_and_bits_that_follow_the_order() {
    let shape = AttentionShape {
        types: Types::Bf16,
        sizes: SIZES,
        work: Work::Prefill(Chunk {
            prefix: 60,
            len: 17,
        }),
    };
    let (Some(right), Some(wrong)) = (
        faulty("prefill.cu", "PB_NO_FAULT"),
        faulty("prefill.cu", "PB_FAULT_MASK"),
    ) else {
        return;
    };
    let judge = |libraries: &[&Library]| {
        let devices: Vec<_> = libraries.iter().map(|l| Emulator::new(l)).collect();
        shape.judge(&devices).unwrap()
    };
    let judged = judge(&[&right, &right]);
    assert!(
        judged.passes() && judged.outputs == 17 * 9 * 64,
        "{judged:?}"
    );
    assert!(!judge(&[&wrong]).passes());
    // A second run that gives something else stands for one whose order of sums differs.
    let outcome = judge(&[&right, &wrong]).outcome;
    assert!(outcome.unwrap_err().contains("run 2 differs"));
}

#[test]
fn a_wrong_map_of_kv_heads_is_caught() {
    let Some(library) = faulty("prefill.cu", "PB_FAULT_HEADS") else {
        return;
    };
    let verdict = prefill_verdict(&library);
    assert!(
        verdict.of_rule > 5.0 && verdict.of_bound > 5.0,
        "{verdict:?}"
    );
}

#[test]
fn missing_barriers_are_caught_in_every_order() {
    let Some(prefill) = faulty("prefill.cu", "PB_FAULT_BARRIER") else {
        return;
    };
    let Some(decode) = faulty("decode.cu", "PB_FAULT_DECODE_BARRIER") else {
        return;
    };
    for seed in 0..4 {
        let device = Emulator::new(&prefill);
        device.permute(seed);
        assert_eq!(
            kind(case().prefill(&device)),
            Some(FaultKind::Race),
            "order {seed}"
        );
        let device = Emulator::new(&decode);
        device.permute(seed);
        let found = kind(decode_case().decode(&device, 128));
        let good = [Some(FaultKind::Race), Some(FaultKind::Uninitialised)].contains(&found);
        assert!(good, "order {seed}: {found:?}");
    }
}

#[test]
fn a_copy_that_is_not_waited_for_is_caught() {
    let Some(library) = faulty("prefill.cu", "PB_FAULT_WAIT") else {
        return;
    };
    for seed in 0..4 {
        let device = Emulator::new(&library);
        device.permute(seed);
        assert_eq!(
            kind(case().prefill(&device)),
            Some(FaultKind::PendingCopy),
            "order {seed}"
        );
    }
}

#[test]
fn a_merge_in_the_wrong_base_is_caught() {
    let Some(library) = faulty("decode.cu", "PB_FAULT_BASE") else {
        return;
    };
    let case = decode_case();
    let got = case.decode(&Emulator::new(&library), 64).unwrap();
    let verdict = judge(&f64s(&got), &case.expected());
    assert!(!verdict.passes(), "{verdict:?}");
}

#[test]
fn races_in_a_norm_are_caught_in_every_order() {
    for fault in ["PB_FAULT_RACE", "PB_FAULT_NORM_BARRIER"] {
        let Some(library) = variant("rmsnorm.cu", &[fault]) else {
            return;
        };
        for seed in 0..6 {
            let device = Emulator::new(&library);
            device.permute(seed);
            let mut rng = Rng(1);
            let x = device.upload("x", &rng.values(1024, 1.0)).unwrap();
            let w = device
                .input("w", &typed::<bf16>(&rng.values(1024, 1.0)))
                .unwrap();
            let out = device.empty::<bf16>("out", 1024).unwrap();
            let found = kind(ops::rmsnorm(&device, &x, &w, 1e-5, &out));
            // A reader that comes first finds what nobody wrote.
            let early = fault == "PB_FAULT_NORM_BARRIER" && found == Some(FaultKind::Uninitialised);
            assert!(
                early || found == Some(FaultKind::Race),
                "{fault}, order {seed}: {found:?}"
            );
        }
    }
}
