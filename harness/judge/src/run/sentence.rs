//! The verdict in plain words, for whoever reads only the first line.

use super::headline::PrimaryCounts;
use super::notes::{Quantity, Statistic};
use super::verdict::{
    CacheVerdict, Correctness, CorrectnessState, MetricComparison, Outcome, Performance, Validity,
};
use crate::ab::Claim;

/// What was compared, whether it is valid, what changed by how much and how sure that is.
pub(crate) fn sentence(
    outcome: Outcome,
    validity: &Validity,
    correctness: &Correctness,
    performance: &Performance,
    cache: &[CacheVerdict],
) -> String {
    let mut parts = vec![subject(performance, cache)];
    if outcome == Outcome::Void {
        let more = validity.reasons.len();
        let first = validity.reasons.first().map_or("", String::as_str);
        let rest = if more > 1 {
            format!(" (and {} more)", more - 1)
        } else {
            String::new()
        };
        parts.push(format!(
            "The run is void: {first}{rest}. No difference may be claimed."
        ));
        return parts.join(" ");
    }
    parts.push("The run is valid.".to_owned());
    parts.push(outputs(correctness));
    if correctness.state == CorrectnessState::Failed {
        parts.push("Speed is judged only where outputs are equivalent.".to_owned());
        return parts.join(" ");
    }
    parts.extend(balance(performance));
    parts.extend(
        performance
            .metrics
            .iter()
            .filter(|m| m.spec.primary)
            .map(change),
    );
    parts.extend(cache_sentence(cache));
    parts.join(" ")
}

/// How many answers are good news for the candidate and how many are bad.
fn balance(performance: &Performance) -> Option<String> {
    let counts = PrimaryCounts::of(performance);
    let comparison = performance.comparison.as_ref()?;
    (counts.total() > 0).then(|| {
        format!(
            "Of {} primary metrics of {}: {}.",
            counts.total(),
            comparison.candidate,
            counts.words()
        )
    })
}

fn subject(performance: &Performance, cache: &[CacheVerdict]) -> String {
    match &performance.comparison {
        None => {
            let names: Vec<&str> = performance
                .arms
                .iter()
                .map(|arm| arm.name.as_str())
                .collect();
            match names.as_slice() {
                [] => "Nothing was measured.".to_owned(),
                names if !cache.is_empty() => {
                    format!("Measured {}; no arms were compared.", names.join(", "))
                }
                names => format!("Measured {}; nothing was compared.", names.join(", ")),
            }
        }
        Some(c) if c.subject.is_empty() => {
            format!("Compared {} with {}.", c.candidate, c.baseline)
        }
        Some(c) => {
            format!(
                "Compared {} ({} against {}).",
                c.subject, c.candidate, c.baseline
            )
        }
    }
}

fn outputs(correctness: &Correctness) -> String {
    match correctness.state {
        CorrectnessState::Passed => {
            let faults = correctness.planted_faults.len();
            format!(
                "Outputs agree in {} checked variants and {faults} planted fault{} rejected.",
                correctness.reports.len(),
                if faults == 1 { " was" } else { "s were" }
            )
        }
        CorrectnessState::Failed => {
            let more_accurate = correctness.is_only_more_accurate();
            let how = if more_accurate {
                "NOT EQUIVALENT"
            } else {
                "WRONG"
            };
            let first = correctness.reasons.first().map_or("", String::as_str);
            let more = match correctness.reasons.len() {
                0 | 1 => String::new(),
                n => format!(" (and {} more)", n - 1),
            };
            format!("Outputs are {how}: {first}{more}.")
        }
        CorrectnessState::Inconclusive => {
            let first = correctness.reasons.first().map_or("", String::as_str);
            format!("Whether outputs are right is undecided: {first}.")
        }
        CorrectnessState::NotChecked => "Outputs were not checked.".to_owned(),
    }
}

/// The name of a metric in words.
pub fn metric_words(quantity: Quantity, statistic: Statistic, class: Option<&str>) -> String {
    let name = match quantity {
        Quantity::Ttft => "TTFT",
        Quantity::ServiceTtft => "Service TTFT",
        Quantity::Itl => "ITL",
        Quantity::EventGap => "Event gap",
        Quantity::Tpot => "TPOT",
        Quantity::E2e => "E2E",
        Quantity::StallShare => "Stall share",
    };
    let mut words = name.to_owned();
    if statistic != Statistic::Value {
        words.push(' ');
        words.push_str(statistic.name());
    }
    if let Some(class) = class {
        words.push_str(&format!(" ({class})"));
    }
    words
}

fn change(metric: &MetricComparison) -> String {
    let spec = &metric.spec;
    let name = metric_words(spec.quantity, spec.statistic, spec.class.as_deref());
    let verdict = &metric.verdict;
    let (direction, judgement) = match verdict.claim {
        Claim::Better => ("fell", "better"),
        Claim::Worse => ("rose", "worse"),
        Claim::Equivalent => {
            return format!(
                "{name} is the same within the margin ({}).",
                interval(metric)
            );
        }
        Claim::Inconclusive => return format!("{name}: no conclusion, {}.", verdict.why),
        Claim::Void => return format!("{name}: void."),
    };
    let value = |v: Option<f64>| v.map_or_else(|| "?".to_owned(), |v| in_words(v, spec.quantity));
    format!(
        "{name} {direction} from {} to {} ({judgement}: {}).",
        value(verdict.a),
        value(verdict.b),
        interval(metric)
    )
}

fn in_words(value: f64, quantity: Quantity) -> String {
    match quantity {
        Quantity::StallShare => format!("{:.1} %", value * 100.0),
        _ if value >= 1e8 => format!("{:.0} ms", value / 1e6),
        _ if value >= 1e7 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.2} ms", value / 1e6),
    }
}

fn interval(metric: &MetricComparison) -> String {
    let verdict = &metric.verdict;
    let blocks = format!("{} blocks", verdict.pairs);
    if metric.spec.quantity == Quantity::StallShare {
        return verdict.difference.map_or_else(
            || blocks.clone(),
            |d| {
                format!(
                    "{:+.1} points, 95 % interval {:+.1} to {:+.1}, {blocks}",
                    d.point * 100.0,
                    d.low * 100.0,
                    d.high * 100.0
                )
            },
        );
    }
    let percent = |ratio: f64| match (ratio - 1.0) * 100.0 {
        p if p.abs() < 99.95 => format!("{p:+.1} %"),
        p => format!("{p:+.0} %"),
    };
    verdict.ratio.map_or_else(
        || blocks.clone(),
        |r| {
            format!(
                "{}, 95 % interval {} to {}, {blocks}",
                percent(r.point),
                percent(r.low),
                percent(r.high)
            )
        },
    )
}

fn cache_sentence(cache: &[CacheVerdict]) -> Option<String> {
    let measured = cache
        .iter()
        .filter_map(|c| c.ttft_ratio.map(|ratio| (c, ratio)));
    let (first, ratio) = measured.min_by_key(|(c, _)| c.block)?;
    Some(format!(
        "With a warm prefix cache ({} tokens found) TTFT was {:.2} times the cold one (95 % \
         interval {:.2} to {:.2}, {} pairs of one session).",
        first.cached_tokens.unwrap_or(0),
        ratio.point,
        ratio.low,
        ratio.high,
        first.pairs
    ))
}
