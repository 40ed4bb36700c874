//! The result of a probe, for programs and for people.

use std::fmt::Write;

use pb_contract::Nanos;
use pb_judge::leak::{ArmFinding, Finding, LeakRules};
use pb_record::visible;
use serde::Serialize;

use super::tenants::{Tenants, ToldApart};
use crate::console::wrapped;

/// Version of the document; raised when a reader would misread an old one.
const SCHEMA_VERSION: u32 = 1;

/// Width of the text.
const WIDTH: usize = 96;

/// What was decided before the first request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Design {
    /// Trials.
    pub(crate) trials: usize,
    /// Chance that an isolating server is shown to isolate, by timing alone.
    pub(crate) power: f64,
    /// Requests, warm-up and primes included.
    pub(crate) requests: usize,
    /// Tokens or words of each prompt.
    pub(crate) prompt_len: usize,
    /// Seed.
    pub(crate) seed: u64,
    /// What made the prompts new.
    pub(crate) nonce: u64,
}

/// The document.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Document {
    schema_version: u32,
    /// Address.
    url: String,
    /// What the server is, and why.
    server: String,
    tenants: ToldApart,
    design: Design,
    rules: LeakRules,
    /// The verdict and what it rests on.
    #[serde(flatten)]
    pub(crate) finding: Finding,
    /// The first request that failed.
    first_failure: Option<String>,
}

impl Document {
    /// Puts the parts together.
    pub(crate) fn new(
        tenants: &Tenants,
        server: String,
        design: Design,
        rules: LeakRules,
        finding: Finding,
        first_failure: Option<String>,
    ) -> Document {
        Document {
            schema_version: SCHEMA_VERSION,
            url: tenants.a.url(""),
            server,
            tenants: tenants.told_apart_by.clone(),
            design,
            rules,
            finding,
            first_failure,
        }
    }

    /// As people read it.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |text: &str| {
            // OK because writing into a String cannot fail.
            writeln!(out, "{text}").expect("a String takes any text");
        };
        line(&format!(
            "prefix reuse across tenants: {}",
            self.finding.verdict.name()
        ));
        line("");
        line(&format!(
            "server   {} ({})",
            self.url,
            visible(&self.server)
        ));
        line(&format!("tenants  {}", self.tenants.text()));
        line(&format!(
            "design   {} trials, power {:.2} by timing alone; seed {}, nonce {}",
            self.design.trials, self.design.power, self.design.seed, self.design.nonce
        ));
        line("");
        line(&format!(
            "{:<14}{:>6}{:>8}{:>12}{:>12}  {:<26}{:>18}",
            "arm", "ok", "failed", "TTFT p50", "TTFT mean", "AUC against unprimed", "hits by usage"
        ));
        for arm in &self.finding.arms {
            line(&row(arm));
        }
        line("");
        for reason in &self.finding.reasons {
            for (n, text) in wrapped(reason, WIDTH).iter().enumerate() {
                line(&format!("{} {text}", if n == 0 { "-" } else { " " }));
            }
        }
        if let Some(failure) = &self.first_failure {
            line(&format!("first failure, {failure}"));
        }
        out.pop();
        out
    }
}

fn row(arm: &ArmFinding) -> String {
    let ms = |time: Option<Nanos>| match time {
        Some(time) => format!("{:.2} ms", time.as_millis_f64()),
        None => "-".to_owned(),
    };
    let area = match &arm.auc {
        Some(area) => format!("{:.3} [{:.3}, {:.3}]", area.value, area.low, area.high),
        None => "-".to_owned(),
    };
    let hits = match (arm.usage_known, arm.cached_tokens_max) {
        (0, _) => "not said".to_owned(),
        (known, Some(most)) if most > 0 => {
            format!("{} of {known}, max {most}", arm.usage_hits)
        }
        (known, _) => format!("{} of {known}", arm.usage_hits),
    };
    format!(
        "{:<14}{:>6}{:>8}{:>12}{:>12}  {area:<26}{hits:>18}",
        arm.arm.name(),
        arm.ok,
        arm.failed,
        ms(arm.ttft_p50_ns),
        ms(arm.ttft_mean_ns),
    )
}
