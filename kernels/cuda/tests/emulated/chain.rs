//! Kernels after one another, and next to the CPU's: what one writes the next must understand.

use half::{bf16, f16};
use pb_kernels_cpu::{Fp8E4m3, KvElem, KvLayerMut, KvSlot, Rows, kv_write};
use pb_kernels_cuda::ops::{
    BatchSeq, KvPool, KvShape, PrefillArgs, PrefillPlan, RopeKv, Stores, block_checksum,
    block_gather, block_scatter, prefill, rope_kv,
};
use pb_kernels_cuda::{Buffer, DeviceExt, E4m3, Emulator, checksum};

use crate::common::{Expected, Rng, Stored, Value, bits, f64s, judge, library, typed};
use crate::formulas::{Head, attention};

const TOKENS: usize = 37;
const Q_HEADS: usize = 6;
const BLOCKS: usize = 9;
const SHAPE: KvShape = KvShape {
    block_size: 8,
    kv_heads: 2,
    d_head: 64,
};
const WIDTH: usize = (Q_HEADS + 2 * SHAPE.kv_heads) * SHAPE.d_head;

fn angle(position: usize, pair: usize) -> f64 {
    position as f64 * 10_000f64.powf(-(2.0 * pair as f64) / SHAPE.d_head as f64)
}

/// A pool of blocks without content.
fn pool<T: Value>(device: &Emulator<'_>) -> KvPool<T> {
    let blank = vec![T::of(f32::NAN); BLOCKS * SHAPE.block_elems()];
    KvPool {
        k: device.upload("keys", &blank).unwrap(),
        v: device.upload("values", &blank).unwrap(),
        shape: SHAPE,
        k_scale: 1.0,
        v_scale: 1.0,
    }
}

/// Rotates and stores all tokens under `table`; positions are `turn * token`.
fn store<T: Value, S: Stored<T>>(
    device: &Emulator<'_>,
    qkv: &Buffer<T>,
    table: &[u32],
    turn: u32,
    pool: &KvPool<S>,
) {
    let half = SHAPE.d_head / 2;
    let angles = |f: fn(f64) -> f64| -> Vec<f32> {
        let row = |p: usize| (0..half).map(move |i| f(angle(p, i)) as f32);
        (0..TOKENS).flat_map(row).collect()
    };
    let positions: Vec<u32> = (0..TOKENS as u32).map(|t| t * turn).collect();
    let slot = |t: usize| [table[t / SHAPE.block_size], (t % SHAPE.block_size) as u32];
    let slots: Vec<[u32; 2]> = (0..TOKENS).map(slot).collect();
    let args = RopeKv {
        q_heads: Q_HEADS,
        cos: &device.input("cos", &angles(f64::cos)).unwrap(),
        sin: &device.input("sin", &angles(f64::sin)).unwrap(),
        positions: &positions,
        slots: &slots,
        on_device: (
            &device.input("positions", &positions).unwrap(),
            &device.input("slots", &slots).unwrap(),
        ),
    };
    rope_kv(device, qkv, &args, pool).unwrap();
}

fn attend<T: Value>(
    device: &Emulator<'_>,
    qkv: &Buffer<T>,
    table: &[u32],
    pool: &KvPool<T>,
) -> Vec<T> {
    let seq = BatchSeq {
        q_row: 0,
        q_len: TOKENS,
        start_pos: 0,
        block_table: table,
    };
    let plan = PrefillPlan::new(&[seq], Q_HEADS / SHAPE.kv_heads).unwrap();
    let out = device
        .empty("out", TOKENS * Q_HEADS * SHAPE.d_head)
        .unwrap();
    let args = PrefillArgs {
        q: qkv,
        q_stride: WIDTH,
        q_heads: Q_HEADS,
        pool,
        out: &out,
    };
    prefill(device, &plan, &args).unwrap();
    device.download(&out).unwrap()
}

/// Head `head` of a token, rotated in f64.
fn rotated(qkv: &[f64], token: usize, head: usize) -> Vec<f64> {
    let half = SHAPE.d_head / 2;
    let x = &qkv[token * WIDTH + head * SHAPE.d_head..][..SHAPE.d_head];
    let turn = |i: usize| {
        let (sin, cos) = angle(token, i % half).sin_cos();
        if i < half {
            x[i] * cos - x[i + half] * sin
        } else {
            x[i] * cos + x[i - half] * sin
        }
    };
    (0..SHAPE.d_head).map(turn).collect()
}

/// What attention after rotation must give: exactly, and naively with rounded rotations.
fn expected<T: Value>(qkv: &[f64]) -> Vec<Expected> {
    let (d, group) = (SHAPE.d_head, Q_HEADS / SHAPE.kv_heads);
    let round = |x: &Vec<f64>| -> Vec<f64> { x.iter().map(|v| T::of(*v as f32).f64()).collect() };
    let mut out = Vec::new();
    for token in 0..TOKENS {
        for head in 0..Q_HEADS {
            let kv_head = head / group;
            let value_at = (Q_HEADS + SHAPE.kv_heads + kv_head) * d;
            let k: Vec<_> = (0..=token)
                .map(|t| rotated(qkv, t, Q_HEADS + kv_head))
                .collect();
            let v: Vec<_> = (0..=token)
                .map(|t| qkv[t * WIDTH + value_at..][..d].to_vec())
                .collect();
            let q = rotated(qkv, token, head);
            let low: Vec<_> = k.iter().map(round).collect();
            let exact = attention::<T>(&Head {
                q: &q,
                k: &k,
                v: &v,
            });
            let q = round(&q);
            let naive = attention::<T>(&Head {
                q: &q,
                k: &low,
                v: &v,
            });
            out.extend(exact.into_iter().zip(naive).map(|(e, n)| Expected {
                naive: n.naive,
                bound: f64::INFINITY,
                ..e
            }));
        }
    }
    out
}

fn layer_and_transfer<T: Value>() {
    let Some(library) = library() else { return };
    let device = Emulator::new(library);
    let x: Vec<T> = typed(&Rng(41).values(TOKENS * WIDTH, 1.5));
    let qkv = device.upload("qkv", &x).unwrap();
    let (table, there) = ([7u32, 2, 8, 0, 5], [1u32, 0, 3, 6, 4]);
    let (near, far) = (pool::<T>(&device), pool::<T>(&device));
    store(&device, &qkv, &table, 1, &near);
    let got = attend(&device, &qkv, &table, &near);
    let verdict = judge(&f64s(&got), &expected::<T>(&f64s(&x)));
    println!(
        "rope_kv then prefill {}: {:.0} % of the rule",
        T::NAME,
        100.0 * verdict.of_rule
    );
    assert!(verdict.passes(), "{verdict:?}");

    // Out of one pool, into another at other blocks: sums and results are the same.
    let block_bytes = SHAPE.block_elems() * size_of::<T>();
    let stores = |p: &KvPool<T>| Stores::new(&device, &[p.k, p.v], block_bytes).unwrap();
    let (from, to) = (stores(&near), stores(&far));
    let staging = device
        .empty::<u8>("staging", 5 * from.staged_bytes())
        .unwrap();
    block_gather(&device, &from, &table, &staging).unwrap();
    block_scatter(&device, &to, &there, &staging).unwrap();
    let sums = |stores: &Stores, blocks: &[u32]| {
        let out = device.empty::<u64>("sums", 10).unwrap();
        block_checksum(&device, stores, blocks, &out).unwrap();
        device.download(&out).unwrap()
    };
    let sent = sums(&from, &table);
    assert_eq!(sent, sums(&to, &there));
    let staged = device.download(&staging).unwrap();
    assert_eq!(
        sent,
        staged
            .chunks_exact(block_bytes)
            .map(checksum)
            .collect::<Vec<_>>()
    );
    assert!(bits(&attend(&device, &qkv, &there, &far)) == bits(&got));
}

#[test]
fn a_layer_of_attention_survives_a_transfer() {
    layer_and_transfer::<bf16>();
    layer_and_transfer::<f16>();
}

/// The same rows through the CPU's store and ours, at position 0, where rotation is nothing.
fn same_bytes<T: Value, S: Stored<T>, C: KvElem>(scales: [f32; 2]) {
    let Some(library) = library() else { return };
    let device = Emulator::new(library);
    let x: Vec<T> = typed(&Rng(42).values(TOKENS * WIDTH, 3.0));
    let table = [4u32, 0, 8, 2, 6];
    let elems = BLOCKS * SHAPE.block_elems();
    let blank = vec![0u8; elems * size_of::<S>()];
    let zeros: &[S] = bytemuck::cast_slice(&blank);
    let ours = KvPool {
        k: device.upload("keys", zeros).unwrap(),
        v: device.upload("values", zeros).unwrap(),
        shape: SHAPE,
        k_scale: scales[0],
        v_scale: scales[1],
    };
    store(
        &device,
        &device.upload("qkv", &x).unwrap(),
        &table,
        0,
        &ours,
    );

    let rows: Vec<f32> = x.iter().map(|v| v.f64() as f32).collect();
    let (mut k, mut v) = (vec![C::zeroed(); elems], vec![C::zeroed(); elems]);
    let has_scales = usize::from(S::SCALED);
    let (mut k_scale, mut v_scale) = ([scales[0]], [scales[1]]);
    let mut theirs = KvLayerMut {
        k: &mut k,
        v: &mut v,
        k_scales: &mut k_scale[..has_scales],
        v_scales: &mut v_scale[..has_scales],
        shape: pb_kernels_cpu::KvShape {
            block_size: SHAPE.block_size,
            kv_heads: SHAPE.kv_heads,
            d_head: SHAPE.d_head,
        },
    };
    let slot = |t: usize| KvSlot {
        block: table[t / SHAPE.block_size],
        slot: (t % SHAPE.block_size) as u32,
    };
    let slots: Vec<KvSlot> = (0..TOKENS).map(slot).collect();
    let (keys, values) = (
        Q_HEADS * SHAPE.d_head,
        (Q_HEADS + SHAPE.kv_heads) * SHAPE.d_head,
    );
    let (keys, values) = (
        Rows::new(&rows[keys..], WIDTH),
        Rows::new(&rows[values..], WIDTH),
    );
    kv_write(keys, values, &slots, &mut theirs);
    let raw = |x: &Buffer<S>| bytemuck::cast_slice::<S, u8>(&device.download(x).unwrap()).to_vec();
    assert!(
        raw(&ours.k) == bytemuck::cast_slice::<C, u8>(&k),
        "keys {}{}",
        T::NAME,
        S::SUFFIX
    );
    assert!(
        raw(&ours.v) == bytemuck::cast_slice::<C, u8>(&v),
        "values {}{}",
        T::NAME,
        S::SUFFIX
    );
}

#[test]
fn blocks_are_byte_for_byte_those_of_the_cpu() {
    same_bytes::<bf16, bf16, bf16>([1.0; 2]);
    same_bytes::<f16, f16, f16>([1.0; 2]);
    same_bytes::<bf16, E4m3, Fp8E4m3>([0.0123, 0.0045]);
    same_bytes::<f16, E4m3, Fp8E4m3>([0.02, 0.03]);
}
