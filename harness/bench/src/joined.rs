//! Shards joined: what fits gives the numbers of the whole, what does not is refused.

use pb_contract::manifest::RunState;
use pb_contract::{Nanos, RequestRow, TokenRow};
use proptest::prelude::*;

use crate::conditions::{Conditions, Frame, LoadFacts, Shard};
use crate::document::Document;
use crate::merge::{MergeError, ShardInput, merge};
use crate::tests::{MS, failed, frame, request, under, worked};

fn shard(index: u32, of: u32) -> ShardInput {
    ShardInput {
        name: format!("run-{index}"),
        conditions: Conditions {
            objectives: vec!["ttft:250".parse().unwrap()],
            shard: Some(Shard { index, of }),
            ..Conditions::new(frame())
        },
        state: RunState::Complete,
        rows: 0,
        first_arrival: None,
    }
}

fn whole() -> Conditions {
    Conditions {
        shard: None,
        ..shard(0, 1).conditions
    }
}

/// The document without what only a joined run has.
fn plain(mut document: Document) -> Document {
    document.shards.clear();
    document
}

/// Gaps of a stream in ms, with the tokens after each.
fn gaps() -> impl Strategy<Value = Vec<(u64, u32)>> {
    prop::collection::vec((1_u64..200, 1_u32..4), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Any set of rows, dealt to any shards with clocks of any origin, in any order.
    #[test]
    fn joined_shards_have_the_numbers_of_the_whole(
        streams in prop::collection::vec((0_u64..50, gaps(), 0_u32..4, any::<bool>()), 0..24),
        clocks in prop::collection::vec(0_u64..10_000_000_000_000, 4),
    ) {
        let mut records: Vec<(u32, (RequestRow, Vec<TokenRow>))> = Vec::new();
        for (id, (at, gaps, part, ok)) in streams.iter().enumerate() {
            let mut after = 60;
            let events: Vec<(u64, u32)> = gaps.iter().map(|&(gap, tokens)| {
                after += gap;
                (after, tokens)
            }).collect();
            let record = match ok {
                true => request(id as u64, 1000 + at, &events),
                false => failed(id as u64, 1000 + at),
            };
            records.push((*part, record));
        }
        let expected = under(&whole(), records.iter().map(|(_, record)| record.clone()));
        let mut inputs: Vec<ShardInput> = (0..4).map(|i| shard(i, 4)).collect();
        for (input, clock) in inputs.iter_mut().zip(&clocks) {
            input.conditions.frame.start = Nanos(1000 * MS + clock);
        }
        let merged = merge(&inputs, false).unwrap();
        prop_assert_eq!(merged.conditions.frame.start, Nanos(1000 * MS + clocks[0]));
        let mut tally = merged.conditions.tally();
        for part in (0..4_u32).rev() {
            // As the shard saw it, on its own clock; then on the joined one.
            let own = crate::merge::Offset(-(clocks[part as usize] as i64));
            let offset = merged.offsets[part as usize];
            for (_, (row, tokens)) in records.iter().filter(|(of, _)| *of == part) {
                let mut tokens = tokens.clone();
                for token in &mut tokens {
                    own.token(token);
                    offset.token(token);
                }
                tally.add(offset.request(own.request(row.clone())), &tokens);
            }
        }
        let mut found = plain(Document::of(&tally, &merged.conditions));
        // Instants of the window are on the clock of the first shard.
        let origin = Nanos(clocks[0]);
        found.window.start_ns = found.window.start_ns.saturating_sub(origin);
        found.window.end_ns = found.window.end_ns.map(|end| end.saturating_sub(origin));
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() {
    fn refused(inputs: &[ShardInput]) -> String {
        merge(inputs, false).unwrap_err().to_string()
    }
    let change = |index: u32, change: &dyn Fn(&mut ShardInput)| {
        let mut input = shard(index, 2);
        change(&mut input);
        input
    };
    assert_eq!(merge(&[], true), Err(MergeError::Nothing));
    let cases: [(&str, ShardInput); 9] = [
        ("shard 0/2 again, run-0 is that part", change(0, &|_| ())),
        (
            "ran a whole schedule",
            change(1, &|i| i.conditions.shard = None),
        ),
        (
            "seed = 2, but run-0 has 1",
            change(1, &|i| i.conditions.frame.seed = 2),
        ),
        (
            "schedule_sha256 = x",
            change(1, &|i| i.conditions.frame.schedule_sha256 = "x".into()),
        ),
        (
            "shards = 3",
            change(1, &|i| i.conditions.shard = Some(Shard { index: 1, of: 3 })),
        ),
        (
            "objectives = []",
            change(1, &|i| i.conditions.objectives.clear()),
        ),
        (
            "cache state = cold",
            change(1, &|i| i.conditions.frame.cache.state = "cold"),
        ),
        (
            "load = ",
            change(1, &|i| i.conditions.load.rate_rps = Some(3.0)),
        ),
        (
            "the run is running",
            change(1, &|i| i.state = RunState::Running),
        ),
    ];
    for (words, second) in cases {
        let error = refused(&[shard(0, 2), second]);
        assert!(error.contains(words), "{words}: {error}");
    }
    let error = refused(&[shard(0, 3), shard(2, 3)]);
    assert!(error.contains("shards 1/3 are missing"), "{error}");
    assert!(merge(&[shard(1, 2), shard(0, 2)], false).is_ok());
}

#[test]
fn a_partial_run_says_so() {
    let mut dead = shard(1, 3);
    dead.state = RunState::Running;
    dead.conditions.frame = Frame {
        start: Nanos(0),
        ..frame()
    };
    dead.first_arrival = Some(Nanos(7000 * MS));
    let merged = merge(&[shard(0, 3), dead], true).unwrap();
    // The dead shard's first arrival at 7000 ms is laid on the start at 1000 ms.
    let offsets: Vec<i64> = merged.offsets.iter().map(|offset| offset.0).collect();
    assert_eq!(offsets, [0, 6000 * MS as i64]);
    let doc = under(&merged.conditions, [worked(0, 1000)]);
    assert_eq!(
        (doc.state.as_str(), doc.validity.valid, doc.exit_code()),
        ("partial", false, 3)
    );
    assert!(
        doc.validity
            .reasons
            .iter()
            .any(|r| r.contains("shards 2/3 are missing"))
    );
    assert!(
        doc.warnings
            .iter()
            .any(|w| w.contains("shard 1/3: its start is not known"))
    );
    let states: Vec<&str> = doc.shards.iter().map(|note| note.state.as_str()).collect();
    assert_eq!(states, ["complete", "running"]);
}

#[test]
fn sums_and_reasons_of_the_shards_are_kept() {
    let with = |index: u32, hits: Option<u64>, reason: &str| {
        let mut input = shard(index, 2);
        input.conditions.frame.cache.measured_hit_tokens = hits;
        input.conditions.frame.cache.known_rows = 2;
        input.conditions.frame.cache_reasons = vec![reason.to_owned()];
        input.conditions.load = LoadFacts {
            warmup_requests: u64::from(index) + 1,
            ..LoadFacts::default()
        };
        input
    };
    let merged = merge(&[with(0, Some(16), "a"), with(1, Some(4), "b")], false).unwrap();
    let c = merged.conditions;
    assert_eq!(
        (c.frame.cache.measured_hit_tokens, c.frame.cache.known_rows),
        (Some(20), 4)
    );
    assert_eq!(c.frame.cache_reasons, ["shard 0/2: a", "shard 1/2: b"]);
    assert_eq!((c.load.warmup_requests, c.shard), (3, None));
    let unknown = merge(&[with(0, None, "a"), with(1, Some(4), "b")], false).unwrap();
    assert_eq!(unknown.conditions.frame.cache.measured_hit_tokens, None);
}
