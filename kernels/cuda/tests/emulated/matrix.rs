//! Fragments: one product through ldmatrix and mma, against plain multiplication.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use pb_kernels_cuda::{Device, DeviceExt, Emulator, Launch};

use crate::common::{Rng, Value, typed, variant};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct MmaParams {
    a: u64,
    b: u64,
    c: u64,
}

fn product_is_the_matrix_product<T: Value>(seed: u64) {
    let Some(library) = variant("probe.cu", &[]) else {
        return;
    };
    let device = Emulator::new(&library);
    device.permute(seed);
    // Small integers, so that every sum is exact and a misplaced element cannot hide.
    let mut rng = Rng(seed + 1);
    let mut integers =
        |n: usize| -> Vec<f32> { (0..n).map(|_| rng.below(33) as f32 - 16.0).collect() };
    let (a, b) = (integers(256), integers(256));
    let c = device.empty::<f32>("c", 128).unwrap();
    let params = MmaParams {
        a: device.input("a", &typed::<T>(&a)).unwrap().address(),
        b: device.input("b", &typed::<T>(&b)).unwrap().address(),
        c: c.address(),
    };
    let launch = Launch {
        kernel: &format!("probe_mma_{}", T::NAME),
        grid: [1, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 1024,
    };
    device.launch(launch, bytemuck::bytes_of(&params)).unwrap();
    let got = device.download(&c).unwrap();
    for i in 0..16 {
        for j in 0..8 {
            let want: f32 = (0..16).map(|k| a[i * 16 + k] * b[k * 16 + j]).sum();
            assert_eq!(got[i * 8 + j], want, "row {i}, column {j}");
        }
    }
}

#[test]
fn ldmatrix_and_mma_make_a_matrix_product() {
    for seed in 0..4 {
        product_is_the_matrix_product::<bf16>(seed);
        product_is_the_matrix_product::<f16>(seed);
    }
}
