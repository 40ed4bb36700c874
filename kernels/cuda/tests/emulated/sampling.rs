//! Sampling against the definition: sort, add up, draw.

use pb_kernels_cuda::ops::{SampleRow, sample};
use pb_kernels_cuda::{DeviceExt, Emulator};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

use crate::common::{Rng, library};

/// Word `draw` of a stream, taken one after the other, in [0, 1).
fn uniform(key: [u8; 32], draw: u64) -> f64 {
    let mut rng = ChaCha8Rng::from_seed(key);
    for _ in 0..draw {
        rng.next_u64();
    }
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// The token that the row asks for, and how near the draw was to another one, as a share of the
/// mass: a decision by less than the kernel's resolution would be no test.
fn chosen(logits: &[f32], row: &SampleRow<'_>) -> (u32, f64) {
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.retain(|id| !row.forbidden.contains(id));
    let value = |id: u32| f64::from(logits[id as usize]);
    let by_rank = |a: &u32, b: &u32| value(*b).total_cmp(&value(*a)).then(a.cmp(b));
    let mut ranked = ids.clone();
    ranked.sort_by(by_rank);
    let top = value(ranked[0]);
    if row.temperature == 0.0 {
        return (ranked[0], 1.0);
    }
    let weight = |id: u32| ((value(id) - top) / row.temperature).exp();
    let mut margin = 1.0f64;
    let order = if row.top_k == 0 && row.top_p >= 1.0 {
        ids
    } else {
        if row.top_k > 0 {
            ranked.truncate(row.top_k as usize);
        }
        let total: f64 = ranked.iter().map(|id| weight(*id)).sum();
        if row.top_p < 1.0 {
            let mut sum = 0.0;
            let keep = ranked.iter().position(|id| {
                sum += weight(*id);
                margin = margin.min((sum / total - row.top_p).abs());
                sum >= row.top_p * total
            });
            ranked.truncate(keep.map_or(ranked.len(), |i| i + 1));
        }
        ranked
    };
    let total: f64 = order.iter().map(|id| weight(*id)).sum();
    let target = uniform(row.key, row.draw);
    let mut sum = 0.0;
    let mut token = None;
    for id in order {
        sum += weight(id);
        margin = margin.min((sum / total - target).abs());
        if token.is_none() && target * total < sum {
            token = Some(id);
        }
    }
    (token.expect("the draw lies below all of the mass"), margin)
}

/// Rows of every kind of setting, with a stream and draw of their own.
fn rows(rng: &mut Rng, count: usize) -> Vec<SampleRow<'static>> {
    let settings = [
        (0.0, 0, 1.0),
        (1.0, 0, 1.0),
        (0.7, 5, 1.0),
        (1.3, 0, 0.9),
        (1.0, 40, 0.5),
        (2.0, 1, 0.3),
        (0.1, 0, 0.0),
        (5.0, 100_000, 0.999),
    ];
    let lists: [&[u32]; 3] = [&[], &[3], &[0, 7, 8, 9]];
    (0..count)
        .map(|i| {
            let (temperature, top_k, top_p) = settings[i % settings.len()];
            SampleRow {
                temperature,
                top_k,
                top_p,
                forbidden: lists[rng.below(3)],
                key: std::array::from_fn(|_| rng.next_u64() as u8),
                draw: rng.below(40) as u64,
            }
        })
        .collect()
}

fn run(logits: &[f32], rows: &[SampleRow<'_>], seed: u64) -> Option<Vec<u32>> {
    let device = Emulator::new(library()?);
    device.permute(seed);
    let out = device.empty::<u32>("out", rows.len()).unwrap();
    sample(
        &device,
        &device.input("logits", logits).unwrap(),
        rows,
        &out,
    )
    .unwrap();
    Some(device.download(&out).unwrap())
}

#[test]
fn tokens_are_those_of_the_definition() {
    for vocab in [11, 256, 1000] {
        let mut rng = Rng(vocab as u64);
        let rows = rows(&mut rng, 24);
        let mut logits = rng.values(rows.len() * vocab, 6.0);
        // Few different values, so that ties decide.
        for row in logits.chunks_exact_mut(vocab).step_by(2) {
            row.iter_mut().for_each(|x| *x = x.round());
        }
        let Some(got) = run(&logits, &rows, 0) else {
            return;
        };
        let mut decided = 0;
        for (i, (row, got)) in rows.iter().zip(&got).enumerate() {
            let (want, margin) = chosen(&logits[i * vocab..][..vocab], row);
            if margin > 1e-10 {
                assert_eq!(*got, want, "row {i} of {vocab}: {row:?}");
                decided += 1;
            }
        }
        assert!(decided > rows.len() / 2, "only {decided} rows were clear");
        assert_eq!(run(&logits, &rows, 5), Some(got), "order of threads");
    }
}

#[test]
fn ties_go_to_the_lower_id_and_zeros_are_one() {
    let greedy = SampleRow {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        forbidden: &[],
        key: [0; 32],
        draw: 0,
    };
    let mut logits = vec![-1.0f32; 300];
    (logits[7], logits[200]) = (-0.0, 0.0);
    let Some(got) = run(&logits, &[greedy], 0) else {
        return;
    };
    assert_eq!(got, [7]);
    let without = SampleRow {
        forbidden: &[7],
        ..greedy
    };
    assert_eq!(run(&logits, &[without], 0).unwrap(), [200]);
    let all: Vec<u32> = (0..300).collect();
    let none = SampleRow {
        forbidden: &all,
        ..greedy
    };
    assert_eq!(run(&logits, &[none], 0).unwrap(), [0]);
    let drawn = SampleRow {
        temperature: 1.0,
        ..none
    };
    assert_eq!(run(&logits, &[drawn], 0).unwrap(), [7]);
}

#[test]
fn frequencies_follow_the_distribution() {
    // Probabilities 0.1, 0.2, 0.3, 0.4; top-p 0.65 keeps the last two.
    let logits: Vec<f32> = [0.1f32, 0.2, 0.3, 0.4].map(f32::ln).to_vec();
    let count = 400u64;
    let row = |draw: u64| SampleRow {
        temperature: 1.0,
        top_k: 0,
        top_p: if draw < count { 1.0 } else { 0.65 },
        forbidden: &[],
        key: [9; 32],
        draw,
    };
    let rows: Vec<_> = (0..2 * count).map(row).collect();
    let Some(got) = run(&logits.repeat(rows.len()), &rows, 0) else {
        return;
    };
    let share =
        |tokens: &[u32], t: u32| tokens.iter().filter(|x| **x == t).count() as f64 / count as f64;
    let (free, cut) = got.split_at(count as usize);
    // Five standard deviations of a share of one half are 0.125.
    for (t, p) in [0.1, 0.2, 0.3, 0.4].into_iter().enumerate() {
        assert!((share(free, t as u32) - p).abs() < 0.125, "token {t}");
    }
    assert!((share(cut, 3) - 4.0 / 7.0).abs() < 0.125);
    assert_eq!(share(cut, 0) + share(cut, 1), 0.0);
}

#[test]
fn what_cannot_be_sampled_is_refused() {
    let Some(library) = library() else { return };
    let device = Emulator::new(library);
    let logits = device.input("logits", &[0.0f32; 8]).unwrap();
    let out = device.empty::<u32>("out", 2).unwrap();
    let row = rows(&mut Rng(0), 2);
    let refused = |rows: &[SampleRow<'_>]| {
        sample(&device, &logits, rows, &out)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(&row[..1]).contains("out is 2, expected 1"));
    let cold = SampleRow {
        temperature: -1.0,
        ..row[0]
    };
    assert!(refused(&[cold, row[1]]).contains("temperature is -1.0"));
}
