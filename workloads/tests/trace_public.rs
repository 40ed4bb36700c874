//! The public traces, where they are, against the statistics that were published with them.

use std::path::PathBuf;

use pb_contract::Nanos;
use pb_workloads::trace::{
    InspectOptions, Inspection, ServeGen, ServeGenParams, TimeUnit, TraceFile, TraceOptions,
    TraceRow, inspect, validate,
};

/// A public file or directory, or `None` with a message.
fn public(inside: &str) -> Option<PathBuf> {
    let inside = PathBuf::from("data").join(inside);
    let named = std::env::var_os("PREFILLBENCH_SHARED").map(|dir| PathBuf::from(dir).join(&inside));
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared")
        .join(&inside);
    let path = [named, Some(beside)]
        .into_iter()
        .flatten()
        .find(|path| path.exists());
    if path.is_none() {
        let what = inside.display();
        eprintln!("skipped: no {what}; set PREFILLBENCH_SHARED to the folder that holds data/");
    }
    path
}

/// Published: rounded, and its percentiles lie between two neighbours where ours, of nearest rank,
/// are one of them. In the tail neighbours are up to 0.3 % apart.
struct Published {
    file: &'static str,
    rows: u64,
    unit: Option<&'static str>,
    block_size: Option<usize>,
    /// p50, mean (where published), p95, max.
    input: (u64, Option<f64>, u64, u64),
    output: (u64, Option<f64>, u64, u64),
    /// p50, mean and p95 of the gaps in milliseconds, their CV, and the span in seconds.
    arrivals: Option<([f64; 3], f64, f64)>,
    bin_s: Option<f64>,
}

const PUBLISHED: [Published; 7] = [
    Published {
        file: "mooncake/conversation_trace.jsonl",
        rows: 12_031,
        unit: Some("ms"),
        block_size: Some(512),
        input: (6_909, Some(12_035.0), 39_551, 126_195),
        output: (350, Some(343.0), 698, 2_000),
        arrivals: Some(([0.0, 294.0, 3_000.0], 3.03, 3_537.0)),
        bin_s: Some(3.0),
    },
    Published {
        file: "mooncake/synthetic_trace.jsonl",
        rows: 3_993,
        unit: Some("ms"),
        block_size: Some(512),
        input: (11_587, Some(15_325.0), 48_905, 191_378),
        output: (69, Some(149.0), 519, 893),
        arrivals: Some(([175.0, 256.0, 783.0], 1.01, 1_022.0)),
        bin_s: None,
    },
    Published {
        file: "azure2023/AzureLLMInferenceTrace_conv.csv",
        rows: 19_366,
        unit: Some("datetime"),
        block_size: None,
        input: (1_020, Some(1_155.0), 4_083, 14_050),
        output: (129, Some(211.0), 451, 1_000),
        arrivals: Some(([118.0, 181.0, 565.0], 1.09, 3_502.0)),
        bin_s: None,
    },
    Published {
        file: "azure2023/AzureLLMInferenceTrace_code.csv",
        rows: 8_819,
        unit: Some("datetime"),
        block_size: None,
        input: (1_469, Some(2_048.0), 7_303, 7_437),
        output: (13, Some(28.0), 90, 1_899),
        arrivals: Some(([64.0, 390.0, 401.0], 13.15, 3_436.0)),
        bin_s: None,
    },
    Published {
        file: "vidur/processed_traces/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
        rows: 28_257,
        unit: None,
        block_size: None,
        input: (2_730, None, 3_813, 4_054),
        output: (167, None, 736, 4_056),
        arrivals: None,
        bin_s: None,
    },
    Published {
        file: "sharegpt-derived/sharegpt-llama-3.1-8b-300-sps10.blk16.jsonl",
        rows: 300,
        unit: Some("ms"),
        block_size: Some(16),
        input: SHAREGPT_INPUT,
        output: SHAREGPT_OUTPUT,
        arrivals: None,
        bin_s: None,
    },
    Published {
        file: "aibrix-derived/8min_up_and_down_lengths.csv",
        rows: 2_026,
        unit: Some("ms"),
        block_size: None,
        input: (264, Some(294.0), 649, 2_415),
        output: (34, Some(73.0), 267, 925),
        arrivals: Some(([98.0, 225.0, 804.0], 1.82, 456.0)),
        bin_s: None,
    },
];

/// Counted by a separate script (Python, sorted list, nearest rank): the published figures are
/// those of its sister for another tokenizer.
const SHAREGPT_INPUT: (u64, Option<f64>, u64, u64) = (730, Some(857.5), 1_747, 3_998);
const SHAREGPT_OUTPUT: (u64, Option<f64>, u64, u64) = (631, Some(652.5), 773, 1_021);

fn check_lengths(published: &Published, found: &Inspection) {
    let sides = [
        ("input", published.input, found.input_tokens),
        ("output", published.output, found.output_tokens),
    ];
    for (side, (p50, mean, p95, max), stats) in sides {
        let stats = stats.unwrap();
        let what = format!("{} {side}: {stats:?}", published.file);
        assert!(stats.p50.abs_diff(p50) <= 1, "{what}");
        assert!(
            stats.p95.abs_diff(p95) <= (p95 * 3 / 1_000).max(1),
            "{what}"
        );
        assert_eq!(stats.max, max, "{what}");
        assert!(
            mean.is_none_or(|mean| (stats.mean - mean).abs() <= 0.51),
            "{what}"
        );
    }
}

#[test]
fn statistics_of_the_public_traces_are_the_published_ones() {
    for published in PUBLISHED {
        let Some(path) = public(published.file) else {
            continue;
        };
        let file = TraceFile::open(&path, &TraceOptions::default()).unwrap();
        let found = inspect(&file, &InspectOptions::default(), None).unwrap();
        let what = format!("{}: {found:?}", published.file);
        assert_eq!(found.rows, published.rows, "{what}");
        assert_eq!(found.unit.as_deref(), published.unit, "{what}");
        assert_eq!(found.block_size, published.block_size, "{what}");
        assert_eq!(found.arrivals.bin_s, published.bin_s, "{what}");
        assert!(found.dropped.is_empty(), "{what}");
        check_lengths(&published, &found);
        let Some((gaps_ms, cv, span_s)) = published.arrivals else {
            continue;
        };
        let arrivals = found.arrivals;
        let found_gaps = [arrivals.gap_p50_s, arrivals.gap_mean_s, arrivals.gap_p95_s];
        for (found_s, want_ms) in found_gaps.into_iter().zip(gaps_ms) {
            let near = (found_s.unwrap() * 1e3 - want_ms).abs() <= 0.006 * want_ms + 0.51;
            assert!(near, "{want_ms} ms: {what}");
        }
        assert!((arrivals.cv.unwrap() - cv).abs() <= 0.0051, "{what}");
        assert!((found.span_s.unwrap() - span_s).abs() <= 1.0, "{what}");
    }
}

#[test]
fn blocks_of_the_public_traces_are_the_published_ones() {
    let table = [
        (
            "conversation_trace.jsonl",
            (288_500, 182_790, 105_710),
            1_180,
        ),
        (
            "synthetic_trace.jsonl",
            (121_877, 43_924, 77_953),
            3_993 - 11,
        ),
    ];
    for (name, blocks, distinct) in table {
        let Some(path) = public(&format!("mooncake/{name}")) else {
            continue;
        };
        let file = TraceFile::open(&path, &TraceOptions::default()).unwrap();
        let found = inspect(&file, &InspectOptions::default(), None).unwrap();
        let counted = (found.blocks.total, found.blocks.unique, found.blocks.hit);
        assert_eq!(counted, blocks, "{name}");
        assert_eq!(found.arrivals.distinct, distinct, "{name}");
        let valid = validate(&path, &TraceOptions::default()).unwrap();
        assert!(valid.valid && valid.checks.len() == 4, "{valid:?}");
    }
    let sharegpt = "sharegpt-derived/sharegpt-llama-3.1-8b-300-sps10.blk16.jsonl";
    let Some(path) = public(sharegpt) else {
        return;
    };
    let file = TraceFile::open(&path, &TraceOptions::default()).unwrap();
    let mut counter = pb_workloads::trace::PoolCounter::new(16, None);
    for row in file.rows().unwrap() {
        counter.add(&row.unwrap());
    }
    let stats = counter.stats();
    let percent = 100.0 * stats.hit_blocks as f64 / stats.blocks as f64;
    assert!((percent - 7.7).abs() < 0.06, "{percent}");
}

#[test]
fn rows_within_a_context_are_the_published_shares() {
    let Some(path) = public("mooncake/conversation_trace.jsonl") else {
        return;
    };
    let file = TraceFile::open(&path, &TraceOptions::default()).unwrap();
    let table = [
        (4, 32.2),
        (8, 53.7),
        (16, 76.5),
        (32, 93.0),
        (64, 97.9),
        (128, 100.0),
    ];
    let all = inspect(&file, &InspectOptions::default(), None).unwrap();
    for (k, percent) in table {
        let options = InspectOptions {
            max_model_len: Some(k * 1_024),
            ..InspectOptions::default()
        };
        let found = inspect(&file, &options, None).unwrap();
        let share = 100.0 * found.rows as f64 / 12_031.0;
        assert!((share - percent).abs() < 0.06, "{k}k: {share}");
        let dropped = found.dropped.values().sum::<u64>();
        assert_eq!(found.rows + dropped, 12_031);
        // Fewer rows leave fewer blocks to find: the reuse is counted again.
        assert_eq!(found.blocks.hit == all.blocks.hit, k == 128);
    }
}

#[test]
fn azure_and_vidur_hold_the_same_requests() {
    for (azure, vidur) in [
        ("AzureLLMInferenceTrace_conv.csv", "splitwise_conv.csv"),
        ("AzureLLMInferenceTrace_code.csv", "splitwise_code.csv"),
    ] {
        let paths = public(&format!("azure2023/{azure}"))
            .zip(public(&format!("vidur/processed_traces/{vidur}")));
        let Some((azure, vidur)) = paths else {
            continue;
        };
        let rows = |path| -> Vec<TraceRow> {
            let file = TraceFile::open(path, &TraceOptions::default()).unwrap();
            file.rows().unwrap().collect::<Result<_, _>>().unwrap()
        };
        let (azure, vidur) = (rows(&azure), rows(&vidur));
        assert_eq!(azure.len(), vidur.len());
        for (azure, vidur) in azure.iter().zip(&vidur) {
            assert_eq!(azure, vidur);
        }
        assert!(azure.last().unwrap().arrival_ns > Nanos(3_400_000_000_000));
    }
}

#[test]
fn a_wrong_unit_is_what_was_asked_for_and_shows() {
    let Some(path) = public("mooncake/conversation_trace.jsonl") else {
        return;
    };
    let options = TraceOptions {
        unit: Some(TimeUnit::S),
        ..TraceOptions::default()
    };
    let file = TraceFile::open(&path, &options).unwrap();
    let found = inspect(&file, &InspectOptions::default(), None).unwrap();
    assert_eq!(found.span_s, Some(3_536_999.0));
    assert!(
        file.evidence
            .iter()
            .any(|why| why.contains("unit s: as set"))
    );
}

#[test]
fn servegen_clients_have_their_published_rates() {
    let Some(path) = public("servegen/reason/deepseek-r1") else {
        return;
    };
    let models = ServeGen::open(&path).unwrap();
    assert_eq!(models.clients(), (73, 10));
    let windows = (0..144).map(|window| models.rate(window * 600));
    let mean = windows.sum::<f64>() / 144.0;
    assert!((mean - 16.0).abs() < 0.06, "{mean}");
    let params = ServeGenParams {
        start_s: 36_000,
        duration_s: 3_600,
        rate_scale: 0.5,
        seed: 3,
    };
    let made = models.generate(&params).unwrap();
    let expected: f64 = (0..6).map(|w| models.rate(36_000 + w * 600) * 300.0).sum();
    let offered = made.rows.len() as u64 + made.dropped.values().sum::<u64>();
    assert!(
        (offered as f64 / expected - 1.0).abs() < 0.05,
        "{offered} of {expected}"
    );
    assert!(made.rows.is_sorted_by_key(|row| row.arrival_ns));
    assert!(made.rows.len() > 1_000 && made.rows.iter().all(|row| row.input_tokens > 0));
}
