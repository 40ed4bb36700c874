//! A data set and a load together: the plan of a run, with what is known of it beforehand.
//!
//! ```
//! use pb_workloads::{Dataset, LoadShape, PlanOptions, Source, plan};
//! let dataset: Dataset = serde_json::from_str(
//!     r#"{"dataset_name": "shared-prefix", "num_groups": 2, "prompts_per_group": 3,
//!         "system_prompt_len": 64, "question_len": 20, "output_len": 8}"#,
//! )?;
//! let shape = LoadShape { request_rate: Some(10.0), ..LoadShape::default() };
//! let planned = plan(&dataset, &shape, &Source::ids(100..30_000), &PlanOptions::default())?;
//! assert_eq!(planned.plan.open.len(), 6);
//! // The first prompt of each group finds nothing, the others its 64 tokens.
//! assert_eq!(planned.facts.planned_hit_tokens, 4 * 64);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod build;
mod hits;
mod interference;
mod shard;
mod spare;

use std::collections::{BTreeMap, BTreeSet};

use pb_contract::Nanos;
use pb_contract::plan::{Plan, PlannedBody};
use serde::{Deserialize, Serialize};

pub use self::hits::{HitKnowledge, ideal_hits};

use self::build::Builder;
use crate::dataset::{Dataset, Drawn, Want};
use crate::error::{DatasetError, WorkloadError};
use crate::ramp::Stage;
use crate::realise::{Speaker, fnv1a};
use crate::shape::{ArrivalKind, DEFAULT_PROMPTS, Due, LoadShape, MAX_PROMPTS};
use crate::source::{Form, Source};
use crate::trace::prompt::mix;

/// Memory that planned prompts may take.
pub const MAX_PLAN_BYTES: u64 = 2 << 30;

/// Requests that a plan may hold.
pub const MAX_REQUESTS: usize = 2_000_000;

/// State of the target's cache when the run starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheStart {
    /// It holds nothing of the run's prompts.
    #[default]
    Cold,
    /// It holds the prompts of [`Planned::prime`].
    Primed,
}

/// How a plan is made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanOptions {
    /// Seed of arrivals, lengths, orders and content.
    pub seed: u64,
    /// Changes all content and nothing else, so that a run does not find what one before it left.
    pub nonce: u64,
    /// Form of the prompts.
    pub form: Form,
    /// Block size of the target's cache in tokens, for planned hits.
    pub block_size: usize,
    /// State of the cache at the start.
    pub cache: CacheStart,
    /// Outputs have their planned length.
    pub ignore_eos: bool,
    /// Prompts may be sent again when the data set has no more.
    pub allow_repeat: bool,
    /// Isolation key of every request.
    pub cache_salt: Option<String>,
    /// Requests that do not fit are dropped and counted.
    pub max_model_len: Option<usize>,
    /// Tokens that the target adds to each prompt, as measured by a probe.
    pub template_tokens: u32,
    /// Prompts are made shorter, or longer, by what the target adds.
    pub adapt_input: bool,
    /// Time for the last requests to end.
    pub drain_ns: Nanos,
}

impl Default for PlanOptions {
    fn default() -> Self {
        PlanOptions {
            seed: 0,
            nonce: 0,
            form: Form::Ids,
            block_size: 16,
            cache: CacheStart::Cold,
            ignore_eos: true,
            allow_repeat: false,
            cache_salt: None,
            max_model_len: None,
            template_tokens: 0,
            adapt_input: false,
            drain_ns: Nanos::from_secs(600),
        }
    }
}

/// What is known of a plan before it is run. Counts of tokens are those of the prompts as planned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// Name of the data set.
    pub dataset: &'static str,
    /// Rule of the arrivals.
    pub arrival: ArrivalKind,
    /// Requests.
    pub requests: usize,
    /// Sessions that some of them belong to.
    pub sessions: usize,
    /// Prompts that differ.
    pub unique_prompts: usize,
    /// Rows that were read of a file.
    pub rows_read: u64,
    /// Rows or turns that are not sent, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Output tokens that are asked for.
    pub output_tokens: u64,
    /// Whether prompt tokens are those of the target and not an estimate.
    pub tokens_exact: bool,
    /// Prompts that have another length than was asked for, once tokenized.
    pub off_length: u64,
    /// Block size of the planned hits, in tokens.
    pub block_size: usize,
    /// Prompt tokens that an unbounded cache with that block size has found.
    pub planned_hit_tokens: u64,
    /// How far that number holds.
    pub hits: HitKnowledge,
    /// The number of requests ended the arrivals before the time did.
    pub cut_short: bool,
    /// When the last request or session that has a time is due.
    pub span_ns: Nanos,
    /// Stages of a ramp.
    pub stages: Vec<Stage>,
    /// What a file holds and why.
    pub evidence: Vec<String>,
    /// Identity of the tokenizer.
    pub tokenizer: Option<String>,
}

/// A plan, what is known of it, and more prompts of its kind.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The whole run.
    pub plan: Plan,
    /// What is known of it.
    pub facts: Facts,
    /// What puts the shared prompts into a cache: to be sent one after the other before a run that
    /// starts with a primed one. Where nothing is shared by design, the prompts themselves.
    pub prime: Vec<PlannedBody>,
    speaker: Speaker,
    key: u64,
    starts: BTreeSet<u64>,
}

/// Makes the plan of a run: the same arguments give the same bytes on every machine. Neither the
/// path of a file nor anything but the arguments goes in.
///
/// # Errors
/// Parameters out of range or that contradict each other, a file that cannot be read, too few
/// prompts, or more than fit into memory.
pub fn plan(
    dataset: &Dataset,
    shape: &LoadShape,
    source: &Source<'_>,
    options: &PlanOptions,
) -> Result<Planned, DatasetError> {
    if options.block_size == 0 {
        return Err(WorkloadError::parameter("block_size", 0, "must be at least 1").into());
    }
    let key = content_key(dataset, shape, options);
    let speaker = Speaker::new(
        source,
        options.form,
        key,
        options.block_size,
        options.template_tokens,
    )?;
    let mut builder = Builder::new(&speaker, source.tokenizer, options);
    let (kind, drawn, due) = match dataset {
        Dataset::Interference(params) => {
            let drawn = builder.interference(params, shape, key)?;
            (ArrivalKind::Gamma, drawn, Due::default())
        }
        _ => {
            let kind = shape.resolve(dataset.may_have_arrivals())?;
            let (drawn, due) = drawn_and_due(dataset, shape, kind, source, options)?;
            check_requests(drawn.requests())?;
            check_bytes(drawn.tokens().saturating_mul(size_of::<u32>() as u64))?;
            builder.fill(&drawn, &due, kind, shape)?;
            (kind, drawn, due)
        }
    };
    let built = builder.finish(&drawn)?;
    if built.metas.is_empty() {
        return Err(empty(dataset, &drawn, shape));
    }
    let mut facts = built.facts(dataset.name(), kind, &drawn, options);
    facts.cut_short = due.cut_short;
    facts.stages = due.stages;
    facts.tokenizer = source.tokenizer.map(|tokenizer| tokenizer.identity());
    Ok(Planned {
        plan: built.plan,
        facts,
        prime: built.prime,
        starts: built.starts,
        speaker,
        key,
    })
}

fn empty(dataset: &Dataset, drawn: &Drawn, shape: &LoadShape) -> DatasetError {
    DatasetError::Empty {
        dataset: dataset.name(),
        why: why_empty(dataset, drawn, shape),
    }
}

fn why_empty(dataset: &Dataset, drawn: &Drawn, shape: &LoadShape) -> String {
    // A file with arrivals has rows, though none may be due in time.
    let nothing_read = drawn.rows_read == 0 && drawn.dropped.is_empty() && !drawn.has_arrivals;
    if nothing_read && Dataset::needs_path(dataset.name()) {
        return "its file has no rows: is it the right one, and whole?".to_owned();
    }
    match (drawn.dropped.is_empty(), shape.duration_s) {
        (false, _) => format!(
            "of {} rows all were dropped, {:?}: change the limits that drop them",
            drawn.rows_read, drawn.dropped
        ),
        (true, Some(seconds)) => {
            format!("none is due within duration_s = {seconds}: give a longer one or a higher rate")
        }
        (true, None) => "it holds none".to_owned(),
    }
}

/// Decides all content. A file's path stays out, because the same file lies elsewhere on another
/// machine; the load goes in, because the cells of a sweep must not find each other's prompts.
fn content_key(dataset: &Dataset, shape: &LoadShape, options: &PlanOptions) -> u64 {
    let mut described = serde_json::json!([dataset, shape, options.seed, options.nonce]);
    if let Some(fields) = described[0].as_object_mut() {
        fields.remove("path");
    }
    mix(fnv1a(described.to_string().as_bytes()))
}

/// The requests or sessions, and when they are due where that is drawn.
fn drawn_and_due(
    dataset: &Dataset,
    shape: &LoadShape,
    kind: ArrivalKind,
    source: &Source<'_>,
    options: &PlanOptions,
) -> Result<(Drawn, Due), DatasetError> {
    let recorded = kind == ArrivalKind::Trace;
    let mut want = Want {
        count: 0,
        seed: options.seed,
        form: options.form,
        tokenizer: source.tokenizer,
        max_model_len: options.max_model_len,
        until: shape.duration().filter(|_| recorded),
    };
    let timed = shape.duration_s.is_some() || shape.ramp.as_ref().is_some_and(|r| r.is_timed());
    let asked = shape.num_prompts.or(dataset.own_size());
    check_requests(asked.unwrap_or(0))?;
    let paced = !matches!(kind, ArrivalKind::Trace | ArrivalKind::Closed);
    if dataset.is_endless() || dataset.own_size().is_some() {
        let most = asked.unwrap_or(if timed { MAX_PROMPTS } else { DEFAULT_PROMPTS });
        let due = match paced {
            true => shape.due(kind, most, options.seed)?.ended_by(most),
            false => Due::default(),
        };
        want.count = if paced { due.offsets.len() } else { most };
        let drawn = dataset.draw(&want)?;
        if drawn.len() < want.count {
            return Err(too_few_fit(&drawn, want.count, options));
        }
        return Ok((drawn, due));
    }
    want.count = asked.unwrap_or(usize::MAX);
    let mut drawn = dataset.draw(&want)?;
    if drawn.len() == 0 {
        return Err(empty(dataset, &drawn, shape));
    }
    if recorded && !drawn.has_arrivals {
        let fix = "the file has no arrivals: give a request_rate or max_concurrency";
        return Err(WorkloadError::parameter("arrival", "trace", fix).into());
    }
    let available = drawn.len();
    let repeats_until_end = options.allow_repeat && timed && available > 0;
    let most = match asked {
        Some(asked) => asked,
        None if paced && repeats_until_end => MAX_PROMPTS,
        None => available,
    };
    let due = match paced {
        true => shape.due(kind, most, options.seed)?.ended_by(most),
        false => Due::default(),
    };
    let needed = if paced { due.offsets.len() } else { most };
    // A recorded run that its duration ends needs no more than was due by then.
    let enough = needed <= available || (recorded && want.until.is_some());
    if !enough && (!options.allow_repeat || available == 0) {
        return Err(DatasetError::Exhausted {
            dataset: dataset.name(),
            asked: needed,
            unique: available,
        });
    }
    if !enough {
        drawn.repeat(needed);
    }
    Ok((drawn, due))
}

fn too_few_fit(drawn: &Drawn, count: usize, options: &PlanOptions) -> DatasetError {
    let most = options.max_model_len.unwrap_or(usize::MAX);
    let fix = format!(
        "only {} of {count} requests fit: make prompts or outputs shorter, or ask for fewer",
        drawn.len()
    );
    WorkloadError::parameter("max_model_len", most, fix).into()
}

/// Refuses more requests than a plan may hold.
pub(crate) fn check_requests(requests: usize) -> Result<(), WorkloadError> {
    match requests <= MAX_REQUESTS {
        true => Ok(()),
        false => Err(WorkloadError::parameter(
            "requests",
            requests,
            format!("a plan holds at most {MAX_REQUESTS}: ask for fewer, or for less time"),
        )),
    }
}

/// Refuses prompts that take more memory than a plan may.
pub(crate) fn check_bytes(bytes: u64) -> Result<(), DatasetError> {
    match bytes <= MAX_PLAN_BYTES {
        true => Ok(()),
        false => Err(DatasetError::TooLarge {
            mib: bytes >> 20,
            limit_mib: MAX_PLAN_BYTES >> 20,
        }),
    }
}
