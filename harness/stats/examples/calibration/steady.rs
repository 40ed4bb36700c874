//! How often a steady run is called drifting or warming up, and how often one that is so.

use pb_stats::simulate::Shape;
use pb_stats::{SplitMix64, steadiness};

use crate::{percent, shapes};

/// Change from which a trend or a start matters.
const LIMIT: f64 = 0.1;
/// Level of the two tests together, by Holm's first step.
const ALPHA: f64 = 0.01;

/// A course over the run, from 0 to 1.
type Course = fn(f64) -> f64;

/// What a run of the table is like.
const CASES: [(&str, Course); 4] = [
    ("steady", |_| 1.0),
    ("+30 % over the run", |at| 1.0 + 0.3 * at),
    ("+100 % over the run", |at| 1.0 + at),
    ("first tenth 2x", |at| if at < 0.1 { 2.0 } else { 1.0 }),
];

/// Shares of runs of each length that are flagged.
pub(crate) fn alarms(experiments: usize) {
    println!("### Runs flagged as drifting or warming up, in %, {experiments} runs each\n");
    let names: Vec<&str> = CASES.iter().map(|(name, _)| *name).collect();
    println!(
        "| data | requests | {} | too dependent |",
        names.join(" | ")
    );
    println!("|---|---|---|---|---|---|---|");
    for (name, shape) in shapes() {
        for n in [50, 100, 300, 1_000] {
            let mut untold = 0;
            let cells: Vec<String> = CASES
                .iter()
                .map(|(_, level)| {
                    let (hits, open) = flagged(shape, n, *level, experiments);
                    untold = open;
                    percent(hits, experiments)
                })
                .collect();
            let untold = percent(untold, experiments);
            println!("| {name} | {n} | {} | {untold} |", cells.join(" | "));
        }
    }
    println!();
}

/// Runs that are flagged, and runs of which nothing can be told.
fn flagged(shape: Shape, n: usize, level: fn(f64) -> f64, experiments: usize) -> (usize, usize) {
    let mut rng = SplitMix64::new(n as u64);
    let (mut hits, mut untold) = (0, 0);
    for _ in 0..experiments {
        let noise = shape.samples(n, 100.0, &mut rng);
        let values: Vec<f64> = noise
            .iter()
            .enumerate()
            .map(|(i, value)| value * level(i as f64 / n as f64))
            .collect();
        let Ok(found) = steadiness(&values, LIMIT) else {
            panic!("simulated runs are long enough");
        };
        let first = 0.5 * ALPHA;
        let drifts = found
            .drift
            .is_some_and(|d| d.p < first && d.change.abs() > LIMIT);
        let starts = found
            .start
            .is_some_and(|t| t.p < first && t.excess.abs() > LIMIT);
        hits += usize::from(drifts || starts);
        untold += usize::from(found.drift.is_none());
    }
    (hits, untold)
}
