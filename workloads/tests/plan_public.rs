//! The public traces as plans: what they find must be what was published and what a counter that
//! never makes a token says.

mod support;

use pb_workloads::trace::{PoolCounter, TraceFile, TraceOptions, TraceRow};
use pb_workloads::{Form, HitKnowledge, PlanOptions, Source, plan};
use support::*;

fn rows(path: &std::path::Path, count: usize) -> Vec<TraceRow> {
    let file = TraceFile::open(path, &TraceOptions::default()).unwrap();
    file.rows()
        .unwrap()
        .take(count)
        .map(Result::unwrap)
        .collect()
}

#[test]
fn row_71_realised_prompts_find_what_the_names_say() {
    for (file, block_size) in [
        ("mooncake/conversation_trace.jsonl", 16),
        ("mooncake/conversation_trace.jsonl", 512),
        ("mooncake/synthetic_trace.jsonl", 64),
    ] {
        let Some(path) = public(file) else {
            continue;
        };
        let count = 1_200;
        let data = format!("dataset_name = \"trace\"\npath = {path:?}\nmax_rows = {count}");
        let options = PlanOptions {
            block_size,
            ..seeded(1)
        };
        let planned = planned(&data, "", &options).unwrap();
        let rows = rows(&path, count);
        let mut counter = PoolCounter::new(block_size, None);
        assert_eq!(planned.plan.open.len(), count);
        for (request, row) in planned.plan.open.iter().zip(&rows) {
            let found = counter.add(row) as u32;
            assert_eq!(
                request.body.planned_hit_tokens,
                Some(found),
                "row {}",
                row.number
            );
            assert_eq!(request.body.planned_tokens as usize, row.input_tokens);
            assert_eq!(request.offset_ns, row.arrival_ns);
        }
        assert_eq!(planned.facts.hits, HitKnowledge::Ideal);
    }
}

#[test]
fn the_whole_synthetic_trace_finds_its_published_share() {
    let Some(path) = public("mooncake/synthetic_trace.jsonl") else {
        return;
    };
    let data = format!("dataset_name = \"trace\"\npath = {path:?}");
    let options = PlanOptions {
        block_size: 512,
        ..seeded(1)
    };
    let planned = planned(&data, "", &options).unwrap();
    assert_eq!(
        (planned.facts.requests, planned.facts.rows_read),
        (3_993, 3_993)
    );
    let full: u64 = rows(&path, usize::MAX)
        .iter()
        .map(|r| r.input_tokens as u64 / 512)
        .sum();
    // Published: 65.9 % of the full blocks.
    let share = planned.facts.planned_hit_tokens as f64 / 512.0 / full as f64;
    assert!((share - 0.659).abs() < 0.0006, "{share}");
}

#[test]
fn scaled_traces_share_on_a_tokenizer_of_text_too() {
    let Some(path) = public("mooncake/conversation_trace.jsonl") else {
        return;
    };
    // For a context of 8,192: a block of 512 becomes one of 16.
    let data = format!(
        "dataset_name = \"trace\"\npath = {path:?}\nmax_rows = 600\nlength_scale = 0.03125"
    );
    let options = |form| PlanOptions {
        form,
        max_model_len: Some(8_192),
        ..seeded(1)
    };
    let ids = plan(&dataset(&data), &shape(""), &ids(), &options(Form::Ids)).unwrap();
    let source = Source::words().with_tokenizer(&WORDS);
    let text = plan(&dataset(&data), &shape(""), &source, &options(Form::Text)).unwrap();
    assert_eq!(ids.facts.requests, text.facts.requests);
    let mut differ = 0;
    for (a, b) in ids.plan.open.iter().zip(&text.plan.open) {
        // The token at the start moves every boundary by one: a block less where the shared part
        // ends in the middle of one.
        let (a, b) = (
            a.body.planned_hit_tokens.unwrap(),
            b.body.planned_hit_tokens.unwrap(),
        );
        assert!(a == b || a == b + 16 || a + 16 == b, "{a} and {b}");
        differ += u32::from(a != b);
    }
    assert!(ids.facts.planned_hit_tokens > 20_000);
    assert!(differ < 60, "{differ}");
}

#[test]
fn arrivals_in_bins_are_spread_when_asked() {
    let Some(path) = public("mooncake/conversation_trace.jsonl") else {
        return;
    };
    let of = |arrivals: &str| {
        let data = format!(
            "dataset_name = \"trace\"\npath = {path:?}\nmax_rows = 300\narrivals = \"{arrivals}\""
        );
        planned(&data, "", &seeded(1)).unwrap()
    };
    let (recorded, spread) = (of("as-is"), of("spread"));
    let distinct = |planned: &pb_workloads::Planned| {
        let offsets = planned.plan.open.iter().map(|r| r.offset_ns);
        offsets.collect::<std::collections::BTreeSet<_>>().len()
    };
    assert!(distinct(&recorded) < 60);
    assert_eq!(distinct(&spread), 300);
    assert!(
        spread
            .facts
            .evidence
            .iter()
            .any(|why| why.contains("spread"))
    );
    // Bins are three seconds long.
    for (a, b) in recorded.plan.open.iter().zip(&spread.plan.open) {
        assert!(b.offset_ns.0 - a.offset_ns.0 < 3_002_000_000);
    }
}

#[test]
fn a_million_rows_are_not_held() {
    // Like a week of Azure, of which a hundred rows are asked for.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("AzureLLMInferenceTrace_conv_1week.csv");
    let mut text = "TIMESTAMP,ContextTokens,GeneratedTokens\n".to_owned();
    for at in 0..1_200_000u32 {
        let (hour, minute, second) = (at / 36_000 % 24, at / 600 % 60, at / 10 % 60);
        let (day, tenth) = (12 + at / 864_000, at % 10);
        text += &format!(
            "2024-05-{day} {hour:02}:{minute:02}:{second:02}.{tenth}00000+00:00,{},5\n",
            20 + at % 50
        );
    }
    text += "this is no row\n";
    std::fs::write(&path, text).unwrap();
    let data = format!("dataset_name = \"trace\"\npath = {path:?}");
    let some = planned(&data, "num_prompts = 100", &seeded(1)).unwrap();
    assert_eq!((some.facts.requests, some.facts.rows_read), (100, 100));
    let minute = planned(&data, "duration_s = 60", &seeded(1)).unwrap();
    assert_eq!(minute.facts.requests, 600);
}
