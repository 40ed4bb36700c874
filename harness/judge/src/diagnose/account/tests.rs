//! Gaps whose parts are known by hand.

use pb_contract::RequestId;
use pb_stats::{RandomSource, SplitMix64};

use super::*;

const MS: u64 = 1_000_000;

/// Tenths of a millisecond.
fn ns(tenths: u64) -> Nanos {
    Nanos(tenths * MS / 10)
}

fn tokens(at: &[(u64, u32)]) -> Vec<TokenRow> {
    let token = |(event, &(tenths, tokens)): (u32, &(u64, u32))| TokenRow {
        arm: "a".into(),
        block: 0,
        request: RequestId(0),
        event,
        at_ns: ns(tenths),
        tokens,
    };
    (0..).zip(at).map(token).collect()
}

/// A step that decodes `seqs` sequences and does nothing else for its whole time.
fn decode(start: u64, duration: u64, seqs: usize) -> StepRow {
    StepRow {
        start_ns: ns(start),
        duration_ns: ns(duration),
        decode_gemm_ns: ns(duration),
        decode_seqs: seqs,
        running: 2,
        ..StepRow::default()
    }
}

/// Parts in tenths of a millisecond, in the order of [`Part::ALL`].
fn parts(gap: &Gap) -> [f64; 9] {
    Part::ALL.map(|part| (gap.parts.of(part) / (MS as f64 / 10.0) * 1e6).round() / 1e6)
}

#[test]
fn a_step_is_divided_by_its_columns() {
    let mixed = StepRow {
        start_ns: ns(125),
        duration_ns: ns(300),
        lock_wait_ns: ns(20),
        schedule_ns: ns(10),
        prefill_gemm_ns: ns(120),
        prefill_attention_ns: ns(40),
        decode_gemm_ns: ns(60),
        decode_attention_ns: ns(30),
        sampling_ns: ns(10),
        other_ns: ns(30),
        dispatch_ns: ns(10),
        prefill_tokens: 64,
        decode_seqs: 1,
        running: 2,
        ..StepRow::default()
    };
    let steps = walled(&[decode(0, 100, 1), mixed]);
    // From the end of the first step at 10.0 ms to that of the second at 42.5 ms; half a
    // millisecond between is neither step nor lock. 30 - 16 - 6 - 3 - 2 = 3 is the rest.
    let gap = gaps_of(&tokens(&[(101, 1), (427, 1)]), &steps);
    assert_eq!(
        parts(&gap[0]),
        [160.0, 60.0, 30.0, 20.0, 20.0, 30.0, 5.0, 0.0, 1.0]
    );
}

#[test]
fn steps_without_the_request_are_not_its_own() {
    let steps: Vec<StepRow> = (0..4).map(|i| decode(100 * i, 100, 2)).collect();
    let steps = walled(&steps);
    let gap = gaps_of(&tokens(&[(101, 1), (401, 1)]), &steps);
    assert_eq!(
        parts(&gap[0]),
        [0.0, 100.0, 0.0, 0.0, 0.0, 0.0, 0.0, 200.0, 0.0]
    );
    // A step of prompts only is one in which every stream waits for prefill.
    let mut rows: Vec<StepRow> = (0..3).map(|i| decode(100 * i, 100, 2)).collect();
    rows[1] = StepRow {
        decode_gemm_ns: Nanos::ZERO,
        prefill_gemm_ns: ns(100),
        prefill_tokens: 64,
        ..decode(100, 100, 0)
    };
    let gap = gaps_of(&tokens(&[(101, 1), (301, 1)]), &walled(&rows));
    assert_eq!(
        parts(&gap[0]),
        [100.0, 100.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    );
}

/// What comes in one go was computed step by step: the wait is the client's or the network's.
#[test]
fn late_delivery_is_outside_of_the_engine() {
    let steps: Vec<StepRow> = (0..4).map(|i| decode(100 * i, 100, 2)).collect();
    let steps = walled(&steps);
    let wanted = [0.0, 100.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 200.0];
    for late in [
        &[(101, 1), (401, 1), (401, 1), (402, 1)][..],
        &[(101, 1), (401, 3)],
    ] {
        let gaps = gaps_of(&tokens(late), &steps);
        assert_eq!(parts(&gaps[0]), wanted);
        let rest: f64 = gaps[1..].iter().map(|gap| gap.parts.total()).sum();
        let outside: f64 = gaps[1..].iter().map(|g| g.parts.of(Part::Outside)).sum();
        assert_eq!(rest, outside);
    }
}

#[test]
fn an_idle_engine_waits_for_work_and_not_for_itself() {
    let mut rows = [decode(0, 100, 1), decode(5000, 100, 1)];
    rows[0].running = 0;
    assert_eq!(walled(&rows)[1].wall_ns, (10 * MS) as f64);
    rows[0].running = 1;
    assert_eq!(walled(&rows)[1].wall_ns, (500 * MS) as f64);
}

/// Whatever the rows say, the parts of a gap sum to the gap.
#[test]
fn parts_sum_to_the_gap() {
    let mut rng = SplitMix64::new(1);
    for _ in 0..2_000 {
        let mut below = |n: u64| rng.next_u64() % n;
        let mut at = 0;
        let rows: Vec<StepRow> = (0..below(8))
            .map(|_| {
                let (start, duration) = (at + below(30), 1 + below(200));
                at = start + duration;
                StepRow {
                    lock_wait_ns: ns(below(40)),
                    schedule_ns: ns(below(100)),
                    prefill_gemm_ns: ns(below(100)),
                    running: below(2) as usize,
                    ..decode(start, duration, below(3) as usize)
                }
            })
            .collect();
        let mut instants: Vec<(u64, u32)> =
            (0..5).map(|_| (below(1500), 1 + below(3) as u32)).collect();
        instants.sort_unstable();
        for gap in gaps_of(&tokens(&instants), &walled(&rows)) {
            let (total, length) = (gap.parts.total(), gap.ns() as f64);
            assert!(
                (total - length).abs() < 1.0,
                "{gap:?}: {total}, not {length}"
            );
            assert!(parts(&gap).iter().all(|part| *part >= 0.0), "{gap:?}");
        }
    }
}
