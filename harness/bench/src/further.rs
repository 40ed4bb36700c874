//! The rest of the document: warm-ups, classes, selections, the keys of another tool.

use pb_contract::{RequestRow, TokenRow};

use crate::document::Document;
use crate::select::{Metric, Selection};
use crate::tests::{document, failed, frame, request, under, worked};
use crate::vllm::{VllmOptions, vllm_result};
use crate::{Calibration, Conditions, LoadFacts, WARMUP_ARM, csv, table};

type Records = Vec<(RequestRow, Vec<TokenRow>)>;

/// Requests a millisecond apart, each the worked stream.
fn many(count: u64) -> Records {
    (0..count).map(|id| worked(id, 1000 + id)).collect()
}

#[test]
fn a_warm_up_enters_no_number() {
    let (mut row, tokens) = request(9, 500, &[(400, 1), (499, 1)]);
    row.arm = WARMUP_ARM.into();
    let mut tally = Conditions::default().tally();
    tally.add(row, &tokens);
    let (row, tokens) = worked(0, 1000);
    tally.add(row, &tokens);
    let doc = Document::new(&tally, frame());
    assert_eq!((tally.warmups(), doc.counts.offered), (1, 1));
    assert_eq!(
        (doc.ttft_ms.unwrap().max, doc.event_gap_ms.unwrap().n),
        (200.0, 2)
    );
}

#[test]
fn classes_have_their_own_numbers() {
    let of = |id, class: &str, first| {
        let (mut row, tokens) = request(id, 1000 + id, &[(first, 1), (first + 10, 1)]);
        row.class = class.into();
        (row, tokens)
    };
    let records = vec![of(0, "long", 900), of(1, "short", 100), of(2, "short", 120)];
    let doc = document(&["ttft:200"], frame(), records);
    let (long, short) = (&doc.classes["long"], &doc.classes["short"]);
    assert_eq!(
        (long.ttft_ms.unwrap().n, long.ttft_ms.unwrap().max),
        (1, 900.0)
    );
    assert_eq!((short.counts.ok, short.ttft_ms.unwrap().p50), (2, 100.0));
    assert_eq!(
        (long.goodput_share, short.goodput_share),
        (Some(0.0), Some(1.0))
    );
    assert_eq!(
        (doc.ttft_ms.unwrap().n, doc.rates.goodput_share),
        (3, Some(2.0 / 3.0))
    );
    let text = csv::text(&doc);
    assert!(text.contains("\nttft.short,p50,100,ms\n"), "{text}");
    let table = table::text(&doc);
    assert!(
        table.lines().all(|line| line.chars().count() <= 100),
        "{table}"
    );
}

#[test]
fn a_selection_chooses_rows_and_columns() {
    let selection = Selection::parse(Some("ttft,event_gap"), Some("50,99.9")).unwrap();
    let mut tally = Conditions::default().tally();
    for (row, tokens) in many(4) {
        tally.add(row, &tokens);
    }
    let doc = Document::new(&tally, frame());
    let text = table::text_with(&doc, &tally, &selection);
    assert!(text.contains("p50     p99.9"), "{text}");
    assert!(
        text.contains("event_gap               8   100.000   100.000   100.000"),
        "{text}"
    );
    assert!(!text.contains("TPOT"), "{text}");
    assert_eq!(
        Metric::ServiceE2el.of(tally.all()).nearest_rank(1.0),
        Some(399_750_000)
    );
}

#[test]
fn a_run_that_was_stopped_says_so() {
    let conditions = Conditions {
        interrupted: true,
        calibration: Some(Calibration {
            problem: Some("no port".into()),
            ..Calibration::default()
        }),
        ..Conditions::new(frame())
    };
    let doc = under(&conditions, many(2));
    assert_eq!(
        (doc.state.as_str(), doc.interrupted, doc.exit_code()),
        ("interrupted", true, 3)
    );
    assert!(doc.warnings[0].contains("not calibrated: no port"));
}

/// Values by hand: two streams of 200, 300, 400 ms, sent a quarter of a millisecond late.
#[test]
fn the_vllm_keys_follow_their_rules() {
    let conditions = Conditions {
        load: LoadFacts {
            rate_rps: Some(4.0),
            ..LoadFacts::default()
        },
        identity: crate::Identity {
            model: "m".into(),
            created: "2030-01-02T03:04:05Z".into(),
            metadata: [("site".to_owned(), "lab".to_owned())].into(),
            ..crate::Identity::default()
        },
        ..Conditions::new(frame())
    };
    let mut tally = conditions.tally().with_streams();
    let late = request(1, 1100, &[(300, 1), (400, 1)]);
    for (row, tokens) in [late, worked(0, 1000), failed(2, 1200)] {
        tally.add(row, &tokens);
    }
    let doc = Document::of(&tally, &conditions);
    let options = VllmOptions {
        selection: Selection::parse(Some("ttft,tpot,itl,e2el"), Some("50,99")).unwrap(),
        detailed: true,
    };
    let result = vllm_result(&doc, &tally, &options);
    assert_eq!(
        (&result["date"], &result["site"]),
        (&"20300102-030405".into(), &"lab".into())
    );
    assert_eq!(
        (&result["completed"], &result["failed"]),
        (&2.into(), &1.into())
    );
    // From the first byte sent: 199.75 and 299.75; half way between them.
    assert_eq!(
        (&result["median_ttft_ms"], &result["std_ttft_ms"]),
        (&249.75.into(), &50.0.into())
    );
    assert_eq!(result["p99_ttft_ms"], 298.75);
    // Event gaps: 100, 100 and 100; time per token 50 and 100.
    assert_eq!(
        (&result["mean_itl_ms"], &result["mean_tpot_ms"]),
        (&100.0.into(), &75.0.into())
    );
    assert_eq!(result["ttfts"], serde_json::json!([0.19975, 0.29975, null]));
    assert_eq!(result["itls"], serde_json::json!([[0.1, 0.1], [0.1], []]));
    assert_eq!(
        (&result["max_concurrent_requests"], &result["request_rate"]),
        (&2.into(), &4.0.into())
    );
    let brief = vllm_result(&doc, &tally, &VllmOptions::default());
    assert!(brief.get("ttfts").is_none() && brief.get("errors").is_none());
}

/// The keys of `vllm bench serve --save-result` 0.32 with its default metrics, as its source
/// lists them; those of `--save-detailed` beside them.
#[test]
fn the_keys_are_exactly_those_of_the_other_tool() {
    let plain = [
        "date",
        "endpoint_type",
        "backend",
        "label",
        "model_id",
        "tokenizer_id",
        "num_prompts",
        "request_rate",
        "burstiness",
        "max_concurrency",
        "duration",
        "completed",
        "failed",
        "total_input_tokens",
        "total_output_tokens",
        "request_throughput",
        "request_goodput",
        "output_throughput",
        "total_token_throughput",
        "latencies",
        "queue_times",
        "max_output_tokens_per_s",
        "max_concurrent_requests",
        "rtfx",
        "mean_ttft_ms",
        "median_ttft_ms",
        "std_ttft_ms",
        "p99_ttft_ms",
        "mean_tpot_ms",
        "median_tpot_ms",
        "std_tpot_ms",
        "p99_tpot_ms",
        "mean_itl_ms",
        "median_itl_ms",
        "std_itl_ms",
        "p99_itl_ms",
    ];
    let detailed = [
        "input_lens",
        "output_lens",
        "start_times",
        "ttfts",
        "itls",
        "generated_texts",
        "errors",
    ];
    let mut tally = Conditions::default().tally().with_streams();
    for (row, tokens) in many(3) {
        tally.add(row, &tokens);
    }
    let doc = Document::new(&tally, frame());
    for lists in [false, true] {
        let options = VllmOptions {
            detailed: lists,
            ..VllmOptions::default()
        };
        let result = vllm_result(&doc, &tally, &options);
        let found: std::collections::BTreeSet<&str> = result
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let more = detailed.iter().filter(|_| lists);
        assert_eq!(found, plain.iter().chain(more).copied().collect());
    }
}
