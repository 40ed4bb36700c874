//! Element types of the key/value store: every code against tables of another implementation,
//! and attention on each type against the definition on the values that the codes stand for.

mod common;

use common::fp8_table::{E4M3, E4M3_TIES, E5M2, E5M2_TIES};
use common::{LAYER_SCALES, Problem, Store, bits};
use half::{bf16, f16};
use pb_kernels_cpu::{Fp8E4m3, Fp8E5m2, Isa, KvElem, Pool, Rows, attention_exact, attention_fast};

/// Compares all codes, NaN with any NaN, and encodes every number back to its code.
fn codes_match<T: KvElem>(table: &[u32; 256], make: fn(u8) -> T, code: fn(T) -> u8) {
    for c in 0..=255u8 {
        let (got, want) = (make(c).to_f32(), f32::from_bits(table[c as usize]));
        if want.is_nan() {
            assert!(got.is_nan(), "code {c:#x} is {got}");
            continue;
        }
        assert_eq!(got.to_bits(), want.to_bits(), "code {c:#x}");
        if want.is_finite() {
            assert_eq!(code(T::from_f32(want)), c, "{want} back to its code");
        }
    }
}

/// Rounds just below, at and just above the midpoint of every pair of neighbours.
fn ties_match<T: KvElem>(table: &[u32; 256], ties: &[u8], code: fn(T) -> u8) {
    for (i, want) in ties.chunks_exact(3).enumerate() {
        let (a, b) = (f32::from_bits(table[i]), f32::from_bits(table[i + 1]));
        let middle = (a + b) / 2.0;
        let near = [middle.next_down(), middle, middle.next_up()];
        for (x, want) in near.iter().zip(want) {
            assert_eq!(code(T::from_f32(*x)), *want, "{x} between {a} and {b}");
            assert_eq!(code(T::from_f32(-x)), *want | 0x80, "-{x}");
        }
        assert_eq!(want[1] % 2, 0, "a tie goes to the even code");
    }
}

#[test]
fn every_fp8_code_and_every_rounding_boundary() {
    codes_match(&E4M3, Fp8E4m3, |x| x.0);
    codes_match(&E5M2, Fp8E5m2, |x| x.0);
    assert_eq!((E4M3_TIES.len(), E5M2_TIES.len()), (3 * 126, 3 * 123));
    ties_match::<Fp8E4m3>(&E4M3, &E4M3_TIES, |x| x.0);
    ties_match::<Fp8E5m2>(&E5M2, &E5M2_TIES, |x| x.0);
}

#[test]
fn fp8_saturates_and_keeps_nan() {
    for big in [448.1f32, 463.9, 464.0, 480.0, 1e9, f32::MAX, f32::INFINITY] {
        assert_eq!(Fp8E4m3::from_f32(big).0, 0x7e, "{big}");
        assert_eq!(Fp8E4m3::from_f32(-big).0, 0xfe, "-{big}");
        let wide = big * 128.0;
        assert_eq!(Fp8E5m2::from_f32(wide).0, 0x7b, "{wide}");
        assert_eq!(Fp8E5m2::from_f32(-wide).0, 0xfb, "-{wide}");
    }
    assert!(Fp8E4m3::from_f32(f32::NAN).to_f32().is_nan());
    assert!(Fp8E5m2::from_f32(-f32::NAN).to_f32().is_nan());
    for small in [0.0f32, f32::MIN_POSITIVE, f32::from_bits(1), 2f32.powi(-18)] {
        assert_eq!(Fp8E4m3::from_f32(small).0, 0, "{small}");
        assert_eq!(Fp8E4m3::from_f32(-small).0, 0x80, "-{small}");
        assert_eq!(Fp8E5m2::from_f32(small).0, 0, "{small}");
    }
}

#[test]
fn int8_rounds_to_even_and_is_symmetric() {
    let cases = [
        (0.5, 0),
        (1.5, 2),
        (2.5, 2),
        (-0.5, 0),
        (-1.5, -2),
        (126.5, 126),
        (127.4, 127),
        (128.0, 127),
        (-128.0, -127),
        (f32::INFINITY, 127),
    ];
    for (x, want) in cases {
        assert_eq!(<i8 as KvElem>::from_f32(x), want, "{x}");
    }
    for code in -127..=127i8 {
        assert_eq!(f64::from(KvElem::to_f32(code)), f64::from(code));
    }
}

/// `problem` with keys and values replaced by what a store of `T` gives back, by a rule written
/// here: `round` takes a head's values and the scale of its side.
fn decoded(p: &Problem, round: fn(&[f32], f32) -> Vec<f32>) -> Problem {
    let side = |x: &[f32], scale: f32| -> Vec<f32> {
        x.chunks_exact(p.d)
            .flat_map(|head| round(head, scale))
            .collect()
    };
    Problem {
        k: side(&p.k, LAYER_SCALES[0]),
        v: side(&p.v, LAYER_SCALES[1]),
        q: p.q.clone(),
        ..*p
    }
}

/// Nearest value of a table, ties to the even code: by comparing with all of them.
fn nearest(x: f32, table: &[u32; 256], numbers: usize) -> f32 {
    let distance = |c: &usize| (f64::from(x.abs()) - f64::from(f32::from_bits(table[*c]))).abs();
    // OK because a distance of numbers is a number.
    let order = |a: &usize, b: &usize| {
        let near = distance(a).partial_cmp(&distance(b)).unwrap();
        near.then((a % 2).cmp(&(b % 2)))
    };
    let code = (0..numbers).min_by(order).unwrap();
    f32::from_bits(table[code]).copysign(x)
}

fn rule_e4m3(head: &[f32], scale: f32) -> Vec<f32> {
    let one = |x: &f32| nearest(x / scale, &E4M3, 127) * scale;
    head.iter().map(one).collect()
}

fn rule_e5m2(head: &[f32], scale: f32) -> Vec<f32> {
    let one = |x: &f32| nearest(x / scale, &E5M2, 124) * scale;
    head.iter().map(one).collect()
}

fn rule_int8(head: &[f32], _: f32) -> Vec<f32> {
    let largest = head.iter().map(|x| x.abs()).fold(0.0, f32::max);
    let scale = largest / 127.0;
    // The nearest integer by trying all; ties, which these values do not have, go up.
    let one = |x: &f32| {
        let at = |c: i32| (f64::from(x / scale) - f64::from(c)).abs();
        let code = (-127..=127).min_by(|a, b| at(*a).total_cmp(&at(*b)));
        code.unwrap_or(0) as f32 * scale
    };
    head.iter().map(one).collect()
}

fn rule_f16(head: &[f32], _: f32) -> Vec<f32> {
    // Values below one with eleven bits: round at a multiple of 2^-11 of their binade.
    let one = |x: &f32| {
        let ulp = 2f64.powi(f64::from(x.abs()).log2().floor().max(-14.0) as i32 - 10);
        ((f64::from(*x) / ulp).round_ties_even() * ulp) as f32
    };
    head.iter().map(one).collect()
}

fn attend<T: KvElem>(exact: bool, isa: Isa, p: &Problem, block_size: usize, seed: u64) -> Vec<f32> {
    let store = Store::<T>::new(p, block_size, seed);
    let pool = Pool::new(1 + block_size % 2).unwrap();
    let mut out = vec![f32::NAN; p.len * p.q_width()];
    let (q, seqs) = (Rows::new(&p.q, p.q_width()), [store.seq(0, 0, p.len)]);
    let call = if exact {
        attention_exact::<T>
    } else {
        attention_fast::<T>
    };
    call(isa, &pool, q, p.q_heads, store.view(), &seqs, &mut out);
    out
}

/// Both forms on `T` give the bits that they give on an f32 store of the decoded values, and the
/// exact form those of the definition.
fn attention_matches<T: KvElem>(name: &str, rule: fn(&[f32], f32) -> Vec<f32>) {
    for (heads, kv_heads, d, len) in [(6, 2, 32, 45), (4, 1, 24, 37), (3, 3, 64, 300)] {
        let p = Problem::new(len as u64, heads, kv_heads, d, len);
        let plain = decoded(&p, rule);
        let rows = (0..len).flat_map(|i| (0..heads).map(move |h| (i, h)));
        let want: Vec<f32> = rows.flat_map(|(i, h)| plain.oracle(i, h)).collect();
        for isa in Isa::supported() {
            for block_size in [3, 16, 32] {
                let what = format!("{name}, d {d}, block {block_size}, {}", isa.name());
                let got = attend::<T>(true, isa, &p, block_size, 9);
                assert_eq!(bits(&got), bits(&want), "exact, {what}");
                let got = attend::<T>(false, isa, &p, block_size, 5);
                let same = attend::<f32>(false, isa, &plain, block_size, 0);
                assert_eq!(bits(&got), bits(&same), "fast, {what}");
            }
        }
    }
}

#[test]
fn attention_on_every_type_is_that_of_the_decoded_values() {
    attention_matches::<f16>("f16", rule_f16);
    attention_matches::<Fp8E4m3>("e4m3", rule_e4m3);
    attention_matches::<Fp8E5m2>("e5m2", rule_e5m2);
    attention_matches::<i8>("int8", rule_int8);
    attention_matches::<bf16>("bf16", |head, _| common::to_bf16(head));
}
