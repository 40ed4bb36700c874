//! Every format, from hand-made files in the schema that its project documents.

use std::path::PathBuf;

use pb_contract::Nanos;
use pb_workloads::trace::{
    ChatTurn, InspectOptions, Inspection, LastBlock, RowPrompt, TimeUnit, TraceError, TraceFile,
    TraceFormat, TraceOptions, TraceRow, inspect, prefix_reuse,
};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/traces")
        .join(name)
}

fn open(name: &str) -> TraceFile {
    TraceFile::open(&fixture(name), &TraceOptions::default()).unwrap()
}

fn rows(file: &TraceFile) -> Vec<TraceRow> {
    file.rows().unwrap().collect::<Result<_, _>>().unwrap()
}

fn inspected(name: &str) -> Inspection {
    inspect(&open(name), &InspectOptions::default(), None).unwrap()
}

/// Arrival (ns), input and output tokens of each row.
fn lengths(rows: &[TraceRow]) -> Vec<(u64, usize, usize)> {
    let of = |row: &TraceRow| (row.arrival_ns.0, row.input_tokens, row.output_tokens);
    rows.iter().map(of).collect()
}

/// Writes `text` to a file and opens it.
fn open_text(text: &str, options: &TraceOptions) -> Result<TraceFile, TraceError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    std::fs::write(&path, text).unwrap();
    TraceFile::open(&path, options)
}

#[test]
fn formats_are_told_by_their_contents() {
    let table = [
        ("mooncake.jsonl", TraceFormat::Mooncake),
        ("mooncake_odd.jsonl", TraceFormat::Mooncake),
        ("bailian_blksz_16.jsonl", TraceFormat::Bailian),
        ("weka.json", TraceFormat::Weka),
        ("azure_2023.csv", TraceFormat::Azure),
        ("azure_2024.csv", TraceFormat::Azure),
        ("azure_2025.csv", TraceFormat::Azure),
        ("burstgpt_1.csv", TraceFormat::BurstGpt),
        ("burstgpt_3.csv", TraceFormat::BurstGpt),
        ("vidur.csv", TraceFormat::Simulator),
        ("vidur_no_arrivals.csv", TraceFormat::Simulator),
        ("etalon.csv", TraceFormat::Simulator),
        ("splitwise_sim.csv", TraceFormat::Simulator),
        ("sharegpt.json", TraceFormat::ShareGpt),
        ("vllm_custom.jsonl", TraceFormat::VllmCustom),
        ("vllm_timed.jsonl", TraceFormat::VllmTimed),
        ("aiperf.jsonl", TraceFormat::AiPerf),
        ("lengths.csv", TraceFormat::Lengths),
        ("servegen", TraceFormat::ServeGen),
    ];
    for (name, format) in table {
        let file = open(name);
        assert_eq!(file.format, format, "{name}");
        assert!(
            file.evidence[0].starts_with(&format!("format {format}: ")),
            "{name}"
        );
    }
    for text in ["", "\n", "hello,world\n1,2\n", "{\"a\": 1}\n"] {
        let error = open_text(text, &TraceOptions::default()).unwrap_err();
        assert!(
            matches!(error, TraceError::Ambiguous { .. }),
            "{text}: {error}"
        );
    }
}

#[test]
fn row_52_mooncake_counts_milliseconds() {
    let file = open("mooncake.jsonl");
    assert_eq!(file.unit, Some(TimeUnit::Ms));
    let odd = rows(&open("mooncake_odd.jsonl"));
    assert_eq!(lengths(&odd), [(0, 600, 5), (27_482_000_000, 1_300, 7)]);
    assert_eq!(odd[1].block_ids, [0, 2, 3]);
    let seconds = TraceOptions {
        unit: Some(TimeUnit::S),
        ..TraceOptions::default()
    };
    let file = TraceFile::open(&fixture("mooncake.jsonl"), &seconds).unwrap();
    assert_eq!(rows(&file)[1].arrival_ns, Nanos(27_000_000_000));
}

#[test]
fn the_inspection_of_a_hand_counted_trace() {
    let found = serde_json::to_value(inspected("mooncake.jsonl")).unwrap();
    // Gaps 0.027, 0 and 3 s: mean 1.009, sample variance (0.982^2 + 1.009^2 + 1.991^2) / 2.
    let variance: f64 = (0.982f64.powi(2) + 1.009f64.powi(2) + 1.991f64.powi(2)) / 2.0;
    let cv = found["arrivals"]["cv"].as_f64().unwrap();
    assert!((cv - variance.sqrt() / 1.009).abs() < 1e-9, "{cv}");
    let mut found = found;
    found["arrivals"]["cv"] = serde_json::Value::Null;
    let want = serde_json::json!({
        "rows": 4,
        "span_s": 3.027,
        "unit": "ms",
        "block_size": 512,
        "input_tokens": {"p50": 600, "mean": 928.0, "p95": 1300, "max": 1300},
        "output_tokens": {"p50": 1, "mean": 3.25, "p95": 7, "max": 7},
        "blocks": {"total": 9, "unique": 5, "hit": 4},
        "hit_tokens": 512 + 1300,
        "arrivals": {"distinct": 3, "cv": null, "bin_s": null},
        "dropped": {},
    });
    assert_eq!(found, want);
}

#[test]
fn too_long_rows_are_counted_and_the_reuse_is_that_of_the_rest() {
    let options = InspectOptions {
        max_model_len: Some(605),
        engine_block: Some(16),
        pool_blocks: None,
    };
    let found = inspect(&open("mooncake.jsonl"), &options, None).unwrap();
    assert_eq!((found.rows, found.hit_tokens), (2, 0));
    assert_eq!(found.dropped["over_max_model_len"], 2);
    let options = InspectOptions {
        engine_block: Some(100),
        pool_blocks: Some(12),
        ..InspectOptions::default()
    };
    let found = inspect(&open("mooncake.jsonl"), &options, None).unwrap();
    // The second row finds blocks 0 to 4 and pushes the first one out, so the third finds none.
    let pool = found.pool.unwrap();
    assert_eq!((pool.blocks, pool.hit_blocks), (6 + 13 + 13 + 5, 5));
}

#[test]
fn bailian_prompts_already_hold_their_history() {
    let file = open("bailian_blksz_16.jsonl");
    let rows = rows(&file);
    let want = [
        (61_114_000_000, 33, 3),
        (62_500_000_000, 50, 80),
        (62_500_000_000, 16, 1),
    ];
    assert_eq!(lengths(&rows), want);
    assert_eq!(file.blocks.unwrap().tokens, 16);
    assert!(file.evidence.iter().any(|why| why.contains("file's name")));
    let turns: Vec<(String, u32)> = rows
        .iter()
        .map(|row| row.turn.clone().map(|t| (t.session, t.number)).unwrap())
        .collect();
    let want = [("159", 0), ("159", 1), ("161", 0)].map(|(s, n)| (s.to_owned(), n));
    assert_eq!(turns, want);
    assert_eq!(prefix_reuse(&rows, 16, None).hit_tokens, 32);
}

#[test]
fn weka_names_and_times_are_local_to_a_conversation() {
    let file = open("weka.json");
    let rule = file.blocks.unwrap();
    assert_eq!((rule.tokens, rule.last), (64, LastBlock::Unnamed));
    let rows = rows(&file);
    // The nested request is 1.25 s after its own start at 2.5 s.
    let want = [
        (0, 130, 20),
        (3_750_000_000, 64, 1),
        (4_000_000_000, 193, 30),
        (0, 130, 20),
    ];
    assert_eq!(lengths(&rows), want);
    let reuse = prefix_reuse(&rows, 16, None);
    assert_eq!((reuse.hit_blocks, reuse.hit_tokens), (2, 128));
    assert_eq!(inspected("weka.json").arrivals.distinct, 3);
}

#[test]
fn row_52_azure_keeps_seven_digits_six_and_none() {
    let rows_2023 = rows(&open("azure_2023.csv"));
    // 50.995169 - 46.68059 s; the last line has no end.
    let want = [
        (0, 374, 44),
        (4_314_579_000, 396, 109),
        (4_314_579_000, 4_142, 7),
    ];
    assert_eq!(lengths(&rows_2023), want);
    let rows_2024 = rows(&open("azure_2024.csv"));
    let want = [
        (0, 2_162, 5),
        (990_070_000, 2_399, 6),
        (2_490_070_000, 76, 15),
    ];
    assert_eq!(lengths(&rows_2024), want);
    assert_eq!(
        inspected("azure_2023.csv").unit.as_deref(),
        Some("datetime")
    );
}

#[test]
fn azure_2025_requests_with_images_are_dropped_and_counted() {
    let found = inspected("azure_2025.csv");
    assert_eq!((found.rows, found.dropped["images"]), (1, 1));
}

#[test]
fn burstgpt_columns_are_found_by_name_and_failures_counted() {
    let old = open("burstgpt_1.csv");
    let want = [
        (5_000_000_000, 472, 18),
        (45_000_000_000, 1_087, 230),
        (118_000_000_000, 1_360, 276),
    ];
    assert_eq!(lengths(&rows(&old)), want);
    let found = inspected("burstgpt_1.csv");
    assert_eq!(
        (found.dropped["failed"], found.dropped["empty_input"]),
        (1, 1)
    );
    assert_eq!(found.arrivals.bin_s, Some(1.0));
    let new = rows(&open("burstgpt_3.csv"));
    assert_eq!(lengths(&new), want);
    let sessions: Vec<Option<&str>> = new
        .iter()
        .map(|row| row.turn.as_ref().map(|turn| turn.session.as_str()))
        .collect();
    assert_eq!(sessions, [Some("17"), Some("17"), None]);
}

#[test]
fn simulator_files_of_three_projects() {
    let vidur = rows(&open("vidur.csv"));
    assert_eq!(lengths(&vidur), [(0, 374, 44), (4_314_579_000, 396, 109)]);
    let etalon = rows(&open("etalon.csv"));
    assert_eq!(
        lengths(&etalon),
        [(250_000_000, 100, 10), (750_000_000, 200, 20)]
    );
    let splitwise = rows(&open("splitwise_sim.csv"));
    let want = [(1_500_000_000, 4_096, 32), (3_000_000_000, 2_048, 8)];
    assert_eq!(lengths(&splitwise), want);
    let none = inspected("vidur_no_arrivals.csv");
    assert_eq!((none.rows, none.span_s, none.unit), (2, None, None));
    assert_eq!((none.arrivals.distinct, none.arrivals.cv), (0, None));
    let lengths_csv = rows(&open("lengths.csv"));
    assert_eq!(
        lengths(&lengths_csv),
        [(6_011_000_000, 178, 8), (6_917_000_000, 258, 0)]
    );
}

#[test]
fn conversations_give_their_first_question_and_answer() {
    let rows = rows(&open("sharegpt.json"));
    let text = |row: &TraceRow| row.prompt.clone();
    assert_eq!(rows.len(), 2);
    assert_eq!(
        text(&rows[0]),
        Some(RowPrompt::Text("What is \"RAM\"?".into()))
    );
    assert_eq!(rows[0].answer.as_deref(), Some("Memory [of a computer]."));
    assert_eq!(text(&rows[1]), Some(RowPrompt::Text("Hi".into())));
    let file = open("sharegpt.json");
    let unknown = inspect(&file, &InspectOptions::default(), None).unwrap();
    assert_eq!((unknown.input_tokens, unknown.output_tokens), (None, None));
    assert_eq!(unknown.dropped["fewer_than_two_turns"], 2);
    assert_eq!(unknown.dropped["first_turn_not_human"], 1);
    // A tokenizer of words.
    let mut words = |text: &str| text.split_whitespace().count();
    let counted = inspect(&file, &InspectOptions::default(), Some(&mut words)).unwrap();
    assert_eq!(counted.input_tokens.map(|s| (s.p50, s.max)), Some((1, 3)));
    assert_eq!(counted.output_tokens.map(|s| (s.p50, s.max)), Some((1, 4)));
}

#[test]
fn vllm_files_of_both_kinds() {
    let custom = rows(&open("vllm_custom.jsonl"));
    assert_eq!(
        custom[0].prompt,
        Some(RowPrompt::Text("Explain RAM".into()))
    );
    let outputs: Vec<(usize, bool)> = custom
        .iter()
        .map(|row| (row.output_tokens, row.output_unknown))
        .collect();
    assert_eq!(outputs, [(64, false), (0, true)]);
    let timed = open("vllm_timed.jsonl");
    assert_eq!(timed.unit, Some(TimeUnit::S));
    assert_eq!(timed.blocks.map(|rule| rule.tokens), Some(16));
    assert_eq!(rows(&timed)[2].arrival_ns, Nanos(13_150_000_000));
}

#[test]
fn aiperf_rows_of_every_kind() {
    let rows = rows(&open("aiperf.jsonl"));
    let want = [
        (0, 900, 40),
        (100_000_000, 0, 5),
        (100_000_000, 1_000, 40),
        (200_000_000, 0, 0),
        (300_000_000, 0, 2),
    ];
    assert_eq!(lengths(&rows), want);
    let turn = rows[2].turn.clone().unwrap();
    assert_eq!((turn.session.as_str(), turn.number), ("a", 1));
    assert_eq!(
        (turn.delay_ns, rows[2].untimed),
        (Some(Nanos(250_000_000)), true)
    );
    let hello = ChatTurn {
        role: "user".into(),
        content: "Hello".into(),
    };
    assert_eq!(rows[3].prompt, Some(RowPrompt::Chat(vec![hello])));
    assert!(rows[3].turn.as_ref().is_some_and(|turn| turn.live_answers));
    assert!(rows[3].output_unknown);
    assert_eq!(rows[4].prompt, Some(RowPrompt::Text("Hi".into())));
    let bad = [
        (
            r#"{"timestamp": 0, "input_length": 5, "text_input": "x"}"#,
            "exactly one of",
        ),
        (r#"{"session_id": "a", "timestamp": 0}"#, "exactly one of"),
        (
            r#"{"session_id": "a", "timestamp": 0, "delay": 1, "input_length": 5}"#,
            "not both",
        ),
        (r#"{"delay": 1, "input_length": 5}"#, "needs a session_id"),
        (
            r#"{"text_input": "x", "hash_ids": [1]}"#,
            "add input_length",
        ),
    ];
    for (text, message) in bad {
        let error = open_text(text, &TraceOptions::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("t.jsonl:1: ") && error.contains(message),
            "{error}"
        );
    }
}
