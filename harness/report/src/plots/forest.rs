//! What changed, block by block, with the interval that the claim rests on.

use pb_judge::ab::Scale as AbScale;
use pb_judge::run::{MetricComparison, RunVerdict};

use super::{Figure, WIDTH};
use crate::format::change;
use crate::sections::{conclusion_word, metric_name};
use crate::svg::frame::shorten;
use crate::svg::scale::Scale;
use crate::svg::{Anchor, Svg};

const ROW: f64 = 30.0;
const TOP: f64 = 30.0;
const LABELS: f64 = 210.0;
const CLAIMS: f64 = 110.0;

/// Draws candidate over baseline of every metric compared by ratio. `None` without any.
pub(crate) fn forest(id: &str, verdict: &RunVerdict) -> Option<Figure> {
    let rows: Vec<(&MetricComparison, Vec<f64>)> = verdict
        .performance
        .metrics
        .iter()
        .filter(|metric| matches!(metric.verdict.spec.scale, AbScale::Ratio { .. }))
        .map(|metric| (metric, ratios(metric)))
        .filter(|(metric, ratios)| !ratios.is_empty() || metric.verdict.ratio.is_some())
        .collect();
    let comparison = verdict.performance.comparison.as_ref()?;
    if rows.is_empty() {
        return None;
    }
    let title = "Change by block, with 95 % intervals".to_owned();
    let words: Vec<String> = rows.iter().map(|(metric, _)| in_words(metric)).collect();
    let bottom = TOP + ROW * rows.len() as f64;
    let mut svg = Svg::new(id, WIDTH, bottom + 48.0, &title, &words.join("; "));
    let x = Scale::log(rows.iter().flat_map(values).chain([0.9, 1.1]));
    let x = x.over(LABELS, WIDTH - CLAIMS);
    draw_axis(&mut svg, x, bottom);
    for (number, (metric, ratios)) in rows.iter().enumerate() {
        draw_row(&mut svg, x, TOP + ROW * number as f64, metric, ratios);
    }
    let label = "candidate / baseline (logarithmic); left of 1 is better";
    svg.text(
        "label",
        (LABELS + WIDTH - CLAIMS) / 2.0,
        bottom + 38.0,
        Anchor::Middle,
        label,
    );
    let caption = format!(
        "{} over {}: one mark a block, the geometric mean with its paired 95 % interval in front. \
         The grey band is the practical margin. Shares are compared by difference and are in the \
         table only.",
        comparison.candidate, comparison.baseline
    );
    Some(Figure {
        title,
        caption,
        svg: svg.finish(),
    })
}

fn ratios(metric: &MetricComparison) -> Vec<f64> {
    let ratio = |a: f64, b: f64| (a > 0.0 && b > 0.0).then(|| b / a);
    let blocks = metric.blocks.iter();
    blocks
        .filter_map(|block| ratio(block.baseline?, block.candidate?))
        .collect()
}

fn values(row: &(&MetricComparison, Vec<f64>)) -> Vec<f64> {
    let interval = row.0.verdict.ratio;
    let ends = interval.into_iter().flat_map(|r| [r.low, r.high]);
    row.1.iter().copied().chain(ends).collect()
}

fn in_words(metric: &MetricComparison) -> String {
    let claim = conclusion_word(metric.verdict.claim);
    let change = metric
        .verdict
        .ratio
        .map_or_else(String::new, |r| format!(" {}", change(r.point)));
    format!("{}{change} {claim}", metric_name(metric))
}

fn draw_axis(svg: &mut Svg, x: Scale, bottom: f64) {
    let mut last = f64::NEG_INFINITY;
    for tick in x.ticks() {
        let at = x.px(tick);
        svg.line("grid", at, TOP, at, bottom);
        if at - last >= 34.0 {
            let label = crate::svg::scale::tick_label(tick);
            svg.text("tick", at, bottom + 16.0, Anchor::Middle, &label);
            last = at;
        }
    }
    svg.line("axis", x.px(1.0), TOP - 6.0, x.px(1.0), bottom);
    svg.text("tick", x.px(1.0), TOP - 12.0, Anchor::Middle, "no change");
}

fn draw_row(svg: &mut Svg, x: Scale, top: f64, metric: &MetricComparison, ratios: &[f64]) {
    let middle = top + ROW / 2.0;
    if let AbScale::Ratio { margin } = metric.verdict.spec.scale {
        let (low, high) = (x.px(1.0 / (1.0 + margin)), x.px(1.0 + margin));
        svg.rect("margin", low, top, high - low, ROW);
    }
    let mark = if metric.spec.primary { " *" } else { "" };
    let label = shorten(&format!("{}{mark}", metric_name(metric)), 32);
    svg.text("tick", LABELS - 8.0, middle + 4.0, Anchor::End, &label);
    for &ratio in ratios {
        svg.dot("block", x.px(ratio), middle, 4.0);
    }
    if let Some(interval) = metric.verdict.ratio {
        svg.line(
            "interval",
            x.px(interval.low),
            middle,
            x.px(interval.high),
            middle,
        );
        for end in [interval.low, interval.high] {
            svg.line("interval", x.px(end), middle - 5.0, x.px(end), middle + 5.0);
        }
        svg.rect("point", x.px(interval.point) - 3.0, middle - 3.0, 6.0, 6.0);
    }
    let claim = conclusion_word(metric.verdict.claim);
    svg.text(
        "tick",
        WIDTH - CLAIMS + 14.0,
        middle + 4.0,
        Anchor::Start,
        claim,
    );
}
