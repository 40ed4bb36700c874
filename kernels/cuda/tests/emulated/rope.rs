//! Rotation, and the write into blocks.

use half::{bf16, f16};
use pb_kernels_cuda::ops::{KvPool, KvShape, NO_SLOT, RopeKv, rope_kv};
use pb_kernels_cuda::{DeviceExt, E4m3, Emulator, FaultKind, KernelError, Library};

use crate::common::{Expected, Rng, Stored, Value, accept, bits, f64s, library, typed, variant};
use crate::formulas::rotate;

const POSITIONS: [u32; 5] = [0, 1, 2, 511, 2048];

/// The angle of a pair at a position, theta 10,000.
fn angle(position: u32, pair: usize, d: usize) -> f64 {
    f64::from(position) * 10_000f64.powf(-(2.0 * pair as f64) / d as f64)
}

struct Rotated<T, S> {
    qkv: Vec<T>,
    k: Vec<S>,
    v: Vec<S>,
}

struct Problem<T> {
    q_heads: usize,
    shape: KvShape,
    qkv: Vec<T>,
    slots: Vec<[u32; 2]>,
    scales: [f32; 2],
}

impl<T: Value> Problem<T> {
    fn new(q_heads: usize, shape: KvShape, scales: [f32; 2]) -> Self {
        let mut rng = Rng(q_heads as u64);
        let width = (q_heads + 2 * shape.kv_heads) * shape.d_head;
        let size = shape.block_size as u32;
        Problem {
            q_heads,
            shape,
            qkv: typed(&rng.values(POSITIONS.len() * width, 2.0)),
            // Out of order, the ends of blocks among them.
            slots: vec![[3, 0], [0, size - 1], [3, 1], [1, 2], [0, 0]],
            scales,
        }
    }

    fn run<S: Stored<T>>(&self, seed: u64) -> Option<Rotated<T, S>> {
        Some(self.run_with(library()?, seed).unwrap())
    }

    fn run_with<S: Stored<T>>(
        &self,
        library: &Library,
        seed: u64,
    ) -> Result<Rotated<T, S>, KernelError> {
        let device = Emulator::new(library);
        device.permute(seed);
        let (d, elems) = (self.shape.d_head, 4 * self.shape.block_elems());
        let table = |f: fn(f64) -> f64| -> Vec<f32> {
            let row = |p: u32| (0..d / 2).map(move |i| f(angle(p, i, d)) as f32);
            (0..=POSITIONS[4]).flat_map(row).collect()
        };
        let qkv = device.upload("qkv", &self.qkv).unwrap();
        let pool = KvPool {
            k: device.upload("keys", &vec![S::poison(); elems]).unwrap(),
            v: device.upload("values", &vec![S::poison(); elems]).unwrap(),
            shape: self.shape,
            k_scale: self.scales[0],
            v_scale: self.scales[1],
        };
        let args = RopeKv {
            q_heads: self.q_heads,
            cos: &device.input("cos", &table(f64::cos)).unwrap(),
            sin: &device.input("sin", &table(f64::sin)).unwrap(),
            positions: &POSITIONS,
            slots: &self.slots,
            on_device: (
                &device.input("positions", &POSITIONS).unwrap(),
                &device.input("slots", &self.slots).unwrap(),
            ),
        };
        rope_kv(&device, &qkv, &args, &pool)?;
        Ok(Rotated {
            qkv: device.download(&qkv).unwrap(),
            k: device.download(&pool.k).unwrap(),
            v: device.download(&pool.v).unwrap(),
        })
    }

    /// The rotated heads of a row, `[q_heads + kv_heads][d]`.
    fn rotated(&self, row: usize) -> Vec<Expected> {
        let (d, heads) = (self.shape.d_head, self.q_heads + self.shape.kv_heads);
        let x = &self.qkv[row * (heads + self.shape.kv_heads) * d..];
        let mut out = Vec::new();
        for head in x[..heads * d].chunks_exact(d) {
            let turn = |i: usize| {
                let (a, b) = (head[i].f64(), head[i + d / 2].f64());
                rotate::<T>(a, b, angle(POSITIONS[row], i, d))
            };
            let pairs: Vec<[Expected; 2]> = (0..d / 2).map(turn).collect();
            out.extend(pairs.iter().map(|p| p[0]));
            out.extend(pairs.iter().map(|p| p[1]));
        }
        out
    }
}

fn check<T: Value, S: Stored<T>>(q_heads: usize, shape: KvShape, scales: [f32; 2]) {
    let problem = Problem::<T>::new(q_heads, shape, scales);
    let Some(got) = problem.run::<S>(0) else {
        return;
    };
    let (d, kv_heads, size) = (shape.d_head, shape.kv_heads, shape.block_size);
    let width = (q_heads + 2 * kv_heads) * d;
    let mut written = 0;
    for (row, [block, slot]) in problem.slots.iter().enumerate() {
        let what = format!("rope {}{} row {row} of {shape:?}", T::NAME, S::SUFFIX);
        let want = problem.rotated(row);
        let (q, rest) = got.qkv[row * width..][..width].split_at(q_heads * d);
        accept(&what, &f64s(q), &want[..q_heads * d]);
        // Keys and values of the projection stay as they are.
        assert!(bits(rest) == bits(&problem.qkv[row * width + q_heads * d..][..2 * kv_heads * d]));
        let start = *block as usize * shape.block_elems();
        for (i, key) in want[q_heads * d..].iter().enumerate() {
            let (head, dim) = (i / d, i % d);
            let k = got.k[start + (head * d + dim) * size + *slot as usize];
            let v = got.v[start + (head * size + *slot as usize) * d + dim];
            let value = rest[kv_heads * d + i].f64();
            assert_eq!(v, S::encode(value as f32, scales[1]), "{what}, value {i}");
            // The code of the exact rotation, or of something within the f32 bound of it.
            let near = |by: f64| S::encode((key.exact + by) as f32, scales[0]).decode(scales[0]);
            let (low, high) = (near(-key.f32_bound), near(key.f32_bound));
            let k = k.decode(scales[0]);
            assert!(
                (low..=high).contains(&k),
                "{what}, key {i}: {k} in {low}..={high}"
            );
            written += 1;
        }
    }
    // Nothing else was touched.
    let untouched = |x: &[S]| x.iter().filter(|x| x.decode(1.0).is_nan()).count();
    assert_eq!(got.k.len() - untouched(&got.k), written);
    assert_eq!(got.v.len() - untouched(&got.v), written);
    for seed in [1, 2] {
        let other = problem.run::<S>(seed).expect("the compiler is still there");
        let raw = |x: &[S]| bytemuck::cast_slice::<S, u8>(x).to_vec();
        assert!(bits(&other.qkv) == bits(&got.qkv), "order {seed}");
        assert!(
            raw(&other.k) == raw(&got.k) && raw(&other.v) == raw(&got.v),
            "order {seed}"
        );
    }
}

#[test]
fn rotation_and_blocks_match_the_formula() {
    let shape = |block_size, kv_heads, d_head| KvShape {
        block_size,
        kv_heads,
        d_head,
    };
    check::<bf16, bf16>(3, shape(16, 1, 64), [1.0; 2]);
    check::<f16, f16>(8, shape(8, 2, 128), [1.0; 2]);
    check::<bf16, E4m3>(4, shape(32, 4, 64), [0.01, 0.004]);
    // Scales so small that values saturate at the largest code.
    check::<f16, E4m3>(1, shape(16, 1, 128), [0.003, 0.002]);
}

/// A row that fills up a batch changes no other, and leaves no key or value anywhere.
#[test]
fn a_row_without_a_slot_is_stored_nowhere() {
    let shape = KvShape {
        block_size: 16,
        kv_heads: 2,
        d_head: 64,
    };
    let whole = Problem::<bf16>::new(6, shape, [1.0; 2]);
    let mut filled = Problem::<bf16>::new(6, shape, [1.0; 2]);
    filled.slots[2] = NO_SLOT;
    let (Some(want), Some(got)) = (whole.run::<bf16>(0), filled.run::<bf16>(0)) else {
        return;
    };
    assert!(bits(&got.qkv) == bits(&want.qkv));
    let kept = |x: &[bf16]| x.iter().filter(|x| !x.is_nan()).count();
    let row = shape.kv_heads * shape.d_head;
    assert_eq!((kept(&got.k), kept(&got.v)), (4 * row, 4 * row));
    let pairs = got.k.iter().zip(&want.k).chain(got.v.iter().zip(&want.v));
    let same = |(g, w): (&bf16, &bf16)| g.is_nan() || g == w;
    assert!(pairs.into_iter().all(same));
    let Some(faulty) = variant("rope_kv.cu", &["PB_FAULT_ROPE_FILL"]) else {
        return;
    };
    let found = filled.run_with::<bf16>(&faulty, 0).map(|_| ()).unwrap_err();
    let outside = matches!(&found, KernelError::Fault(f) if f.kind == FaultKind::OutOfBounds);
    assert!(outside, "{found}");
}
