//! How often equal arms are called different, and how often different ones are.

use pb_stats::simulate::{Experiment, normal};
use pb_stats::{
    Bound, Clearance, CompiledRule, Evidence, Good, Margin, Outcome, RandomSource, Reason, Rule,
    Spending, SplitMix64, StatError, judge, mean_interval, minimum_detectable_effect, nearest_rank,
    paired_ratio,
};

use crate::{experiment, most_hits, percent, shapes};

/// Blocks of each experiment.
const BLOCKS: usize = 12;
/// Looks of the sequential rules.
const LOOKS: [usize; 5] = [4, 6, 8, 10, 12];

/// Per-block percentile of both arms.
fn percentiles(e: Experiment, ratio: f64, p: f64, rng: &mut SplitMix64) -> (Vec<f64>, Vec<f64>) {
    let (a, b) = e.blocks(BLOCKS, ratio, rng);
    let of = |arm: Vec<Vec<f64>>| {
        arm.into_iter()
            .filter_map(|mut block| {
                block.sort_unstable_by(f64::total_cmp);
                nearest_rank(&block, p)
            })
            .collect()
    };
    (of(a), of(b))
}

/// The judge's outcome with all blocks, one metric, a margin of nothing.
fn outcome(a: &[f64], b: &[f64]) -> Option<Outcome> {
    let (wide, narrow) = (
        paired_ratio(a, b, 0.95).ok()?,
        paired_ratio(a, b, 0.90).ok()?,
    );
    let evidence = Evidence {
        interval: Some(&wide),
        narrow: Some(&narrow),
        margin: Margin::ratio(0.0).ok()?,
        good: Good::Lower,
        clearance: Clearance::Point,
        least_blocks: 4,
        survives_adjustment: true,
        void: &[],
    };
    Some(judge(&evidence).0)
}

fn rule(bound: Bound) -> Result<CompiledRule, StatError> {
    Rule {
        looks: match bound {
            Bound::AlwaysValid => Vec::new(),
            Bound::Spending(_) => LOOKS.to_vec(),
        },
        alpha: 0.05,
        margin: 0.0,
        max_blocks: BLOCKS,
        target_halfwidth: None,
        bound,
    }
    .compile()
}

/// Blocks used and whether a difference was claimed.
fn watch(rule: &CompiledRule, units: &[f64]) -> (usize, bool) {
    for n in 1..=units.len() {
        if let Ok(decision) = rule.decide(&units[..n])
            && decision.stop
        {
            return (n, decision.reason == Reason::Difference);
        }
    }
    (units.len(), false)
}

/// The planted fault: a fresh 95 % interval after every block, stop at the first that excludes 0.
fn peek(units: &[f64]) -> bool {
    (3..=units.len()).any(|n| mean_interval(&units[..n], 0.95).is_ok_and(|e| e.excludes(0.0)))
}

/// Claims of a difference between equal arms.
pub(crate) fn false_claims(experiments: usize) {
    println!("### False claims between equal arms, in %, {experiments} A/A experiments each\n");
    let limit = most_hits(0.05, experiments);
    println!("{BLOCKS} blocks; 5 % nominal. Up to {limit} are explained by chance (99 %).\n");
    println!("| data | percentile | all blocks | O'Brien-Fleming | always valid | peeking |");
    println!("|---|---|---|---|---|---|");
    let rules = [Bound::Spending(Spending::OBrienFleming), Bound::AlwaysValid].map(rule);
    let [Ok(spending), Ok(always)] = rules else {
        panic!("the rules of this table are well formed");
    };
    for (name, shape) in shapes() {
        for p in [0.5, 0.95, 0.99] {
            let mut hits = [0; 4];
            for seed in 0..experiments as u64 {
                let mut rng = SplitMix64::new(1_000_003 * seed + 17);
                let (a, b) = percentiles(experiment(shape), 1.0, p, &mut rng);
                let units: Vec<f64> = a.iter().zip(&b).map(|(a, b)| (b / a).ln()).collect();
                let claimed = outcome(&a, &b);
                let found = [
                    matches!(claimed, Some(Outcome::Better | Outcome::Worse)),
                    watch(&spending, &units).1,
                    watch(&always, &units).1,
                    peek(&units),
                ];
                for (hit, found) in hits.iter_mut().zip(found) {
                    *hit += usize::from(found);
                }
            }
            let cells: Vec<String> = hits.iter().map(|h| percent(*h, experiments)).collect();
            println!("| {name} | p{} | {} |", p * 100.0, cells.join(" | "));
        }
    }
    println!();
}

/// Power at the minimum detectable effect, which promises 80 %, and the blocks used.
pub(crate) fn power(experiments: usize) {
    println!("### Power in % at the effect promised to be found in 80 %, normal units\n");
    println!("| blocks | effect, sd | all blocks | O'Brien-Fleming (blocks used) | always valid |");
    println!("|---|---|---|---|---|");
    let rules = [Bound::Spending(Spending::OBrienFleming), Bound::AlwaysValid].map(rule);
    let [Ok(spending), Ok(always)] = rules else {
        panic!("the rules of this table are well formed");
    };
    let Ok(effect) = minimum_detectable_effect(BLOCKS, 0.05, 0.8) else {
        return;
    };
    let mut rng = SplitMix64::new(4_242);
    let (mut fixed, mut by_spending, mut by_always) = (0, (0, 0), (0, 0));
    for _ in 0..experiments {
        let units: Vec<f64> = (0..BLOCKS).map(|_| effect + normal(&mut rng)).collect();
        fixed += usize::from(mean_interval(&units, 0.95).is_ok_and(|e| e.excludes(0.0)));
        for (rule, sum) in [(&spending, &mut by_spending), (&always, &mut by_always)] {
            let (blocks, found) = watch(rule, &units);
            *sum = (sum.0 + blocks, sum.1 + usize::from(found));
        }
    }
    let used = |sum: (usize, usize)| {
        let mean = sum.0 as f64 / experiments as f64;
        format!("{} ({mean:.1})", percent(sum.1, experiments))
    };
    let all = percent(fixed, experiments);
    println!(
        "| {BLOCKS} | {effect:.2} | {all} | {} | {} |",
        used(by_spending),
        used(by_always)
    );
    shift_of_five_percent(experiments, &mut rng);
}

/// The same promise on latencies: a 5 % shift, the noise measured by an A/A experiment before.
fn shift_of_five_percent(experiments: usize, rng: &mut impl RandomSource) {
    println!("\n### A 5 % shift of the p95, {BLOCKS} blocks: power promised and found, in %\n");
    println!("| data | sd of one pair | promised | found |\n|---|---|---|---|");
    for (name, shape) in shapes() {
        let mut sub = SplitMix64::new(rng.next_u64());
        let mut units = Vec::new();
        let mut found = 0;
        for _ in 0..experiments {
            let (a, b) = percentiles(experiment(shape), 1.0, 0.95, &mut sub);
            units.extend(a.iter().zip(&b).map(|(a, b)| (b / a).ln()));
            let (a, b) = percentiles(experiment(shape), 1.05, 0.95, &mut sub);
            found += usize::from(outcome(&a, &b) == Some(Outcome::Worse));
        }
        let sd = pb_stats::Moments::of(&units).sd().unwrap_or(0.0);
        let promised = pb_stats::paired_t_power(1.05_f64.ln() / sd, BLOCKS, 0.05);
        let promised = promised.map_or(String::new(), |p| format!("{:.1}", 100.0 * p));
        println!(
            "| {name} | {sd:.4} | {promised} | {} |",
            percent(found, experiments)
        );
    }
    println!();
}
