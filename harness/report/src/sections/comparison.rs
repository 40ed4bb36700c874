//! What changed between the compared arms, with intervals and claims.

use pb_judge::ab::{Claim, Scale};
use pb_judge::run::{MetricComparison, RunVerdict, metric_words};

use super::{Detail, Section};
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

/// What the columns of the comparison mean, and what a claim needs.
const HOW_TO_READ: &str = "Baseline and candidate are medians over blocks; the change is the mean \
    of the changes within blocks (geometric, or of the differences for shares), so the columns \
    need not match. A claim needs a Holm-adjusted p below 0.05, an interval that excludes no \
    change, and a change beyond the margin of 3 % or 1 point. * marks the primary metrics.";

pub(super) fn section(verdict: &RunVerdict, detail: Detail) -> Option<Section> {
    let comparison = verdict.performance.comparison.as_ref()?;
    let title = format!("{} against {}", comparison.candidate, comparison.baseline);
    let mut section = Section::new("comparison", &title);
    section.text.push(HOW_TO_READ.to_owned());
    let blocks = verdict
        .performance
        .metrics
        .iter()
        .map(|m| m.verdict.blocks)
        .max()
        .unwrap_or(0);
    let mut table = match detail {
        Detail::Full => Table::new(
            format!(
                "{} over {blocks} matched blocks; differences in ms or percentage points; lower \
                 is better",
                comparison.candidate
            ),
            2,
            &[
                "metric",
                "claim",
                "baseline",
                "candidate",
                "difference [95 %]",
                "change, % [95 %]",
                "Holm p",
            ],
        ),
        Detail::Brief => Table::new(
            format!(
                "{} over {blocks} matched blocks; change in %, of shares in points; lower is \
                 better",
                comparison.candidate
            ),
            2,
            &[
                "metric",
                "claim",
                "baseline",
                "candidate",
                "change [95 %]",
                "Holm p",
            ],
        ),
    };
    for metric in &verdict.performance.metrics {
        table.push(row(metric, detail));
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
    section.tables.extend(by_block(verdict, detail));
    Some(section)
}

/// A metric in words, without the mark of the primary family.
pub(crate) fn name(metric: &MetricComparison) -> String {
    let spec = &metric.spec;
    metric_words(spec.quantity, spec.statistic, spec.class.as_deref())
}

fn row(metric: &MetricComparison, detail: Detail) -> Vec<String> {
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
    let changes = match (detail, verdict.spec.scale) {
        (Detail::Full, _) => vec![difference, relative],
        (Detail::Brief, Scale::Ratio { .. }) => vec![relative],
        (Detail::Brief, Scale::Difference { .. }) => vec![difference],
    };
    let mark = if metric.spec.primary { "\u{a0}*" } else { "" };
    let mut row = vec![
        format!("{}{mark}", name(metric)),
        conclusion_word(verdict.claim).to_owned(),
        value(verdict.a),
        value(verdict.b),
    ];
    row.extend(changes);
    let p = verdict.p.map(|_| p_value(verdict.holm_p));
    row.push(p.unwrap_or_else(|| ABSENT.to_owned()));
    row
}

/// A point with its interval, which never breaks inside its brackets.
pub(crate) fn interval(point: &str, low: &str, high: &str) -> String {
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

/// A p-value with four decimals.
pub(crate) fn p_value(p: f64) -> String {
    if p < 0.0001 {
        "<0.0001".to_owned()
    } else {
        format!("{p:.4}")
    }
}

/// Most blocks side by side in one table.
const BLOCKS_ABREAST: usize = 8;

/// The values behind the primary metrics: a row for each metric, a column for each block.
fn by_block(verdict: &RunVerdict, detail: Detail) -> Vec<Table> {
    let metrics = &verdict.performance.metrics;
    let primary: Vec<&MetricComparison> = metrics.iter().filter(|m| m.spec.primary).collect();
    // All metrics are measured over the same matched blocks.
    let numbers: Vec<u32> = primary.first().map_or_else(Vec::new, |metric| {
        metric.blocks.iter().map(|block| block.block).collect()
    });
    let caption = "Primary metrics by block: baseline → candidate, in ms or %";
    let mut tables = Vec::new();
    for blocks in numbers.chunks(BLOCKS_ABREAST) {
        let mut headers = vec!["metric".to_owned()];
        headers.extend(blocks.iter().map(|block| format!("block {block}")));
        let mut table = Table::new(caption, 1, &headers);
        for metric in &primary {
            let mut row = vec![name(metric)];
            row.extend(blocks.iter().map(|&block| in_block(metric, block, detail)));
            table.push(row);
        }
        tables.push(table);
    }
    tables
}

/// Both values of a block, without spaces where room is short.
fn in_block(metric: &MetricComparison, block: u32, detail: Detail) -> String {
    let values = metric.blocks.iter().find(|values| values.block == block);
    let number = |v: Option<f64>| match (v, metric.spec.quantity.unit()) {
        (None, _) => ABSENT.to_owned(),
        (Some(v), "ns") => ms(v),
        (Some(v), "share") => percent(v),
        (Some(v), _) => significant(v),
    };
    let baseline = number(values.and_then(|v| v.baseline));
    let candidate = number(values.and_then(|v| v.candidate));
    let space = match detail {
        Detail::Full => "\u{a0}",
        Detail::Brief => "",
    };
    format!("{baseline}{space}→{space}{candidate}")
}
