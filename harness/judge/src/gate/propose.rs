//! A proposal as a policy file that says where its numbers come from.

use std::fmt::Write;

use super::amount::amount;
use super::floor::{Floor, Proposal};
use super::policy::POLICY_SCHEMA;
use crate::ab::Direction;

/// Pairs from which the upper bound of the noise is within twice its value.
const ENOUGH_PAIRS: usize = 7;
/// Margins above this gate nothing worth gating.
const TOO_NOISY: f64 = 0.5;

/// The policy file. It reads back as a policy.
pub fn policy_text(proposal: &Proposal) -> String {
    let mut out = String::new();
    let mut line = |text: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{text}");
    };
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let (pairs, blocks) = (proposal.pairs, proposal.blocks);
    line(&format!(
        "# Proposed by `prefillbench gate init` from {pairs} A/A pairs ({} runs of one version).",
        proposal.runs
    ));
    if proposal.runs > 2 * pairs {
        line("# Runs without a partner on the same schedule were left out.");
    }
    line(&format!(
        "# Each margin is the smallest at which a gate of {blocks} blocks passes {} of the gates",
        percent(proposal.rule_passes)
    ));
    line(
        "# between equal versions, the uncertainty of the A/A noise included (upper 95 % bound of",
    );
    line("# the standard deviation of a pair). More blocks allow smaller margins: --blocks.");
    if pairs < ENOUGH_PAIRS {
        line(&format!(
            "# {pairs} pairs tell little about the noise: make {ENOUGH_PAIRS} or more."
        ));
    }
    for name in &proposal.biased {
        line(&format!(
            "# WARNING: {name}: the A/A pairs differ in one direction. The rig favours the first or"
        ));
        line("# the second run of a pair (order, cache, drift); no gate on it is to be trusted.");
    }
    if proposal.is_blind() {
        line("# WARNING: every time and rate was too noisy for a rule: this policy passes any");
        line("# slowdown. Free the machine, run longer, or give a rule of your own.");
    }
    line("");
    line(&format!("schema = {POLICY_SCHEMA}"));
    line("name = \"gate\"");
    line(&format!("alpha = {}", proposal.options.alpha));
    line(&format!("min_blocks = {blocks}"));
    line(&format!("power = {}", proposal.options.power));
    line("");
    line("[success]");
    line(&format!(
        "# {} of {} requests ended well; the exact interval ({}) reaches down to this.",
        proposal.ok,
        proposal.offered,
        percent(1.0 - proposal.options.alpha)
    ));
    line(&format!("min_rate = {}", proposal.min_success_rate));
    line("");
    line("# Limits are decisions, not measurements: put yours here.");
    for floor in proposal.floors.iter().filter(|f| f.metric.unit == "ms") {
        line("# [[limit]]");
        line(&format!("# metric = \"{}\"", floor.metric.name));
        line(&format!(
            "# max = {}  # ms; these runs: {}",
            coarse(floor.typical * 2.0),
            { amount(floor.typical, "ms") }
        ));
    }
    for floor in &proposal.floors {
        line("");
        change(floor, proposal, &mut line);
    }
    out
}

fn change(floor: &Floor, proposal: &Proposal, line: &mut impl FnMut(&str)) {
    let metric = floor.metric;
    let (power, blocks) = (amount(proposal.options.power, "share"), proposal.blocks);
    // A change of a time or rate in percent, of a share in points.
    let policy_words = |value: f64| match metric.is_ratio() {
        true => format!("{:.2} %", 100.0 * value),
        false => format!("{:.2} points", 100.0 * value),
    };
    let words = |value: f64| match metric.is_ratio() {
        true => policy_words(value.exp_m1()),
        false => policy_words(value),
    };
    let typical = amount(floor.typical, metric.unit);
    match &floor.noise {
        None => {
            line(&format!(
                "# {}: {typical}. Both runs of each A/A pair agree: no noise to take a floor from.",
                metric.name
            ));
        }
        Some(noise) => {
            line(&format!(
                "# {}: {typical}. One A/A pair varies by {} (upper bound {}).",
                metric.name,
                words(noise.sd),
                words(noise.sd_upper)
            ));
            line(&format!(
                "# {blocks} A/A blocks differ by up to {} in {} of cases; {blocks} blocks find a",
                words(noise.threshold),
                amount(1.0 - proposal.options.alpha, "share")
            ));
            line(&format!(
                "# change of {} in {power} of cases ({} at the upper bound).",
                words(noise.detectable),
                words(noise.detectable_upper)
            ));
        }
    }
    let noisy = floor.is_too_noisy();
    if let Some(fails_at) = floor.fails_at.filter(|_| !noisy) {
        let worse = match metric.direction {
            Direction::LowerIsBetter => "above",
            Direction::HigherIsBetter => "below",
        };
        line(&format!(
            "# A candidate that is truly {} {worse} fails this rule in {power} of cases.",
            policy_words(floor.fails_at_words(fails_at))
        ));
    }
    if noisy {
        line("# Too noisy to gate on; left out. Run longer, or more blocks.");
    }
    let mark = if noisy { "# " } else { "" };
    line(&format!("{mark}[[change]]"));
    line(&format!("{mark}metric = \"{}\"", metric.name));
    line(&format!("{mark}margin = {}", round(floor.margin)));
}

impl Proposal {
    /// Whether every time and every rate was too noisy for a rule, so that a gate by this policy
    /// sees no slowdown at all.
    pub fn is_blind(&self) -> bool {
        let mut ratios = self.floors.iter().filter(|floor| floor.metric.is_ratio());
        ratios.all(Floor::is_too_noisy)
    }
}

impl Floor {
    /// Whether it is left out of the policy.
    fn is_too_noisy(&self) -> bool {
        self.margin > TOO_NOISY
    }

    /// A change in the bad direction as a share of the baseline: rates shrink where times grow.
    fn fails_at_words(&self, change: f64) -> f64 {
        match (self.metric.is_ratio(), self.metric.direction) {
            (true, Direction::HigherIsBetter) => 1.0 - 1.0 / (1.0 + change),
            _ => change,
        }
    }
}

/// Two significant digits, for an example.
fn coarse(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let step = 10.0_f64.powf(value.log10().floor() - 1.0);
    round((value / step).round() * step)
}

/// Four decimals at most.
fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
