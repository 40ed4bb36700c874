//! What changed between the compared arms, with intervals and claims.

use pb_judge::ab::{Claim, Scale};
use pb_judge::run::{MetricComparison, RunVerdict, metric_words};

use super::Section;
use crate::format::{ABSENT, in_unit, ms, percent, percent_change, significant};
use crate::table::Table;

/// One word for a claim.
pub(crate) fn conclusion_word(claim: Claim) -> &'static str {
    match claim {
        Claim::Better => "better",
        Claim::Worse => "worse",
        Claim::Equivalent => "equivalent",
        Claim::Inconclusive => "inconclusive",
        Claim::Void => "void",
    }
}

pub(super) fn section(verdict: &RunVerdict) -> Option<Section> {
    let comparison = verdict.performance.comparison.as_ref()?;
    let title = format!("{} against {}", comparison.candidate, comparison.baseline);
    let mut section = Section::new("comparison", &title);
    section.text.push(
        "Medians over blocks; differences are paired by block. A claim needs a Holm-adjusted p \
         below 0.05, an interval that excludes no change, and a change beyond the practical \
         margin. Metrics marked * are the primary family."
            .to_owned(),
    );
    let blocks = verdict
        .performance
        .metrics
        .iter()
        .map(|m| m.verdict.blocks)
        .max()
        .unwrap_or(0);
    let caption = format!(
        "{} over {blocks} matched blocks; differences in ms or percentage points; lower is better",
        comparison.candidate
    );
    let headers = [
        "metric",
        "claim",
        "baseline",
        "candidate",
        "difference [95 %]",
        "change, % [95 %]",
        "Holm p",
    ];
    let mut table = Table::new(caption, 2, &headers);
    for metric in &verdict.performance.metrics {
        table.push(row(metric));
        let reason = &metric.verdict.why;
        let left_out = metric.verdict.excluded.total();
        if left_out > 0 {
            section.text.push(format!(
                "{}: {left_out} of {} block pairs have no value in one arm and are left out.",
                name(metric),
                metric.verdict.blocks
            ));
        }
        if metric.spec.primary && metric.verdict.claim == Claim::Inconclusive {
            section.text.push(format!("{}: {reason}.", name(metric)));
        }
    }
    section.tables.push(table);
    section.tables.extend(by_block(verdict));
    Some(section)
}

/// A metric in words, without the mark of the primary family.
pub(crate) fn name(metric: &MetricComparison) -> String {
    let spec = &metric.spec;
    metric_words(spec.quantity, spec.statistic, spec.class.as_deref())
}

fn row(metric: &MetricComparison) -> Vec<String> {
    let verdict = &metric.verdict;
    let unit = metric.spec.quantity.unit();
    let value = |v: Option<f64>| v.map_or_else(|| ABSENT.to_owned(), |v| in_unit(v, unit));
    let difference = verdict.difference.map_or_else(
        || ABSENT.to_owned(),
        |d| {
            interval(
                &signed(d.point, unit),
                &signed(d.low, unit),
                &signed(d.high, unit),
            )
        },
    );
    // On the difference scale the ratio is not what the claim rests on, and near 0 it explodes.
    let ratio = match verdict.spec.scale {
        Scale::Ratio { .. } => verdict.ratio,
        Scale::Difference { .. } => None,
    };
    let relative = ratio.map_or_else(
        || ABSENT.to_owned(),
        |r| {
            let [point, low, high] = [r.point, r.low, r.high].map(percent_change);
            interval(&point, &low, &high)
        },
    );
    let mark = if metric.spec.primary { "\u{a0}*" } else { "" };
    vec![
        format!("{}{mark}", name(metric)),
        conclusion_word(verdict.claim).to_owned(),
        value(verdict.a),
        value(verdict.b),
        difference,
        relative,
        verdict
            .p
            .map_or_else(|| ABSENT.to_owned(), |_| p_value(verdict.holm_p)),
    ]
}

/// A point with its interval, which never breaks inside its brackets.
pub(super) fn interval(point: &str, low: &str, high: &str) -> String {
    format!("{point} [{low},\u{a0}{high}]")
}

fn signed(value: f64, unit: &str) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    match unit {
        // A hundredth of a millisecond is below what any of these clocks can tell apart.
        "ns" if value.abs() < 1e6 => format!("{sign}{:.2}", value / 1e6),
        "ns" => format!("{sign}{}", ms(value)),
        "share" => format!("{sign}{}", percent(value)),
        _ => format!("{sign}{}", significant(value)),
    }
}

fn p_value(p: f64) -> String {
    if p < 0.0001 {
        "<0.0001".to_owned()
    } else {
        format!("{p:.4}")
    }
}

/// The values behind the primary metrics, block by block.
fn by_block(verdict: &RunVerdict) -> Option<Table> {
    let headers = ["metric", "block", "baseline", "candidate"];
    let mut table = Table::new("Primary metrics by block", 2, &headers);
    for metric in verdict
        .performance
        .metrics
        .iter()
        .filter(|m| m.spec.primary)
    {
        let unit = metric.spec.quantity.unit();
        for block in &metric.blocks {
            let value = |v: Option<f64>| v.map_or_else(|| ABSENT.to_owned(), |v| in_unit(v, unit));
            table.push(vec![
                name(metric),
                block.block.to_string(),
                value(block.baseline),
                value(block.candidate),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}
