//! Where the latencies of each arm lie: quantiles with their uncertainty over blocks.

use super::measure::Measure;
use super::pictures::{FOOT, LABELS, MOST_ROWS, TOP, vertical};
use super::settings::{Over, Setting, Shown, conditions, counted, samples};
use crate::plots::{Figure, WIDTH};
use crate::sections::Section;
use crate::svg::frame::shorten;
use crate::svg::scale::Scale;
use crate::svg::{Anchor, Svg};

/// Conditions whose pictures are drawn; the tables have all.
const CONDITIONS: usize = 8;

/// Height of an arm.
const ROW: f64 = 30.0;

/// Statistics of a distribution that are drawn, in the order of their marks.
const QUANTILES: [&str; 4] = ["p50", "p90", "p99", "max"];

/// The section around the pictures.
pub(super) fn section(figures: usize) -> Section {
    let mut section = Section::new("distributions", "Distributions by arm");
    section.text.push(
        "Where the quantiles of each arm lie, with their uncertainty over blocks. The numbers are \
         in the maps above and, for every cell, in its bench.json."
            .to_owned(),
    );
    section.folded = Some(match figures {
        1 => "1 picture".to_owned(),
        n => format!("{n} pictures"),
    });
    section
}

/// First tokens and gaps, a picture each for every condition. Only statistics are drawn that a
/// cell has samples enough for; the marks are explained where they are new.
pub(super) fn figures(settings: &[Setting<'_>], shown: &Shown) -> Vec<Figure> {
    let kinds = [
        ("ttft_ms", &shown.ttft_class),
        ("event_gap_ms", &shown.gap_class),
    ];
    let mut figures = Vec::new();
    let mut explained: Vec<usize> = Vec::new();
    for (family, class) in kinds {
        let conditions = conditions(settings);
        for (number, condition) in conditions.iter().enumerate().take(CONDITIONS) {
            let own = settings.iter().filter(|s| s.condition == *condition);
            let own: Vec<&Setting<'_>> = own.collect();
            let of = |statistic: &str| {
                Measure::of_class(&format!("{family}.{statistic}"), class.as_deref())
            };
            // The words of a figure without its statistic.
            let words = of("").words().replace("  ", " ");
            let title = match *condition {
                "" => format!("{} by arm", words.trim()),
                condition => format!("{} by arm at {condition}", words.trim()),
            };
            let n = samples(own.iter().copied(), &of("max"));
            let enough = |kind: &usize| match (of(QUANTILES[*kind]).samples_needed(), n) {
                (Some(needed), Some((least, _))) => least >= needed,
                (Some(_), None) => false,
                (None, _) => true,
            };
            let drawn: Vec<usize> = (0..QUANTILES.len()).filter(enough).collect();
            let id = format!("{family}{number}");
            let key = drawn != explained;
            let Some(mut figure) = quantiles(&id, &title, &of, &own, &drawn, key) else {
                continue;
            };
            let n = n.map_or_else(String::new, |n| format!("{} samples a cell.", counted(n)));
            figure.caption = format!("{n} {}", figure.caption).trim().to_owned();
            explained = drawn;
            figures.push(figure);
        }
    }
    figures
}

/// Quantiles of a latency, a row an arm of one condition; `key` says whether the marks are
/// explained.
fn quantiles(
    id: &str,
    title: &str,
    of: &dyn Fn(&str) -> Measure,
    settings: &[&Setting<'_>],
    drawn: &[usize],
    key: bool,
) -> Option<Figure> {
    let rows: Vec<(&str, Vec<(usize, Over)>)> = settings
        .iter()
        .take(MOST_ROWS)
        .map(|setting| {
            let over = drawn
                .iter()
                .map(|&kind| (kind, setting.over(&of(QUANTILES[kind]))));
            (setting.arm, over.collect())
        })
        .collect();
    let ends = rows.iter().flat_map(|(_, all)| all).flat_map(|(_, over)| {
        let interval = over.geometric().into_iter().flat_map(|(p, l, h)| [p, l, h]);
        interval.chain(over.median())
    });
    let ends: Vec<f64> = ends.collect();
    if ends.is_empty() {
        return None;
    }
    let bottom = TOP + ROW * rows.len() as f64;
    let names: Vec<&str> = drawn.iter().map(|&kind| QUANTILES[kind]).collect();
    let description = format!("{}, a row an arm.", names.join(", "));
    let mut svg = Svg::new(id, WIDTH, bottom + FOOT, title, &description);
    let x = Scale::log(ends).over(LABELS, WIDTH - 20.0);
    vertical(&mut svg, x, TOP, bottom);
    for (number, (arm, all)) in rows.iter().enumerate() {
        draw_row(&mut svg, x, TOP + ROW * number as f64, arm, all);
    }
    if key {
        explain(&mut svg, drawn);
    }
    let middle = (LABELS + WIDTH) / 2.0;
    let label = "ms (logarithmic)";
    svg.text("label", middle, bottom + 38.0, Anchor::Middle, label);
    let mut caption = String::new();
    if key {
        caption.push_str(&format!(
            "Each statistic of a cell is one value; shown is the geometric mean over the blocks \
             that may be used, with its 95 % t interval (a mark without a bar has fewer than three \
             blocks). Within an arm from above: {}.",
            names.join(", ")
        ));
    }
    let more = settings.len().saturating_sub(MOST_ROWS);
    if more > 0 {
        caption.push_str(&format!(" {more} further arms are not drawn."));
    }
    Some(Figure {
        title: title.to_owned(),
        caption,
        svg: svg.finish(),
    })
}

fn draw_row(svg: &mut Svg, x: Scale, top: f64, arm: &str, all: &[(usize, Over)]) {
    svg.line("grid", LABELS, top, WIDTH - 20.0, top);
    let (label, y) = (shorten(arm, 40), top + ROW / 2.0);
    svg.text("tick", LABELS - 8.0, y + 4.0, Anchor::End, &label);
    let apart = (ROW - 6.0) / all.len().max(1) as f64;
    for (line, (kind, over)) in all.iter().enumerate() {
        let y = top + 3.0 + apart * (line as f64 + 0.5);
        quantile(svg, x, y, *kind, over);
    }
    if all.iter().all(|(_, over)| over.values.is_empty()) {
        let none = "no cell that may be used";
        svg.text("tick", LABELS + 8.0, y + 4.0, Anchor::Start, none);
    }
}

fn quantile(svg: &mut Svg, x: Scale, y: f64, kind: usize, over: &Over) {
    let at = match (over.geometric(), over.median()) {
        (Some((point, low, high)), _) => {
            svg.line("bar-range", x.px(low), y, x.px(high), y);
            x.px(point)
        }
        (None, Some(median)) => x.px(median),
        (None, None) => return,
    };
    shape(svg, kind, at, y);
}

/// Marks differ in shape, not in colour alone.
fn shape(svg: &mut Svg, kind: usize, x: f64, y: f64) {
    match kind {
        0 => svg.dot("fill a0", x, y, 3.5),
        1 => svg.dot("ring", x, y, 3.0),
        2 => svg.rect("fill a1", x - 3.0, y - 3.0, 6.0, 6.0),
        _ => svg.line("interval", x, y - 4.0, x, y + 4.0),
    }
}

fn explain(svg: &mut Svg, drawn: &[usize]) {
    for (place, &kind) in drawn.iter().enumerate() {
        let x = LABELS + 70.0 * place as f64;
        shape(svg, kind, x, 14.0);
        svg.text("tick", x + 9.0, 18.0, Anchor::Start, QUANTILES[kind]);
    }
}
