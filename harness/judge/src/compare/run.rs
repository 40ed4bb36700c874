//! One run of `bench` as a comparison sees it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use pb_bench::Document;
use pb_bench::files::RunFiles;
use pb_contract::{Nanos, RequestRow};
use serde::Serialize;

use super::aspect::{Aspect, aspects, server};
use super::metric::{METRICS, Memory, STALL_SHARE, Source};

/// Kind of the model of a run in virtual time, which says the same however often it is made.
pub const SIMULATED: &str = "simulated";

/// Samples of one kind that are kept of a run: 16 MB. A run with more has no pooled percentiles.
pub const MOST_SAMPLES: u64 = 2_000_000;

/// What was measured, as far as the run says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Name of the model that requests carried.
    pub model: String,
    /// Kind and version of the server.
    pub server: String,
    /// Version of this program, which measured.
    pub tool_version: String,
    /// Revision of its sources.
    pub tool_rev: String,
}

/// Gaps of a run that are long enough to be stalls, and the time of all gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LongGaps {
    /// The run's own threshold in nanoseconds: no shorter gap is kept.
    pub threshold_ns: u64,
    /// Time of all gaps in nanoseconds, the short ones included.
    pub total_ns: u128,
    /// Length in nanoseconds and number of the gaps at or above the threshold.
    pub gaps_ns: Vec<(u64, u64)>,
}

impl LongGaps {
    /// Share of the time that gaps of at least `threshold_ns` take, which must not be below the
    /// run's own threshold; absent without gaps.
    pub fn share(&self, threshold_ns: u64) -> Option<f64> {
        debug_assert!(threshold_ns >= self.threshold_ns);
        let long = self.gaps_ns.iter().filter(|(ns, _)| *ns >= threshold_ns);
        let time: u128 = long.map(|(ns, n)| u128::from(*ns) * u128::from(*n)).sum();
        (self.total_ns > 0).then(|| time as f64 / self.total_ns as f64)
    }
}

/// A run: who it is, whether it may be used, its numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Its directory.
    pub name: String,
    /// Start, UTC, RFC 3339.
    pub created: String,
    /// Start on the client's monotonic clock, in nanoseconds; tells copies of a run from repeats.
    pub start_ns: u64,
    /// Hash of all its instants, counted from its start: no two runs share it, and a copy under
    /// another date does. Absent where no request was answered.
    pub fingerprint: Option<u64>,
    /// The run was made in virtual time: made again it is the same, and that is no copy.
    pub simulated: bool,
    /// The part of a schedule that this is, when it is one of several.
    pub shard: Option<String>,
    /// What was measured.
    pub subject: Subject,
    /// What must be alike.
    pub aspects: BTreeMap<Aspect, String>,
    /// What speaks against the run; empty when it is valid.
    pub problems: Vec<String>,
    /// What a reader has to know.
    pub notes: Vec<String>,
    /// Requests offered.
    pub offered: u64,
    /// Requests that ended well.
    pub ok: u64,
    /// 99th percentile of the driver's lag in ms, of requests with an instant of their own.
    pub lag_p99_ms: Option<f64>,
    /// Values by metric; infinite where a percentile falls on a request that did not end well.
    pub values: BTreeMap<String, f64>,
    /// Long gaps, for the stall share.
    pub long_gaps: LongGaps,
    /// All samples in ms by what they are of (`ttft`, `itl`, `tpot`, `e2e`), for percentiles over
    /// several runs; infinite where an offered request did not end well. Absent above
    /// [`MOST_SAMPLES`].
    pub samples: BTreeMap<String, Vec<f64>>,
}

/// What is said of a run in a result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Receipt {
    /// Its directory.
    pub run: String,
    /// Start, UTC, RFC 3339.
    pub created: String,
    /// sha256 of its schedule.
    pub schedule_sha256: String,
    /// Requests offered.
    pub offered: u64,
    /// Requests that ended well.
    pub ok: u64,
    /// What speaks against it.
    pub problems: Vec<String>,
}

impl Run {
    /// From a run directory as read; `name` is what messages call it.
    pub fn of(name: &str, files: &RunFiles, memory: &Memory) -> Run {
        let document = &files.document;
        let source = Source { document, memory };
        let values = METRICS
            .iter()
            .filter_map(|metric| Some((metric.name.to_owned(), metric.of(source)?)));
        let doubt = document.cache.hit_rate_doubt.iter();
        let lag = document.load.untied_lag_ms.as_ref();
        Run {
            name: name.to_owned(),
            created: files.manifest.created.clone(),
            start_ns: document.window.start_ns.0,
            fingerprint: fingerprint(files.tally.rows()),
            simulated: files.manifest.model.kind == SIMULATED,
            shard: files
                .conditions
                .shard
                .filter(|shard| shard.of > 1)
                .map(|shard| shard.to_string()),
            subject: Subject {
                model: document.identity.model.clone(),
                server: server(&files.manifest, document),
                tool_version: files.manifest.tool.version.clone(),
                tool_rev: files.manifest.tool.git_rev.clone(),
            },
            aspects: aspects(&files.manifest, document),
            problems: document.validity.reasons.clone(),
            notes: doubt
                .cloned()
                .chain(files.notes.iter().cloned())
                .chain(no_steady_state(document))
                .collect(),
            offered: document.counts.offered,
            ok: document.counts.ok,
            lag_p99_ms: lag.map(|spread| spread.p99),
            values: values.collect(),
            long_gaps: long_gaps(files),
            samples: samples(files),
        }
    }

    /// The hash of its schedule; empty when it is not known.
    pub fn schedule(&self) -> &str {
        self.aspects
            .get(&Aspect::Schedule)
            .map_or("", String::as_str)
    }

    /// Its receipt.
    pub fn receipt(&self) -> Receipt {
        Receipt {
            run: self.name.clone(),
            created: self.created.clone(),
            schedule_sha256: self.schedule().to_owned(),
            offered: self.offered,
            ok: self.ok,
            problems: self.problems.clone(),
        }
    }

    /// A metric's value; stalls are those of a threshold that several runs share.
    pub fn value(&self, metric: &str, threshold_ns: u64) -> Option<f64> {
        match metric {
            STALL_SHARE => self.long_gaps.share(threshold_ns),
            name => self.values.get(name).copied(),
        }
    }
}

/// One threshold for all runs: the largest of theirs, in nanoseconds.
pub fn stall_threshold_ns<'a>(runs: impl IntoIterator<Item = &'a Run>) -> u64 {
    let own = runs.into_iter().map(|run| run.long_gaps.threshold_ns);
    own.max().unwrap_or(0)
}

/// Hash of the instants of a run, counted from its first arrival: clocks that count nanoseconds
/// give no two runs the same ones, and a copy has them under whatever date. Absent where nothing
/// was answered.
pub fn fingerprint(rows: &[RequestRow]) -> Option<u64> {
    let first = rows.iter().map(|row| row.intended_ns).min()?;
    let mut hash = DefaultHasher::new();
    for row in rows {
        let since = |at: Option<Nanos>| at.map(|at| at.0.wrapping_sub(first.0));
        let instants = [
            row.sent_ns,
            row.first_token_ns,
            row.last_token_ns,
            row.closed_ns,
        ];
        (
            row.request.0,
            since(Some(row.intended_ns)),
            instants.map(since),
        )
            .hash(&mut hash);
    }
    let answered = rows.iter().any(|row| row.first_token_ns.is_some());
    answered.then(|| hash.finish())
}

/// Figures by which later requests are not like earlier ones.
fn no_steady_state(document: &Document) -> impl Iterator<Item = String> {
    let flagged = document.steadiness.iter().filter(|one| one.is_flagged());
    flagged.map(|one| format!("no steady state: {}", one.words()))
}

fn samples(files: &RunFiles) -> BTreeMap<String, Vec<f64>> {
    let all = files.tally.all();
    let offered = files.document.counts.offered;
    let kinds = [
        ("ttft", all.latency(|m| m.ttft_ns), offered),
        ("e2e", all.latency(|m| m.e2e_ns), offered),
        ("tpot", all.latency(|m| m.tpot_ns), 0),
        ("itl", all.itl(), 0),
    ];
    let kept = kinds.into_iter().filter(|(_, found, offered)| {
        let n = found.n().max(*offered);
        (1..=MOST_SAMPLES).contains(&n)
    });
    kept.map(|(name, found, offered)| {
        let endless = offered.saturating_sub(found.n()) as usize;
        let ended = found
            .iter()
            .flat_map(|one| std::iter::repeat_n(Nanos(one.ns).as_millis_f64(), one.count as usize));
        let all = ended.chain(std::iter::repeat_n(f64::INFINITY, endless));
        (name.to_owned(), all.collect())
    })
    .collect()
}

fn long_gaps(files: &RunFiles) -> LongGaps {
    let gaps = files.tally.all().event_gaps();
    let rule = pb_stats::StallRule::default();
    let median = gaps.nearest_rank(0.5);
    let threshold_ns = median.map_or(rule.floor_ns, |median| {
        median.saturating_mul(rule.factor).max(rule.floor_ns)
    });
    let mut long = LongGaps {
        threshold_ns,
        ..LongGaps::default()
    };
    for run in gaps.iter() {
        long.total_ns += u128::from(run.ns) * u128::from(run.count);
        if run.ns >= threshold_ns {
            long.gaps_ns.push((run.ns, run.count));
        }
    }
    long
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_threshold_leaves_fewer_stalls() {
        // 60 ms twice, 100 ms once, 280 ms of short gaps: 500 ms in all.
        let gaps = LongGaps {
            threshold_ns: 50,
            total_ns: 500,
            gaps_ns: vec![(60, 2), (100, 1)],
        };
        assert_eq!(gaps.share(50), Some(0.44));
        assert_eq!(gaps.share(100), Some(0.2));
        assert_eq!(gaps.share(101), Some(0.0));
        assert_eq!(LongGaps::default().share(1), None);
    }
}
