//! The trace reader against hand-written rows, and against the public traces where they are.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::PathBuf;

use pb_contract::{Nanos, TokenId};
use pb_workloads::trace::{
    LengthScale, MAX_RECORD_BYTES, PoolCounter, PromptTokens, TraceError, TraceFormat, TraceReader,
    TraceRow, prefix_reuse, spread_arrivals,
};

fn read(text: &str) -> Result<Vec<TraceRow>, TraceError> {
    TraceReader::new(Cursor::new(text), "t.jsonl", TraceFormat::Mooncake).collect()
}

/// A row with its default fields overwritten by `change`.
fn line(change: &str) -> String {
    let mut row: serde_json::Map<String, serde_json::Value> = serde_json::from_str(
        r#"{"timestamp": 7, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}"#,
    )
    .unwrap();
    let change: serde_json::Map<String, serde_json::Value> = serde_json::from_str(change).unwrap();
    row.extend(change);
    row.retain(|_, value| !value.is_null());
    serde_json::Value::from(row).to_string()
}

fn row(input_tokens: usize, block_ids: &[u64]) -> TraceRow {
    TraceRow {
        input_tokens,
        output_tokens: 1,
        block_tokens: 512,
        block_ids: block_ids.to_vec(),
        ..TraceRow::default()
    }
}

#[test]
fn rows_are_read_with_their_units() {
    let text = "{\"timestamp\": 27, \"input_length\": 513, \"output_length\": 0, \
                \"hash_ids\": [4, 18446744073709551615]}\r\n\n\
                {\"hash_ids\": [7], \"output_length\": 9, \"input_length\": 1, \"timestamp\": 27}";
    let rows = read(text).unwrap();
    let first = TraceRow {
        arrival_ns: Nanos(27_000_000),
        output_tokens: 0,
        ..row(513, &[4, u64::MAX])
    };
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0], first);
    assert_eq!(
        (rows[0].tokens_in_block(0), rows[0].tokens_in_block(1)),
        (512, 1)
    );
    assert_eq!((rows[1].input_tokens, rows[1].output_tokens), (1, 9));
    assert!(read("").unwrap().is_empty());
}

#[test]
fn a_bad_row_is_named_by_file_line_key_and_value() {
    let cases = [
        (
            r#"{"timestamp": "1"}"#,
            "timestamp = \"1\": must be a time, a number from 0",
        ),
        (r#"{"timestamp": -1}"#, "timestamp = -1"),
        (
            r#"{"timestamp": 6}"#,
            "timestamp = 0.006 s: must not be earlier than the row before",
        ),
        (r#"{"timestamp": 1e300}"#, "timestamp = 1e+300"),
        (r#"{"timestamp": null}"#, "timestamp = (absent)"),
        (
            r#"{"input_length": 0}"#,
            "input_length = 0: must be a whole number of tokens from 1",
        ),
        (r#"{"output_length": "5"}"#, "output_length = \"5\""),
        (
            r#"{"input_length": 1025}"#,
            "hash_ids = (2 ids): must have 3 ids",
        ),
        (
            r#"{"input_length": 512}"#,
            "hash_ids = (2 ids): must have 1 ids",
        ),
        (
            r#"{"hash_ids": [0, "1"]}"#,
            "hash_ids = [0,\"1\"]: must be a list",
        ),
        (r#"{"hash_ids": 3}"#, "hash_ids = 3"),
        (
            r#"{"chat_id": 1}"#,
            "chat_id = 1: not a key of a Mooncake trace",
        ),
    ];
    for (change, expected) in cases {
        let text = format!(
            "{}
{}
",
            line("{}"),
            line(change)
        );
        let error = read(&text).unwrap_err().to_string();
        let rest = error.strip_prefix("t.jsonl:2: ");
        assert!(
            rest.is_some_and(|rest| rest.starts_with(expected)),
            "{change}: {error}"
        );
    }
    for text in ["[1]", "{\"timestamp\": ", "timestamp,input_length"] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.starts_with("t.jsonl:1: not a JSON object"), "{error}");
    }
    let utf8 = TraceReader::new(Cursor::new(b"\xff\n"), "b", TraceFormat::Mooncake).next();
    assert_eq!(utf8.unwrap().unwrap_err().to_string(), "b:1: not UTF-8");
}

#[test]
fn a_line_without_end_costs_bounded_memory() {
    let endless = std::io::BufReader::new(std::io::repeat(b' '));
    let mut reader = TraceReader::new(endless, "endless", TraceFormat::Mooncake);
    let error = reader.next().unwrap().unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("endless:1: longer than {MAX_RECORD_BYTES}")),
        "{error}"
    );
    assert!(reader.next().is_none());
}

#[test]
fn reuse_of_a_hand_counted_trace() {
    // Blocks 0 and 1 are full; 2, 3 and 5 are tails of 40, 40 and 100 tokens.
    let rows = [
        row(1_064, &[0, 1, 2]),
        row(1_064, &[0, 1, 3]),
        row(1_064, &[0, 1, 2]),
        row(612, &[4, 5]),
        row(1_064, &[0, 1, 2]),
    ];
    let all = prefix_reuse(&rows, 16, None);
    assert_eq!((all.requests, all.blocks, all.hit_blocks), (5, 14, 8));
    let tokens = (4 * 1_064 + 612, 1_024 + 2 * 1_064);
    assert_eq!((all.tokens, all.hit_tokens), tokens);
    assert_eq!((all.full_blocks, all.hit_full_blocks), (9, 6));
    assert_eq!(
        (all.engine_blocks, all.hit_engine_blocks),
        (4 * 66 + 38, 6 * 32)
    );
    // With room for three the tail goes each time, and the fourth row pushes 0 and 1 out.
    let three = prefix_reuse(&rows, 16, Some(3));
    assert_eq!(three.hit_blocks, 2 + 2);
    assert_eq!(prefix_reuse(&rows, 16, Some(0)).hit_blocks, 0);
}

#[test]
fn arrivals_are_spread_within_their_bins() {
    let recorded = [0, 0, 0, 3_000, 6_001, 6_001].map(|ms| ms * 1_000_000);
    let mut rows = recorded.map(|arrival| TraceRow {
        arrival_ns: Nanos(arrival),
        ..row(5, &[0])
    });
    spread_arrivals(&mut rows, 3);
    let spread: Vec<u64> = rows.iter().map(|row| row.arrival_ns.0).collect();
    assert!(spread.is_sorted() && spread != recorded, "{spread:?}");
    let width = [3_000, 3_000, 3_000, 3_001, 3_001, 3_001].map(|ms| ms * 1_000_000);
    for ((at, bin), width) in spread.iter().zip(recorded).zip(width) {
        assert!(
            (bin..bin + width).contains(at),
            "{at} is not in the bin of {bin}"
        );
    }
}

fn shared_start<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[test]
fn prompts_share_what_their_names_share() {
    let prompts = PromptTokens::new(100..356, 9).unwrap();
    let full = prompts.realise(&row(1_024, &[0, 1]));
    let tail = prompts.realise(&row(1_000, &[0, 2]));
    assert_eq!((full.len(), tail.len()), (1_024, 1_000));
    assert!(full.iter().all(|token| (100..356).contains(token)));
    assert_eq!(shared_start(&full, &tail) / 16, 512 / 16);
    assert_eq!(
        prompts.realise(&row(600, &[0, 2])),
        tail[..600],
        "a tail is its name's slice, cut"
    );
    let reseeded = PromptTokens::new(100..356, 10).unwrap();
    assert_eq!(
        shared_start(&full, &reseeded.realise(&row(1_024, &[0, 1]))) / 16,
        0
    );
    let unnamed = |number| TraceRow {
        number,
        input_tokens: 64,
        ..TraceRow::default()
    };
    let (a, b) = (prompts.realise(&unnamed(0)), prompts.realise(&unnamed(1)));
    assert_eq!((a.len(), b.len()), (64, 64));
    assert_eq!(
        (shared_start(&a, &full) / 16, shared_start(&a, &b) / 16),
        (0, 0)
    );
    // A tail without a name is the row's own, after what its names share.
    let tails = [3, 4].map(|number| {
        prompts.realise(&TraceRow {
            number,
            ..row(600, &[0])
        })
    });
    assert_eq!(tails[0][..512], tails[1][..512]);
    assert_eq!(shared_start(&tails[0], &tails[1]) / 16, 512 / 16);
}

/// A public trace from the folder with `data/`, or `None` with a message.
fn public_trace(name: &str) -> Option<Vec<TraceRow>> {
    let inside = PathBuf::from("data/mooncake").join(name);
    let named = std::env::var_os("PREFILLBENCH_SHARED").map(|dir| PathBuf::from(dir).join(&inside));
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared")
        .join(&inside);
    let path = [named, Some(beside)]
        .into_iter()
        .flatten()
        .find(|path| path.exists());
    let Some(path) = path else {
        eprintln!("skipped: no {name}; set PREFILLBENCH_SHARED to the folder with data/mooncake");
        return None;
    };
    let reader = TraceReader::open(&path, TraceFormat::Mooncake).unwrap();
    Some(reader.collect::<Result<_, _>>().unwrap())
}

/// Published figures: a count of hits and percentages with one decimal. These were rounded from
/// two decimals, so half a step more is allowed.
struct Published {
    file: &'static str,
    rows: u64,
    tokens: u64,
    blocks: (u64, u64),
    percent: [f64; 3],
    lru: &'static [(usize, f64)],
}

const PUBLISHED: [Published; 2] = [
    Published {
        file: "conversation_trace.jsonl",
        rows: 12_031,
        tokens: 144_793_823,
        blocks: (105_710, 288_500),
        percent: [37.4, 38.2, 37.4],
        lru: &[
            (1_000, 4.5),
            (5_000, 11.0),
            (10_000, 21.1),
            (30_000, 32.6),
            (50_000, 35.5),
            (100_000, 36.4),
        ],
    },
    Published {
        file: "synthetic_trace.jsonl",
        rows: 3_993,
        tokens: 61_194_628,
        blocks: (77_953, 121_877),
        percent: [65.1, 65.9, 65.1],
        lru: &[
            (1_000, 8.3),
            (5_000, 27.9),
            (10_000, 42.4),
            (30_000, 62.4),
            (50_000, 64.0),
        ],
    },
];

#[test]
fn reuse_of_the_public_traces_is_the_published_one() {
    for published in PUBLISHED {
        let Some(rows) = public_trace(published.file) else {
            continue;
        };
        let near = |what: &str, part: u64, whole: u64, percent: f64| {
            let found = 100.0 * part as f64 / whole as f64;
            let file = published.file;
            assert!(
                (found - percent).abs() < 0.056,
                "{file} {what}: {found} for {percent}"
            );
        };
        let all = prefix_reuse(&rows, 16, None);
        assert_eq!(
            (all.requests, all.tokens),
            (published.rows, published.tokens)
        );
        assert_eq!((all.hit_blocks, all.blocks), published.blocks);
        near("tokens", all.hit_tokens, all.tokens, published.percent[0]);
        near(
            "full",
            all.hit_full_blocks,
            all.full_blocks,
            published.percent[1],
        );
        near(
            "of 16",
            all.hit_engine_blocks,
            all.engine_blocks,
            published.percent[2],
        );
        for &(capacity, percent) in published.lru {
            let finite = prefix_reuse(&rows, 16, Some(capacity));
            near(
                &format!("LRU {capacity}"),
                finite.hit_blocks,
                finite.blocks,
                percent,
            );
        }
    }
}

/// Finds shared 16-token blocks by their contents alone: a node is a parent and a block.
#[derive(Default)]
struct Trie {
    nodes: BTreeMap<(usize, Vec<TokenId>), usize>,
}

impl Trie {
    /// Leading blocks of `prompt` that were there before; then adds them all.
    fn add(&mut self, prompt: &[TokenId]) -> usize {
        let (mut parent, mut hits, mut leading) = (0, 0, true);
        for block in prompt.chunks_exact(16) {
            let fresh = self.nodes.len() + 1;
            let node = *self.nodes.entry((parent, block.to_vec())).or_insert(fresh);
            leading &= node != fresh;
            hits += usize::from(leading);
            parent = node;
        }
        hits
    }
}

#[test]
fn realised_prompts_share_exactly_what_the_trace_shares() {
    for published in PUBLISHED {
        let Some(rows) = public_trace(published.file) else {
            continue;
        };
        let prompts = PromptTokens::new(0..49_152, 5).unwrap();
        let (mut trie, mut found, mut expected) = (Trie::default(), 0, 0);
        for (at, row) in rows[..400].iter().enumerate() {
            // The longest start that the names share with any row before, in whole 16-blocks.
            let names = |other: &TraceRow| shared_start(&row.block_ids, &other.block_ids);
            let shared = rows[..at].iter().map(names).max().unwrap_or(0);
            expected += (shared * 512).min(row.input_tokens) / 16;
            found += trie.add(&prompts.realise(row));
        }
        assert_eq!(found, expected, "{}", published.file);
        assert!(expected > 0);
    }
}

/// Engine blocks that a plain list of prompts finds: a block is in the list when its tokens and
/// all before it are. The oldest goes first.
fn found_by_list(prompts: &[Vec<TokenId>], block: usize, capacity: usize) -> Vec<usize> {
    let mut list: Vec<&[TokenId]> = Vec::new();
    let mut found = Vec::new();
    for prompt in prompts {
        let prefixes = (1..=prompt.len() / block).map(|n| &prompt[..n * block]);
        let held = prefixes.clone().take_while(|prefix| list.contains(prefix));
        found.push(held.count().min((prompt.len() - 1) / block) * block);
        for prefix in prefixes {
            list.retain(|other| *other != prefix);
            list.push(prefix);
            list.drain(..list.len().saturating_sub(capacity));
        }
    }
    found
}

#[test]
fn planned_hits_are_those_of_a_list_of_realised_prompts() {
    // Block 2 is a tail of 70 tokens, 4 one of 8; the fourth row ends with tokens of its own.
    let shapes: [(usize, &[u64]); 7] = [
        (134, &[0, 1, 2]),
        (134, &[0, 1, 2]),
        (72, &[0, 3, 4]),
        (90, &[0, 1]),
        (64, &[0, 1]),
        (134, &[0, 1, 2]),
        (40, &[]),
    ];
    let rows: Vec<TraceRow> = shapes
        .iter()
        .zip(0..)
        .map(|((input_tokens, ids), number)| TraceRow {
            number,
            input_tokens: *input_tokens,
            block_tokens: if ids.is_empty() { 0 } else { 32 },
            block_ids: ids.to_vec(),
            ..TraceRow::default()
        })
        .collect();
    let text: Vec<TokenId> = (0..4_000u32).map(|i| (i * i) % 331).collect();
    for tokens in [
        PromptTokens::new(0..5_000, 3).unwrap(),
        PromptTokens::from_text(text, 3).unwrap(),
    ] {
        let prompts: Vec<Vec<TokenId>> = rows.iter().map(|row| tokens.realise(row)).collect();
        for block in [8, 12, 16, 32, 50] {
            for capacity in [3, 6, 10, 1_000] {
                let mut counter = PoolCounter::new(block, Some(capacity));
                let planned: Vec<usize> = rows.iter().map(|row| counter.add(row)).collect();
                let found = found_by_list(&prompts, block, capacity);
                assert_eq!(planned, found, "blocks of {block}, {capacity} of them");
            }
            let mut counter = PoolCounter::new(block, None);
            let planned: Vec<usize> = rows.iter().map(|row| counter.add(row)).collect();
            assert_eq!(planned, found_by_list(&prompts, block, 1_000));
        }
    }
}

#[test]
fn row_70_prompts_are_those_of_the_tokenizer_at_hand() {
    let row = row(600, &[0, 1]);
    let made = |first: TokenId, count| {
        let prompts = PromptTokens::new(first..first + count, 3).unwrap();
        prompts.realise(&row)
    };
    let small = made(0, 1_000);
    let large = made(0, 50_000);
    assert!(small.iter().all(|&token| token < 1_000) && large.iter().any(|&t| t >= 1_000));
    // Made again after another's: nothing is kept that could be stale.
    assert_eq!(made(0, 1_000), small);
}

#[test]
fn row_67_the_last_token_is_never_found() {
    let mut counter = PoolCounter::new(16, None);
    let full = row(512, &[0]);
    assert_eq!((counter.add(&full), counter.add(&full)), (0, 496));
    let longer = row(513, &[1, 2]);
    assert_eq!((counter.add(&longer), counter.add(&longer)), (0, 512));
}

#[test]
fn shorter_prompts_share_the_same_blocks() {
    for published in PUBLISHED {
        let Some(mut rows) = public_trace(published.file) else {
            continue;
        };
        let scale = LengthScale::new(1.0 / 16.0, 512).unwrap();
        rows.iter_mut().for_each(|row| scale.apply(row));
        let reuse = prefix_reuse(&rows, 16, None);
        assert_eq!((reuse.hit_blocks, reuse.blocks), published.blocks);
        let prompts = PromptTokens::new(0..49_152, 5).unwrap();
        let mut counter = PoolCounter::new(16, None);
        let (mut trie, mut planned) = (Trie::default(), 0);
        for row in &rows[..1_500] {
            let prompt = prompts.realise(row);
            assert_eq!(prompt.len(), row.input_tokens);
            assert_eq!(row.block_ids.len(), row.input_tokens.div_ceil(32));
            let hit = counter.add(row);
            planned += hit;
            let found = trie.add(&prompt).min((prompt.len() - 1) / 16) * 16;
            assert_eq!(hit, found, "{} row {}", published.file, row.number);
        }
        assert!(planned > 0);
    }
    let error = LengthScale::new(0.001, 512).unwrap_err().to_string();
    assert!(
        error.contains("length_scale = 0.001") && error.contains("0.512"),
        "{error}"
    );
}
