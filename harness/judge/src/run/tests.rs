//! Verdicts of runs whose numbers were worked out by hand.

use pb_contract::manifest::RunState;
use pb_contract::{FailKind, Nanos, RequestId, RequestStatus};

use super::fixture::{ARMS, MS, Shape, data, data_from, notes, parts};
use super::*;

fn metric<'a>(verdict: &'a RunVerdict, name: &str) -> &'a MetricComparison {
    let mut metrics = verdict.performance.metrics.iter();
    metrics.find(|m| m.spec.name() == name).unwrap()
}

fn broken(verdict: &RunVerdict) -> Vec<&str> {
    let checks = verdict.validity.checks.iter();
    checks
        .filter(|c| c.state == CheckState::Broken)
        .map(|c| c.name.as_str())
        .collect()
}

#[test]
fn summaries_are_the_numbers_worked_out_by_hand() {
    let verdict = judge(&data(&Shape::default()), &notes());
    let mono = verdict.performance.arm("mono").unwrap();
    let itl = &mono.class(Some("background")).unwrap().itl;
    // 80 gaps: 72 of 10 ms, two each of 480, 500, 510, 520. Ranks 40, 76 and 80.
    assert_eq!(itl.n, 80);
    let tail = [itl.p50_ns, itl.p95_ns, itl.p99_ns, itl.max_ns];
    assert_eq!(
        tail,
        [
            Some(10 * MS),
            Some(500 * MS),
            Some(520 * MS),
            Some(520 * MS)
        ]
    );
    // Eight stalls of 2 x (500 + 520 + 480 + 510) = 4020 ms among 4020 + 720 ms.
    let stalls = &mono.class(Some("background")).unwrap().stalls;
    assert_eq!(verdict.performance.stall_threshold_ns, Some(50 * MS));
    assert_eq!((stalls.count, stalls.total_ns), (8, 4020 * MS));
    assert_eq!(stalls.time_share, Some(4020.0 / 4740.0));
    let ttft = &mono.class(Some("long")).unwrap().ttft;
    // Each block's value twice: 490, 490, 500, 500, 510, 510, 520, 520; rank 4 of 8.
    assert_eq!(
        (ttft.n, ttft.p50_ns, ttft.max_ns),
        (8, Some(500 * MS), Some(520 * MS))
    );
    assert_eq!(
        mono.class(Some("long")).unwrap().itl,
        Distribution::default()
    );
    let counts = &mono.all.counts;
    assert_eq!((counts.offered, counts.ok, mono.blocks), (16, 16, 4));
    // TPOT of a background stream in block 0: (9 x 10 + 500) / 10 ms.
    let tpot = &mono.class(Some("background")).unwrap().tpot;
    assert_eq!((tpot.n, tpot.max_ns), (8, Some(61 * MS)));
}

#[test]
fn steps_and_buckets_are_summed() {
    let verdict = judge(&data(&Shape::default()), &notes());
    let chunk = verdict
        .performance
        .arm("chunk")
        .unwrap()
        .steps
        .as_ref()
        .unwrap();
    assert_eq!(
        (chunk.steps, chunk.prefill_steps, chunk.mixed_steps),
        (8, 8, 8)
    );
    assert_eq!(chunk.max_prefill_tokens, 600);
    assert_eq!(chunk.time.total_ns, 800 * MS);
    assert_eq!(
        chunk.time.parts().iter().map(|p| p.1).sum::<u64>(),
        800 * MS
    );
    assert_eq!((chunk.hit_tokens, chunk.queried_tokens), (128, 400));
    let buckets = chunk.buckets;
    assert_eq!((buckets.pool, buckets.active_peak), (Some(100), Some(40)));
    assert_eq!((buckets.free_min, buckets.free_peak), (Some(40), Some(50)));
    assert_eq!(
        (buckets.reclaimable_peak, buckets.violations),
        (Some(20), 0)
    );
}

#[test]
fn a_clean_run_claims_what_changed() {
    let verdict = judge(&data(&Shape::default()), &notes());
    assert_eq!(broken(&verdict), Vec::<&str>::new());
    assert_eq!(verdict.outcome, Outcome::Pass);
    let itl = metric(&verdict, "itl_p99[background]");
    assert_eq!(itl.verdict.claim, Claim::Better);
    // Blocks: 60/500, 62/520, 58/480, 61/510, all within 0.119 to 0.121.
    let ratio = itl.verdict.ratio.unwrap();
    assert!(
        (ratio.point - 0.12).abs() < 0.001 && ratio.excludes(1.0),
        "{ratio:?}"
    );
    assert_eq!(itl.blocks[1].baseline, Some(520.0 * MS as f64));
    assert_eq!(
        metric(&verdict, "ttft_p50[long]").verdict.claim,
        Claim::Worse
    );
    let text = &verdict.sentence;
    for words in [
        "The run is valid",
        "ITL p99 (background) fell from 505 ms to 60.5 ms",
        "rose",
    ] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_late_driver_voids_the_run() {
    let shape = Shape {
        lag_ns: 1_000_001,
        ..Shape::default()
    };
    let verdict = judge(&data(&shape), &notes());
    assert_eq!(verdict.outcome, Outcome::Void);
    assert!(
        broken(&verdict).contains(&"driver lag p99"),
        "{:?}",
        verdict.validity
    );
    assert!(
        verdict
            .performance
            .metrics
            .iter()
            .all(|m| m.verdict.claim == Claim::Void)
    );
    // Void, but computed.
    assert_eq!(metric(&verdict, "itl_p99[background]").verdict.pairs, 4);
    let shape = Shape {
        lag_ns: 1_000_000,
        ..Shape::default()
    };
    assert_eq!(judge(&data(&shape), &notes()).outcome, Outcome::Pass);
}

#[test]
fn lag_is_held_against_the_smallest_claim() {
    // ITL p99 falls by 15 ms; a lag of 0.8 ms is 5.3 % of it, 0.7 ms is 4.7 %.
    let shape = |lag_ns| Shape {
        stall_ms: [[100, 100, 101, 99], [85, 85, 86, 84]],
        lag_ns,
        ..Shape::default()
    };
    let late = judge(&data(&shape(800_000)), &notes());
    assert_eq!(broken(&late), ["driver lag against the effect"]);
    assert_eq!(
        judge(&data(&shape(700_000)), &notes()).outcome,
        Outcome::Pass
    );
}

#[test]
fn a_killed_run_is_void_but_computed() {
    let run = data_from(RunState::Running, parts(&Shape::default()));
    let verdict = judge(&run, &notes());
    assert!(!verdict.finished && verdict.outcome == Outcome::Void);
    assert_eq!(broken(&verdict), ["run complete"]);
    let mono = verdict.performance.arm("mono").unwrap();
    assert_eq!(mono.all.itl.n, 80);
    assert!(
        verdict.sentence.contains("void: run complete: incomplete"),
        "{}",
        verdict.sentence
    );
}

#[test]
fn failures_are_populations_of_their_own() {
    let mut all = parts(&Shape::default());
    let statuses = [
        RequestStatus::Failed,
        RequestStatus::Truncated,
        RequestStatus::Incomplete,
    ];
    for (row, status) in all
        .0
        .iter_mut()
        .filter(|r| r.class == "background")
        .zip(statuses)
    {
        row.status = status;
        row.fail = Some(FailKind::TimeoutIdle);
    }
    let verdict = judge(&data_from(RunState::Complete, all), &notes());
    assert!(broken(&verdict).contains(&"every request ended well"));
    let total = |pick: fn(&RequestCounts) -> u64| -> u64 {
        verdict
            .performance
            .arms
            .iter()
            .map(|arm| pick(&arm.all.counts))
            .sum()
    };
    let ended = [
        total(|c| c.failed),
        total(|c| c.truncated),
        total(|c| c.incomplete),
    ];
    assert_eq!(
        (ended, total(|c| c.ok), total(|c| c.offered)),
        ([1, 1, 1], 29, 32)
    );
    let gaps: u64 = verdict
        .performance
        .arms
        .iter()
        .map(|arm| arm.all.itl.n)
        .sum();
    assert_eq!(
        gaps, 130,
        "three of sixteen streams of ten gaps do not count"
    );
    let named = verdict
        .performance
        .arms
        .iter()
        .map(|a| a.all.counts.failures.get("timeout_idle"));
    assert_eq!(named.flatten().sum::<u64>(), 3);
}

#[test]
fn one_nanosecond_of_another_schedule_is_noticed() {
    let mut all = parts(&Shape::default());
    let late = |row: &&mut pb_contract::RequestRow| row.request == RequestId(101);
    all.0.iter_mut().find(late).unwrap().intended_ns += Nanos(1);
    let verdict = judge(&data_from(RunState::Complete, all), &notes());
    assert_eq!(broken(&verdict), ["both arms got the same schedule"]);

    let mut all = parts(&Shape::default());
    let gone = |arm: &str, block, id| arm == "chunk" && block == 2 && id == RequestId(101);
    all.0.retain(|row| !gone(&row.arm, row.block, row.request));
    all.1.retain(|row| !gone(&row.arm, row.block, row.request));
    let verdict = judge(&data_from(RunState::Complete, all), &notes());
    assert_eq!(broken(&verdict), ["both arms got the same schedule"]);

    let mut run = data(&Shape::default());
    run.manifest
        .schedule_sha256
        .insert("1:mono".to_owned(), "aa".to_owned());
    run.manifest
        .schedule_sha256
        .insert("1:chunk".to_owned(), "bb".to_owned());
    assert_eq!(
        broken(&judge(&run, &notes())),
        ["both arms got the same schedule"]
    );
}

#[test]
fn an_arm_that_stops_early_did_other_work() {
    let mut all = parts(&Shape::default());
    // The first stream of the chunked arm (11 events) loses its last token, 10 ms after the one
    // before.
    let row = all.0.iter_mut().find(|row| row.arm == "chunk").unwrap();
    row.streamed_tokens -= 1;
    row.last_token_ns = row.last_token_ns.map(|at| Nanos(at.0 - 10 * MS));
    let event = |t: &pb_contract::TokenRow| t.arm == "chunk" && t.event == 10;
    let last = all.1.iter().position(event).unwrap();
    all.1.remove(last);
    let verdict = judge(&data_from(RunState::Complete, all), &notes());
    assert_eq!(
        broken(&verdict),
        ["both arms produced the same number of tokens"]
    );
}

#[test]
fn an_unproven_cache_state_voids() {
    let name = "cache state of the compared arms";
    let run = data(&Shape::default());
    let mut given = notes();
    given.resets[3].probe_cached_tokens = Some(16);
    assert_eq!(broken(&judge(&run, &given)), [name]);
    given.resets.remove(3);
    assert_eq!(broken(&judge(&run, &given)), [name]);
    let mut given = notes();
    given.comparison.as_mut().unwrap().cache_control = CacheControl::Uncontrolled;
    assert_eq!(broken(&judge(&run, &given)), [name]);
    given.comparison.as_mut().unwrap().cache_control = CacheControl::Off;
    assert_eq!(judge(&run, &given).outcome, Outcome::Pass);
}

#[test]
fn prefill_that_met_no_decodes_says_nothing() {
    let shape = Shape {
        decode_seqs: 1,
        ..Shape::default()
    };
    let verdict = judge(&data(&shape), &notes());
    assert_eq!(
        broken(&verdict),
        ARMS.map(|arm| format!("prefill met decodes in {arm}"))
    );
}

#[test]
fn blocks_that_do_not_sum_to_the_pool_are_noticed() {
    let mut all = parts(&Shape::default());
    // The second step of the chunked arm's first block: one block of the pool vanished.
    all.2[2].row.free_blocks -= 1;
    let verdict = judge(&data_from(RunState::Complete, all), &notes());
    assert_eq!(broken(&verdict), ["active + reclaimable + free = pool"]);
}

#[test]
fn wrong_outputs_silence_speed() {
    let mut given = notes();
    let fault = |rejected| PlantedFault {
        label: "RoPE off by one".to_owned(),
        rejected,
        ..PlantedFault::default()
    };
    given.planted_faults = vec![fault(false)];
    let verdict = judge(&data(&Shape::default()), &given);
    assert_eq!(verdict.outcome, Outcome::Fail);
    assert!(
        verdict
            .performance
            .metrics
            .iter()
            .all(|m| m.verdict.claim == Claim::Void)
    );
    assert!(
        verdict.sentence.contains("Outputs are WRONG"),
        "{}",
        verdict.sentence
    );
    given.planted_faults = vec![fault(true)];
    assert_eq!(
        judge(&data(&Shape::default()), &given).outcome,
        Outcome::Pass
    );
    // A check of nothing is not a pass.
    given.numerics = vec![NumericsNote {
        label: "chunk 17".to_owned(),
        ..Default::default()
    }];
    assert_eq!(
        judge(&data(&Shape::default()), &given).outcome,
        Outcome::Inconclusive
    );
}

#[test]
fn nothing_is_null_and_never_zero() {
    let run = data_from(RunState::Complete, (Vec::new(), Vec::new(), Vec::new()));
    let verdict = judge(&run, &notes());
    assert_eq!(verdict.outcome, Outcome::Void);
    let mono = verdict.performance.arm("mono").unwrap();
    assert_eq!(mono.all.ttft, Distribution::default());
    assert_eq!(
        (mono.all.ttft.p99_ns, mono.all.cached_tokens, &mono.steps),
        (None, None, &None)
    );
    assert!(
        verdict
            .performance
            .metrics
            .iter()
            .all(|m| m.verdict.a.is_none())
    );
    let bare = judge(&run, &RunNotes::default());
    assert_eq!(bare.outcome, Outcome::Void);
    assert!(
        bare.sentence
            .starts_with("Measured mono, chunk; nothing was compared.")
    );
}

/// Equal but for the last bits of fractions, which JSON's usual reader may lose.
fn nearly_equal(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Number, Object};
    match (a, b) {
        (Array(a), Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| nearly_equal(a, b))
        }
        (Object(a), Object(b)) => {
            let same = |(key, a): (&String, _)| b.get(key).is_some_and(|b| nearly_equal(a, b));
            a.len() == b.len() && a.iter().all(same)
        }
        (Number(a), Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            (a - b).abs() <= 1e-12 * a.abs()
        }
        _ => a == b,
    }
}

#[test]
fn a_verdict_survives_json_and_repeats() {
    let verdict = judge(&data(&Shape::default()), &notes());
    let text = serde_json::to_string(&verdict).unwrap();
    let back: RunVerdict = serde_json::from_str(&text).unwrap();
    let written: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(nearly_equal(
        &written,
        &serde_json::to_value(&back).unwrap()
    ));
    assert_eq!(
        (back.outcome, back.validity),
        (verdict.outcome, verdict.validity.clone())
    );
    assert_eq!(judge(&data(&Shape::default()), &notes()), verdict);
}

#[test]
fn instants_out_of_order_are_a_clock_fault() {
    let mut all = parts(&Shape::default());
    all.0[0].closed_ns = Some(Nanos(0));
    all.0[2].first_token_ns = Some(Nanos(0));
    let verdict = judge(&data_from(RunState::Complete, all), &notes());
    assert!(
        broken(&verdict).contains(&"instants in order"),
        "{:?}",
        broken(&verdict)
    );
}
