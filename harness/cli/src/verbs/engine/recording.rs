//! A load in virtual time as a run directory of `bench`.
//!
//! The load driver, the engine, the rows and everything that judges them are the ones of a run
//! over HTTP; only the clock and the time of a step are not. So a change of the scheduler, of the
//! cache or of the driver shows here on any machine, and nothing else does: the same program and
//! arguments write the same bytes.

use std::path::Path;

use anyhow::Result;
use pb_bench::{
    CONDITIONS_FILE, Conditions, DOCUMENT_FILE, Document, Frame, Identity, LoadFacts, WorkloadFacts,
};
use pb_contract::manifest::{ArmReceipt, Machine, ModelReceipt, RUN_SCHEMA_VERSION, RunState};
use pb_contract::plan::{Plan, PlannedBody};
use pb_contract::{FailKind, Nanos, RequestRow, RunManifest};
use pb_core::CostModel;
use pb_judge::compare::SIMULATED;
use pb_load::schedule::sha256_hex;
use pb_load::shell_sim::{SimOptions, SimServer, Stall, run_sim_each};
use pb_load::{Record, RunContext};
use pb_record::RunWriter;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::machine;
use crate::verbs::bench::{ARM, CacheCell};

/// Instant of the start on the virtual clock: after whatever a server did before the run.
pub(crate) const START: Nanos = Nanos::from_secs(3600);

/// The virtual clock has no date.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// Status of an answer, and of a refusal: a model of a server says no more.
const OK: u16 = 200;
const REFUSED: u16 = 400;

/// A load before it is run.
pub(crate) struct Recording {
    /// What is sent when: an open loop.
    pub(crate) plan: Plan,
    /// Seed of whatever the plan was drawn from.
    pub(crate) seed: u64,
    /// Where the plan comes from.
    pub(crate) workload: WorkloadFacts,
    /// Model of step times.
    pub(crate) cost: CostModel,
    /// The engine's configuration.
    pub(crate) engine: Value,
    /// Tokens of a block of a cache that is empty at the start and never evicts: the run is then
    /// claimed to be cold, and held to it.
    pub(crate) cold_block: Option<u32>,
    /// Spans in which the client hangs.
    pub(crate) stalls: Vec<Stall>,
    /// The command line.
    pub(crate) command: Vec<String>,
}

impl Recording {
    /// Runs the load against `server` and writes the run directory `dir`.
    ///
    /// # Errors
    /// A plan that contradicts itself; a directory that holds a run or cannot be written.
    pub(crate) fn write(&self, dir: &Path, server: &mut dyn SimServer) -> Result<Document> {
        let schedule = sha256_hex(&self.plan);
        let mut conditions = self.conditions(&schedule);
        let mut writer = RunWriter::create(dir, self.manifest(&schedule)?)?;
        let mut tally = conditions.tally();
        let context = RunContext {
            arm: ARM.to_owned(),
            block: 0,
        };
        let options = SimOptions {
            start: START,
            stalls: self.stalls.clone(),
        };
        let mut failure = None;
        let take = |Record { mut row, tokens }| {
            row.http_status = status(&row);
            if failure.is_none() {
                failure = writer.request(&row, &tokens).err();
            }
            tally.add(row, &tokens);
        };
        run_sim_each(self.plan.clone(), context, server, &options, take)?;
        if let Some(error) = failure {
            return Err(error.into());
        }
        let cell = match self.cold_block {
            Some(block) => CacheCell::empty(self.plan.clone(), block),
            None => CacheCell::asis(self.plan.clone(), &Map::new()),
        };
        let verdict = cell.judge(tally.rows(), None);
        conditions.frame.cache = verdict.cache;
        conditions.frame.cache_reasons = verdict.reasons;
        conditions.warnings = verdict.notes;
        let document = Document::of(&tally, &conditions);
        writer.write_json(CONDITIONS_FILE, &conditions)?;
        writer.write_json(DOCUMENT_FILE, &document)?;
        writer.finish(RunState::Complete)?;
        Ok(document)
    }

    fn bodies(&self) -> impl Iterator<Item = &PlannedBody> {
        self.plan.open.iter().map(|request| &request.body)
    }

    fn conditions(&self, schedule: &str) -> Conditions {
        Conditions {
            frame: Frame {
                start: START,
                arrivals_ns: self.plan.open.last().map(|request| request.offset_ns),
                schedule_sha256: schedule.to_owned(),
                seed: self.seed,
                ..Frame::default()
            },
            identity: Identity {
                model: SIMULATED.to_owned(),
                api: "completions".to_owned(),
                server: SIMULATED.to_owned(),
                created: CREATED.to_owned(),
                tool: env!("CARGO_PKG_VERSION").to_owned(),
                ..Identity::default()
            },
            load: LoadFacts {
                arrival: "trace".to_owned(),
                num_prompts: Some(self.plan.open.len() as u64),
                ..LoadFacts::default()
            },
            workload: self.workload.clone(),
            ..Conditions::default()
        }
    }

    fn manifest(&self, schedule: &str) -> Result<RunManifest> {
        let cell = format!("0:{ARM}");
        let cost = Sha256::digest(serde_json::to_vec(&self.cost)?);
        let sum = |of: fn(&PlannedBody) -> u32| -> u64 {
            self.bodies().map(|body| u64::from(of(body))).sum()
        };
        let requests = self.plan.open.len();
        Ok(RunManifest {
            schema_version: RUN_SCHEMA_VERSION,
            kind: "bench".into(),
            state: RunState::Running,
            created: CREATED.into(),
            command: self.command.clone(),
            tool: machine::tool(),
            machine: Machine {
                cpu: "virtual time".into(),
                ..Machine::default()
            },
            model: ModelReceipt {
                name: self.cost.source.clone(),
                kind: SIMULATED.into(),
                // Other step times are another model.
                sha256: cost.iter().map(|byte| format!("{byte:02x}")).collect(),
                ..ModelReceipt::default()
            },
            seed: self.seed,
            schedule_sha256: [(cell.clone(), schedule.to_owned())].into(),
            arms: vec![ArmReceipt {
                name: ARM.into(),
                command: String::new(),
                config: json!({
                    "server": "the reference engine in virtual time: no server was asked",
                    "engine": self.engine,
                }),
                version: env!("CARGO_PKG_VERSION").into(),
            }],
            order: vec![cell],
            workload: json!({
                "settings": {"dataset": {"name": self.workload.dataset}},
                "schedule": {
                    "requests_sent": requests,
                    "facts": {
                        "dataset": self.workload.dataset,
                        "arrival": "trace",
                        "requests": requests,
                        "sessions": 0,
                        "input_tokens": sum(|body| body.planned_tokens),
                        "output_tokens": sum(|body| body.max_tokens),
                    },
                },
            }),
        })
    }
}

/// The status that a server would have answered with; none where nothing was answered.
fn status(row: &RequestRow) -> Option<u16> {
    let answered = row.headers_ns.is_some();
    answered.then_some(match row.fail {
        Some(FailKind::HttpStatus) => REFUSED,
        _ => OK,
    })
}
