//! The requests of a probe, one at a time.

use anyhow::{Context, Result, bail};
use pb_contract::plan::{ClosedLoop, Plan, PlannedPrompt};
use pb_contract::{Nanos, RequestId, RequestRow, RequestStatus, Stream};
use pb_judge::leak::{Arm, Observation, Trial};
use pb_load::{Endpoint, Limits, Record, RunContext, StopSignal, run_plan};
use pb_record::{RunWriter, visible};

use super::document::Design;
use super::prompts::PromptMaker;
use super::tenants::Tenants;
use crate::args::LeakArgs;
use crate::progress::Progress;

/// Trials between two lines of progress.
const TELL_EVERY: usize = 20;

/// After so many trials without a single answer there is no server to probe.
const HOPELESS_TRIALS: usize = 5;

/// Sends the requests and keeps their rows.
pub(crate) struct Prober<'a> {
    tenants: &'a Tenants,
    maker: PromptMaker,
    writer: &'a mut RunWriter,
    limits: Limits,
    warmup: usize,
    pause_ns: Nanos,
    sent: u64,
    first_failure: Option<String>,
    stop: StopSignal,
}

impl<'a> Prober<'a> {
    pub(crate) fn new(
        args: &LeakArgs,
        tenants: &'a Tenants,
        maker: PromptMaker,
        writer: &'a mut RunWriter,
        stop: StopSignal,
    ) -> Prober<'a> {
        Prober {
            tenants,
            maker,
            writer,
            limits: Limits {
                connect_ns: Nanos::from_secs_f64(args.timeout_connect),
                first_token_ns: Nanos::from_secs_f64(args.timeout_first_token),
                total_ns: Nanos::from_secs_f64(args.timeout_total),
                ..Limits::default()
            },
            warmup: args.warmup,
            pause_ns: Nanos::from_millis(args.pause_ms),
            sent: 0,
            first_failure: None,
            stop,
        }
    }

    /// The first request that failed, in the words of the server or of the client.
    pub(crate) fn first_failure(&self) -> Option<&str> {
        self.first_failure.as_deref()
    }

    /// Warm-up and all trials; fewer when the wish to stop comes. What was under way then is a
    /// row of the run directory and part of no trial.
    ///
    /// # Errors
    /// The server cannot be reached, answers nothing at all, or a row cannot be written.
    pub(crate) async fn run(&mut self, design: &Design, progress: &Progress) -> Result<Vec<Trial>> {
        for _ in 0..self.warmup {
            if self.stop.is_stopped() {
                return Ok(Vec::new());
            }
            let prompt = self.maker.next_prompt();
            self.send(0, &[Ask::new("warmup", &prompt, Side::A)])
                .await?;
        }
        let mut order = Stream::new(design.seed, "leak order");
        let mut trials = Vec::with_capacity(design.trials);
        for number in 0..design.trials {
            if number % TELL_EVERY == 0 {
                progress.phase(format!("trial {number} of {}", design.trials));
            }
            let trial = self.trial(number, &mut order).await?;
            if self.stop.is_stopped() {
                break;
            }
            trials.push(trial);
            let silent = |trial: &Trial| *trial == Trial::default();
            if trials.len() == HOPELESS_TRIALS && trials.iter().all(silent) {
                let why = self.first_failure.as_deref().unwrap_or("no message");
                bail!("every request failed: {why}");
            }
        }
        Ok(trials)
    }

    async fn trial(&mut self, number: usize, order: &mut Stream) -> Result<Trial> {
        let block = u32::try_from(number).context("--trials")?;
        let mut arms = Arm::ALL;
        order.shuffle(&mut arms);
        let (primed, fresh) = (self.maker.next_prompt(), self.maker.next_prompt());
        let mut asks = vec![Ask::new("prime", &primed, Side::A)];
        asks.extend(arms.map(|arm| match arm {
            Arm::Same => Ask::new(arm.name(), &primed, Side::A),
            Arm::Other => Ask::new(arm.name(), &primed, Side::B),
            // As the other arm is sent, but for the prompt.
            Arm::Unprimed => Ask::new(arm.name(), &fresh, Side::B),
        }));
        let rows = self.send(block, &asks).await?;
        let mut trial = Trial::default();
        // Without its prime a trial has nothing to find.
        if let Some((prime, rows)) = rows.split_first()
            && prime.status == RequestStatus::Ok
        {
            for (arm, row) in arms.into_iter().zip(rows) {
                *trial.arm_mut(arm) = observation(row);
            }
        }
        Ok(trial)
    }

    /// Requests to their ends, one after the other; a row is written whatever came of each.
    async fn send(&mut self, block: u32, asks: &[Ask<'_>]) -> Result<Vec<RequestRow>> {
        // One connection serves all while one endpoint does and nothing is to be waited for.
        let alike = self.tenants.alike() && self.pause_ns == Nanos::ZERO;
        let at_once = if alike { asks.len().max(1) } else { 1 };
        let mut rows = Vec::with_capacity(asks.len());
        for part in asks.chunks(at_once) {
            if self.pause_ns > Nanos::ZERO {
                let pause = tokio::time::sleep(self.pause_ns.to_duration());
                tokio::select! {
                    () = self.stop.stopped() => {}
                    () = pause => {}
                }
            }
            if self.stop.is_stopped() {
                break;
            }
            let endpoint = match part.first().map(|ask| ask.side) {
                Some(Side::B) => &self.tenants.b,
                Some(Side::A) | None => &self.tenants.a,
            };
            let plan = self.plan(part);
            self.sent += part.len() as u64;
            for mut record in run(plan, block, endpoint, self.limits, &self.stop).await? {
                // Each request is of its own arm, which its class names.
                record.row.arm.clone_from(&record.row.class);
                for token in &mut record.tokens {
                    token.arm.clone_from(&record.row.class);
                }
                self.writer.request(&record.row, &record.tokens)?;
                if let Some(message) = &record.row.fail_message {
                    let id = record.row.request.0;
                    let text = || format!("request {id}: {}", visible(message));
                    self.first_failure.get_or_insert_with(text);
                }
                rows.push(record.row);
            }
        }
        Ok(rows)
    }

    /// A closed loop of one slot.
    fn plan(&self, asks: &[Ask<'_>]) -> Plan {
        let body = |ask: &Ask<'_>| {
            let salts = self.tenants.salts.as_ref();
            let salt = salts.map(|[a, b]| match ask.side {
                Side::A => a,
                Side::B => b,
            });
            self.maker.body(ask.arm, ask.prompt, salt)
        };
        let every = self.limits.total_ns.0.saturating_mul(asks.len() as u64);
        Plan {
            closed: vec![ClosedLoop {
                streams: 1,
                first_id: RequestId(self.sent),
                bodies: asks.iter().map(body).collect(),
            }],
            horizon_ns: Nanos(every),
            drain_ns: self.limits.total_ns,
            ..Plan::default()
        }
    }
}

/// A request to send.
struct Ask<'a> {
    arm: &'static str,
    prompt: &'a PlannedPrompt,
    side: Side,
}

impl<'a> Ask<'a> {
    fn new(arm: &'static str, prompt: &'a PlannedPrompt, side: Side) -> Self {
        Ask { arm, prompt, side }
    }
}

/// Which tenant sends.
#[derive(Clone, Copy)]
enum Side {
    A,
    B,
}

/// Runs a plan; its records in the order in which they were sent.
async fn run(
    plan: Plan,
    block: u32,
    to: &Endpoint,
    limits: Limits,
    stop: &StopSignal,
) -> Result<Vec<Record>> {
    let context = RunContext {
        arm: String::new(),
        block,
    };
    let mut records = Vec::new();
    let emit = |record| records.push(record);
    run_plan(plan, context, to, limits, stop.clone(), emit).await?;
    records.sort_by_key(|record: &Record| record.row.request);
    Ok(records)
}

/// What a request showed; `None` when it failed.
fn observation(row: &RequestRow) -> Option<Observation> {
    if row.status != RequestStatus::Ok {
        return None;
    }
    Some(Observation {
        ttft_ns: row.first_token_ns?.checked_sub(row.sent_ns?)?,
        cached_tokens: row.cached_tokens,
    })
}
