//! Runs of `bench` against runs of `bench`: what changed, and how sure that is.
//!
//! A block is one run of the baseline and one of the candidate on the same schedule. However many
//! requests it holds it is one observation, so a single pair of runs shows its numbers and decides
//! nothing. Runs that differ in anything but what is compared are refused, unless that difference
//! is named; runs that are not valid make the comparison void. The rules of the claims are those
//! of [`crate::ab`].

mod aspect;
mod beside;
mod judgement;
mod metric;
mod pairing;
mod run;
pub mod synthetic;
mod words;

pub use aspect::{ASPECTS, Aspect};
pub use beside::{Beside, Pooled, RankMethod, Shift, pool, pooled};
pub(crate) use judgement::not_worse;
pub use judgement::{Block, CompareRules, Comparison, Outcome, SCHEMA_VERSION, compare};
pub use metric::{
    METRICS, Memory, Metric, RATIO_MARGIN, SHARE_MARGIN, STALL_SHARE, Source, metric, metric_names,
};
pub use pairing::{Difference, check_alike, check_arm};
pub use run::{
    LongGaps, MOST_SAMPLES, Receipt, Run, SIMULATED, Subject, fingerprint, stall_threshold_ns,
};

pub(crate) use words::change_words;

use thiserror::Error;

use crate::ab::AbError;

/// Runs that cannot be compared. A lack of evidence is a result, not an error.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum CompareError {
    /// The arms do not have the same number of runs.
    #[error(
        "{baseline} baseline runs and {candidate} candidate runs: a block is one of each, so give \
         as many of one as of the other"
    )]
    Unpaired {
        /// Runs of the baseline.
        baseline: usize,
        /// Runs of the candidate.
        candidate: usize,
    },
    /// A run stands twice among the runs, or a copy of it.
    #[error(
        "{first} and {second} are the same run: a copy is no second observation; leave one out"
    )]
    SameRun {
        /// A run.
        first: String,
        /// The same one again.
        second: String,
    },
    /// A part of a run.
    #[error(
        "{run} is shard {shard} of its schedule, so its numbers are those of a part of the load: \
         join the shards with `prefillbench merge` and name the joined run"
    )]
    Shard {
        /// Its directory.
        run: String,
        /// The part.
        shard: String,
    },
    /// Runs differ in something other than the time they took.
    #[error("{}", words(differences))]
    Different {
        /// The differences.
        differences: Vec<Difference>,
    },
    /// No metric of that name.
    #[error("metric `{name}` is not known: use {}", metric_names())]
    UnknownMetric {
        /// The name.
        name: String,
    },
    /// A margin or level that cannot be.
    #[error(transparent)]
    Rules(#[from] AbError),
}

/// The longest value that a message repeats.
const SHOWN_CHARS: usize = 120;

fn words(differences: &[Difference]) -> String {
    let short = |text: &str| match text.chars().count() {
        0 => "not known".to_owned(),
        n if n > SHOWN_CHARS => {
            let start: String = text.chars().take(SHOWN_CHARS).collect();
            format!("`{start}...`")
        }
        _ => format!("`{text}`"),
    };
    let one = |d: &Difference| {
        format!(
            "{} is {} in {} and {} in {}",
            d.aspect,
            short(&d.value),
            d.run,
            short(&d.other_value),
            d.other_run
        )
    };
    let mut names: Vec<&str> = differences.iter().map(|d| d.aspect.name()).collect();
    names.dedup();
    let list: Vec<String> = differences.iter().map(one).collect();
    format!(
        "the runs differ in more than their times: {}; make them alike, or, where one arm as a \
         whole is meant to differ from the other, allow it with --allow-different {}",
        list.join("; "),
        names.join(",")
    )
}

#[cfg(test)]
mod tests;
