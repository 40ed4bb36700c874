//! Runs whose truth is known, to try the judge on before it is believed.
//!
//! Times are drawn from [`pb_stats::simulate`]: skewed samples, a state of the machine that both
//! runs of a block share, and what each run adds of its own.

use pb_stats::SplitMix64;
use pb_stats::simulate::{Experiment, Shape};

use super::aspect::{ASPECTS, Aspect};
use super::run::Run;

/// How much the times of a rig vary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rig {
    /// Requests of a run; each has one TTFT and ten token gaps.
    pub requests: usize,
    /// Standard deviation of the logarithm of the machine's state, shared by a block.
    pub machine_sd: f64,
    /// Standard deviation of the logarithm of what one run adds.
    pub run_sd: f64,
}

impl Default for Rig {
    /// 100 requests, 10 % between blocks and 3 % between the runs of a block.
    fn default() -> Self {
        Self {
            requests: 100,
            machine_sd: 0.10,
            run_sd: 0.03,
        }
    }
}

/// Token gaps of a request.
const GAPS: usize = 10;

/// Baseline and candidate runs of `blocks` blocks. Every time to first token of the candidate is
/// `ttft_ratio` times as long, every gap `itl_ratio` times.
pub fn arms(
    rig: Rig,
    blocks: usize,
    ttft_ratio: f64,
    itl_ratio: f64,
    rng: &mut SplitMix64,
) -> (Vec<Run>, Vec<Run>) {
    let experiment = |samples, median| Experiment {
        shape: Shape::Lognormal { sigma: 0.3 },
        samples,
        median,
        machine_sd: rig.machine_sd,
        run_sd: rig.run_sd,
    };
    let (ttft, itl) = (
        experiment(rig.requests, 200.0),
        experiment(rig.requests * GAPS, 20.0),
    );
    let block = |number: usize, rng: &mut SplitMix64| {
        let (ttft_a, ttft_b) = ttft.block(ttft_ratio, rng);
        let (itl_a, itl_b) = itl.block(itl_ratio, rng);
        let a = run("a", number, ttft_a, itl_a);
        (a, run("b", number, ttft_b, itl_b))
    };
    (0..blocks).map(|number| block(number, rng)).unzip()
}

/// A valid run of an arm with these times in ms.
pub fn run(arm: &str, block: usize, ttft_ms: Vec<f64>, itl_ms: Vec<f64>) -> Run {
    let (requests, schedule) = (ttft_ms.len() as u64, format!("schedule {block}"));
    let mut run = Run {
        name: format!("{arm}{block}"),
        // The arms take turns at being first.
        created: format!(
            "{block:06} {}",
            u8::from(block.is_multiple_of(2) != (arm == "a"))
        ),
        start_ns: block as u64,
        aspects: ASPECTS.map(|aspect| (aspect, "same".to_owned())).into(),
        offered: requests,
        ok: requests,
        ..Run::default()
    };
    run.aspects.insert(Aspect::Schedule, schedule);
    run.values.insert("success_rate".to_owned(), 1.0);
    for (name, samples) in [("ttft", ttft_ms), ("itl", itl_ms)] {
        let (sorted, _) = pb_stats::sort_finite(&samples);
        for (percentile, p) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
            let value = pb_stats::quantile(&sorted, p, pb_stats::QuantileRule::NearestRank);
            let key = format!("{name}_{percentile}");
            run.values.extend(value.map(|value| (key, value)));
        }
        run.samples.insert(name.to_owned(), sorted);
    }
    run
}
