//! Calibrates the judge's statistics on experiments whose truth is known, and prints the tables of
//! `docs/STATISTICS.md`. Virtual and seeded: the same output on every machine.
//!
//! ```text
//! cargo run --release -p pb-stats --example calibration -- [EXPERIMENTS] [TABLE] [CELL]
//! ```
//!
//! `EXPERIMENTS` is 2000 unless given; `TABLE` is one of `coverage`, `false-claims`, `power`,
//! `auc`, `edge`, `steady`, or all of them. `CELL` leaves only rows of `coverage` and `edge` whose
//! data and blocks contain it, such as `"0.8 20"`: each has seeds of its own, so its numbers are
//! those of the whole table.

mod claims;
mod coverage;
mod steady;

use std::process::ExitCode;

use pb_stats::ln_gamma;
use pb_stats::simulate::{Experiment, Shape};

/// The shapes of latency every table goes through, with their names.
pub(crate) fn shapes() -> [(&'static str, Shape); 3] {
    [
        ("lognormal", Shape::Lognormal { sigma: 0.4 }),
        (
            "3 % stalls x8",
            Shape::Stalls {
                sigma: 0.2,
                share: 0.03,
                factor: 8.0,
            },
        ),
        (
            "autocorrelated 0.8",
            Shape::Autocorrelated {
                sigma: 0.4,
                phi: 0.8,
            },
        ),
    ]
}

/// Runs of 1,000 samples; the machine's state differs by 10 % between blocks and is shared by the
/// arms, and each run adds 3 % of its own.
pub(crate) fn experiment(shape: Shape) -> Experiment {
    Experiment {
        shape,
        samples: 1_000,
        median: 10.0,
        machine_sd: 0.10,
        run_sd: 0.03,
    }
}

/// `hits` of `trials` as a percentage with two binomial standard errors.
pub(crate) fn percent(hits: usize, trials: usize) -> String {
    let share = hits as f64 / trials as f64;
    let error = 2.0 * (share * (1.0 - share) / trials as f64).sqrt();
    format!("{:.1} ± {:.1}", 100.0 * share, 100.0 * error)
}

/// Most hits in `trials` that a true rate of `rate` explains at 99 %: the exact binomial quantile.
pub(crate) fn most_hits(rate: f64, trials: usize) -> usize {
    let n = trials as f64;
    let chance = |hits: f64| {
        let ways = ln_gamma(n + 1.0) - ln_gamma(hits + 1.0) - ln_gamma(n - hits + 1.0);
        (ways + hits * rate.ln() + (n - hits) * (1.0 - rate).ln()).exp()
    };
    let mut below = 0.0;
    let reached = (0..trials).find(|hits| {
        below += chance(*hits as f64);
        below >= 0.99
    });
    reached.unwrap_or(trials)
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let experiments = match arguments.next().map(|text| text.parse::<usize>()) {
        None => 2_000,
        Some(Ok(count)) if count >= 100 => count,
        Some(_) => {
            eprintln!("calibration: EXPERIMENTS must be a whole number of at least 100");
            return ExitCode::from(2);
        }
    };
    let (table, cell) = (arguments.next(), arguments.next().unwrap_or_default());
    let wanted = |name: &str| table.as_deref().is_none_or(|table| table == name);
    let mut known = false;
    for (name, print) in [
        ("coverage", coverage::intervals as fn(usize, &str)),
        ("edge", coverage::edge),
        ("auc", |n, _| coverage::area(n)),
        ("false-claims", |n, _| claims::false_claims(n)),
        ("power", |n, _| claims::power(n)),
        ("steady", |n, _| steady::alarms(n)),
    ] {
        if wanted(name) {
            known = true;
            print(experiments, &cell);
        }
    }
    if known {
        return ExitCode::SUCCESS;
    }
    eprintln!("calibration: TABLE must be coverage, edge, auc, false-claims, power or steady");
    ExitCode::from(2)
}
