//! A run small enough to work out by hand: four blocks, two arms, two background streams and one
//! long prompt in each.

use std::path::Path;

use pb_contract::manifest::{
    ArmReceipt, Machine, ModelReceipt, RUN_SCHEMA_VERSION, RunState, ToolVersion,
};
use pb_contract::{Nanos, RequestId, RequestRow, RequestStatus, RunManifest, StepRow, TokenRow};
use pb_record::{RunData, StepRecord};

use super::{CacheControl, Comparison, ResetProof, RunNotes};

pub(super) const MS: u64 = 1_000_000;
pub(super) const ARMS: [&str; 2] = ["mono", "chunk"];

/// What differs between the runs that the tests need.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// The one long gap of each background stream in ms, by arm and block.
    pub(super) stall_ms: [[u64; 4]; 2],
    /// TTFT of the long prompt in ms, by arm and block.
    pub(super) ttft_ms: [[u64; 4]; 2],
    /// First byte sent this long after the intended arrival.
    pub(super) lag_ns: u64,
    /// Decoding sequences in every step with prompt tokens.
    pub(super) decode_seqs: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            stall_ms: [[500, 520, 480, 510], [60, 62, 58, 61]],
            ttft_ms: [[500, 520, 490, 510], [551, 571, 540, 560]],
            lag_ns: 100_000,
            decode_seqs: 2,
        }
    }
}

/// The manifest of a run with these rows: its two arms and every cell that has requests.
fn manifest(state: RunState, rows: &[RequestRow]) -> RunManifest {
    let mut arms: Vec<&str> = ARMS.to_vec();
    let mut order = Vec::new();
    for row in rows {
        let cell = format!("{}:{}", row.block, row.arm);
        if !order.contains(&cell) {
            order.push(cell);
        }
        if !arms.contains(&row.arm.as_str()) {
            arms.push(&row.arm);
        }
    }
    let receipt = |name: &&str| ArmReceipt {
        name: (*name).to_owned(),
        ..ArmReceipt::default()
    };
    let digest = |cell: &String| (cell.clone(), "aa".to_owned());
    RunManifest {
        schema_version: RUN_SCHEMA_VERSION,
        kind: "quickstart".to_owned(),
        state,
        created: "2026-01-01T00:00:00Z".to_owned(),
        command: Vec::new(),
        tool: ToolVersion::default(),
        machine: Machine::default(),
        model: ModelReceipt::default(),
        seed: 7,
        schedule_sha256: order.iter().map(digest).collect(),
        arms: arms.iter().map(receipt).collect(),
        order,
        workload: serde_json::Value::Null,
    }
}

/// A request that ended well: sent `lag` after `at`, first token after `ttft`, then tokens at the
/// given gaps. All in nanoseconds.
pub(super) fn request(
    arm: &str,
    block: u32,
    id: u64,
    class: &str,
    times: (u64, u64, u64),
    gaps: &[u64],
) -> (RequestRow, Vec<TokenRow>) {
    let (at, lag, ttft) = times;
    let mut now = at + ttft;
    let token = |event: usize, at: u64| TokenRow {
        arm: arm.to_owned(),
        block,
        request: RequestId(id),
        event: event as u32,
        at_ns: Nanos(at),
        tokens: 1,
    };
    let mut tokens = vec![token(0, now)];
    for (i, gap) in gaps.iter().enumerate() {
        now += gap;
        tokens.push(token(i + 1, now));
    }
    let count = tokens.len() as u32;
    let row = RequestRow {
        arm: arm.to_owned(),
        block,
        request: RequestId(id),
        class: class.to_owned(),
        intended_ns: Nanos(at),
        sent_ns: Some(Nanos(at + lag)),
        headers_ns: Some(Nanos(at + ttft)),
        first_event_ns: Some(Nanos(at + ttft)),
        first_token_ns: Some(Nanos(at + ttft)),
        last_token_ns: Some(Nanos(now)),
        closed_ns: Some(Nanos(now + MS)),
        status: RequestStatus::Ok,
        fail: None,
        http_status: Some(200),
        fail_message: None,
        finish_reason: Some("length".to_owned()),
        prompt_tokens_planned: 100,
        prompt_tokens: Some(100),
        cached_tokens: Some(0),
        max_tokens: count,
        completion_tokens: Some(count),
        streamed_tokens: count,
    };
    (row, tokens)
}

/// The rows of the run: in each block and arm, background requests 0 and 1 with nine gaps of
/// 10 ms and one stall, long prompts 100 and 101 with one token, and one or two prefill steps.
pub(super) fn parts(shape: &Shape) -> (Vec<RequestRow>, Vec<TokenRow>, Vec<StepRecord>) {
    let (mut rows, mut tokens, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for block in 0..4_u32 {
        for (a, arm) in ARMS.iter().enumerate() {
            let base = (u64::from(block) * 2 + a as u64) * 10_000 * MS;
            let stall = shape.stall_ms[a][block as usize] * MS;
            let ttft = shape.ttft_ms[a][block as usize] * MS;
            let mut gaps = vec![10 * MS; 10];
            gaps[4] = stall;
            let mut add = |(row, events): (RequestRow, Vec<TokenRow>)| {
                rows.push(row);
                tokens.extend(events);
            };
            for id in 0..2 {
                let times = (base, shape.lag_ns, 20 * MS);
                add(request(arm, block, id, "background", times, &gaps));
            }
            for id in 0..2 {
                let times = (base + (50 + 1000 * id) * MS, shape.lag_ns, ttft);
                // Two prompts of 400 tokens and two of 100: the 1000 of the steps below.
                let (mut row, events) = request(arm, block, 100 + id, "long", times, &[]);
                (row.prompt_tokens_planned, row.prompt_tokens) = (400, Some(400));
                add((row, events));
            }
            let chunks: &[usize] = if a == 0 { &[1000] } else { &[600, 400] };
            for (number, &chunk) in chunks.iter().enumerate() {
                steps.push(step(
                    arm,
                    block,
                    base,
                    number as u64,
                    chunk,
                    shape.decode_seqs,
                ));
            }
        }
    }
    (rows, tokens, steps)
}

fn step(arm: &str, block: u32, base: u64, step: u64, tokens: usize, seqs: usize) -> StepRecord {
    let row = StepRow {
        step,
        start_ns: Nanos(base + step * 100 * MS),
        duration_ns: Nanos(100 * MS),
        schedule_ns: Nanos(MS),
        prefill_gemm_ns: Nanos(60 * MS),
        decode_gemm_ns: Nanos(9 * MS),
        prefill_attention_ns: Nanos(20 * MS),
        decode_attention_ns: Nanos(4 * MS),
        sampling_ns: Nanos(MS),
        other_ns: Nanos(5 * MS),
        prefill_tokens: tokens,
        decode_tokens: seqs,
        prefill_seqs: 1,
        decode_seqs: seqs,
        queried_tokens: 50,
        hit_tokens: 16,
        active_blocks: 30 + 10 * step as usize,
        reclaimable_blocks: 20,
        free_blocks: 50 - 10 * step as usize,
        ..StepRow::default()
    };
    StepRecord {
        arm: arm.to_owned(),
        block,
        row,
    }
}

pub(super) fn data_from(
    state: RunState,
    parts: (Vec<RequestRow>, Vec<TokenRow>, Vec<StepRecord>),
) -> RunData {
    let (rows, tokens, steps) = parts;
    let manifest = manifest(state, &rows);
    RunData::from_parts(Path::new("run"), manifest, rows, tokens, steps).unwrap()
}

pub(super) fn data(shape: &Shape) -> RunData {
    data_from(RunState::Complete, parts(shape))
}

pub(super) fn notes() -> RunNotes {
    let proof = |arm: &str, block| ResetProof {
        arm: arm.to_owned(),
        block,
        accepted: true,
        probe_cached_tokens: Some(0),
    };
    let resets = (0..4)
        .flat_map(|block| ARMS.map(|arm| proof(arm, block)))
        .collect();
    let comparison = Comparison {
        baseline: "mono".to_owned(),
        candidate: "chunk".to_owned(),
        subject: "chunked with monolithic prefill".to_owned(),
        ttft_class: Some("long".to_owned()),
        itl_class: Some("background".to_owned()),
        open_classes: vec!["long".to_owned()],
        background_streams: Some(2),
        cache_control: CacheControl::ResetEachBlock,
        metrics: Vec::new(),
    };
    RunNotes {
        schema_version: 1,
        comparison: Some(comparison),
        resets,
        ..RunNotes::default()
    }
}
