//! From the trials of a leak probe to its verdict.

use pb_contract::Nanos;
use pb_stats::nearest_rank;
use serde::{Deserialize, Serialize};

use super::auc::{Auc, auc};

/// A kind of measured request; each trial has one of every kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// A prompt that the same tenant sent before.
    Same,
    /// A prompt that another tenant sent before.
    Other,
    /// A prompt that nobody sent before.
    Unprimed,
}

impl Arm {
    /// All arms.
    pub const ALL: [Arm; 3] = [Arm::Same, Arm::Other, Arm::Unprimed];

    /// As rows and reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Same => "same",
            Arm::Other => "other",
            Arm::Unprimed => "unprimed",
        }
    }
}

/// What one request showed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// From sending to the first token.
    pub ttft_ns: Nanos,
    /// Prompt tokens found in the cache; `None` when the server does not say, which is not zero.
    pub cached_tokens: Option<u32>,
}

/// One trial: the same prime, the three arms after it; `None` for a request that failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// The same tenant again.
    pub same: Option<Observation>,
    /// Another tenant.
    pub other: Option<Observation>,
    /// A new prompt.
    pub unprimed: Option<Observation>,
}

impl Trial {
    /// The observation of an arm.
    pub fn arm(&self, arm: Arm) -> Option<&Observation> {
        match arm {
            Arm::Same => self.same.as_ref(),
            Arm::Other => self.other.as_ref(),
            Arm::Unprimed => self.unprimed.as_ref(),
        }
    }

    /// The place of an arm's observation.
    pub fn arm_mut(&mut self, arm: Arm) -> &mut Option<Observation> {
        match arm {
            Arm::Same => &mut self.same,
            Arm::Other => &mut self.other,
            Arm::Unprimed => &mut self.unprimed,
        }
    }
}

/// The limits that decide.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeakRules {
    /// A hit is visible by timing when the lower end of the area lies above this.
    pub hit_above: f64,
    /// Nothing is visible by timing when the upper end of the area lies below this, and something
    /// is when the lower end does not.
    pub silent_below: f64,
    /// Confidence of the intervals.
    pub confidence: f64,
    /// Share of the requests that may fail.
    pub may_fail: f64,
}

impl Default for LeakRules {
    fn default() -> Self {
        LeakRules {
            hit_above: 0.9,
            silent_below: 0.6,
            confidence: 0.95,
            may_fail: 0.1,
        }
    }
}

/// What the probe says of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakVerdict {
    /// The same tenant's reuse shows, another tenant's does not.
    Isolated,
    /// Another tenant's reuse shows.
    Leaks,
    /// No reuse shows at all, so nothing is said about isolation.
    CacheOff,
    /// The data do not decide.
    Inconclusive,
}

impl LeakVerdict {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            LeakVerdict::Isolated => "isolated",
            LeakVerdict::Leaks => "leaks",
            LeakVerdict::CacheOff => "cache off",
            LeakVerdict::Inconclusive => "inconclusive",
        }
    }

    /// Process exit code. A cache that is off is no proof of isolation: 3.
    pub fn exit_code(self) -> u8 {
        match self {
            LeakVerdict::Isolated => 0,
            LeakVerdict::Leaks => 1,
            LeakVerdict::CacheOff | LeakVerdict::Inconclusive => 3,
        }
    }
}

/// What one arm showed over all trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmFinding {
    /// Arm.
    pub arm: Arm,
    /// Requests that ended well.
    pub ok: usize,
    /// Requests that failed.
    pub failed: usize,
    /// Median time to the first token (nearest rank).
    pub ttft_p50_ns: Option<Nanos>,
    /// Mean time to the first token.
    pub ttft_mean_ns: Option<Nanos>,
    /// Chance that a request of this arm is faster than an unprimed one; absent for that arm.
    pub auc: Option<Auc>,
    /// Requests whose usage says how much was found.
    pub usage_known: usize,
    /// Of these, requests with more found than any unprimed one had.
    pub usage_hits: usize,
    /// Most tokens that one request found.
    pub cached_tokens_max: Option<u32>,
}

impl ArmFinding {
    /// Whether the usage shows a hit as the rule; a cache under pressure may lose some.
    fn usage_shows(&self) -> bool {
        self.usage_known > 0 && 2 * self.usage_hits > self.usage_known
    }

    fn time_shows(&self, above: f64) -> bool {
        self.auc.is_some_and(|auc| auc.low > above)
    }

    /// Whether neither the usage nor the times show anything.
    fn silent(&self, below: f64) -> bool {
        self.usage_hits == 0 && self.auc.is_some_and(|auc| auc.high < below)
    }
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What is said.
    pub verdict: LeakVerdict,
    /// Why, in sentences.
    pub reasons: Vec<String>,
    /// Trials.
    pub trials: usize,
    /// The arms, in the order of [`Arm::ALL`].
    pub arms: [ArmFinding; 3],
}

impl Finding {
    /// The finding of a probe that was stopped before the `planned` number of trials. The design
    /// was fixed beforehand so that nobody can stop when they like what they see; a design that
    /// was not carried out says nothing.
    pub fn interrupted(mut self, planned: usize) -> Finding {
        self.verdict = LeakVerdict::Inconclusive;
        let reason = format!(
            "the probe was stopped after {} of {planned} trials, so its design was not carried \
             out; let it run to its end",
            self.trials
        );
        self.reasons.insert(0, reason);
        self
    }
}

/// Judges the trials.
///
/// `Leaks` needs one usage that admits a hit of the other arm, or times whose interval lies at or
/// above `silent_below`. `Isolated` needs a visible hit of the same arm (most usages, or times
/// above `hit_above`) and a silent other arm. `CacheOff` needs two silent arms. Anything else is
/// `Inconclusive`, and so is a probe of which too many requests failed or whose unprimed prompts
/// were found in the cache.
pub fn judge(trials: &[Trial], rules: &LeakRules) -> Finding {
    let baseline = trials
        .iter()
        .filter_map(|trial| trial.unprimed?.cached_tokens)
        .max()
        .unwrap_or(0);
    let arms = Arm::ALL.map(|arm| finding(trials, arm, baseline, rules));
    let [same, other, unprimed] = &arms;
    let mut reasons = Vec::new();
    let verdict = if let Some(reason) = leak_reason(other, rules) {
        reasons.push(reason);
        LeakVerdict::Leaks
    } else if let Some(reason) = unusable(&arms, trials.len(), baseline, rules) {
        reasons.push(reason);
        LeakVerdict::Inconclusive
    } else {
        decide(same, other, rules, &mut reasons)
    };
    if unprimed.usage_known == 0 {
        reasons.push("no answer says how much of its prompt was found: timing alone".to_owned());
    }
    Finding {
        verdict,
        reasons,
        trials: trials.len(),
        arms,
    }
}

fn finding(trials: &[Trial], arm: Arm, baseline: u32, rules: &LeakRules) -> ArmFinding {
    let seen: Vec<&Observation> = trials.iter().filter_map(|trial| trial.arm(arm)).collect();
    let mut times: Vec<u64> = seen.iter().map(|seen| seen.ttft_ns.0).collect();
    times.sort_unstable();
    let sum: u128 = times.iter().map(|ns| u128::from(*ns)).sum();
    let mean = sum.checked_div(times.len() as u128);
    // A trial counts only whole: both times were taken under the same mood of the server.
    let pair = |trial: &Trial| {
        let (arm, control) = (trial.arm(arm)?, trial.unprimed.as_ref()?);
        Some((arm.ttft_ns.0 as f64, control.ttft_ns.0 as f64))
    };
    let pairs: Vec<(f64, f64)> = trials.iter().filter_map(pair).collect();
    let known: Vec<u32> = seen.iter().filter_map(|seen| seen.cached_tokens).collect();
    ArmFinding {
        arm,
        ok: seen.len(),
        failed: trials.len() - seen.len(),
        ttft_p50_ns: nearest_rank(&times, 0.5).map(Nanos),
        ttft_mean_ns: mean.map(|ns| Nanos(ns as u64)),
        auc: match arm {
            Arm::Unprimed => None,
            Arm::Same | Arm::Other => auc(&pairs, rules.confidence),
        },
        usage_known: known.len(),
        usage_hits: match arm {
            Arm::Unprimed => 0,
            Arm::Same | Arm::Other => known.iter().filter(|n| **n > baseline).count(),
        },
        cached_tokens_max: known.iter().copied().max(),
    }
}

/// Why the other arm shows reuse, if it does.
fn leak_reason(other: &ArmFinding, rules: &LeakRules) -> Option<String> {
    if other.usage_hits > 0 {
        return Some(format!(
            "another tenant's prompt was found in the cache by {} of {} requests, up to {} tokens, \
             as their usage says",
            other.usage_hits,
            other.usage_known,
            other.cached_tokens_max.unwrap_or(0)
        ));
    }
    let area = other.auc.filter(|area| area.low >= rules.silent_below)?;
    Some(format!(
        "another tenant's prompt is answered faster than a new one: {} lies at or above {}",
        shown(&area),
        rules.silent_below
    ))
}

/// Why nothing can be said, when the requests were not what they had to be.
fn unusable(
    arms: &[ArmFinding; 3],
    trials: usize,
    baseline: u32,
    rules: &LeakRules,
) -> Option<String> {
    let failed: usize = arms.iter().map(|arm| arm.failed).sum();
    let sent = trials * arms.len();
    if failed as f64 > rules.may_fail * sent as f64 {
        return Some(format!("{failed} of {sent} requests failed"));
    }
    let found = arms[0].cached_tokens_max.unwrap_or(0);
    if baseline > 0 && 2 * baseline > found {
        return Some(format!(
            "a prompt that nobody had sent was found in the cache, {baseline} tokens of it: give \
             longer prompts, or another seed when this one has run before"
        ));
    }
    None
}

fn decide(
    same: &ArmFinding,
    other: &ArmFinding,
    rules: &LeakRules,
    reasons: &mut Vec<String>,
) -> LeakVerdict {
    let hit = same.usage_shows() || same.time_shows(rules.hit_above);
    let quiet = other.silent(rules.silent_below);
    if hit {
        reasons.push(hit_reason(same, rules));
    }
    if quiet {
        let area = other.auc.as_ref().map_or(String::new(), shown);
        reasons.push(format!(
            "another tenant's prompt is answered as a new one: {area} lies below {}{}",
            rules.silent_below,
            match other.usage_known {
                0 => "",
                _ => ", and no usage admits a hit",
            }
        ));
    }
    if hit && quiet {
        return LeakVerdict::Isolated;
    }
    if quiet && same.silent(rules.silent_below) {
        reasons.push(
            "the tenant's own prompt is not found either: the cache is off, or prompts are shorter \
             than its blocks; this says nothing about isolation"
                .to_owned(),
        );
        return LeakVerdict::CacheOff;
    }
    if !quiet {
        let area = other
            .auc
            .as_ref()
            .map_or("no pair of times".to_owned(), shown);
        reasons.push(format!(
            "the times do not decide about the other tenant: {area} holds {}; more trials or \
             longer prompts would",
            rules.silent_below
        ));
    }
    if !hit {
        let area = same
            .auc
            .as_ref()
            .map_or("no pair of times".to_owned(), shown);
        reasons.push(format!(
            "the tenant's own hit is not shown: {area} does not lie above {}, and {} of {} usages \
             admit a hit; longer prompts would show it better",
            rules.hit_above, same.usage_hits, same.usage_known
        ));
    }
    LeakVerdict::Inconclusive
}

fn hit_reason(same: &ArmFinding, rules: &LeakRules) -> String {
    let area = same
        .auc
        .as_ref()
        .map_or("no pair of times".to_owned(), shown);
    let by_time = match same.time_shows(rules.hit_above) {
        true => format!("{area} lies above {}", rules.hit_above),
        false => format!("{area} alone would not show it"),
    };
    format!(
        "the tenant's own prompt is found: {by_time}, {} of {} usages admit a hit",
        same.usage_hits, same.usage_known
    )
}

fn shown(area: &Auc) -> String {
    format!("AUC {:.3} [{:.3}, {:.3}]", area.value, area.low, area.high)
}
