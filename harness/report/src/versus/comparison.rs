//! The tables of a comparison.

use pb_judge::ab::{Claim, MetricVerdict, Scale};
use pb_judge::compare::{Comparison, Outcome, metric};

use super::shown;
use crate::format::{ABSENT, percent, percent_change, significant};
use crate::sections::{Section, conclusion_word, interval, p_value};
use crate::table::Table;
use crate::tone::Tone;

pub(super) fn tone(comparison: &Comparison) -> Tone {
    let primary = |claim| {
        let metrics = comparison.report.metrics.iter();
        let mut primary = metrics.filter(|m| m.spec.primary);
        primary.any(|m| m.claim == claim)
    };
    match comparison.outcome {
        Outcome::Void => Tone::Void,
        Outcome::Inconclusive => Tone::Inconclusive,
        Outcome::Answered => match (primary(Claim::Better), primary(Claim::Worse)) {
            (true, false) => Tone::Better,
            (false, true) => Tone::Worse,
            _ => Tone::Plain,
        },
    }
}

pub(super) fn sections(comparison: &Comparison) -> Vec<Section> {
    let mut all = Vec::new();
    if !comparison.report.void.is_empty() {
        let mut void = Section::new("void", "Why it is void");
        void.text.extend(comparison.report.void.iter().cloned());
        all.push(void);
    }
    all.push(claims(comparison));
    all.extend(beside(comparison));
    all.push(blocks(comparison));
    all
}

fn claims(comparison: &Comparison) -> Section {
    let mut section = Section::new("comparison", "Candidate against baseline");
    let rules = &comparison.report.rules;
    let confidence = percent_of(1.0 - rules.alpha);
    section.text.push(format!(
        "Baseline and candidate are medians over blocks; the change is the mean of the changes \
         within blocks (geometric, or of the differences for shares). A claim needs a \
         Holm-adjusted p below {}, an interval that excludes no change and a change beyond the \
         margin; \"equivalent\" needs the {} interval within it. * marks the primary metrics.",
        rules.alpha,
        percent_of(1.0 - 2.0 * rules.alpha)
    ));
    let caption = "Change in %, of shares in points";
    let mut table = Table::new(
        caption,
        2,
        &[
            "metric",
            "claim",
            "baseline",
            "candidate",
            &format!("change [{confidence}]"),
            "margin",
            "Holm p",
        ],
    );
    for verdict in &comparison.report.metrics {
        table.push(row(verdict));
        let open = matches!(verdict.claim, Claim::Inconclusive);
        if verdict.spec.primary && open {
            section.text.push(why(comparison, verdict));
        }
    }
    section.tables.push(table);
    section
        .text
        .extend(comparison.notes.iter().map(|note| format!("Note: {note}.")));
    for difference in &comparison.allowed {
        section.text.push(format!(
            "Different on purpose: {}: `{}` in {}, `{}` in {}.",
            difference.aspect,
            difference.value,
            difference.run,
            difference.other_value,
            difference.other_run
        ));
    }
    section
}

fn why(comparison: &Comparison, verdict: &MetricVerdict) -> String {
    let needed = comparison
        .blocks_needed
        .get(&verdict.spec.name)
        .copied()
        .flatten();
    let more = needed.filter(|blocks| *blocks > verdict.pairs);
    let more = more.map_or_else(String::new, |blocks| {
        format!("; about {blocks} blocks would show it to be within the margin, if it is unchanged")
    });
    format!("{}: {}{more}.", words(verdict), verdict.why)
}

fn words(verdict: &MetricVerdict) -> String {
    let name = &verdict.spec.name;
    metric(name).map_or_else(|| name.clone(), |metric| metric.words.to_owned())
}

/// A share as a percentage without needless decimals.
pub(super) fn percent_of(share: f64) -> String {
    let text = format!("{:.2}", 100.0 * share);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

fn row(verdict: &MetricVerdict) -> Vec<String> {
    let unit = verdict.spec.unit.as_str();
    let value = |v: Option<f64>| v.map_or_else(|| ABSENT.to_owned(), |v| shown(v, unit));
    let mark = if verdict.spec.primary { "\u{a0}*" } else { "" };
    let p = verdict.p.map(|_| p_value(verdict.holm_p));
    vec![
        format!("{}{mark}", words(verdict)),
        conclusion_word(verdict.claim).to_owned(),
        value(verdict.a),
        value(verdict.b),
        change(verdict),
        margin(verdict),
        p.unwrap_or_else(|| ABSENT.to_owned()),
    ]
}

fn margin(verdict: &MetricVerdict) -> String {
    let (Scale::Ratio { margin } | Scale::Difference { margin }) = verdict.spec.scale;
    significant(100.0 * margin)
}

/// The change with its interval; of a single pair the bare change, which has none.
fn change(verdict: &MetricVerdict) -> String {
    let both = verdict.a.zip(verdict.b);
    match verdict.spec.scale {
        Scale::Ratio { .. } => match (verdict.ratio, both) {
            (Some(r), _) => {
                let [point, low, high] = [r.point, r.low, r.high].map(percent_change);
                interval(&point, &low, &high)
            }
            (None, Some((a, b))) if a > 0.0 => percent_change(b / a),
            _ => ABSENT.to_owned(),
        },
        Scale::Difference { .. } => match (verdict.difference, both) {
            (Some(d), _) => interval(&points(d.point), &points(d.low), &points(d.high)),
            (None, Some((a, b))) => points(b - a),
            _ => ABSENT.to_owned(),
        },
    }
}

/// A difference of shares in points, with its sign.
fn points(difference: f64) -> String {
    let sign = if difference > 0.0 { "+" } else { "" };
    format!("{sign}{}", percent(difference))
}

/// The other views of each change, where there are any.
fn beside(comparison: &Comparison) -> Option<Section> {
    let mut section = Section::new("beside", "The same changes, seen otherwise");
    let confidence = percent_of(1.0 - comparison.report.rules.alpha);
    let mut table = Table::new(
        "Change in %, of shares in points",
        1,
        &[
            "metric",
            &format!("blocks [{confidence}]"),
            &format!("pooled [{confidence}]"),
            "Hodges-Lehmann",
        ],
    );
    for verdict in &comparison.report.metrics {
        let Some(one) = comparison.beside.get(&verdict.spec.name) else {
            continue;
        };
        if one.pooled.is_none() && one.shift.is_none() {
            continue;
        }
        let pooled = one.pooled.map(|pooled| {
            let r = pooled.ratio;
            let [point, low, high] = [r.point, r.low, r.high].map(percent_change);
            interval(&point, &low, &high)
        });
        let shift = one.shift.map(|shift| {
            let show: fn(f64) -> String = match verdict.spec.scale {
                Scale::Ratio { .. } => percent_change,
                Scale::Difference { .. } => points,
            };
            let [point, low, high] = [shift.point, shift.low, shift.high].map(show);
            let reached = percent_of((shift.confidence * 1e3).floor() / 1e3);
            format!("{} {reached}", interval(&point, &low, &high))
        });
        let mark = if verdict.spec.primary { "\u{a0}*" } else { "" };
        table.push(vec![
            format!("{}{mark}", words(verdict)),
            change(verdict),
            pooled.unwrap_or_else(|| ABSENT.to_owned()),
            shift.unwrap_or_else(|| ABSENT.to_owned()),
        ]);
    }
    if table.is_empty() {
        return None;
    }
    section.text.push(
        "Claims rest on the first column alone. \"Pooled\" is the percentile of all samples of an \
         arm together, which is what a user of the server meets, with the interval of the \
         jackknife over blocks. The Hodges-Lehmann shift is the median change by ranks, which one \
         wild block does not move; behind it stands the confidence that ranks of so few reach. \
         Where the columns disagree, look at the blocks."
            .to_owned(),
    );
    section.tables.push(table);
    Some(section)
}

fn blocks(comparison: &Comparison) -> Section {
    let mut section = Section::new("blocks", "Blocks");
    let caption = "Runs of each block, requests answered of those offered";
    let mut table = Table::new(
        caption,
        3,
        &[
            "block",
            "baseline",
            "candidate",
            "baseline ok",
            "candidate ok",
        ],
    );
    for (number, block) in comparison.blocks.iter().enumerate() {
        let answered = |ok: u64, offered: u64| format!("{ok}/{offered}");
        table.push(vec![
            (number + 1).to_string(),
            block.baseline.run.clone(),
            block.candidate.run.clone(),
            answered(block.baseline.ok, block.baseline.offered),
            answered(block.candidate.ok, block.candidate.offered),
        ]);
    }
    section.tables.push(table);
    section
}
