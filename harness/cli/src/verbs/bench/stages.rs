//! The stages of a run, one after the other.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use pb_bench::load::LAG_LIMIT_MS;
use pb_bench::{Conditions, Document, Frame, Tally, WARMUP_ARM};
use pb_contract::Nanos;
use pb_contract::manifest::RunState;
use pb_contract::plan::Plan;
use pb_load::{Endpoint, Record, RunContext, RunSummary};
use pb_record::hlog::Logs;
use pb_record::{RunWriter, visible};
use pb_target::{Patience, ServerKind, Target};
use pb_workloads::{Form, HitKnowledge};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::calibrate::{Calibrated, CalibrationPlan, calibrate};
use super::endpoint::{endpoint, fields, greet};
use super::interference::Coverage;
use super::manifest::{Receipts, connections, now};
use super::observe::{ObservePlan, Observed, Observer};
use super::offer::{Offer, offer};
use super::settings::Settings;
use super::steps::{StepWatch, engine_config};
use super::tokenizer::TargetTokenizer;
use super::transfers::{self, TransferWatch};
use super::unsent::unsent;
use super::warm::{CacheAsk, CacheCell};
use super::warmup::{self, typical};
use super::workload::{Known, Schedule, connections_needed, schedule};
use super::{ARM, preflight, print, template};
use crate::args::CacheArg;
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt, Interrupted};
use crate::progress::Progress;
use crate::verbs::suite::SuiteReceipt;
use crate::{console, paths};

/// Tokens of a cache block where the kind of the server does not say otherwise.
const BLOCK_SIZE: usize = 16;

/// Everything that the stages share.
pub(crate) struct Stages {
    /// Settings.
    pub(crate) settings: Settings,
    /// Suite and arm.
    pub(crate) suite: Option<SuiteReceipt>,
    /// The target's tokenizer.
    pub(crate) tokenizer: Option<TargetTokenizer>,
    /// The wish to stop.
    pub(crate) interrupt: Interrupt,
    /// What people see.
    pub(crate) progress: Progress,
}

/// A run whose directory is written.
pub(crate) struct Finished {
    /// Its document.
    pub(crate) document: Document,
    /// What the document was made from.
    pub(crate) tally: Tally,
    /// Its directory.
    pub(crate) dir: PathBuf,
    /// Whether it was stopped by hand.
    pub(crate) stopped: bool,
}

/// What was measured.
struct Measured {
    tally: Tally,
    conditions: Conditions,
    stopped: bool,
}

impl Stages {
    /// Runs them all and prints the result.
    ///
    /// # Errors
    /// [`Interrupted`] before the measurement; anything that stands against a run.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let done = self.measure()?;
        self.progress.clear();
        if let Some(failure) = pb_bench::validity::first_failure(&done.tally) {
            console::say(failure);
        }
        print::result(&self.settings, &done.document, &done.tally, &done.dir)?;
        Ok(ExitCode::from(match done.stopped {
            true => EXIT_INTERRUPTED,
            false => done.document.exit_code(),
        }))
    }

    /// Runs them all; the run directory is whole then.
    ///
    /// # Errors
    /// As [`Stages::run`].
    pub(crate) fn measure(&self) -> Result<Finished> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start a runtime")?;
        let (endpoint, target) = self.wait(&runtime, self.connect())??;
        let known = self.wait(&runtime, self.known(&endpoint, &target))??;
        let schedule = schedule(&self.settings, self.tokenizer.as_ref(), known)?;
        self.progress
            .note(format!("schedule sha256 {}", schedule.sha256));
        let needed = connections_needed(&schedule.plan, schedule.cap);
        preflight::connections(&endpoint, needed)?;
        // In a closed loop the server decides when requests leave.
        if let Some(last) = schedule.arrivals_ns {
            self.progress.note(format!(
                "{} requests, the last one due {:.1} s after the start",
                schedule.planned.facts.requests,
                last.as_secs_f64()
            ));
        }
        let calibrated = self.calibrated(&schedule.plan, &endpoint)?;
        let receipts = Receipts {
            settings: &self.settings,
            suite: self.suite.as_ref(),
            schedule: &schedule,
            target: &target,
            endpoint: &endpoint,
            created: now(),
        };
        let dir = paths::new_run_dir(self.settings.options.out.as_deref(), "bench")?;
        let mut writer = RunWriter::create(&dir, receipts.manifest()?)
            .with_context(|| format!("cannot create the run directory {}", dir.display()))?;
        let measured = self.measured(&runtime, &receipts, calibrated.as_ref(), &mut writer);
        let measured = match measured {
            Err(error) if error.is::<Interrupted>() => {
                writer.finish(RunState::Interrupted)?;
                return Err(error);
            }
            measured => measured?,
        };
        let document = Document::of(&measured.tally, &measured.conditions);
        writer.write_json(pb_bench::CONDITIONS_FILE, &measured.conditions)?;
        writer.write_json(pb_bench::DOCUMENT_FILE, &document)?;
        writer.finish(match measured.stopped {
            true => RunState::Interrupted,
            false => RunState::Complete,
        })?;
        Ok(Finished {
            document,
            tally: measured.tally,
            dir,
            stopped: measured.stopped,
        })
    }

    /// Does `work` unless the run is interrupted.
    fn wait<T>(&self, runtime: &Runtime, work: impl Future<Output = T>) -> Result<T, Interrupted> {
        runtime.block_on(self.interrupt.guard(work))
    }

    async fn connect(&self) -> Result<(Endpoint, Target)> {
        let endpoint = greet(endpoint(&self.settings)?).await?;
        let given = self.settings.options.server;
        let target = Target::connect(&endpoint, given, Patience::default()).await?;
        self.progress
            .note(format!("server: {}", target.detection()));
        Ok((endpoint, target))
    }

    /// What the schedule must know of the target.
    async fn known(&self, endpoint: &Endpoint, target: &Target) -> Result<Known> {
        let single = target.adapter().token_granular || target.kind() == ServerKind::Sglang;
        let mut known = Known {
            block_size: Some(if single { 1 } else { BLOCK_SIZE }),
            template_tokens: 0,
        };
        if self.settings.options.adapt_input == Some(true) {
            let plain = schedule(&self.settings, self.tokenizer.as_ref(), known)?;
            let (input, _) = typical(&plain.plan);
            let spare = plain.planned.spare("template", 1, input)?;
            let body = spare.first().context("--adapt-input: no probe was made")?;
            known.template_tokens = template::overhead(endpoint, body).await?;
        }
        Ok(known)
    }

    /// What a short run against the ground-truth server shows of the client.
    fn calibrated(&self, plan: &Plan, endpoint: &Endpoint) -> Result<Option<Calibrated>> {
        if !self.settings.calibrate {
            return Ok(None);
        }
        self.progress.phase("calibrating the client");
        let program = std::env::current_exe().context("where is this program?")?;
        let plan = CalibrationPlan::of(plan, program, endpoint.http_version());
        let calibrated = calibrate(&plan, &self.interrupt.signal())?;
        // Known before the first request of the run, which may take long.
        for reason in calibrated.reasons(None) {
            self.progress.note(format!(
                "this run will not be valid; Ctrl-C stops it: {reason}"
            ));
        }
        Ok(Some(calibrated))
    }

    fn measured(
        &self,
        runtime: &Runtime,
        receipts: &Receipts<'_>,
        calibrated: Option<&Calibrated>,
        writer: &mut RunWriter,
    ) -> Result<Measured> {
        let mut conditions = receipts.conditions()?;
        let schedule = receipts.schedule;
        conditions.load.warmup_requests = self.warmed_up(receipts, writer)?;
        let cell = self.cell(runtime, receipts)?;
        let endpoint = self.dressed(receipts.endpoint, schedule, &cell);
        let engine = engine_config(runtime, receipts.target, &endpoint);
        writer.update_manifest(|manifest| {
            if let Value::Object(config) = &mut manifest.arms[0].config {
                config.insert("cache".to_owned(), cell.receipt.clone());
                config.extend(engine.map(|engine| ("engine".to_owned(), engine)));
            }
        })?;
        let observer = self.observer(receipts.target, &endpoint, writer.dir())?;
        let steps = StepWatch::start(receipts.target, &endpoint)?;
        let moved = TransferWatch::start(receipts.target, &endpoint)?;
        let dir = writer.dir().display().to_string();
        self.progress
            .phase(format!("measuring; run directory: {dir}"));
        // What a run that is killed from here on must still say of itself.
        conditions.frame = Frame {
            schedule_sha256: schedule.sha256.clone(),
            seed: self.settings.seed,
            ..conditions.frame
        };
        writer.write_json(pb_bench::CONDITIONS_FILE, &conditions)?;
        let mut tally = conditions.tally().with_streams();
        let mut logs = Logs::new();
        let measured = Offer {
            plan: cell.plan.clone(),
            endpoint: &endpoint,
            arm: ARM,
            limits: self.settings.limits,
            stop: self.interrupt.signal(),
            cap: schedule.cap,
            reuse: self.settings.reuses_connections(receipts.target.kind()),
        };
        let reuse = measured.reuse;
        let summary = offer(measured, &self.progress, |Record { row, tokens }| {
            writer.request(&row, &tokens)?;
            logs.add(&row, &tokens).map_err(anyhow::Error::msg)?;
            tally.add(row, &tokens);
            Ok(())
        })?;
        logs.write(writer.dir(), &receipts.created)?;
        let observed = observer.map(|o| o.stop(tally.rows())).transpose()?;
        keep_steps(steps, writer, &mut conditions)?;
        transfers::keep(moved, writer, &mut conditions)?;
        keep_unsent(&cell.plan, &summary, writer, &mut tally)?;
        conditions.frame = self.frame(schedule, &summary);
        conditions.load.connections = Some(connections(&summary, endpoint.is_secure()));
        if !reuse {
            judge_connecting(&mut conditions, &summary);
        }
        conditions.interrupted = summary.stopped;
        judge_cache(&mut conditions, &cell, &tally, observed.as_ref());
        judge_client(&mut conditions, calibrated, &tally);
        judge_interference(&mut conditions, &schedule.plan, &tally);
        Ok(Measured {
            tally,
            conditions,
            stopped: summary.stopped,
        })
    }

    /// What the numbers are made within.
    fn frame(&self, schedule: &Schedule, summary: &RunSummary) -> Frame {
        Frame {
            start: summary.start_ns,
            arrivals_ns: schedule.arrivals_ns,
            // Without a duration the number of requests is what was asked for.
            exhausted: self.settings.shape.duration_s.is_some()
                && (schedule.planned.facts.cut_short || summary.closed_exhausted),
            schedule_sha256: schedule.sha256.clone(),
            seed: self.settings.seed,
            ..Frame::default()
        }
    }

    /// Sends the warm-up; how many requests it had.
    fn warmed_up(&self, receipts: &Receipts<'_>, writer: &mut RunWriter) -> Result<u64> {
        let Receipts {
            schedule,
            endpoint,
            target,
            ..
        } = *receipts;
        let Some(warmup) = self.settings.warmup else {
            return Ok(0);
        };
        self.progress.phase("warming up");
        let slots = self.settings.shape.max_concurrency;
        let drain = self.settings.limits.total_ns;
        let plan = warmup::plan(&schedule.planned, warmup, slots, drain)?;
        let offered = Offer {
            plan,
            endpoint,
            arm: WARMUP_ARM,
            limits: self.settings.limits,
            stop: self.interrupt.signal(),
            cap: None,
            reuse: self.settings.reuses_connections(target.kind()),
        };
        let (mut count, mut failure) = (0, None);
        let summary = offer(offered, &self.progress, |Record { row, tokens }| {
            writer.request(&row, &tokens)?;
            count += 1;
            if failure.is_none() {
                failure = row.fail_message.clone();
            }
            Ok(())
        })?;
        if summary.stopped {
            return Err(Interrupted.into());
        }
        if let Some(message) = failure {
            self.progress
                .note(format!("a warm-up request failed: {}", visible(&message)));
        }
        Ok(count)
    }

    /// The cache in the state that was asked for.
    fn cell(&self, runtime: &Runtime, receipts: &Receipts<'_>) -> Result<CacheCell> {
        let (settings, schedule) = (&self.settings, receipts.schedule);
        let (plan, extra_body) = (schedule.plan.clone(), fields(&settings.options));
        if settings.cache == CacheArg::Asis {
            return Ok(CacheCell::asis(plan, &extra_body));
        }
        self.progress
            .phase("bringing the prefix cache into its state");
        // Unlike in every run, so that no run finds what an earlier one left.
        let nonce = jiff::Timestamp::now().as_nanosecond() as u64;
        let bound = self.tokenizer.as_ref().map(TargetTokenizer::id_bound);
        let ask = CacheAsk {
            target: receipts.target,
            endpoint: receipts.endpoint,
            extra_body: &extra_body,
            chat: settings.form == Form::Chat,
            ids: settings.id_range(bound),
            probe: schedule.probe()?,
            nonce,
            block_size: u32::try_from(schedule.planned.facts.block_size).ok(),
            exact: schedule.planned.facts.hits == HitKnowledge::Exact,
            interrupt: &self.interrupt,
        };
        match settings.cache {
            CacheArg::Warm => {
                let prime = schedule.planned.prime.clone();
                runtime.block_on(CacheCell::warm(&ask, plan, prime))
            }
            _ => runtime.block_on(CacheCell::cold(&ask, plan)),
        }
    }

    /// The endpoint with what the state of the cache asks of every request, and with connections.
    fn dressed(&self, endpoint: &Endpoint, schedule: &Schedule, cell: &CacheCell) -> Endpoint {
        let needed = connections_needed(&schedule.plan, schedule.cap);
        let endpoint = endpoint.clone().with_extra_body(cell.fields.clone());
        endpoint.with_connections(needed)
    }

    /// The reader of the server's own figures, unless it was not wanted.
    fn observer(
        &self,
        target: &Target,
        endpoint: &Endpoint,
        dir: &Path,
    ) -> Result<Option<Observer>> {
        let Some(every) = self.settings.scrape_ns else {
            return Ok(None);
        };
        let (endpoint, route) = match &self.settings.options.metrics_url {
            Some(url) => {
                let page = Endpoint::parse(url).context("--metrics-url")?;
                (page.beside(endpoint), "")
            }
            None => (endpoint.clone(), target.adapter().metrics_route),
        };
        let plan = ObservePlan {
            endpoint,
            route: route.to_owned(),
            every,
        };
        Observer::start(plan, dir).map(Some)
    }
}

/// Keeps a row of every request that a stopped run never sent.
fn keep_unsent(
    plan: &Plan,
    summary: &RunSummary,
    writer: &mut RunWriter,
    tally: &mut Tally,
) -> Result<()> {
    if !summary.stopped {
        return Ok(());
    }
    let context = RunContext {
        arm: ARM.to_owned(),
        block: 0,
    };
    let records: Vec<Record> = unsent(plan, tally.rows(), &context, summary).collect();
    for Record { row, tokens } in records {
        writer.request(&row, &tokens)?;
        tally.add(row, &tokens);
    }
    Ok(())
}

/// Writes the engine's steps, where it told them.
fn keep_steps(
    steps: Option<StepWatch>,
    writer: &mut RunWriter,
    conditions: &mut Conditions,
) -> Result<()> {
    if let Some((rows, note)) = steps.map(StepWatch::stop) {
        writer.steps(ARM, 0, &rows)?;
        conditions.warnings.extend(note);
    }
    Ok(())
}

fn judge_cache(
    conditions: &mut Conditions,
    cell: &CacheCell,
    tally: &Tally,
    observed: Option<&Observed>,
) {
    let window = observed.and_then(Observed::window);
    let verdict = cell.judge(tally.rows(), window);
    conditions.frame.cache = verdict.cache;
    conditions.frame.cache_reasons = verdict.reasons;
    conditions.warnings.extend(verdict.notes);
    if let Some(observed) = observed {
        conditions.server = Some(observed.document(tally.rows()));
        conditions.reasons.extend(observed.reasons());
    }
}

/// Where each request makes its own connection, the rows' lag has the connecting in it: its limit
/// is so much higher, and the client's own part is judged by what the client knows of it.
fn judge_connecting(conditions: &mut Conditions, summary: &RunSummary) {
    let times = &summary.connections;
    let longest = times.tcp_max_ns + times.tls_max_ns;
    let limit_ms = LAG_LIMIT_MS + longest.as_millis_f64();
    conditions.load.lag_limit_ms = Some(limit_ms);
    conditions.warnings.push(format!(
        "each request made its own connection, in {:.3} ms at most: that time is in its latencies \
         from the intended arrival and in the driver lag, not in the service latencies",
        longest.as_millis_f64()
    ));
    let own = summary.send_lag.p99_ns.map(Nanos::as_millis_f64);
    if let Some(own) = own.filter(|&own| own > LAG_LIMIT_MS) {
        conditions.reasons.push(format!(
            "the client itself was late: it began to connect {own:.3} ms after what was due at the \
             99th percentile, above {LAG_LIMIT_MS} ms; lower the rate or free the client's cores"
        ));
    }
}

fn judge_client(conditions: &mut Conditions, calibrated: Option<&Calibrated>, tally: &Tally) {
    let Some(calibrated) = calibrated else {
        conditions
            .warnings
            .push("the client was not calibrated (--no-calibration)".to_owned());
        return;
    };
    let ttft = tally.all().latency(|metrics| metrics.ttft_ns).spread();
    let median = ttft.map(|spread| Nanos((spread.p50 * 1e6) as u64));
    conditions.reasons.extend(calibrated.reasons(median));
    conditions.warnings.extend(calibrated.notes());
    conditions.calibration = Some(calibrated.document());
}

/// A workload of background decodes and long prompts must have had both at once.
fn judge_interference(conditions: &mut Conditions, plan: &Plan, tally: &Tally) {
    if conditions.workload.dataset != "interference" {
        return;
    }
    let streams = plan.closed.iter().map(|part| part.streams).sum();
    let coverage = Coverage::of(tally.rows(), streams);
    conditions.reasons.extend(coverage.reason(streams));
    conditions.workload.detail["long_prompts_covered"] =
        serde_json::json!([coverage.covered, coverage.prompts]);
}
