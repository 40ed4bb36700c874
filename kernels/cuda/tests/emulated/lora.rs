//! Adapters of low rank: rows of several, in any company.

use half::{bf16, f16};
use pb_kernels_cuda::ops::{LoraColumns, LoraDelta, LoraPlan, LoraSite, lora, place_lora};
use pb_kernels_cuda::{DeviceExt, Emulator, FaultKind, KernelError, Library};

use crate::common::{Value, accept, bits, judge, library, variant};
use crate::lora_case::LoraCase;

/// Three adapters, the last of them of two parts only, and rows without one.
fn rows() -> Vec<Option<usize>> {
    let of = |r: usize| [Some(2), None, Some(0), Some(0), Some(1)][r % 5];
    (0..43).map(of).collect()
}

/// Ranks that are and are not multiples of 8, above the 64 of a block, and none.
fn case<T: Value>() -> LoraCase<T> {
    let ranks = [vec![4, 8, 9], vec![72, 1, 16], vec![0, 3, 5]];
    LoraCase::new(5, 200, &[258, 34, 66], &ranks, &rows())
}

fn on<T: Value>(case: &LoraCase<T>, library: &Library, seed: u64) -> (Vec<T>, Vec<T>) {
    let device = Emulator::new(library);
    device.permute(seed);
    case.run(&device).unwrap()
}

fn changes_match<T: Value>() {
    let Some(library) = library() else { return };
    let case = case::<T>();
    let (inner, out) = on(&case, library, 0);
    let (got, want) = case.compare(&inner, &out);
    accept(&format!("lora {}", T::NAME), &got, &want);
    assert!(
        bits(&on(&case, library, 3).1) == bits(&out),
        "order of threads"
    );
}

#[test]
fn changes_are_those_of_f64_and_other_columns_stay() {
    changes_match::<bf16>();
    changes_match::<f16>();
}

#[test]
fn a_row_has_the_same_bits_whatever_rows_are_with_it() {
    let Some(library) = library() else { return };
    let case = case::<bf16>();
    let whole = bits(&on(&case, library, 0).1);
    let width = whole.len() / rows().len();
    let chosen: [&dyn Fn(usize) -> bool; 3] =
        [&|r| r == 2, &|r| r % 7 == 4, &|r| rows()[r] != Some(0)];
    for some in chosen {
        let part = bits(&on(&case.part(some), library, 1).1);
        let wanted = (0..rows().len()).filter(|r| some(*r));
        let want: Vec<u16> = wanted
            .flat_map(|r| whole[r * width..][..width].to_vec())
            .collect();
        assert!(part == want);
    }
}

#[test]
fn planted_faults_of_adapters_are_caught() {
    let Some(adapter) = variant("lora.cu", &["PB_FAULT_LORA_ADAPTER"]) else {
        return;
    };
    let Some(barrier) = variant("lora.cu", &["PB_FAULT_LORA_BARRIER"]) else {
        return;
    };
    let case = LoraCase::<bf16>::new(6, 64, &[32], &[vec![8], vec![8]], &[Some(0), Some(1)]);
    let (inner, out) = on(&case, &adapter, 0);
    let (got, want) = case.compare(&inner, &out);
    let verdict = judge(&got, &want);
    assert!(!verdict.passes(), "{verdict:?}");
    for seed in 0..4 {
        let device = Emulator::new(&barrier);
        device.permute(seed);
        let found = case.run(&device).map(|_| ()).unwrap_err();
        let KernelError::Fault(fault) = found else {
            panic!("order {seed}: {found}");
        };
        let kinds = [FaultKind::Race, FaultKind::Uninitialised];
        assert!(kinds.contains(&fault.kind), "order {seed}: {fault}");
    }
}

#[test]
fn impossible_adapters_are_refused() {
    let Some(library) = library() else { return };
    let device = Emulator::new(library);
    let delta = LoraDelta::<bf16>::place(&device, (&[1.0; 24], &[1.0; 12]), 3, 1.0).unwrap();
    let columns = [LoraColumns { first: 0, count: 4 }];
    let refused = |inputs: usize, columns: &[LoraColumns], parts: usize| {
        let site = LoraSite::new(&device, inputs, columns, &[vec![Some(delta); parts]]);
        site.unwrap_err().to_string()
    };
    assert!(refused(12, &columns, 1).contains("terms is 12"));
    assert!(refused(16, &columns, 1).contains("a and b is (64, 32)"));
    assert!(refused(8, &columns, 2).contains("parts is 2, expected 1"));
    assert!(refused(8, &[LoraColumns { first: 1, count: 4 }], 1).contains("expected even"));
    let odd = LoraDelta::<bf16>::place(&device, (&[1.0; 25], &[1.0; 12]), 3, 1.0);
    assert!(odd.unwrap_err().to_string().contains("whole rows of 3"));

    let site = LoraSite::new(&device, 8, &columns, &[vec![Some(delta)]]).unwrap();
    let x = device.input("x", &[bf16::ONE; 16]).unwrap();
    let out = device.upload("out", &[bf16::ONE; 8]).unwrap();
    let with = |adapters: &[Option<usize>], room: usize| {
        let plan = LoraPlan::new(adapters);
        let placed = place_lora(&device, &plan).unwrap();
        let inner = device.empty("inner", room).unwrap();
        lora(&device, &placed, &site, (&x, &out), &inner)
    };
    let text = with(&[None, Some(1)], 64).unwrap_err().to_string();
    assert!(text.contains("adapter is 1, expected below 1"), "{text}");
    let text = with(&[None, Some(0)], 7).unwrap_err().to_string();
    assert!(text.contains("inner values is 7, expected 8"), "{text}");
    let text = with(&[Some(0)], 64).unwrap_err().to_string();
    assert!(text.contains("x is 16, expected 8"), "{text}");
    with(&[None, Some(0)], 8).unwrap();
    // 8 ones, three times, and the three of them times 1: 24 beside the 1 that was there.
    let want = [[bf16::ONE; 4], [bf16::from_f32(25.0); 4]].concat();
    assert_eq!(device.download(&out).unwrap(), want);
}
