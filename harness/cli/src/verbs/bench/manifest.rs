//! The receipts of a run: the manifest, and what its numbers rest on beside the rows.

use anyhow::Result;
use pb_bench::{Conditions, Connections, Identity, LoadFacts, WorkloadFacts};
use pb_contract::RunManifest;
use pb_contract::manifest::{ArmReceipt, ModelReceipt, RUN_SCHEMA_VERSION, RunState};
use pb_load::{Endpoint, RunSummary};
use pb_target::Target;
use pb_workloads::ArrivalKind;
use serde_json::{Value, json};

use super::ARM;
use super::endpoint::shown_command;
use super::settings::Settings;
use super::workload::Schedule;
use crate::args::Api;
use crate::machine;
use crate::verbs::suite::SuiteReceipt;

/// What a run is, known before it starts.
pub(crate) struct Receipts<'a> {
    /// Settings.
    pub(crate) settings: &'a Settings,
    /// Suite and arm.
    pub(crate) suite: Option<&'a SuiteReceipt>,
    /// Schedule.
    pub(crate) schedule: &'a Schedule,
    /// The server.
    pub(crate) target: &'a Target,
    /// Where it is.
    pub(crate) endpoint: &'a Endpoint,
    /// When the run was made, UTC.
    pub(crate) created: String,
}

/// Now, as a manifest writes it.
pub(crate) fn now() -> String {
    let now = jiff::Timestamp::now();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Receipts<'_> {
    /// The manifest of a run that begins.
    ///
    /// # Errors
    /// Settings that JSON cannot hold.
    pub(crate) fn manifest(&self) -> Result<RunManifest> {
        let cell = format!("0:{ARM}");
        Ok(RunManifest {
            schema_version: RUN_SCHEMA_VERSION,
            kind: "bench".into(),
            state: RunState::Running,
            created: self.created.clone(),
            command: shown_command(std::env::args()),
            tool: machine::tool(),
            machine: machine::machine(),
            model: ModelReceipt {
                name: self.model().to_owned(),
                kind: "remote".into(),
                ..ModelReceipt::default()
            },
            seed: self.settings.seed,
            schedule_sha256: [(cell.clone(), self.schedule.sha256.clone())].into(),
            arms: vec![ArmReceipt {
                name: ARM.into(),
                command: self.settings.base_url.clone(),
                config: json!({
                    "server": self.target.detection().to_string(),
                    "reuse_connections": self.settings.reuses_connections(self.target.kind()),
                }),
                version: "unknown".into(),
            }],
            order: vec![cell],
            workload: self.workload()?,
        })
    }

    fn workload(&self) -> Result<Value> {
        Ok(json!({
            "settings": self.settings,
            "suite": self.suite,
            "schedule": self.schedule.facts(),
            "shard": self.settings.shard,
        }))
    }

    fn model(&self) -> &str {
        let named = self.settings.options.model.as_deref();
        named.or(self.endpoint.model()).unwrap_or_default()
    }

    /// What the numbers rest on, as far as it is known before the run.
    ///
    /// # Errors
    /// Facts that JSON cannot hold.
    pub(crate) fn conditions(&self) -> Result<Conditions> {
        let settings = self.settings;
        Ok(Conditions {
            objectives: settings.objectives.clone(),
            slos: settings.gates.clone(),
            identity: self.identity(),
            load: self.load()?,
            workload: self.workload_facts()?,
            shard: settings.shard,
            ..Conditions::default()
        })
    }

    fn identity(&self) -> Identity {
        let options = &self.settings.options;
        let (api, usual) = match self.settings.api {
            Api::Completions => ("completions", "/v1/completions"),
            Api::Chat => ("chat", "/v1/chat/completions"),
        };
        let pairs = options.metadata.iter().flatten();
        Identity {
            model: self.model().to_owned(),
            base_url: self.settings.base_url.clone(),
            route: self.endpoint.path(self.endpoint.route().unwrap_or(usual)),
            api: api.to_owned(),
            server: self.target.kind().to_string(),
            tokenizer: self.schedule.planned.facts.tokenizer.clone(),
            created: self.created.clone(),
            tool: env!("CARGO_PKG_VERSION").to_owned(),
            label: options.label.clone(),
            metadata: pairs
                .map(|pair| (pair.value.0.clone(), pair.value.1.clone()))
                .collect(),
        }
    }

    fn load(&self) -> Result<LoadFacts> {
        let (settings, facts) = (self.settings, &self.schedule.planned.facts);
        let shape = &settings.shape;
        let arrival = serde_json::to_value(facts.arrival)?;
        let timed = matches!(
            facts.arrival,
            ArrivalKind::Poisson | ArrivalKind::Gamma | ArrivalKind::Constant
        );
        Ok(LoadFacts {
            arrival: arrival.as_str().unwrap_or_default().to_owned(),
            rate_rps: shape.request_rate.filter(|_| timed),
            burstiness: (facts.arrival == ArrivalKind::Gamma).then_some(shape.burstiness),
            ramp: shape.ramp.as_ref().map(ToString::to_string),
            max_concurrency: shape.max_concurrency.map(|n| n as u64),
            capped: self.schedule.cap.is_some(),
            num_prompts: shape.num_prompts.map(|n| n as u64),
            duration_s: shape.duration_s,
            ..LoadFacts::default()
        })
    }

    fn workload_facts(&self) -> Result<WorkloadFacts> {
        let facts = &self.schedule.planned.facts;
        let (requests, unique) = (facts.requests as u64, facts.unique_prompts as u64);
        let file = self.settings.options.dataset_path.as_ref();
        Ok(WorkloadFacts {
            dataset: facts.dataset.to_owned(),
            file: file.map(|path| path.display().to_string()),
            rows: Some(facts.rows_read),
            unique_prompts: Some(unique),
            repeated_prompts: Some(requests.saturating_sub(unique)),
            dropped: facts.dropped.clone(),
            ideal_hit_tokens: Some(facts.planned_hit_tokens),
            detail: serde_json::to_value(facts)?,
        })
    }
}

/// The connections of a run.
pub(crate) fn connections(summary: &RunSummary, secure: bool) -> Connections {
    let times = &summary.connections;
    Connections {
        before_start: summary.preconnected as u64,
        opened: times.count,
        during_requests: times.during_requests,
        tcp_max_ms: times.tcp_max_ns.as_millis_f64(),
        tls_max_ms: secure.then(|| times.tls_max_ns.as_millis_f64()),
    }
}
