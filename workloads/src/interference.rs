//! Background decodes and the long prompts that disturb them.
//!
//! This is the workload in which chunked prefill matters: some streams decode steadily, and long
//! prompts arrive among them. Under monolithic prefill every decode waits for a whole prompt;
//! under a token budget it waits for a chunk. The background is a closed loop, so that the decode
//! batch stays full; the long prompts are an open loop, so that they come when they are due.

use pb_contract::plan::{ClosedLoop, OpenRequest, Plan, PlannedBody};
use pb_contract::{Nanos, RequestId, Stream};
use serde::{Deserialize, Serialize};

use crate::arrivals::Arrivals;
use crate::error::WorkloadError;
use crate::plan::{MAX_PLAN_BYTES, MAX_REQUESTS};
use crate::shape::FOREVER;
use crate::text::TextSource;

/// Class of the decode streams.
pub const BACKGROUND: &str = "background";
/// Class of the long prompts.
pub const LONG_PROMPT: &str = "long_prompt";

/// Parameters of the interference workload. Lengths in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InterferenceParams {
    /// Background streams, each one request after the other.
    pub streams: usize,
    /// Prompt of a background request.
    pub background_prompt_len: usize,
    /// Output of a background request.
    pub background_output_len: u32,
    /// Background requests planned in all; more than can run before the horizon, or the decode
    /// batch would drain early.
    pub background_requests: usize,
    /// Shortest long prompt.
    pub long_prompt_min: usize,
    /// Longest long prompt.
    pub long_prompt_max: usize,
    /// Output of a long prompt.
    pub long_output_len: u32,
    /// Long prompts at most.
    pub long_requests_max: usize,
    /// Mean gap between long prompts.
    pub mean_gap_ns: Nanos,
    /// Shape of the gap distribution: 1 is Poisson, larger is more regular.
    pub gap_shape: f64,
    /// No long prompt before this offset: the background must be decoding first.
    pub warm_up_ns: Nanos,
    /// Whether the first long prompt is due at the end of the warm-up, not one gap after it. In a
    /// short run that gap would be a good part of the whole, and of decode gaps without prefill.
    pub first_at_warm_up: bool,
    /// Length of the run: nothing is due later.
    pub horizon_ns: Nanos,
    /// Time for the last requests to end.
    pub drain_ns: Nanos,
}

impl Default for InterferenceParams {
    fn default() -> Self {
        InterferenceParams {
            streams: 4,
            background_prompt_len: 32,
            background_output_len: 128,
            background_requests: 64,
            long_prompt_min: 1_024,
            long_prompt_max: 1_920,
            long_output_len: 4,
            long_requests_max: 1_000,
            mean_gap_ns: Nanos::from_millis(2_500),
            gap_shape: 4.0,
            warm_up_ns: Nanos::from_secs(1),
            first_at_warm_up: false,
            horizon_ns: Nanos::from_secs(12),
            drain_ns: Nanos::from_secs(20),
        }
    }
}

impl InterferenceParams {
    /// Checks the values against each other.
    ///
    /// # Errors
    /// The first parameter out of range.
    pub fn validate(&self) -> Result<(), WorkloadError> {
        if self.streams == 0 {
            return Err(WorkloadError::parameter(
                "streams",
                0,
                "the background needs at least one stream",
            ));
        }
        if self.background_requests < self.streams {
            let fix = format!("give each of the {} streams a request", self.streams);
            return Err(WorkloadError::parameter(
                "background_requests",
                self.background_requests,
                fix,
            ));
        }
        if self.background_output_len == 0 || self.long_output_len == 0 {
            return Err(WorkloadError::parameter(
                "output length",
                0,
                "ask for at least one token",
            ));
        }
        if self.long_prompt_max < self.long_prompt_min {
            let fix = format!(
                "must be at least long_prompt_min = {}",
                self.long_prompt_min
            );
            return Err(WorkloadError::parameter(
                "long_prompt_max",
                self.long_prompt_max,
                fix,
            ));
        }
        self.within_bounds()?;
        if self.mean_gap_ns == Nanos::ZERO {
            return Err(WorkloadError::parameter(
                "mean_gap_ns",
                0,
                "must be positive",
            ));
        }
        if self.warm_up_ns >= self.horizon_ns {
            let fix = format!("must be below horizon_ns = {}", self.horizon_ns.0);
            return Err(WorkloadError::parameter(
                "warm_up_ns",
                self.warm_up_ns.0,
                fix,
            ));
        }
        Ok(())
    }

    /// Refuses numbers that no plan can hold, before anything of their size is made.
    fn within_bounds(&self) -> Result<(), WorkloadError> {
        let most_tokens = (MAX_PLAN_BYTES / size_of::<u32>() as u64) as usize;
        for (key, value, most) in [
            ("streams", self.streams, MAX_REQUESTS),
            (
                "background_requests",
                self.background_requests,
                MAX_REQUESTS,
            ),
            ("long_requests_max", self.long_requests_max, MAX_REQUESTS),
            (
                "background_prompt_len",
                self.background_prompt_len,
                most_tokens,
            ),
            ("long_prompt_max", self.long_prompt_max, most_tokens),
        ] {
            if value > most {
                let fix = format!("must be at most {most}, which is all that a plan may hold");
                return Err(WorkloadError::parameter(key, value, fix));
            }
        }
        if self.horizon_ns > FOREVER {
            let fix = format!("must be at most {}, a week", FOREVER.0);
            return Err(WorkloadError::parameter(
                "horizon_ns",
                self.horizon_ns.0,
                fix,
            ));
        }
        Ok(())
    }

    /// Requests and prompt tokens of the plan with this seed, without its prompts.
    ///
    /// # Errors
    /// Parameters out of range.
    pub(crate) fn size(&self, seed: u64) -> Result<(usize, u64), WorkloadError> {
        self.validate()?;
        let long = LongPrompts::draw(self, seed)?;
        let background = self.background_requests as u64 * self.background_prompt_len as u64;
        let tokens = long.lengths.iter().map(|&len| len as u64).sum::<u64>();
        let requests = self.background_requests + long.lengths.len();
        Ok((requests, background.saturating_add(tokens)))
    }
}

/// What an arm of an interference run has of the workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterferenceControl {
    /// All of it.
    #[default]
    None,
    /// No long prompt: gaps as they are without interference.
    BackgroundOnly,
    /// The negative control: as many background streams as the server has slots. A long prompt then
    /// waits until a stream ends, so that its prefill meets a decode batch that is not full, and
    /// gaps look immune to it. [`decode_coverage`] must call this arm invalid, or it proves nothing
    /// of the others.
    Starved {
        /// Requests that the server runs at once.
        slots: usize,
    },
}

/// The data set `interference`: an arm of the workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InterferenceDataset {
    /// The workload.
    pub params: InterferenceParams,
    /// What the arm has of it.
    pub control: InterferenceControl,
}

impl InterferenceDataset {
    /// The parameters of the arm.
    ///
    /// # Errors
    /// A starved arm without slots.
    pub(crate) fn arm(&self) -> Result<InterferenceParams, WorkloadError> {
        let mut params = self.params.clone();
        if let InterferenceControl::Starved { slots } = self.control {
            if slots == 0 {
                let fix = "give the number of requests that the server runs at once";
                return Err(WorkloadError::parameter("control.slots", 0, fix));
            }
            let each = params.background_requests.div_ceil(params.streams.max(1));
            params.streams = slots;
            params.background_requests = each.saturating_mul(slots);
        }
        params.validate()?;
        Ok(params)
    }

    pub(crate) fn is_background_only(&self) -> bool {
        self.control == InterferenceControl::BackgroundOnly
    }
}

/// A step of a server, or a sample of its gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepSample {
    /// Requests that decoded in it.
    pub decode: usize,
    /// Prompt tokens that were computed in it.
    pub prefill_tokens: u64,
}

/// Whether prefill met a full decode batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecodeCoverage {
    /// Samples.
    pub steps: usize,
    /// Samples in which a prompt was computed.
    pub prefill_steps: usize,
    /// Of those, samples in which every background stream decoded.
    pub covered_steps: usize,
    /// A prompt was computed, and every time all background streams decoded.
    pub valid: bool,
}

/// Whether gaps between tokens can say anything about prefill: only if the background decoded
/// while prompts were computed. Where a prompt only got in after a stream had ended, its prefill
/// disturbed fewer streams than there are, and a run without any prefill shows nothing at all.
pub fn decode_coverage(samples: &[StepSample], streams: usize) -> DecodeCoverage {
    let prefill = samples.iter().filter(|sample| sample.prefill_tokens > 0);
    let covered = prefill.clone().filter(|sample| sample.decode >= streams);
    let (prefill_steps, covered_steps) = (prefill.count(), covered.count());
    DecodeCoverage {
        steps: samples.len(),
        prefill_steps,
        covered_steps,
        valid: prefill_steps > 0 && covered_steps == prefill_steps,
    }
}

/// The plan of an interference run: the same `(params, text, seed)` gives the same plan.
/// Background requests have ids from 0, long prompts follow.
///
/// # Errors
/// Parameters out of range, or a text that cannot give that many distinct prompts.
pub fn interference(
    params: &InterferenceParams,
    text: &mut TextSource,
    seed: u64,
) -> Result<Plan, WorkloadError> {
    params.validate()?;
    let mut background = Stream::new(seed, "interference background prompts");
    let mut bodies = Vec::new();
    for _ in 0..params.background_requests {
        let prompt = text.prompt(params.background_prompt_len, &mut background)?;
        let output = params.background_output_len;
        bodies.push(PlannedBody::of_ids(BACKGROUND, prompt, output));
    }
    let open = long_prompts(params, text, seed, bodies.len() as u64)?;
    let part = ClosedLoop {
        streams: params.streams,
        first_id: RequestId(0),
        bodies,
    };
    Ok(Plan {
        open,
        closed: vec![part],
        horizon_ns: params.horizon_ns,
        drain_ns: params.drain_ns,
        ..Plan::default()
    })
}

/// When long prompts are due and how long they are.
struct LongPrompts {
    /// After the warm-up.
    offsets: Vec<Nanos>,
    lengths: Vec<usize>,
}

impl LongPrompts {
    fn draw(params: &InterferenceParams, seed: u64) -> Result<LongPrompts, WorkloadError> {
        let arrivals = Arrivals::Gamma {
            rate_per_s: 1.0 / params.mean_gap_ns.as_secs_f64(),
            shape: params.gap_shape,
        };
        let window = params.horizon_ns - params.warm_up_ns;
        let mut gaps = Stream::new(seed, "interference arrivals");
        let mut offsets = if params.first_at_warm_up {
            // Without its first gap the process starts with an arrival; twice the window leaves
            // enough arrivals to fill it after the shift, short of a first gap as long as the
            // window.
            let twice = Nanos(2 * window.0);
            let later = arrivals.offsets(twice, params.long_requests_max, &mut gaps)?;
            let first = later.first().copied().unwrap_or_default();
            later.into_iter().map(|offset| offset - first).collect()
        } else {
            arrivals.offsets(window, params.long_requests_max, &mut gaps)?
        };
        offsets.retain(|&offset| offset < window);
        let mut drawn = Stream::new(seed, "interference prompt lengths");
        let spread = (params.long_prompt_max - params.long_prompt_min) as u64 + 1;
        let length = |_: &Nanos| params.long_prompt_min + drawn.below(spread) as usize;
        let lengths = offsets.iter().map(length).collect();
        Ok(LongPrompts { offsets, lengths })
    }
}

fn long_prompts(
    params: &InterferenceParams,
    text: &mut TextSource,
    seed: u64,
    first_id: u64,
) -> Result<Vec<OpenRequest>, WorkloadError> {
    let LongPrompts { offsets, lengths } = LongPrompts::draw(params, seed)?;
    let mut prompts = Stream::new(seed, "interference long prompts");
    let mut open = Vec::with_capacity(offsets.len());
    for (index, (offset, len)) in offsets.into_iter().zip(lengths).enumerate() {
        let prompt = text.prompt(len, &mut prompts)?;
        open.push(OpenRequest {
            id: RequestId(first_id + index as u64),
            offset_ns: params.warm_up_ns + offset,
            body: PlannedBody::of_ids(LONG_PROMPT, prompt, params.long_output_len),
        });
    }
    Ok(open)
}

#[cfg(test)]
#[path = "interference_tests.rs"]
mod tests;
