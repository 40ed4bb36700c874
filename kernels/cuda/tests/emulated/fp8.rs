//! Rows of 8-bit floats with one scale each, and their products.

use half::{bf16, f16};
use pb_kernels_cuda::check::fp8::{E4m3Case, compare_rows, quantized, room, value};
use pb_kernels_cuda::check::{Found, Judged, NotAvailable, validate};
use pb_kernels_cuda::ops::{self, E4m3Rows, GemmBy};
use pb_kernels_cuda::{
    DeviceExt, E4m3, E4m3Out, Emulator, FaultKind, KernelError, Library, Product, VendorGemm,
};

use crate::common::{Rng, Value, accept, all_files, bits, f64s, judge, library, typed, variant};

/// Rows, columns and terms at and beside the ends of tiles; a single row; SmolLM2's.
const SHAPES: [[usize; 3]; 6] = [
    [1, 64, 64],
    [17, 66, 8],
    [64, 2, 136],
    [65, 130, 72],
    [3, 960, 576],
    [130, 64, 200],
];

fn product<O: E4m3Out>(
    library: &Library,
    seed: u64,
    case: &E4m3Case,
) -> Result<Vec<O>, KernelError> {
    let device = Emulator::new(library);
    device.permute(seed);
    // The emulated device has no vendor: it is asked, and the kernel computes.
    case.run(&device, GemmBy::Vendor)
}

/// Rows with all that can be in one: usual values, zeros, an outlier at the end, values so small
/// that the scale has few bits left.
fn all_kinds<T: Value>(width: usize) -> Vec<T> {
    let mut x: Vec<T> = typed(&Rng(width as u64).values(4 * width, 3.0));
    x[width..2 * width].fill(T::of(0.0));
    x[width] = T::of(-0.0);
    x[3 * width - 1] = T::of(-60_000.0);
    for value in &mut x[3 * width..] {
        *value = T::of(value.f64() as f32 * 1e-39);
    }
    x
}

fn rows_match<T: Value>(width: usize, seed: u64) {
    let Some(library) = library() else { return };
    let device = Emulator::new(library);
    device.permute(seed);
    let (got, want) = compare_rows(&device, &all_kinds::<T>(width), width).unwrap();
    assert_eq!(got.len(), 4 * width + 4, "codes and scales");
    accept(&format!("quantize_rows {} {width}", T::NAME), &got, &want);
}

#[test]
fn rows_become_the_nearest_codes_in_any_order_of_threads() {
    for (width, seed) in [(8, 0), (200, 3), (576, 1), (2056, 0), (4096, 5)] {
        rows_match::<bf16>(width, seed);
        rows_match::<f16>(width, seed + 1);
    }
}

#[test]
fn codes_and_scales_are_those_worked_by_hand() {
    fn check<T: Value>() {
        let Some(library) = library() else { return };
        let device = Emulator::new(library);
        // 448 makes the scale 1, so ties stay ties: they go to the even code.
        let of = |x: &[f32]| -> (Vec<u8>, f32) {
            let there = device.input("x", &typed::<T>(x)).unwrap();
            let out = room(&device, 1, x.len()).unwrap();
            ops::quantize_rows(&device, &there, &out).unwrap();
            let codes = device.download(&out.codes).unwrap();
            let scale = device.download(&out.scales).unwrap()[0];
            (codes.into_iter().map(|c| c.0).collect(), scale)
        };
        let tie = 1.0 / 1024.0;
        let (codes, scale) = of(&[448.0, 1.0625, 1.1875, -0.0, tie, 3.0 * tie, -448.0, 17.0]);
        let want = [0x7e, 0x38, 0x3a, 0x80, 0x00, 0x02, 0xfe, 0x58];
        assert_eq!((codes, scale), (want.to_vec(), 1.0));
        // A NaN is seen in its place, an infinity everywhere.
        let (codes, scale) = of(&[0.0, f32::NAN, 2.0, 0.5, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!((codes[1], codes[2], codes[3]), (0x7f, 0x7e, 0x6e));
        assert_eq!(scale, 2.0 / 448.0);
        let (codes, scale) = of(&[1.0, f32::INFINITY, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!((codes[0], codes[1], scale), (0, 0x7f, f32::INFINITY));
    }
    check::<bf16>();
    check::<f16>();
}

fn products_match<T: Value, O: E4m3Out + PartialEq>(wide: impl Fn(&[O]) -> Vec<f64>) {
    let Some(library) = library() else { return };
    let out_f32 = O::NAME == "f32";
    for (i, shape) in SHAPES.into_iter().enumerate() {
        let case = E4m3Case::new(shape);
        let what = format!("gemm_e4m3 {shape:?} to {}", O::NAME);
        let plain = product::<O>(library, 0, &case).unwrap();
        accept(&what, &wide(&plain), &case.expected::<T>(0.0, out_f32));
        let other = product::<O>(library, i as u64 + 1, &case).unwrap();
        assert!(other == plain, "{what}: the order of threads shows");
    }
}

#[test]
fn products_of_codes_are_those_of_f64_at_every_edge() {
    products_match::<bf16, bf16>(f64s);
    products_match::<f16, f16>(f64s);
    products_match::<bf16, f32>(|out| out.iter().map(|x| f64::from(*x)).collect());
}

/// What batch invariance rests on: a row has the same bits in any company.
#[test]
fn a_row_of_codes_has_the_same_bits_whatever_rows_are_with_it() {
    let Some(library) = library() else { return };
    let case = E4m3Case::new([70, 64, 264]);
    let whole = bits(&product::<bf16>(library, 0, &case).unwrap());
    for first in [1, 16, 63, 64, 69] {
        let part = product::<bf16>(library, 0, &case.tail(first)).unwrap();
        assert!(bits(&part) == whole[first * 64..], "from row {first}");
    }
}

/// Both operations together, against the product of what was there before: a code is off by at
/// most 2^-4 of the value, or by half of the smallest code.
#[test]
fn a_quantized_product_is_within_what_the_format_costs() {
    let Some(library) = library() else { return };
    let (device, [m, n, k]) = (Emulator::new(library), [5, 34, 576]);
    let mut rng = Rng(7);
    let a: Vec<bf16> = typed(&rng.values(m * k, 2.0));
    let w: Vec<bf16> = typed(&rng.values(n * k, 0.1));
    let place = |x: &[bf16], rows: usize| -> E4m3Rows {
        let (there, out) = (
            device.input("x", x).unwrap(),
            room(&device, rows, k).unwrap(),
        );
        ops::quantize_rows(&device, &there, &out).unwrap();
        out
    };
    let (left, right) = (place(&a, m), place(&w, n));
    let out = device.empty::<f32>("out", m * n).unwrap();
    ops::gemm_e4m3(&device, GemmBy::Kernel, &left, &right, &out).unwrap();
    assert_eq!(
        device.unwritten(&out),
        0,
        "bytes of the output were left out"
    );
    let (a, w) = (f64s(&a), f64s(&w));
    // What a code may be off, with room for the roundings of the scale and of the quotient.
    let off = |row: &[f64], x: f64| {
        let largest = row.iter().fold(0.0f64, |top, x| top.max(x.abs()));
        x.abs() / 16.0 + largest / 448.0 / 1024.0 + 1e-6 * x.abs()
    };
    let mut worst = 0.0f64;
    for (at, got) in device.download(&out).unwrap().into_iter().enumerate() {
        let (row, column) = (&a[at / n * k..][..k], &w[at % n * k..][..k]);
        let (mut exact, mut bound) = (0.0, 1e-6);
        for (x, y) in row.iter().zip(column) {
            let (dx, dy) = (off(row, *x), off(column, *y));
            exact += x * y;
            bound += dx * y.abs() + dy * x.abs() + dx * dy;
        }
        worst = worst.max((f64::from(got) - exact).abs() / bound);
    }
    // Errors of both signs cancel, but there is some: the format has 4 bits.
    assert!(worst < 1.0 && worst > 0.001, "{worst}");
}

#[test]
fn planted_faults_of_quantization_are_caught() {
    let Some(largest) = variant("quantize.cu", &["PB_FAULT_QUANTIZE_MAX"]) else {
        return;
    };
    let Some(barrier) = variant("quantize.cu", &["PB_FAULT_QUANTIZE_BARRIER"]) else {
        return;
    };
    let x = all_kinds::<bf16>(576);
    let (got, want) = compare_rows(&Emulator::new(&largest), &x, 576).unwrap();
    assert!(!judge(&got, &want).passes(), "the largest of a warp alone");
    for seed in 0..4 {
        let device = Emulator::new(&barrier);
        device.permute(seed);
        let found = compare_rows(&device, &x, 576).map(|_| ()).unwrap_err();
        let KernelError::Fault(fault) = found else {
            panic!("order {seed}: {found}");
        };
        let kinds = [FaultKind::Race, FaultKind::Uninitialised];
        assert!(kinds.contains(&fault.kind), "order {seed}: {fault}");
    }
}

#[test]
fn planted_faults_of_the_product_of_codes_are_caught() {
    for (fault, shape) in [
        ("PB_FAULT_E4M3_SCALE", [9, 10, 72]),
        ("PB_FAULT_GEMM_TAIL", [9, 10, 72]),
    ] {
        let Some(wrong) = variant("gemm.cu", &[fault]) else {
            return;
        };
        let case = E4m3Case::new(shape);
        let got = product::<bf16>(&wrong, 0, &case).unwrap();
        let verdict = judge(&f64s(&got), &case.expected::<bf16>(0.0, false));
        assert!(!verdict.passes(), "{fault}: {verdict:?}");
    }
    let Some(barrier) = variant("gemm.cu", &["PB_FAULT_GEMM_BARRIER"]) else {
        return;
    };
    let case = E4m3Case::new([64, 64, 256]);
    for seed in 0..4 {
        let found = product::<bf16>(&barrier, seed, &case).map(|_| ());
        let KernelError::Fault(fault) = found.unwrap_err() else {
            panic!("order {seed}: no fault of memory");
        };
        let kinds = [FaultKind::Race, FaultKind::Uninitialised];
        assert!(kinds.contains(&fault.kind), "order {seed}: {fault}");
    }
}

/// A vendor's library that lacks products of E4M3 to f16, and refuses a call for those to f32.
fn half_a_vendor(product: &Product) -> Result<VendorGemm, KernelError> {
    match (product.elem, product.out_elem) {
        ("e4m3", "f16") => Ok(VendorGemm::Lacks("too old")),
        ("e4m3", "f32") => Err(KernelError::Vendor {
            call: "a call",
            problem: "INVALID_VALUE".to_owned(),
        }),
        _ => Ok(VendorGemm::NoVendor),
    }
}

/// Everything that validation finds: what was judged, and what was not run.
fn validated(device: &Emulator<'_>) -> (Vec<Judged>, Vec<NotAvailable>) {
    let (mut judged, mut others) = (Vec::new(), Vec::new());
    let each = &mut |found: Found| match found {
        Found::Judged(row) => judged.push(row),
        Found::NotAvailable(other) => others.push(other),
        Found::Timed(row) => panic!("validation times nothing: {row:?}"),
    };
    validate(device, false, each).unwrap();
    (judged, others)
}

/// What `prefillbench kernels` shows: rows of both operations, wrong ones with the faults and right
/// ones where a fault is none (one warp, one row); the vendor's product not at all where there is
/// no vendor, else as not available, or as wrong where the library refuses a call.
#[test]
fn the_validation_of_all_kernels_sees_both_faults_and_nothing_else() {
    let faults = ["PB_FAULT_QUANTIZE_MAX", "PB_FAULT_E4M3_SCALE"];
    let Some(wrong) = all_files(&faults) else {
        return;
    };
    let device = Emulator::new(&wrong);
    device.pretend_vendor(half_a_vendor);
    let (rows, others) = validated(&device);
    for row in &rows {
        let right = match row.kernel.as_str() {
            "quantize_rows" => row.shape.ends_with(" 1x8"),
            "gemm_e4m3" => row.shape.starts_with("1x"),
            "gemm_e4m3 vendor" => false,
            _ => true,
        };
        assert_eq!(row.passes(), right, "{row:?}");
    }
    let of = |kernel: &str| rows.iter().filter(|r| r.kernel == kernel).count();
    assert_eq!((of("quantize_rows"), of("gemm_e4m3")), (6, 12));
    let refused = |r: &&Judged| {
        r.outcome
            .as_ref()
            .is_err_and(|e| e == "a call: INVALID_VALUE")
    };
    assert_eq!(rows.iter().filter(refused).count(), 4);
    assert_eq!(of("gemm_e4m3 vendor"), 4, "none to bf16");
    let shapes: Vec<&str> = others.iter().map(|o| o.shape.as_str()).collect();
    assert_eq!(
        shapes,
        [
            "1x64x64 to f16",
            "17x66x72 to f16",
            "65x130x200 to f16",
            "3x960x576 to f16"
        ]
    );
    let told = |o: &NotAvailable| o.kernel == "gemm_e4m3 vendor" && o.why == "too old";
    assert!(others.iter().all(told), "{others:?}");
}

#[test]
fn the_emulated_device_has_no_vendor() {
    let Some(library) = library() else { return };
    let device = Emulator::new(library);
    let rows = E4m3Rows {
        codes: device.input("codes", &[E4m3(0x38); 256]).unwrap(),
        scales: device.input("scales", &[1.0; 16]).unwrap(),
    };
    let out = device.empty::<bf16>("out", 256).unwrap();
    let said = ops::vendor_gemm_e4m3(&device, &rows, &rows, &out).unwrap();
    assert_eq!(said, VendorGemm::NoVendor);
}

#[test]
fn impossible_rows_and_products_are_refused() {
    let Some(library) = library() else { return };
    let device = Emulator::new(library);
    let rows = |rows: usize, width: usize| E4m3Rows {
        codes: device
            .input("codes", &vec![E4m3(0x38); rows * width])
            .unwrap(),
        scales: device.input("scales", &vec![1.0; rows]).unwrap(),
    };
    let refused = |a: &E4m3Rows, w: &E4m3Rows, outputs: usize| {
        let out = device.empty::<f16>("out", outputs).unwrap();
        let done = ops::gemm_e4m3(&device, GemmBy::Kernel, a, w, &out);
        done.unwrap_err().to_string()
    };
    let (good, other) = (rows(2, 16), rows(4, 16));
    assert!(refused(&rows(2, 12), &other, 8).contains("terms is 12"));
    assert!(refused(&good, &rows(3, 16), 6).contains("columns is 3"));
    assert!(refused(&good, &rows(4, 24), 8).contains("terms of w is 24, expected 16"));
    assert!(refused(&good, &other, 9).contains("out is 9, expected 8"));
    let torn = E4m3Rows {
        codes: good.codes.slice(0, 31),
        ..good
    };
    assert!(refused(&torn, &other, 8).contains("a is 31, expected 2 rows"));
    let x = device.input("x", &[bf16::ONE; 32]).unwrap();
    let quantize = |out: &E4m3Rows| {
        ops::quantize_rows(&device, &x, out)
            .unwrap_err()
            .to_string()
    };
    assert!(quantize(&rows(2, 24)).contains("x is 32, expected 48"));
    assert!(quantize(&rows(8, 4)).contains("terms is 4"));
}

/// The reference of the rows is the search of the check, and that is no other than the values.
#[test]
fn a_reference_row_is_within_half_a_step_of_its_values() {
    let x: Vec<f16> = typed(&Rng(3).values(64, 5.0));
    let (codes, scale) = quantized(&x);
    for (x, code) in x.iter().zip(codes) {
        let off = (value(code) * f64::from(scale) - x.f64()).abs();
        assert!(off <= x.f64().abs() / 16.0 * 1.001 + f64::from(scale) / 1024.0);
    }
}
