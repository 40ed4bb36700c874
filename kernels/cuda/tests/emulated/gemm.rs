//! Matrix products, and the rows gathered for them.

use half::{bf16, f16};
use pb_kernels_cuda::ops::{self, GemmBy};
use pb_kernels_cuda::{DeviceExt, Elem, Emulator, FaultKind, GemmOut, KernelError, Library};

use crate::common::{
    Expected, Rng, Value, Verdict, accept, bits, f64s, judge, library, typed, variant,
};
use crate::formulas::product;

/// A product on the host.
struct Problem<T> {
    m: usize,
    n: usize,
    k: usize,
    a: Vec<T>,
    w: Vec<T>,
    bias: Option<Vec<T>>,
}

impl<T: Value> Problem<T> {
    fn new([m, n, k]: [usize; 3], with_bias: bool) -> Self {
        let mut rng = Rng((m * n + k) as u64);
        Problem {
            m,
            n,
            k,
            a: typed(&rng.values(m * k, 2.0)),
            w: typed(&rng.values(n * k, 1.0)),
            bias: with_bias.then(|| typed(&rng.values(n, 3.0))),
        }
    }

    /// Rows from `first` on, on a machine of their own.
    fn run<O: GemmOut<T>>(
        &self,
        library: &Library,
        seed: u64,
        first: usize,
    ) -> Result<Vec<O>, KernelError> {
        let device = Emulator::new(library);
        device.permute(seed);
        let m = self.m - first;
        let a = device.input("a", &self.a[first * self.k..])?;
        let w = device.input("w", &self.w)?;
        let bias = self.bias.as_ref().map(|b| device.input("bias", b));
        let bias = bias.transpose()?;
        let out = device.empty::<O>("out", m * self.n)?;
        ops::gemm(&device, GemmBy::Vendor, (&a, m), &w, bias.as_ref(), &out)?;
        assert_eq!(
            device.unwritten(&out),
            0,
            "bytes of the output were left out"
        );
        device.download(&out)
    }

    fn expected(&self, out_f32: bool) -> Vec<Expected> {
        let (a, w) = (f64s(&self.a), f64s(&self.w));
        let row = |i: usize| &a[i * self.k..][..self.k];
        let bias = |j: usize| self.bias.as_ref().map_or(0.0, |b| b[j].f64());
        let one =
            |i: usize, j: usize| product::<T>(row(i), &w[j * self.k..][..self.k], bias(j), out_f32);
        (0..self.m)
            .flat_map(|i| (0..self.n).map(move |j| (i, j)))
            .map(|(i, j)| one(i, j))
            .collect()
    }
}

/// Rows, columns and terms at and beside the ends of tiles; a single row; SmolLM2's projections.
const SHAPES: [[usize; 3]; 6] = [
    [1, 64, 64],
    [17, 66, 8],
    [64, 2, 136],
    [65, 130, 72],
    [3, 960, 576],
    [130, 64, 200],
];

fn products_match<T: Value>()
where
    f32: GemmOut<T>,
{
    let Some(library) = library() else { return };
    for (i, shape) in SHAPES.into_iter().enumerate() {
        let problem = Problem::<T>::new(shape, i % 2 == 1);
        let what = format!("gemm {} {shape:?}", <T as Elem>::NAME);
        let low = problem.run::<T>(library, 0, 0).unwrap();
        accept(&what, &f64s(&low), &problem.expected(false));
        let wide = problem.run::<f32>(library, i as u64, 0).unwrap();
        let wide64: Vec<f64> = wide.iter().map(|x| f64::from(*x)).collect();
        accept(&format!("{what} to f32"), &wide64, &problem.expected(true));
        let other = problem.run::<T>(library, 9, 0).unwrap();
        assert!(
            bits(&other) == bits(&low),
            "{what}: the order of threads shows"
        );
    }
}

#[test]
fn products_are_those_of_f64_at_every_edge() {
    products_match::<bf16>();
    products_match::<f16>();
}

/// What batch invariance rests on: a row has the same bits in any company.
#[test]
fn a_row_has_the_same_bits_whatever_rows_are_with_it() {
    let Some(library) = library() else { return };
    let problem = Problem::<bf16>::new([70, 64, 264], false);
    let whole = bits(&problem.run::<bf16>(library, 0, 0).unwrap());
    for first in [1, 16, 63, 64, 69] {
        let part = problem.run::<bf16>(library, 0, first).unwrap();
        assert!(
            bits(&part) == whole[first * problem.n..],
            "from row {first}"
        );
    }
}

#[test]
fn planted_faults_of_the_product_are_caught() {
    let Some(tail) = variant("gemm.cu", &["PB_FAULT_GEMM_TAIL"]) else {
        return;
    };
    let Some(barrier) = variant("gemm.cu", &["PB_FAULT_GEMM_BARRIER"]) else {
        return;
    };
    // Terms past the end of a row are those of the next one.
    let problem = Problem::<bf16>::new([9, 10, 72], false);
    let got = problem.run::<bf16>(&tail, 0, 0).unwrap();
    let verdict: Verdict = judge(&f64s(&got), &problem.expected(false));
    assert!(!verdict.passes(), "{verdict:?}");
    let problem = Problem::<bf16>::new([64, 64, 256], false);
    for seed in 0..4 {
        let found = problem
            .run::<bf16>(&barrier, seed, 0)
            .map(|_| ())
            .unwrap_err();
        let KernelError::Fault(fault) = found else {
            panic!("order {seed}: {found}");
        };
        let kinds = [
            FaultKind::Race,
            FaultKind::PendingCopy,
            FaultKind::Uninitialised,
        ];
        assert!(kinds.contains(&fault.kind), "order {seed}: {fault}");
    }
}

#[test]
fn impossible_products_are_refused() {
    let Some(library) = library() else { return };
    let device = Emulator::new(library);
    let buffer = |n: usize| device.input("x", &vec![bf16::ONE; n]).unwrap();
    let out = |n: usize| device.empty::<bf16>("out", n).unwrap();
    let refused = |m: usize, a: usize, w: usize, n: usize| {
        let out = out(n);
        let done = ops::gemm(
            &device,
            GemmBy::Kernel,
            (&buffer(a), m),
            &buffer(w),
            None,
            &out,
        );
        done.unwrap_err().to_string()
    };
    assert!(refused(2, 24, 24, 4).contains("terms is 12"));
    assert!(refused(2, 16, 24, 6).contains("columns is 3"));
    assert!(refused(2, 16, 24, 4).contains("w is 24, expected 16"));
    assert!(refused(2, 17, 24, 4).contains("expected 2 rows"));
}

#[test]
fn rows_are_gathered_and_missing_ones_refused() {
    let Some(library) = library() else { return };
    let device = Emulator::new(library);
    for width in [8, 576, 1032] {
        let host: Vec<bf16> = typed(&Rng(2).values(7 * width, 1.0));
        let from = device.input("from", &host).unwrap();
        let rows = [6u32, 0, 3, 3];
        let out = device.empty::<bf16>("out", rows.len() * width).unwrap();
        ops::gather_rows(&device, &from, &rows, width, &out).unwrap();
        let want = rows
            .iter()
            .flat_map(|r| &host[*r as usize * width..][..width]);
        assert!(device.download(&out).unwrap().iter().eq(want));
        let bad = ops::gather_rows(&device, &from, &[0, 7, 1, 1], width, &out);
        assert!(
            bad.unwrap_err()
                .to_string()
                .contains("row is 7, expected below 7")
        );
    }
}

/// Memory is given back in the reverse order, and what is given back is no memory any more.
#[test]
fn released_buffers_are_gone_and_older_ones_stay() {
    let Some(library) = library() else { return };
    let device = Emulator::new(library);
    let kept = device.input("kept", &[f16::ONE; 16]).unwrap();
    let mark = pb_kernels_cuda::Device::mark(&device);
    let gone = device.input("gone", &[f16::ONE; 4096]).unwrap();
    pb_kernels_cuda::Device::release(&device, mark).unwrap();
    let out = device.empty::<f16>("out", 16).unwrap();
    ops::gather_rows(&device, &kept, &[0], 16, &out).unwrap();
    let stale = ops::gather_rows(&device, &gone, &[200], 16, &out);
    assert!(matches!(stale, Err(KernelError::Fault(_))), "{stale:?}");
}
