//! Embedding, norms and the gate.

use half::{bf16, f16};
use pb_kernels_cuda::{DeviceExt, Emulator, ops};

use crate::common::{Expected, Rng, Value, accept, bits, f64s, library, typed};
use crate::formulas::{rmsnorm, silu_mul};

/// Row widths: one thread's worth, less than a block of threads, more, SmolLM2's and Llama's.
const WIDTHS: [usize; 5] = [8, 200, 576, 1032, 4096];

fn norms_match<T: Value>(rows: usize, h: usize, seed: u64) -> [Vec<u16>; 2] {
    let Some(library) = library() else {
        return [vec![], vec![]];
    };
    let device = Emulator::new(library);
    device.permute(seed);
    let (mut rng, eps) = (Rng(h as u64), 1e-5f32);
    let x = rng.values(rows * h, 4.0);
    let delta: Vec<T> = typed(&rng.values(rows * h, 2.0));
    let weight: Vec<T> = typed(&rng.values(h, 1.0));
    let want = |x: &[f64]| -> Vec<Expected> {
        let weight = f64s(&weight);
        x.chunks_exact(h)
            .flat_map(|row| rmsnorm::<T>(row, &weight, f64::from(eps)))
            .collect()
    };

    let residual = device.upload("residual", &x).unwrap();
    let weights = device.input("weight", &weight).unwrap();
    let out = device.empty::<T>("out", rows * h).unwrap();
    ops::rmsnorm(&device, &residual, &weights, eps, &out).unwrap();
    let alone = device.download(&out).unwrap();
    let exact: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
    accept(
        &format!("rmsnorm {} {h}", T::NAME),
        &f64s(&alone),
        &want(&exact),
    );

    let deltas = device.input("delta", &delta).unwrap();
    ops::add_rmsnorm(&device, &residual, &deltas, &weights, eps, &out).unwrap();
    let fused = device.download(&out).unwrap();
    // The sum is one f32 addition, and that very value is normed.
    let sums: Vec<f32> = x
        .iter()
        .zip(&delta)
        .map(|(x, d)| x + d.f64() as f32)
        .collect();
    assert_eq!(device.download(&residual).unwrap(), sums);
    let exact: Vec<f64> = sums.iter().map(|v| f64::from(*v)).collect();
    accept(
        &format!("add_rmsnorm {} {h}", T::NAME),
        &f64s(&fused),
        &want(&exact),
    );
    [bits(&alone), bits(&fused)]
}

#[test]
fn norms_match_the_formula_in_any_order_of_threads() {
    for h in WIDTHS {
        let plain = norms_match::<bf16>(3, h, 0);
        assert!(norms_match::<bf16>(3, h, 7) == plain);
        let plain = norms_match::<f16>(2, h, 0);
        assert!(norms_match::<f16>(2, h, 8) == plain);
    }
}

#[test]
fn the_gate_matches_the_formula() {
    fn check<T: Value>(rows: usize, ffn: usize, seed: u64) {
        let Some(library) = library() else { return };
        let device = Emulator::new(library);
        device.permute(seed);
        let x: Vec<T> = typed(&Rng(ffn as u64).values(rows * 2 * ffn, 9.0));
        let gate_up = device.input("gate_up", &x).unwrap();
        let out = device.empty::<T>("out", rows * ffn).unwrap();
        ops::silu_mul(&device, &gate_up, ffn, &out).unwrap();
        let pairs = x
            .chunks_exact(2 * ffn)
            .flat_map(|row| row[..ffn].iter().zip(&row[ffn..]));
        let want: Vec<_> = pairs
            .map(|(g, u)| silu_mul::<T>(g.f64(), u.f64()))
            .collect();
        let got = f64s(&device.download(&out).unwrap());
        accept(&format!("silu_mul {} {ffn}", T::NAME), &got, &want);
    }
    for (ffn, seed) in [(8, 0), (1536, 1), (1544, 2)] {
        check::<bf16>(3, ffn, seed);
        check::<f16>(2, ffn, 2 - seed);
    }
}

#[test]
fn embedding_copies_rows() {
    fn check<T: Value>(hidden: usize, seed: u64) {
        let Some(library) = library() else { return };
        let device = Emulator::new(library);
        device.permute(seed);
        let (vocab, tokens) = (11, [3u32, 0, 10, 3]);
        let table: Vec<T> = typed(&Rng(1).values(vocab * hidden, 1.0));
        let rows = device.input("table", &table).unwrap();
        let ids = device.input("tokens", &tokens).unwrap();
        let out = device.empty::<f32>("out", tokens.len() * hidden).unwrap();
        ops::embed(&device, &rows, &ids, &tokens, hidden, &out).unwrap();
        let at = |t: &u32| &table[*t as usize * hidden..][..hidden];
        let want = tokens.iter().flat_map(at).map(|x| x.f64() as f32);
        assert_eq!(device.download(&out).unwrap(), want.collect::<Vec<f32>>());
        let bad = ops::embed(&device, &rows, &ids, &[3, 0, 11, 3], hidden, &out);
        assert!(
            bad.unwrap_err()
                .to_string()
                .contains("token is 11, expected below 11")
        );
    }
    check::<bf16>(8, 0);
    check::<bf16>(576, 3);
    check::<f16>(1544, 4);
}
