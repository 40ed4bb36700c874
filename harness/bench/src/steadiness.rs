//! Whether the requests of a run come from one steady state, from the rows.
//!
//! A mean or a percentile over a run that drifts describes no moment of it. Some loads drift by
//! design (a ramp, conversations that grow, a cache that fills), so a drift is told and does not
//! make a run void; `docs/STATISTICS.md` has the tests and how often they alarm falsely.

use pb_contract::RequestRow;
use pb_record::metrics::{RequestMetrics, request_metrics};
use pb_stats::{Steadiness as Found, holm_adjust, steadiness};
use serde::{Deserialize, Serialize};

use crate::distribution::ms;
use crate::tally::{Part, Tally};

/// Change over a run, as a share of its median, from which it is worth telling.
pub const STEADY_LIMIT: f64 = 0.1;

/// Chance that a steady run is flagged at all, by Holm's adjustment over its tests.
pub const STEADY_ALPHA: f64 = 0.01;

/// Classes up to which each is looked at alone: of more the shuffles are too few for the level.
const MOST_CLASSES: usize = 4;

/// What a run is called by one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steady {
    /// Neither of the others was seen.
    Steady,
    /// Later requests took longer, or shorter, than earlier ones, all along.
    Drifts,
    /// The first requests took longer, or shorter, than the rest.
    Start,
    /// Too few requests, or too dependent on one another.
    NotChecked,
}

/// One figure of the requests that ended well, in the order of their arrivals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Steadiness {
    /// Class of the workload; absent where all requests are looked at together.
    pub class: Option<String>,
    /// `ttft_ms` or `tpot_ms`.
    pub figure: String,
    /// What it is called.
    pub verdict: Steady,
    /// Requests that have the figure.
    pub n: usize,
    /// Independent requests that would tell the mean as well.
    pub independent: Option<f64>,
    /// Change from the first to the last stretch as a share of the median, 0.1 for +10 %.
    pub change: Option<f64>,
    /// Its 95 % interval.
    pub low: Option<f64>,
    /// Its 95 % interval.
    pub high: Option<f64>,
    /// p-value of no trend (Mann-Kendall).
    pub drift_p: Option<f64>,
    /// Requests at the start that MSER-5 would drop.
    pub start: Option<usize>,
    /// Mean of these over that of the rest, less 1.
    pub start_excess: Option<f64>,
    /// Chance that steady requests look so (shuffles of stretches).
    pub start_p: Option<f64>,
}

/// A figure of a request; absent where it has none.
type Figure = fn(&RequestMetrics) -> Option<u64>;

/// The figures that are looked at.
const FIGURES: [(&str, Figure); 2] = [("ttft_ms", |m| m.ttft_ns), ("tpot_ms", |m| m.tpot_ns)];

/// Every figure of every class; empty where nothing ended well.
pub(crate) fn of(tally: &Tally) -> Vec<Steadiness> {
    let classes = tally.classes();
    let parts: Vec<(Option<String>, Part<'_>)> = match classes.len() {
        2..=MOST_CLASSES => classes
            .iter()
            .map(|class| (Some(class.clone()), tally.class(class)))
            .collect(),
        _ => vec![(None, tally.all())],
    };
    let mut all = Vec::new();
    for (class, part) in parts {
        for (figure, read) in FIGURES {
            let values = in_order(part, read);
            if !values.is_empty() {
                let found = steadiness(&values, STEADY_LIMIT).ok();
                all.push(one(class.clone(), figure, values.len(), found));
            }
        }
    }
    judge(&mut all);
    all
}

/// Values in ms in the order of the intended arrivals.
fn in_order(part: Part<'_>, read: fn(&RequestMetrics) -> Option<u64>) -> Vec<f64> {
    let mut rows: Vec<&RequestRow> = part.ok().collect();
    rows.sort_by_key(|row| (row.intended_ns, row.block, row.request));
    let values = rows.into_iter().map(request_metrics);
    values.filter_map(|m| read(&m)).map(ms).collect()
}

fn one(class: Option<String>, figure: &str, n: usize, found: Option<Found>) -> Steadiness {
    let drift = found.and_then(|found| found.drift);
    let start = found.and_then(|found| found.start);
    Steadiness {
        class,
        figure: figure.to_owned(),
        verdict: Steady::NotChecked,
        n,
        independent: found.map(|found| found.independent),
        change: drift.map(|drift| drift.change),
        low: drift.map(|drift| drift.low),
        high: drift.map(|drift| drift.high),
        drift_p: drift.map(|drift| drift.p),
        start: start.map(|start| start.cut),
        start_excess: start.map(|start| start.excess),
        start_p: start.map(|start| start.p),
    }
}

/// Holm over both tests of all figures: one chance of a false alarm for the whole run.
fn judge(all: &mut [Steadiness]) {
    let p = |p: Option<f64>| p.unwrap_or(1.0);
    let each = all.iter().flat_map(|one| [p(one.drift_p), p(one.start_p)]);
    let Ok(adjusted) = holm_adjust(&each.collect::<Vec<f64>>()) else {
        return;
    };
    for (one, p) in all.iter_mut().zip(adjusted.chunks_exact(2)) {
        let large = |change: Option<f64>| change.is_some_and(|c| c.abs() > STEADY_LIMIT);
        one.verdict = match one.drift_p {
            None => Steady::NotChecked,
            Some(_) if p[0] < STEADY_ALPHA && large(one.change) => Steady::Drifts,
            Some(_) if p[1] < STEADY_ALPHA && large(one.start_excess) => Steady::Start,
            Some(_) => Steady::Steady,
        };
    }
}

impl Steadiness {
    /// Whether the run has no steady state by this figure.
    pub fn is_flagged(&self) -> bool {
        matches!(self.verdict, Steady::Drifts | Steady::Start)
    }

    /// What was found, with the number, without an end: `TTFT drifts: +38.2 % [...] over ...`.
    pub fn words(&self) -> String {
        let figure = self.figure.trim_end_matches("_ms").to_uppercase();
        let class = self.class.iter().map(|class| format!(" of {class}"));
        let name = format!("{figure}{}", class.collect::<String>());
        let percent = |share: Option<f64>| {
            share.map_or("-".to_owned(), |share| format!("{:+.1}", 100.0 * share))
        };
        let change = format!(
            "{} % [{}, {}] from start to end",
            percent(self.change),
            percent(self.low),
            percent(self.high)
        );
        match self.verdict {
            Steady::Drifts => format!("{name} drifts: {change} of {} requests", self.n),
            Steady::Start => format!(
                "{name} settles late: the first {} of {} requests took {} % on average, against \
                 the rest",
                self.start.unwrap_or(0),
                self.n,
                percent(self.start_excess)
            ),
            Steady::Steady => format!(
                "{name} {change}; {} requests tell as much as {:.0} independent ones",
                self.n,
                self.independent.unwrap_or(0.0)
            ),
            Steady::NotChecked => match self.independent {
                None if self.n < pb_stats::STEADY_LEAST => format!(
                    "{name}: {} requests, {} needed",
                    self.n,
                    pb_stats::STEADY_LEAST
                ),
                None => format!("{name}: 0 for most of {} requests", self.n),
                Some(independent) => format!(
                    "{name}: {} requests tell as much as {independent:.0} independent ones, too \
                     few",
                    self.n
                ),
            },
        }
    }
}

/// A line for each figure that is flagged.
pub(crate) fn notes(all: &[Steadiness]) -> impl Iterator<Item = String> {
    let flagged = all.iter().filter(|one| one.is_flagged());
    flagged.map(|one| {
        format!(
            "no steady state: {}; means and percentiles over the run describe no moment of it",
            one.words()
        )
    })
}

#[cfg(test)]
mod tests {
    use pb_contract::Nanos;
    use pb_stats::SplitMix64;
    use pb_stats::simulate::Shape;

    use super::*;
    use crate::sample::record;
    use crate::tests::frame;
    use crate::{Conditions, Document};

    /// A run of `n` requests with these times to first token in ms, 20 ms apart; TPOT is 10 ms,
    /// give or take.
    fn document(class: &str, ttft_ms: &[f64]) -> Document {
        let conditions = Conditions::new(frame());
        let mut tally = conditions.tally();
        // Rows come in the order in which requests ended, not in that of their arrivals.
        for (id, ms) in ttft_ms.iter().enumerate().rev() {
            let first = Nanos((ms * 1e6) as u64);
            let gap = 10_000_000 + 1_000 * (id as u64 * 7_919 % 997);
            let events = [(first, 1), (first + Nanos(gap), 1)];
            let at = Nanos(1_000_000_000 + 20_000_000 * id as u64);
            let (mut row, tokens) = record(id as u64, at, &events);
            row.class = class.to_owned();
            tally.add(row, &tokens);
        }
        Document::of(&tally, &conditions)
    }

    fn noise(n: usize) -> Vec<f64> {
        let shape = Shape::Lognormal { sigma: 0.3 };
        shape.samples(n, 100.0, &mut SplitMix64::new(17))
    }

    fn verdicts(document: &Document) -> Vec<Steady> {
        document.steadiness.iter().map(|one| one.verdict).collect()
    }

    #[test]
    fn a_steady_run_is_not_flagged_and_a_drifting_one_is_with_the_number() {
        let steady = document("random", &noise(200));
        assert_eq!(verdicts(&steady), [Steady::Steady, Steady::Steady]);
        assert_eq!(steady.warnings, Vec::<String>::new());
        // Planted: twice as long at the end as at the start, +67 % of the median.
        let drifting: Vec<f64> = (0..200)
            .zip(noise(200))
            .map(|(i, ms)| ms * (1.0 + f64::from(i) / 199.0))
            .collect();
        let drifting = document("random", &drifting);
        assert_eq!(verdicts(&drifting), [Steady::Drifts, Steady::Steady]);
        let change = drifting.steadiness[0].change.unwrap();
        assert!((0.45..0.9).contains(&change), "{change}");
        let [note] = drifting.warnings.as_slice() else {
            panic!("{:?}", drifting.warnings);
        };
        let number = format!("TTFT drifts: {:+.1} % [", 100.0 * change);
        assert!(note.contains(&number), "{note}");
        // A drift may be what the load asks for, so the run stays usable.
        assert!(drifting.validity.valid);
    }

    #[test]
    fn a_late_start_is_told_with_its_requests() {
        let warming: Vec<f64> = (0..400)
            .zip(noise(400))
            .map(|(i, ms)| if i < 40 { 4.0 * ms } else { ms })
            .collect();
        let found = document("random", &warming);
        assert_eq!(found.steadiness[0].verdict, Steady::Start);
        let cut = found.steadiness[0].start.unwrap();
        assert!((35..=200).contains(&cut), "{cut}");
        let words = format!("TTFT settles late: the first {cut} of 400 requests");
        assert!(found.warnings[0].contains(&words), "{:?}", found.warnings);
    }

    #[test]
    fn short_runs_and_runs_without_an_answer_say_so() {
        let short = document("random", &noise(49));
        assert_eq!(verdicts(&short), [Steady::NotChecked; 2]);
        assert!(
            short.steadiness[0]
                .words()
                .contains("49 requests, 50 needed")
        );
        assert_eq!(document("random", &[]).steadiness, Vec::new());
    }
}
