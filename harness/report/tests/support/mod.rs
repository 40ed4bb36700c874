//! A run that looks like a real one: a small deterministic model of an engine that prefills long
//! prompts between the decodes of background streams, whole in one arm and in chunks in the other.

use std::path::Path;

use pb_contract::manifest::{
    ArmReceipt, Machine, ModelReceipt, RUN_SCHEMA_VERSION, RunState, ToolVersion,
};
use pb_contract::{
    Nanos, RequestId, RequestRow, RequestStatus, RunManifest, StepRow, Stream, TokenRow,
};
use pb_judge::run::{CacheControl, CacheNote, Comparison, PlantedFault, ResetProof, RunNotes};
use pb_record::{RunData, StepRecord};

pub(crate) const MS: u64 = 1_000_000;
const STREAMS: u64 = 4;
const PROMPTS: u64 = 12;
/// Steps of an arm in a block: with them 1.7 % of gaps meet a whole prefill, so a p99 shows it.
const STEPS: usize = 700;
/// When the first long prompt arrives: after the prompts of the background streams.
const FIRST_DUE_MS: u64 = 2_500;

/// Names of the two arms, and how far the writer of the run got.
pub(crate) struct Setting {
    pub(crate) arms: [&'static str; 2],
    pub(crate) state: RunState,
    pub(crate) blocks: u32,
}

impl Default for Setting {
    fn default() -> Self {
        Setting {
            arms: ["monolithic", "chunked"],
            state: RunState::Complete,
            blocks: 6,
        }
    }
}

/// The manifest of a run with these rows: every cell that has requests is in it.
fn manifest(setting: &Setting, rows: &[RequestRow]) -> RunManifest {
    let mut order: Vec<String> = Vec::new();
    for row in rows {
        let cell = format!("{}:{}", row.block, row.arm);
        if !order.contains(&cell) {
            order.push(cell);
        }
    }
    let digest = |cell: &String| (cell.clone(), "aa".to_owned());
    let [a, b] = setting.arms;
    let arm = |name: &str| ArmReceipt {
        name: name.to_owned(),
        ..ArmReceipt::default()
    };
    RunManifest {
        schema_version: RUN_SCHEMA_VERSION,
        kind: "quickstart".to_owned(),
        state: setting.state,
        created: "2026-01-01T12:00:00Z".to_owned(),
        command: vec!["prefillbench".to_owned(), "quickstart".to_owned()],
        tool: ToolVersion {
            version: "0.1.0".to_owned(),
            git_rev: "abc1234".to_owned(),
            git_dirty: false,
        },
        machine: Machine {
            cpu: "Example CPU".to_owned(),
            cores: 2,
            isa: "avx512".to_owned(),
            ..Machine::default()
        },
        model: ModelReceipt {
            name: "smollm2-135m".to_owned(),
            kind: "gguf".to_owned(),
            ..ModelReceipt::default()
        },
        seed: 1,
        schedule_sha256: order.iter().map(digest).collect(),
        arms: [a, b, "prefix-cache"].map(arm).to_vec(),
        order,
        workload: serde_json::Value::Null,
    }
}

/// Rows being collected for one arm and block.
struct Server<'a> {
    arm: &'a str,
    block: u32,
    start: u64,
    now: u64,
    rows: Vec<RequestRow>,
    tokens: Vec<TokenRow>,
    steps: Vec<StepRecord>,
    jitter: Stream,
}

impl Server<'_> {
    /// One engine step with `prefill` prompt tokens; every background stream gets a token.
    fn step(&mut self, prefill: usize) {
        let gemm = prefill as u64 * 400_000;
        let noise = self.jitter.below(2 * MS);
        let duration = 9 * MS + gemm + noise;
        let number = self.steps.len() as u64;
        let active = 40 + (number as usize / 8) % 40;
        self.steps.push(StepRecord {
            arm: self.arm.to_owned(),
            block: self.block,
            row: StepRow {
                step: number,
                start_ns: Nanos(self.now),
                duration_ns: Nanos(duration),
                schedule_ns: Nanos(MS / 10),
                prefill_gemm_ns: Nanos(gemm * 3 / 4),
                prefill_attention_ns: Nanos(gemm / 4),
                decode_gemm_ns: Nanos(6 * MS),
                decode_attention_ns: Nanos(MS),
                sampling_ns: Nanos(MS / 2),
                other_ns: Nanos(duration - gemm - 7 * MS - MS / 2 - MS / 10),
                prefill_tokens: prefill,
                decode_tokens: STREAMS as usize,
                prefill_seqs: usize::from(prefill > 0),
                decode_seqs: STREAMS as usize,
                queried_tokens: prefill,
                hit_tokens: 0,
                active_blocks: active,
                reclaimable_blocks: (number as usize / 4).min(200 - active),
                free_blocks: 256 - active - (number as usize / 4).min(200 - active),
                ..StepRow::default()
            },
        });
        self.now += duration;
        for stream in 0..STREAMS {
            let delay = self.jitter.below(MS / 4);
            let event = self.steps.len() as u32 - 1;
            self.tokens
                .push(self.token(stream, event, self.now + delay));
        }
    }

    fn token(&self, id: u64, event: u32, at: u64) -> TokenRow {
        TokenRow {
            arm: self.arm.to_owned(),
            block: self.block,
            request: RequestId(id),
            event,
            at_ns: Nanos(at),
            tokens: 1,
        }
    }

    fn row(&mut self, id: u64, class: &str, at: u64, first: u64, last: u64, tokens: u32) {
        let sent = at + 20_000 + self.jitter.below(60_000);
        self.rows.push(RequestRow {
            arm: self.arm.to_owned(),
            block: self.block,
            request: RequestId(id),
            class: class.to_owned(),
            intended_ns: Nanos(at),
            sent_ns: Some(Nanos(sent)),
            headers_ns: Some(Nanos(first)),
            first_event_ns: Some(Nanos(first)),
            first_token_ns: Some(Nanos(first)),
            last_token_ns: Some(Nanos(last)),
            closed_ns: Some(Nanos(last + MS)),
            status: RequestStatus::Ok,
            fail: None,
            http_status: Some(200),
            fail_message: None,
            finish_reason: Some("length".to_owned()),
            prompt_tokens_planned: 1200,
            prompt_tokens: Some(1200),
            cached_tokens: Some(0),
            max_tokens: tokens,
            completion_tokens: Some(tokens),
            streamed_tokens: tokens,
        });
    }
}

/// Runs one arm in one block: long prompts of 1200 tokens arrive every 0.9 s.
fn run_block(arm: &str, block: u32, chunk: usize, start: u64) -> Server<'_> {
    let label = format!("{block}:{chunk}");
    let jitter = Stream::new(1, &label);
    let (rows, tokens, steps) = (Vec::new(), Vec::new(), Vec::new());
    let mut server = Server {
        arm,
        block,
        start,
        now: start,
        rows,
        tokens,
        steps,
        jitter,
    };
    let mut next = 0;
    let mut left = 0_usize;
    // The prompts of the background streams.
    server.step(1200 * STREAMS as usize);
    while server.steps.len() < STEPS {
        let due = start + (FIRST_DUE_MS + next * 900) * MS;
        if left == 0 && next < PROMPTS && server.now >= due {
            (left, next) = (1200, next + 1);
        }
        let now = left.min(chunk);
        server.step(now);
        left -= now;
        if now > 0 && left == 0 {
            let (arrival, end) = (start + (FIRST_DUE_MS + (next - 1) * 900) * MS, server.now);
            server.row(100 + next, "long_prompt", arrival, end, end, 1);
            let token = server.token(100 + next, 0, end);
            server.tokens.push(token);
        }
    }
    for stream in 0..STREAMS {
        let mine = |token: &&TokenRow| token.request == RequestId(stream);
        let instants: Vec<u64> = server
            .tokens
            .iter()
            .filter(mine)
            .map(|t| t.at_ns.0)
            .collect();
        let (first, last) = (instants[0], instants[instants.len() - 1]);
        let begin = server.start;
        server.row(
            stream,
            "background",
            begin,
            first,
            last,
            instants.len() as u32,
        );
    }
    server
}

/// Cold and warm requests of the cache experiment, in an arm of their own.
fn cache_rows(server: &mut Server<'_>) {
    for id in 0..5_u64 {
        for (class, offset, ttft) in [("cold", 0, 410), ("warm", 10, 96)] {
            let at = server.start + (id * 2 + offset / 10) * 1000 * MS;
            let first = at + (ttft + id * 3) * MS;
            server.row(id + offset, class, at, first, first, 1);
            let token = server.token(id + offset, 0, first);
            server.tokens.push(token);
            if class == "warm" {
                let last = server.rows.len() - 1;
                server.rows[last].cached_tokens = Some(1120);
            }
        }
    }
}

pub(crate) fn run(setting: &Setting) -> RunData {
    let (mut rows, mut tokens, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for block in 0..setting.blocks {
        for (number, arm) in setting.arms.iter().enumerate() {
            let start = (u64::from(block) * 2 + number as u64 + 1) * 60_000 * MS;
            let chunk = if number == 0 { 4096 } else { 124 };
            let server = run_block(arm, block, chunk, start);
            rows.extend(server.rows);
            tokens.extend(server.tokens);
            steps.extend(server.steps);
        }
    }
    let (no_rows, no_tokens, no_steps) = (Vec::new(), Vec::new(), Vec::new());
    let mut cache = Server {
        arm: "prefix-cache",
        block: 0,
        start: 9_000_000 * MS,
        now: 0,
        rows: no_rows,
        tokens: no_tokens,
        steps: no_steps,
        jitter: Stream::new(1, "cache"),
    };
    cache_rows(&mut cache);
    rows.extend(cache.rows);
    tokens.extend(cache.tokens);
    let manifest = manifest(setting, &rows);
    RunData::from_parts(Path::new("run"), manifest, rows, tokens, steps).unwrap()
}

/// A run directory without a row.
pub(crate) fn empty(setting: &Setting) -> RunData {
    let manifest = manifest(setting, &[]);
    RunData::from_parts(
        Path::new("run"),
        manifest,
        Vec::new(),
        Vec::new(),
        Vec::new(),
    )
    .unwrap()
}

pub(crate) fn notes(setting: &Setting) -> RunNotes {
    let proof = |arm: &str, block| ResetProof {
        arm: arm.to_owned(),
        block,
        accepted: true,
        probe_cached_tokens: Some(0),
    };
    let mut resets: Vec<ResetProof> = (0..setting.blocks)
        .flat_map(|b| setting.arms.map(|arm| proof(arm, b)))
        .collect();
    resets.push(proof("prefix-cache", 0));
    RunNotes {
        schema_version: 1,
        comparison: Some(Comparison {
            baseline: setting.arms[0].to_owned(),
            candidate: setting.arms[1].to_owned(),
            subject: "chunked with monolithic prefill".to_owned(),
            ttft_class: Some("long_prompt".to_owned()),
            itl_class: Some("background".to_owned()),
            open_classes: vec!["long_prompt".to_owned()],
            background_streams: Some(STREAMS as usize),
            cache_control: CacheControl::ResetEachBlock,
            metrics: Vec::new(),
        }),
        resets,
        cache: vec![CacheNote {
            arm: "prefix-cache".to_owned(),
            block: 0,
            cold_class: "cold".to_owned(),
            warm_class: "warm".to_owned(),
            block_size: 16,
            planned_cached_tokens: (10..15).map(|id| (RequestId(id), 1120)).collect(),
            pairs: (0..5)
                .map(|id| (RequestId(id), RequestId(id + 10)))
                .collect(),
        }],
        numerics: numerics::reports(),
        planted_faults: vec![PlantedFault {
            label: "RoPE +1 from the second chunk".to_owned(),
            rejected: true,
            evidence: "worst prompt's log error ratio 7.9, limit 0.4".to_owned(),
            config: Some(numerics::config("fault", 4.0e3)),
        }],
        remarks: vec!["Synthetic rows; no engine ran.".to_owned()],
    }
}

mod numerics {
    //! Logit checks of made-up logits: the variant's errors are the monolithic pass's times `size`.

    use pb_contract::Stream;
    use pb_judge::numerics::{
        ConfigStats, ConfigVerdict, Limits, PromptScores, ReferenceRow, judge,
    };
    use pb_judge::run::NumericsNote;

    pub(super) fn config(name: &str, size: f64) -> ConfigVerdict {
        let mut noise = Stream::new(3, name);
        let mut prompts = Vec::new();
        for number in 0..12 {
            let mut prompt = PromptScores::new(format!("prompt {number}"), 8);
            for position in 0..40 {
                let logits: Vec<f64> = (0..32).map(|_| 4.0 * noise.normal()).collect();
                let row = ReferenceRow::new(&logits, Some(5)).unwrap();
                let mut noisy = |by: f64| -> Vec<f64> {
                    logits.iter().map(|x| x + by * noise.normal()).collect()
                };
                let mono = noisy(1e-6);
                let variant = noisy(1e-6 * size);
                prompt.push_logits(position, &row, &mono, &variant).unwrap();
            }
            prompts.push(prompt);
        }
        let stats = ConfigStats::of(&prompts).unwrap();
        judge(name, stats, &Limits::default()).unwrap()
    }

    pub(super) fn reports() -> Vec<NumericsNote> {
        ["chunk 1", "chunk 15", "chunk 16", "chunk 17", "cached"]
            .into_iter()
            .map(|name| NumericsNote {
                label: format!("{name} against one pass, f32"),
                bits: None,
                config: Some(config(name, 1.0)),
            })
            .collect()
    }
}
