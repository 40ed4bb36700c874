//! Whether the numbers of a run may be used, and what else a reader has to know.

use pb_contract::{FailKind, RequestRow};
use pb_record::metrics::{Counts, HIDDEN_FACTOR};
use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;
use crate::document::Class;
use crate::load::{LAG_LIMIT_MS, Load, SPREAD_LIMIT_MS};
use crate::steadiness::{self, Steadiness};
use crate::tally::Tally;

/// Share by which two counts of the same tokens may differ without a word (llmperf #99).
const COUNTS_DIFFER: f64 = 0.01;

/// Whether the numbers may be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validity {
    /// No reason speaks against it.
    pub valid: bool,
    /// What speaks against it.
    pub reasons: Vec<String>,
}

/// The reasons against a run, the client's own first.
pub(crate) fn validity(
    tally: &Tally,
    counts: &Counts,
    load: &Load,
    conditions: &Conditions,
) -> Validity {
    let mut reasons = Vec::new();
    if counts.ok == 0 {
        // Before everything else: all that follows may come of it.
        let first = first_failure(tally);
        let first = first.map_or_else(String::new, |first| format!("; {first}"));
        reasons.push(format!("no request ended well{first}"));
    }
    reasons.extend(lateness(load));
    if conditions.frame.exhausted {
        reasons.push(
            "the schedule ended before --duration, so the load was lower than asked for; raise \
             --num-prompts"
                .to_owned(),
        );
    }
    if conditions.interrupted {
        reasons.push("the run was stopped before its end".to_owned());
    }
    if conditions.partial {
        reasons.push("rows are missing: not every part of the run reached its end".to_owned());
    }
    if counts.not_offered > 0 {
        reasons.push(format!("{} requests were never sent", counts.not_offered));
    }
    debug_assert_eq!(counts.offered, tally.rows().len() as u64);
    reasons.extend(conditions.frame.cache_reasons.iter().cloned());
    reasons.extend(conditions.reasons.iter().cloned());
    Validity {
        valid: reasons.is_empty(),
        reasons,
    }
}

/// The first request that failed, in the words of the server or of the client.
pub fn first_failure(tally: &Tally) -> Option<String> {
    let failed = |row: &&RequestRow| row.fail.is_some_and(|fail| fail != FailKind::NotOffered);
    let failed = tally.rows().iter().filter(failed);
    let row = failed.min_by_key(|row| row.request)?;
    let message = row.fail_message.as_deref().unwrap_or("no message");
    Some(format!(
        "first failure, request {}: {}",
        row.request.0,
        pb_record::visible(message)
    ))
}

/// A client that was late measured itself. Requests that are due at the same instant as others
/// cannot all be sent at it, so they have a limit of their own.
fn lateness(load: &Load) -> Vec<String> {
    let limit = load.asked.lag_limit_ms.unwrap_or(LAG_LIMIT_MS);
    let mut reasons = Vec::new();
    if let Some(lag) = load.untied_lag_ms.filter(|lag| lag.p99 > limit) {
        reasons.push(format!(
            "the client itself was late: driver lag p99 {:.3} ms is above {limit} ms; lower the \
             rate or free the client's cores",
            lag.p99
        ));
    }
    if let Some(spread) = load.send_spread_ms.filter(|s| s.p99 > SPREAD_LIMIT_MS) {
        reasons.push(format!(
            "requests that were due at the same instant were sent {:.3} ms after it at the 99th \
             percentile, above {SPREAD_LIMIT_MS} ms: send fewer at once or free the client's cores",
            spread.p99
        ));
    }
    reasons
}

/// What a reader should know; the conditions' own words come last.
pub(crate) fn warnings(
    tally: &Tally,
    all: &Class,
    load: &Load,
    steadiness: &[Steadiness],
    conditions: &Conditions,
) -> Vec<String> {
    let mut warnings: Vec<String> = steadiness::notes(steadiness).collect();
    let tokens = &all.tokens;
    let differ = tokens.output.abs_diff(tokens.output_streamed);
    if differ as f64 > COUNTS_DIFFER * tokens.output as f64 {
        warnings.push(format!(
            "output tokens differ by how they are counted: the server says {}, the streams \
             carried {} in {} events; the server's count is used",
            tokens.output, tokens.output_streamed, tokens.events
        ));
    }
    let hidden = crate::views::hidden_tokens(tally);
    if hidden > 0 {
        warnings.push(format!(
            "{hidden} requests: the server counted other output tokens than it streamed, as \
             hidden reasoning or bundles of unknown size do; their time per output token is by \
             its count, and absent when that is more than {HIDDEN_FACTOR} times the stream's"
        ));
    }
    let preempted = conditions.server.as_ref().and_then(|s| s.preempted());
    if preempted == Some(true) {
        warnings.push("the server preempted requests: recomputed prompts count as hits".to_owned());
    }
    if load.held_back > 0 {
        warnings.push(format!(
            "{} requests waited in the client for a free slot: their wait is in the latencies from \
             the intended arrival and not in the service latencies",
            load.held_back
        ));
    }
    if let Some(problem) = conditions
        .calibration
        .as_ref()
        .and_then(|c| c.problem.as_ref())
    {
        warnings.push(format!("the client was not calibrated: {problem}"));
    }
    warnings.extend(conditions.warnings.iter().cloned());
    warnings
}
