//! Two other views of each change, shown beside the claims and never claimed by.
//!
//! The claim is about the mean over blocks of each block's own figure. A user of the server meets
//! the samples of all blocks together, whose percentile is another number where blocks differ or
//! are small; and one wild block moves a mean, not a median of averages. Where the three agree a
//! reader need not choose; where they do not, the table shows it.

use std::collections::{BTreeMap, BTreeSet};

use pb_stats::{
    Contrast, Estimate, Method, PooledBlocks, Resampling, SplitMix64, hodges_lehmann,
    hodges_lehmann_shift, paired_percentile,
};
use serde::Serialize;

use super::aspect::Aspect;
use super::run::Run;
use crate::ab::{ArmValues, Claim, Direction, MetricVerdict, Scale};
use crate::verdict::Interval;

/// The percentiles that are pooled, by the ending of a metric's name.
const PERCENTILES: [(&str, f64); 3] = [("_p50", 0.5), ("_p95", 0.95), ("_p99", 0.99)];

/// Stands for no gap at all, in ms: two events that came with one segment. It has no ratio, and a
/// nanosecond is the least that a clock of nanoseconds tells.
const LEAST_MS: f64 = 1e-6;

/// The percentile of all samples together, whatever block they are of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pooled {
    /// Of the baseline, in the metric's unit.
    pub baseline: f64,
    /// Of the candidate.
    pub candidate: f64,
    /// Candidate over baseline, with the interval of the jackknife over blocks.
    pub ratio: Interval,
}

/// How a shift by ranks was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RankMethod {
    /// Median of the averages of the changes of two blocks each (signed ranks).
    Paired,
    /// Median of the changes between any baseline and any candidate run (Mann-Whitney), for runs
    /// of different schedules, which make no pairs.
    Unpaired,
}

/// A change by ranks: a ratio, or a difference as the metric is compared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shift {
    /// How it was found.
    pub method: RankMethod,
    /// Hodges-Lehmann estimate.
    pub point: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Runs or blocks used.
    pub n: usize,
    /// Confidence reached, at least the one asked for: ranks have few levels.
    pub confidence: f64,
}

/// Both views of one metric; absent where they cannot be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Beside {
    /// Pooled percentiles, from three blocks on.
    pub pooled: Option<Pooled>,
    /// Shift by ranks: at 95 %, from six pairs on, or from four runs of each arm.
    pub shift: Option<Shift>,
}

/// Of every metric that was judged.
pub(super) fn of(
    blocks: &[(&Run, &Run)],
    verdicts: &[MetricVerdict],
    values: &BTreeMap<String, ArmValues>,
    allowed: &BTreeSet<Aspect>,
    alpha: f64,
) -> BTreeMap<String, Beside> {
    let method = match allowed.contains(&Aspect::Schedule) {
        true => RankMethod::Unpaired,
        false => RankMethod::Paired,
    };
    let pools = Pools::of(blocks);
    let one = |verdict: &MetricVerdict| {
        let name = verdict.spec.name.clone();
        let beside = Beside {
            pooled: pools.compare(&name, 1.0 - alpha),
            shift: values
                .get(&name)
                .and_then(|arms| shift(arms, verdict.spec.scale, method, 1.0 - alpha)),
        };
        (name, beside)
    };
    verdicts.iter().map(one).collect()
}

/// The run of an arm in a block.
fn of_arm<'a>(&(a, b): &(&'a Run, &'a Run), candidate: bool) -> &'a Run {
    if candidate { b } else { a }
}

/// The samples of both arms, by what was measured.
struct Pools(BTreeMap<String, (PooledBlocks, PooledBlocks)>);

impl Pools {
    fn of(blocks: &[(&Run, &Run)]) -> Pools {
        let names: BTreeSet<&String> = blocks
            .iter()
            .flat_map(|(a, b)| a.samples.keys().chain(b.samples.keys()))
            .collect();
        let arm = |name: &str, candidate: bool| {
            let samples = blocks
                .iter()
                .map(|block| of_arm(block, candidate).samples.get(name));
            pool(&samples.collect::<Option<Vec<_>>>()?)
        };
        let both = |name: &String| Some((name.clone(), (arm(name, false)?, arm(name, true)?)));
        Pools(names.into_iter().filter_map(both).collect())
    }

    fn compare(&self, metric: &str, confidence: f64) -> Option<Pooled> {
        let named = |(ending, p): (&str, f64)| Some((metric.strip_suffix(ending)?, p));
        let (samples, p) = PERCENTILES.into_iter().find_map(named)?;
        let (a, b) = self.0.get(samples)?;
        pooled(a, b, p, confidence)
    }
}

/// The samples of all blocks of an arm, in ms; infinite ones are longer than any other. Absent
/// where a block has none.
pub fn pool<B: AsRef<[f64]>>(blocks: &[B]) -> Option<PooledBlocks> {
    let positive = |ms: &f64| match ms.is_finite() {
        true => ms.max(LEAST_MS),
        // Longer than any that ended, and a number.
        false => f64::MAX,
    };
    let samples = blocks.iter().map(|block| block.as_ref().iter());
    let samples = samples.map(|ms| ms.map(positive).collect::<Vec<f64>>());
    PooledBlocks::new(&samples.collect::<Vec<_>>()).ok()
}

/// The percentile `p` (0 to 1) of two arms that [`pool`] made, block by block of one schedule.
/// Absent with fewer than three blocks, and where it falls on a sample without end.
pub fn pooled(a: &PooledBlocks, b: &PooledBlocks, p: f64, confidence: f64) -> Option<Pooled> {
    let (baseline, candidate) = (a.quantile(p)?, b.quantile(p)?);
    let plan = Resampling {
        confidence,
        resamples: 0,
    };
    // The jackknife draws nothing.
    let (ratio, mut rng) = (Contrast::Ratio, SplitMix64::new(0));
    let found = paired_percentile(a, b, p, ratio, Method::Jackknife, plan, &mut rng);
    let is_number = |e: &Estimate| e.low > 0.0 && e.high.is_finite();
    let ended = baseline.max(candidate) < f64::MAX && baseline.min(candidate) > LEAST_MS;
    let found = found.ok().filter(is_number).filter(|_| ended);
    found.map(|estimate| Pooled {
        baseline,
        candidate,
        ratio: Interval::from(estimate),
    })
}

fn shift(arms: &ArmValues, scale: Scale, method: RankMethod, confidence: f64) -> Option<Shift> {
    let ratio = matches!(scale, Scale::Ratio { .. });
    let usable = |v: &f64| v.is_finite() && (!ratio || *v > 0.0);
    let on = |v: f64| if ratio { v.ln() } else { v };
    let found = match method {
        RankMethod::Paired => {
            let pairs = arms.a.iter().zip(&arms.b);
            let pairs = pairs.filter_map(|(a, b)| Some(((*a)?, (*b)?)));
            let pairs = pairs.filter(|(a, b)| usable(a) && usable(b));
            let units: Vec<f64> = pairs.map(|(a, b)| on(b) - on(a)).collect();
            hodges_lehmann(&units, confidence)
        }
        RankMethod::Unpaired => {
            let of = |values: &[Option<f64>]| -> Vec<f64> {
                let values = values.iter().copied().flatten();
                values.filter(usable).map(on).collect()
            };
            hodges_lehmann_shift(&of(&arms.a), &of(&arms.b), confidence)
        }
    };
    let back = |v: f64| if ratio { v.exp() } else { v };
    found.ok().map(|found| Shift {
        method,
        point: back(found.point),
        low: back(found.low),
        high: back(found.high),
        n: found.n,
        confidence: found.achieved,
    })
}

/// A claim whose other views point the other way beyond their intervals: what is claimed is then
/// not what a user of the server meets, or rests on single blocks.
pub(super) fn contradiction(verdict: &MetricVerdict, beside: &Beside) -> Option<String> {
    let better = match verdict.claim {
        Claim::Better => true,
        Claim::Worse => false,
        _ => return None,
    };
    let lower = better == (verdict.spec.direction == Direction::LowerIsBetter);
    let neutral = match verdict.spec.scale {
        Scale::Ratio { .. } => 1.0,
        Scale::Difference { .. } => 0.0,
    };
    let against = |low: f64, high: f64| match lower {
        true => low > neutral,
        false => high < neutral,
    };
    let pooled = beside.pooled.filter(|p| against(p.ratio.low, p.ratio.high));
    let shift = beside.shift.filter(|s| against(s.low, s.high));
    let who = match (pooled, shift) {
        (Some(_), _) => "the percentile of all samples together",
        (_, Some(_)) => "the Hodges-Lehmann shift",
        _ => return None,
    };
    Some(format!(
        "{}: claimed by the mean over blocks, and {who} went the other way: look at the blocks",
        verdict.spec.name
    ))
}

#[cfg(test)]
mod tests {
    use pb_stats::SplitMix64;

    use super::super::synthetic::{Rig, arms};
    use super::super::{CompareRules, compare};
    use super::*;

    fn some(values: &[f64]) -> Vec<Option<f64>> {
        values.iter().copied().map(Some).collect()
    }

    #[test]
    fn pooled_percentiles_are_those_of_all_samples_and_the_truth_is_inside() {
        let (a, b) = arms(Rig::default(), 8, 1.0, 1.2, &mut SplitMix64::new(11));
        let found = compare(&a, &b, &CompareRules::default()).unwrap();
        let pooled = found.beside["itl_p99"].pooled.unwrap();
        // By hand: merge, sort, the rank ceil(0.99 n).
        let by_hand = |runs: &[Run]| {
            let mut all: Vec<f64> = runs.iter().flat_map(|r| r.samples["itl"].clone()).collect();
            all.sort_by(f64::total_cmp);
            all[(all.len() * 99).div_ceil(100) - 1]
        };
        assert_eq!(
            (pooled.baseline, pooled.candidate),
            (by_hand(&a), by_hand(&b))
        );
        let ratio = pooled.candidate / pooled.baseline;
        assert!((pooled.ratio.point - ratio).abs() < 1e-12);
        assert!(
            !pooled.ratio.excludes(1.2) && pooled.ratio.excludes(1.0),
            "{pooled:?}"
        );
        assert_eq!((pooled.ratio.n, pooled.ratio.confidence), (8, 0.95));
        let shift = found.beside["itl_p99"].shift.unwrap();
        assert_eq!((shift.method, shift.n), (RankMethod::Paired, 8));
        assert!(
            shift.low < 1.2 && shift.high > 1.2 && shift.low > 1.0,
            "{shift:?}"
        );
        // No percentile, no pool.
        assert_eq!(found.beside["success_rate"].pooled, None);
    }

    #[test]
    fn one_wild_block_moves_the_mean_and_not_the_shift() {
        let a = some(&[100.0; 8]);
        let b = some(&[110.0, 109.0, 111.0, 110.5, 109.5, 110.2, 109.8, 1_000.0]);
        let arms = ArmValues { a, b };
        let scale = Scale::Ratio { margin: 0.03 };
        let found = shift(&arms, scale, RankMethod::Paired, 0.95).unwrap();
        assert!((found.point - 1.10).abs() < 0.01, "{found:?}");
        let mean = (7.0 * 1.1_f64.ln() + 10.0_f64.ln()) / 8.0;
        assert!(mean.exp() > 1.4);
    }

    #[test]
    fn unpaired_runs_are_compared_as_published() {
        // Hollander and Wolfe, table 4.1, as in `pb_stats`: shift 0.305, interval -0.15 to 0.76.
        let term = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
        let arms = ArmValues {
            a: some(&[1.15, 0.88, 0.90, 0.74, 1.21]),
            b: some(&term),
        };
        let scale = Scale::Difference { margin: 0.01 };
        let found = shift(&arms, scale, RankMethod::Unpaired, 0.95).unwrap();
        assert!((found.point - 0.305).abs() < 1e-9, "{found:?}");
        assert!((found.low + 0.15).abs() < 1e-9 && (found.high - 0.76).abs() < 1e-9);
    }

    #[test]
    fn requests_that_never_ended_make_no_ratio() {
        let (mut a, mut b) = arms(Rig::default(), 4, 1.0, 1.0, &mut SplitMix64::new(12));
        let p99 = |a: &[Run], b: &[Run]| {
            let found = compare(a, b, &CompareRules::default()).unwrap();
            (
                found.beside["ttft_p50"].pooled,
                found.beside["ttft_p99"].pooled,
            )
        };
        assert!(p99(&a, &b).1.is_some());
        for run in a.iter_mut().chain(&mut b) {
            let ttft = run.samples.get_mut("ttft").unwrap();
            ttft.iter_mut().take(5).for_each(|ms| *ms = f64::INFINITY);
        }
        let (median, tail) = p99(&a, &b);
        assert!(median.is_some() && tail.is_none());
        // And a run without samples takes the pool away, not the comparison.
        b[1].samples.clear();
        assert_eq!(p99(&a, &b), (None, None));
    }

    #[test]
    fn views_that_go_the_other_way_are_told() {
        let (a, b) = arms(Rig::default(), 8, 1.0, 1.3, &mut SplitMix64::new(13));
        let found = compare(&a, &b, &CompareRules::default()).unwrap();
        let verdict = found.report.metric("itl_p50").unwrap();
        assert_eq!(verdict.claim, Claim::Worse);
        let mut beside = found.beside["itl_p50"];
        assert_eq!(contradiction(verdict, &beside), None);
        let pooled = beside.pooled.as_mut().unwrap();
        (pooled.ratio.low, pooled.ratio.high) = (0.7, 0.9);
        let told = contradiction(verdict, &beside).unwrap();
        assert!(told.contains("all samples together"), "{told}");
    }
}
