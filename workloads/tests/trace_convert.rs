//! Traces written and read again.

use std::path::{Path, PathBuf};

use pb_contract::Nanos;
use pb_workloads::trace::{
    TargetFormat, TimeUnit, TraceFile, TraceFormat, TraceOptions, TraceRow, TraceWriter,
    prefix_reuse, spread_arrivals, time_scale,
};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/traces")
        .join(name)
}

fn rows(path: &Path, options: &TraceOptions) -> Vec<TraceRow> {
    let file = TraceFile::open(path, options).unwrap();
    file.rows().unwrap().collect::<Result<_, _>>().unwrap()
}

/// Writes rows in a format and reads them as that format.
fn through(rows_in: &[TraceRow], target: TargetFormat, format: TraceFormat) -> Vec<TraceRow> {
    let has_names = rows_in.iter().any(|row| !row.block_ids.is_empty());
    let mut writer = TraceWriter::new(target, has_names);
    let lines: Vec<String> = rows_in
        .iter()
        .map(|row| writer.line(row).unwrap())
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    let unit = match target {
        TargetFormat::VllmTimed => TimeUnit::S,
        TargetFormat::Mooncake | TargetFormat::AiPerf => TimeUnit::Ms,
    };
    let tokens = rows_in
        .iter()
        .map(|row| row.block_tokens)
        .max()
        .filter(|&tokens| tokens > 0);
    let options = TraceOptions {
        format: Some(format),
        unit: Some(unit),
        block_tokens: tokens,
        ..TraceOptions::default()
    };
    rows(&path, &options)
}

const TARGETS: [(TargetFormat, TraceFormat); 3] = [
    (TargetFormat::AiPerf, TraceFormat::AiPerf),
    (TargetFormat::VllmTimed, TraceFormat::VllmTimed),
    (TargetFormat::Mooncake, TraceFormat::Mooncake),
];

#[test]
fn row_71_rows_survive_every_format_with_64_bit_names() {
    let before = rows(&fixture("mooncake.jsonl"), &TraceOptions::default());
    assert_eq!(before[3].block_ids, [(1 << 63) + 1]);
    let mut after = before.clone();
    for (target, format) in TARGETS {
        after = through(&after, target, format);
        assert_eq!(after, before, "{target:?}");
    }
}

#[test]
fn names_of_other_traces_are_kept_and_missing_ones_shared_with_nothing() {
    let options = TraceOptions::default();
    let bailian = rows(&fixture("bailian_blksz_16.jsonl"), &options);
    let mut azure = rows(&fixture("azure_2023.csv"), &options);
    azure[1].input_tokens = 1_025;
    for (target, format) in TARGETS {
        let after = through(&bailian, target, format);
        let ids = |rows: &[TraceRow]| -> Vec<Vec<u64>> {
            rows.iter().map(|row| row.block_ids.clone()).collect()
        };
        assert_eq!(ids(&after), ids(&bailian));
        assert_eq!(prefix_reuse(&after, 16, None).hit_tokens, 32);
        let after = through(&azure, target, format);
        let lengths = |rows: &[TraceRow]| -> Vec<(usize, usize)> {
            rows.iter()
                .map(|row| (row.input_tokens, row.output_tokens))
                .collect()
        };
        assert_eq!(lengths(&after), lengths(&azure));
        assert_eq!(prefix_reuse(&after, 16, None).hit_tokens, 0);
    }
    // Seconds keep the nanosecond, milliseconds cut it.
    let exact = through(&azure, TargetFormat::VllmTimed, TraceFormat::VllmTimed);
    assert_eq!(exact[1].arrival_ns, Nanos(4_314_579_000));
    let cut = through(&azure, TargetFormat::Mooncake, TraceFormat::Mooncake);
    assert_eq!(cut[1].arrival_ns, Nanos(4_314_000_000));
    let weka = rows(&fixture("weka.json"), &options);
    let mut sorted = weka.clone();
    sorted.sort_by_key(|row| row.arrival_ns);
    let after = through(&sorted, TargetFormat::Mooncake, TraceFormat::Mooncake);
    let (before, after) = (
        prefix_reuse(&sorted, 16, None),
        prefix_reuse(&after, 16, None),
    );
    assert_eq!(
        (after.hit_tokens, after.blocks),
        (before.hit_tokens, 3 + 1 + 4 + 3)
    );
}

#[test]
fn text_messages_and_delays_need_aiperf() {
    let before = rows(&fixture("aiperf.jsonl"), &TraceOptions::default());
    let mut after = through(&before, TargetFormat::AiPerf, TraceFormat::AiPerf);
    // A session of one complete prompt is written without its name.
    assert_eq!(after[0].turn, None);
    after[0].turn.clone_from(&before[0].turn);
    let turn = after[2].turn.as_mut().unwrap();
    turn.number += 1;
    assert_eq!(after, before);
    let mut writer = TraceWriter::new(TargetFormat::Mooncake, true);
    for (row, message) in [(1, "the prompt is text"), (2, "has a delay")] {
        let error = writer.line(&before[row]).unwrap_err().to_string();
        assert!(
            error.contains(message) && error.contains("aiperf"),
            "{error}"
        );
    }
}

#[test]
fn arrivals_are_stretched_and_spread() {
    let mut rows = rows(&fixture("mooncake.jsonl"), &TraceOptions::default());
    let scale = time_scale(2.0).unwrap();
    rows.iter_mut().for_each(scale);
    let ms = |rows: &[TraceRow]| -> Vec<u64> {
        rows.iter()
            .map(|row| row.arrival_ns.0 / 1_000_000)
            .collect()
    };
    assert_eq!(ms(&rows), [0, 54, 54, 6_054]);
    let mut untimed = rows.clone();
    untimed[2].untimed = true;
    spread_arrivals(&mut untimed, 7);
    assert_eq!(untimed[2].arrival_ns, untimed[1].arrival_ns);
    assert!(untimed.is_sorted_by_key(|row| row.arrival_ns) && untimed[1] != rows[1]);
    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(time_scale(factor).is_err());
    }
}
