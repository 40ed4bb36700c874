//! Files that must be refused, with the line, the key, the value and the fix.

use std::path::PathBuf;

use pb_workloads::trace::{
    TimeUnit, TraceError, TraceFile, TraceOptions, TraceRow, select, validate,
};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/traces")
        .join(name)
}

/// Writes `text` to a file and opens it.
fn open_text(text: &str, options: &TraceOptions) -> Result<TraceFile, TraceError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    std::fs::write(&path, text).unwrap();
    TraceFile::open(&path, options)
}

/// Files that must not be read as if they were sound, and what the message must say.
#[test]
fn bad_files_are_refused_with_line_key_value_and_fix() {
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
    let cases = [
        (
            format!("{azure}2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15,1,1\n"),
            "t.jsonl:3: TIMESTAMP = 2023-11-16 18:15: must be a date and time",
        ),
        (
            format!("{azure}2023-11-16 18:15:46.68,374\n"),
            "t.jsonl:2: 2 fields where the header has 3",
        ),
        (
            format!("{azure}2023-11-16 18:15:46.68,many,4\n"),
            "t.jsonl:2: ContextTokens = many: must be a whole number",
        ),
        (
            "arrived_at,num_prefill_tokens,num_decode_tokens\n-1,5,5\n".into(),
            "arrived_at = -1: must be a time",
        ),
        (
            "request_id,batch_size,prompt_size,token_size\n0,4,5,5\n".into(),
            "batch_size = 4: a row must be one request",
        ),
        (
            "{\"chat_id\": 1, \"timestamp\": 1, \"input_length\": 5}\n".into(),
            "output_length = (absent)",
        ),
        (
            "{\"id\": \"c\", \"requests\": [{\"in\": 5, \"out\": 1}]}".into(),
            "t = (absent)",
        ),
        (
            "[{\"conversations\": [{\"from\": \"human\"}]}]".into(),
            "a turn must have from and value",
        ),
        (
            "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \
             \"hash_ids\": [18446744073709551616]}"
                .into(),
            "hash_ids = [1.8446744073709552e+19]: must be a list of whole numbers from 0 to 2^64",
        ),
    ];
    for (text, message) in cases {
        let error = open_text(&text, &TraceOptions::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}\nfor {message}");
    }
    let unsorted = format!("{azure}2023-11-16 18:15:47,1,1\n2023-11-16 18:15:46,1,1\n");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("unsorted.csv");
    std::fs::write(&path, unsorted).unwrap();
    let file = TraceFile::open(&path, &TraceOptions::default()).unwrap();
    let error = file
        .rows()
        .unwrap()
        .last()
        .unwrap()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("unsorted.csv:3: ") && error.contains("sort the file"),
        "{error}"
    );
}

#[test]
fn ambiguity_is_refused_and_can_be_settled() {
    // 20 units apart: 50 a second or three a minute. Blocks of 8 and of 16 fit.
    let line = |at: &str, ids: &str| {
        format!(
            "{{\"timestamp\": {at}, \"input_length\": 8, \"output_length\": 1, \
             \"hash_ids\": [{ids}]}}\n"
        )
    };
    let text = format!(
        "{}{}{}",
        line("0.5", "1"),
        line("20.5", "1"),
        line("40.5", "2")
    );
    let unit = open_text(&text, &TraceOptions::default())
        .unwrap_err()
        .to_string();
    assert!(
        unit.contains("ambiguous") && unit.contains("its unit"),
        "{unit}"
    );
    let mut options = TraceOptions {
        unit: Some(TimeUnit::Ms),
        ..TraceOptions::default()
    };
    let size = open_text(&text, &options).unwrap_err().to_string();
    assert!(
        size.contains("8 or more") && size.contains("set it"),
        "{size}"
    );
    options.block_tokens = Some(16);
    let file = open_text(&text, &options).unwrap();
    assert_eq!(file.blocks.map(|rule| rule.tokens), Some(16));
}

#[test]
fn row_58_a_trace_is_not_sent_twice_unless_asked() {
    let file = TraceFile::open(&fixture("mooncake.jsonl"), &TraceOptions::default()).unwrap();
    let rows: Vec<TraceRow> = file.rows().unwrap().collect::<Result<_, _>>().unwrap();
    let error = select(&rows, 9, false).unwrap_err().to_string();
    assert!(
        error.contains("requests = 9: the trace has 4 rows"),
        "{error}"
    );
    let selected = select(&rows, 9, true).unwrap();
    assert_eq!((selected.rows.len(), selected.unique), (9, 4));
    assert_eq!(selected.rows[4].arrival_ns, rows[3].arrival_ns);
    assert!(selected.rows.is_sorted_by_key(|row| row.arrival_ns));
    assert_eq!(select(&rows, 3, false).unwrap().rows, rows[..3]);
    assert!(select(&[], 1, true).is_err());
}

#[test]
fn row_71_broken_trees_and_partial_blocks_fail_the_validation() {
    let check = |text: &str| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.jsonl");
        std::fs::write(&path, text).unwrap();
        let found = validate(&path, &TraceOptions::default()).unwrap();
        let failed = found.checks.iter().filter(|check| !check.ok);
        let failed: Vec<(&str, String)> = failed
            .map(|check| (check.name, check.detail.clone()))
            .collect();
        assert_eq!(found.valid, failed.is_empty());
        failed
    };
    let line = |input: usize, ids: &str| {
        format!(
            "{{\"timestamp\": 0, \"input_length\": {input}, \"output_length\": 1, \
             \"hash_ids\": [{ids}]}}\n"
        )
    };
    assert!(check(&format!("{}{}", line(1_024, "0, 1"), line(1_000, "0, 2"))).is_empty());
    let moved = check(&format!("{}{}", line(1_024, "0, 1"), line(1_024, "1, 3")));
    assert_eq!(moved[0].0, "prefix_tree");
    let first = "1 blocks break it; row 1: id 1 is at the start and was at depth 1 under 0";
    assert_eq!(moved[0].1, first);
    let resized = check(&format!("{}{}", line(1_024, "0, 1"), line(1_000, "0, 1")));
    assert_eq!(resized[0].0, "partial_blocks");
    assert!(
        resized[0]
            .1
            .contains("id 1 stands for 488 tokens and stood for 512")
    );
    // 600 tokens of two names rule out that partial blocks have none.
    let short = check(&format!(
        "{}{}{}",
        line(1_024, "0, 1"),
        line(1_025, "0, 1"),
        line(600, "0, 4")
    ));
    assert_eq!(short[0].0, "rows");
    assert!(
        short[0]
            .1
            .contains("t.jsonl:2: hash_ids = (2 ids): must have 3 ids"),
        "{short:?}"
    );
    // The example that AIPerf documents names one block at two depths.
    let documented = check(&format!(
        "{}{}{}",
        line(1_200, "0, 1, 2"),
        line(1_800, "0, 3, 4, 5"),
        line(1_300, "1, 4, 6")
    ));
    assert_eq!(documented[0].0, "prefix_tree");
}
