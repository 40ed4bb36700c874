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

fn long_prompts(
    params: &InterferenceParams,
    text: &mut TextSource,
    seed: u64,
    first_id: u64,
) -> Result<Vec<OpenRequest>, WorkloadError> {
    let arrivals = Arrivals::Gamma {
        rate_per_s: 1.0 / params.mean_gap_ns.as_secs_f64(),
        shape: params.gap_shape,
    };
    let window = params.horizon_ns - params.warm_up_ns;
    let mut gaps = Stream::new(seed, "interference arrivals");
    let mut offsets = if params.first_at_warm_up {
        // Without its first gap the process starts with an arrival; twice the window leaves
        // enough arrivals to fill it after the shift, short of a first gap as long as the window.
        let twice = Nanos(2 * window.0);
        let later = arrivals.offsets(twice, params.long_requests_max, &mut gaps)?;
        let first = later.first().copied().unwrap_or_default();
        later.into_iter().map(|offset| offset - first).collect()
    } else {
        arrivals.offsets(window, params.long_requests_max, &mut gaps)?
    };
    offsets.retain(|&offset| offset < window);
    let mut lengths = Stream::new(seed, "interference prompt lengths");
    let mut prompts = Stream::new(seed, "interference long prompts");
    let spread = (params.long_prompt_max - params.long_prompt_min) as u64 + 1;
    let mut open = Vec::with_capacity(offsets.len());
    for (index, offset) in offsets.into_iter().enumerate() {
        let len = params.long_prompt_min + lengths.below(spread) as usize;
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
mod tests {
    use super::*;
    use crate::repeats::{all_bodies, first_blocks_unique};

    fn text() -> TextSource {
        TextSource::new((0..9_000u32).map(|i| (i * 13 + i * i) % 977).collect(), 5).unwrap()
    }

    #[test]
    fn the_plan_holds_what_was_asked_for() {
        let params = InterferenceParams::default();
        let plan = interference(&params, &mut text(), 7).unwrap();
        assert_eq!(plan.closed[0].bodies.len(), 64);
        assert!(plan.closed[0].bodies.iter().all(|b| b.planned_tokens == 32));
        assert!(plan.open.len() >= 2, "about 11 s at a mean gap of 2.5 s");
        for (index, request) in plan.open.iter().enumerate() {
            assert_eq!(request.id.0, 64 + index as u64);
            assert!((1_024..=1_920).contains(&request.body.planned_tokens));
            assert!(request.offset_ns >= params.warm_up_ns);
            assert!(request.offset_ns < params.horizon_ns);
        }
        assert!(plan.open.is_sorted_by_key(|r| (r.offset_ns, r.id)));
        first_blocks_unique(&all_bodies(&plan), 8).unwrap();
    }

    #[test]
    fn the_first_long_prompt_can_come_with_the_end_of_the_warm_up() {
        let later = InterferenceParams::default();
        let at_once = InterferenceParams {
            first_at_warm_up: true,
            ..later.clone()
        };
        let offsets = |params: &InterferenceParams| -> Vec<u64> {
            let plan = interference(params, &mut text(), 7).unwrap();
            plan.open.iter().map(|r| r.offset_ns.0).collect()
        };
        let (later, at_once) = (offsets(&later), offsets(&at_once));
        assert_eq!(at_once[0], 1_000_000_000);
        let gaps = |offsets: &[u64]| -> Vec<u64> {
            offsets.windows(2).map(|pair| pair[1] - pair[0]).collect()
        };
        assert!(
            gaps(&at_once).starts_with(&gaps(&later)),
            "the gaps are the same"
        );
        let params = InterferenceParams::default();
        let (end, mean) = (params.horizon_ns.0, params.mean_gap_ns.0);
        let last = at_once[at_once.len() - 1];
        assert!(
            last < end && last > end - 2 * mean,
            "arrivals fill the window to its end"
        );
    }

    #[test]
    fn the_seed_decides_and_nothing_else() {
        let params = InterferenceParams::default();
        let plan = |seed| interference(&params, &mut text(), seed).unwrap();
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7).open, plan(8).open);
    }

    #[test]
    fn bad_parameters_are_named() {
        let with = |edit: fn(&mut InterferenceParams)| {
            let mut params = InterferenceParams::default();
            edit(&mut params);
            interference(&params, &mut text(), 1)
                .unwrap_err()
                .to_string()
        };
        assert!(with(|p| p.streams = 0).contains("streams"));
        assert!(with(|p| p.long_prompt_max = 3).contains("long_prompt_max = 3"));
        assert!(with(|p| p.warm_up_ns = p.horizon_ns).contains("warm_up_ns"));
        assert!(with(|p| p.background_prompt_len = 2).contains("prompt length = 2"));
        assert!(with(|p| p.gap_shape = f64::NAN).contains("shape"));
    }
}
