//! Run directories whose times are made up, so that what must be found in them is known.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};

use pb_bench::{CONDITIONS_FILE, Conditions, Frame, Identity, LoadFacts};
use pb_contract::manifest::{Machine, ModelReceipt, RUN_SCHEMA_VERSION, RunState, ToolVersion};
use pb_contract::{FailKind, Nanos, RequestId, RequestRow, RequestStatus, RunManifest, TokenRow};
use pb_record::RunWriter;
use pb_stats::{RandomSource, SplitMix64};
use serde_json::Value;

const MS: u64 = 1_000_000;
/// Requests of a run and tokens of an answer.
const REQUESTS: u64 = 40;
const TOKENS: u64 = 8;

/// How a run differs from the usual one.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    /// Block: its schedule, and its place in time.
    pub(crate) block: u64,
    /// Which of the two runs of a block, from 0.
    pub(crate) place: u64,
    /// Every gap between tokens is so many thousandths of the usual one.
    pub(crate) itl_permille: u64,
    /// The same of the time to first token.
    pub(crate) ttft_permille: u64,
    /// The last so many requests fail.
    pub(crate) failed: u64,
    /// Milliseconds that the client is late with each request.
    pub(crate) late_ms: u64,
    /// Schedule; that of the block when absent.
    pub(crate) schedule: Option<String>,
    /// Processor of the client.
    pub(crate) cpu: String,
    /// Prompt tokens found in the cache, of 64.
    pub(crate) cached: u32,
    /// Kind and version of the server.
    pub(crate) server: String,
}

impl Default for Made {
    fn default() -> Self {
        Self {
            block: 0,
            place: 0,
            itl_permille: 1000,
            ttft_permille: 1000,
            failed: 0,
            late_ms: 0,
            schedule: None,
            cpu: "a processor".to_owned(),
            cached: 48,
            server: "vllm".to_owned(),
        }
    }
}

impl Made {
    /// Writes the run as `dir/name`.
    pub(crate) fn write(&self, dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        let start = Nanos((1 + 2 * self.block + self.place) * 1_000_000 * MS);
        let usual = || format!("{:064x}", 1 + self.block);
        let schedule = self.schedule.clone().unwrap_or_else(usual);
        let conditions = Conditions {
            frame: Frame {
                start,
                arrivals_ns: Some(Nanos(REQUESTS * 50 * MS)),
                schedule_sha256: schedule.clone(),
                seed: 1 + self.block,
                ..Frame::default()
            },
            identity: Identity {
                model: "m".to_owned(),
                route: "/v1/completions".to_owned(),
                api: "completions".to_owned(),
                server: self.server.clone(),
                created: self.created(),
                ..Identity::default()
            },
            load: LoadFacts {
                arrival: "constant".to_owned(),
                rate_rps: Some(20.0),
                num_prompts: Some(REQUESTS),
                ..LoadFacts::default()
            },
            ..Conditions::default()
        };
        let mut writer = RunWriter::create(&path, self.manifest(schedule)).expect("a new run");
        writer
            .write_json(CONDITIONS_FILE, &conditions)
            .expect("written");
        // The noise of a run is its own.
        let mut rng = SplitMix64::new(1000 * self.block + self.place);
        for id in 0..REQUESTS {
            let (row, tokens) = self.request(id, start, &mut rng);
            writer.request(&row, &tokens).expect("written");
        }
        writer.finish(RunState::Complete).expect("written");
        path
    }

    fn created(&self) -> String {
        format!("2030-01-01T{:02}:{:02}:00Z", self.block, 10 * self.place)
    }

    fn manifest(&self, schedule: String) -> RunManifest {
        RunManifest {
            schema_version: RUN_SCHEMA_VERSION,
            kind: "bench".into(),
            state: RunState::Running,
            created: self.created(),
            command: Vec::new(),
            tool: ToolVersion::default(),
            machine: Machine {
                cpu: self.cpu.clone(),
                ..Machine::default()
            },
            model: ModelReceipt::default(),
            seed: 1 + self.block,
            schedule_sha256: [("0:target".to_owned(), schedule)].into(),
            arms: Vec::new(),
            order: vec!["0:target".to_owned()],
            workload: Value::Null,
        }
    }

    fn request(&self, id: u64, start: Nanos, rng: &mut SplitMix64) -> (RequestRow, Vec<TokenRow>) {
        // Between 98 and 102 hundredths.
        let mut around = |ns: u64, permille: u64| {
            let noise = 980_000 + rng.next_u64() % 40_001;
            ns / 1_000_000 * noise * permille / 1000
        };
        let intended = start + Nanos(id * 50 * MS);
        let sent = intended + Nanos(self.late_ms * MS + MS / 10);
        let first = sent + Nanos(around(200 * MS, self.ttft_permille));
        let mut at = vec![first];
        for _ in 1..TOKENS {
            let gap = around(10 * MS, self.itl_permille);
            at.push(at[at.len() - 1] + Nanos(gap));
        }
        let ok = id < REQUESTS - self.failed;
        let last = at[at.len() - 1];
        let row = RequestRow {
            arm: "target".into(),
            block: 0,
            request: RequestId(id),
            class: "random".into(),
            intended_ns: intended,
            sent_ns: Some(sent),
            headers_ns: Some(sent + Nanos(MS)),
            first_event_ns: ok.then_some(first),
            first_token_ns: ok.then_some(first),
            last_token_ns: ok.then_some(last),
            closed_ns: Some(if ok {
                last + Nanos(MS)
            } else {
                sent + Nanos(2 * MS)
            }),
            status: if ok {
                RequestStatus::Ok
            } else {
                RequestStatus::Failed
            },
            fail: (!ok).then_some(FailKind::HttpStatus),
            http_status: Some(if ok { 200 } else { 503 }),
            fail_message: None,
            finish_reason: ok.then(|| "length".to_owned()),
            prompt_tokens_planned: 64,
            prompt_tokens: ok.then_some(64),
            cached_tokens: ok.then_some(self.cached),
            max_tokens: TOKENS as u32,
            completion_tokens: ok.then_some(TOKENS as u32),
            streamed_tokens: if ok { TOKENS as u32 } else { 0 },
        };
        let token = |(event, at_ns)| TokenRow {
            arm: "target".into(),
            block: 0,
            request: RequestId(id),
            event,
            at_ns,
            tokens: 1,
        };
        let tokens = (0..).zip(at).map(token).collect();
        (row, if ok { tokens } else { Vec::new() })
    }
}

/// Two arms of `blocks` blocks in `dir`, which take turns at being first; `change` makes the
/// candidate's runs.
pub(crate) fn arms(
    dir: &Path,
    blocks: u64,
    change: impl Fn(Made) -> Made,
) -> (Vec<String>, Vec<String>) {
    let path = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
    let block = |block: u64| {
        let first = block % 2;
        let usual = |place| Made {
            block,
            place,
            ..Made::default()
        };
        let a = usual(first).write(dir, &format!("a{block}"));
        let b = change(usual(1 - first)).write(dir, &format!("b{block}"));
        (path(a), path(b))
    };
    (0..blocks).map(block).unzip()
}

/// Words of a command line, with directories after their flags.
pub(crate) fn words<'a>(start: &[&'a str], lists: &[(&'a str, &'a [String])]) -> Vec<&'a str> {
    let mut all = start.to_vec();
    for (flag, dirs) in lists {
        all.push(flag);
        all.extend(dirs.iter().map(String::as_str));
    }
    all
}
