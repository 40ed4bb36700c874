//! The pictures of a suite: comparisons with their intervals, the Pareto front, quantiles.

use super::front::Point;
use super::fronts::Front;
use super::gains::{Hypothesis, Placed, marked};
use super::measure::Measure;
use super::read::Comparison;
use super::settings::{Over, Setting};
use crate::plots::{Figure, WIDTH};
use crate::svg::frame::{Frame, shorten};
use crate::svg::scale::{Scale, tick_label};
use crate::svg::{Anchor, Svg};

const ROW: f64 = 24.0;
const TOP: f64 = 34.0;
const FOOT: f64 = 48.0;
const LABELS: f64 = 252.0;
const WORDS: f64 = 112.0;

/// Height of a panel of the front.
const PANEL: f64 = 330.0;

/// Rows that a picture has at most; the table beside has all.
const MOST_ROWS: usize = 64;

/// The changes of one hypothesis, a row a comparison, under a heading for each setting. `None`
/// without any interval.
pub(super) fn forest(id: &str, hypothesis: &Hypothesis<'_>) -> Option<Figure> {
    let all = || hypothesis.placed.iter();
    let known: Vec<&Placed<'_>> = all().filter(|placed| placed.one.change.is_some()).collect();
    let rows = &known[..known.len().min(MOST_ROWS)];
    let ratio = rows.first()?.one.scale == "ratio";
    let title = format!("Change by block: {}", hypothesis.name);
    let words = rows.iter().map(|placed| {
        let (group, label, one) = (&placed.group, &placed.label, placed.one);
        format!("{group} {label} {} {}", one.verdict, one.change_text())
    });
    let words: Vec<String> = words.collect();
    let headings = rows
        .windows(2)
        .filter(|pair| pair[0].group != pair[1].group);
    let headings = headings.count() + usize::from(!rows[0].group.is_empty());
    let bottom = TOP + ROW * (rows.len() + headings) as f64;
    let mut svg = Svg::new(id, WIDTH, bottom + FOOT, &title, &words.join("; "));
    let x = axis(rows, ratio).over(LABELS, WIDTH - WORDS);
    vertical(&mut svg, x, TOP, bottom);
    let none = x.px(if ratio { 1.0 } else { 0.0 });
    svg.line("axis", none, TOP - 6.0, none, bottom);
    svg.text("tick", none, TOP - 12.0, Anchor::Middle, "no change");
    let (mut top, mut group) = (TOP, "");
    for placed in rows {
        if placed.group != group {
            group = &placed.group;
            let text = shorten(group, 60);
            svg.text("heading", 10.0, top + ROW - 7.0, Anchor::Start, &text);
            top += ROW;
        }
        comparison(&mut svg, x, top, &placed.label, placed.one);
        top += ROW;
    }
    let measure = hypothesis.measure();
    let better = if measure.more_is_better() {
        "right"
    } else {
        "left"
    };
    let what = match ratio {
        true => "candidate / baseline (logarithmic)",
        false => "candidate − baseline",
    };
    let label = format!("{}: {what}; further {better} is better", measure.words());
    svg.text("label", WIDTH / 2.0, bottom + 38.0, Anchor::Middle, &label);
    let mut caption = format!(
        "One mark a block; in front the mean change with its interval ({}), which the verdict \
         rests on. The grey band is the margin within which a change does not matter.",
        hypothesis.constant
    );
    for (left_out, why) in [
        (all().count() - known.len(), "have no interval"),
        (known.len() - rows.len(), "more are in the table"),
    ] {
        if left_out > 0 {
            caption.push_str(&format!(" {left_out} comparisons {why}."));
        }
    }
    let svg = svg.finish();
    Some(Figure {
        title,
        caption,
        svg,
    })
}

/// The change of each block: a ratio or a difference.
fn by_block(one: &Comparison) -> impl Iterator<Item = f64> + '_ {
    let pairs = one.baseline_values.iter().zip(&one.candidate_values);
    let ratio = one.scale == "ratio";
    pairs.filter_map(move |(a, b)| match ratio {
        true => (*a > 0.0 && *b > 0.0).then(|| b / a),
        false => Some(b - a),
    })
}

fn axis(rows: &[&Placed<'_>], ratio: bool) -> Scale {
    let ends = rows.iter().flat_map(|placed| {
        let change = placed.one.change.into_iter();
        let ends = change.flat_map(|change| [change.low, change.high]);
        ends.chain(by_block(placed.one))
    });
    match ratio {
        true => Scale::log(ends.chain([0.9, 1.1])),
        false => {
            let margin = rows.first().map_or(0.0, |placed| placed.one.margin);
            Scale::linear(ends.chain([-1.5 * margin, 1.5 * margin]))
        }
    }
}

/// The grid of a horizontal axis with its ticks.
fn vertical(svg: &mut Svg, x: Scale, top: f64, bottom: f64) {
    let mut last = f64::NEG_INFINITY;
    for tick in x.ticks() {
        let at = x.px(tick);
        svg.line("grid", at, top, at, bottom);
        if at - last >= 34.0 {
            svg.text("tick", at, bottom + 16.0, Anchor::Middle, &tick_label(tick));
            last = at;
        }
    }
}

fn comparison(svg: &mut Svg, x: Scale, top: f64, label: &str, one: &Comparison) {
    let middle = top + ROW / 2.0;
    let (low, high) = match one.scale.as_str() {
        "ratio" => (1.0 / (1.0 + one.margin), 1.0 + one.margin),
        _ => (-one.margin, one.margin),
    };
    let (low, high) = (x.px(low), x.px(high));
    svg.rect("margin", low, top, high - low, ROW);
    let label = if label.is_empty() { "change" } else { label };
    let label = shorten(label, 40);
    svg.text("tick", LABELS - 8.0, middle + 4.0, Anchor::End, &label);
    for value in by_block(one) {
        svg.dot("block", x.px(value), middle, 3.5);
    }
    if let Some(change) = one.change {
        let (low, high) = (x.px(change.low), x.px(change.high));
        svg.line("interval", low, middle, high, middle);
        for end in [low, high] {
            svg.line("interval", end, middle - 4.0, end, middle + 4.0);
        }
        svg.rect("point", x.px(change.point) - 3.0, middle - 3.0, 6.0, 6.0);
    }
    let right = WIDTH - WORDS + 12.0;
    let word = marked(&one.verdict);
    svg.text("tick", right, middle + 4.0, Anchor::Start, &word);
}

/// One condition's points against each other, on axes that others share.
pub(super) fn front(id: &str, found: &Front<'_>, x: Scale, y: Scale) -> Figure {
    let (points, standings) = (&found.points, &found.standings);
    let title = found.title();
    let on = |i: &usize| {
        standings[*i]
            .as_ref()
            .is_some_and(|s| s.dominated_by.is_none())
    };
    let mut front: Vec<usize> = (0..points.len()).filter(on).collect();
    let middle = |i: usize| points[i].middle().unwrap_or((0.0, 0.0));
    front.sort_by(|&a, &b| middle(a).0.total_cmp(&middle(b).0));
    let names: Vec<&str> = front.iter().map(|&i| points[i].arm.as_str()).collect();
    let names = names.join(", ");
    let description = format!("{} points; on the front: {names}.", points.len());
    let mut svg = Svg::new(id, WIDTH, PANEL, &title, &description);
    let frame = Frame::new(&svg, 14.0, PANEL, x, y);
    let label = |m: &Measure| format!("{}{} (log)", m.words(), m.unit());
    frame.draw(&mut svg, &label(&found.x), &label(&found.y));
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for &i in &front {
        let (x, y) = middle(i);
        let (x, y) = (frame.x.px(x), frame.y.px(y));
        steps.extend(steps.last().map(|last| (x, last.1)));
        steps.push((x, y));
    }
    svg.path("front", &steps);
    for (i, point) in points.iter().enumerate() {
        draw_point(&mut svg, &frame, i, point, on(&i));
    }
    if points.iter().all(|point| point.middle().is_none()) {
        frame.empty(&mut svg, "no cell that may be used");
    }
    Figure {
        title,
        caption: "Further left and further down is better. A point is the median over blocks, its \
                  bars go from the smallest to the largest block, its number is that of the table. \
                  Filled squares on the line are the front: no other point is at least as good in \
                  both and better in one. Rings are beaten by another point. All conditions have \
                  the same axes."
            .to_owned(),
        svg: svg.finish(),
    }
}

fn draw_point(svg: &mut Svg, frame: &Frame, number: usize, point: &Point, on_front: bool) {
    let Some((x, y)) = point.middle() else { return };
    let (x, y) = (frame.x.px(x), frame.y.px(y));
    if let Some((low, high)) = point.x.range() {
        svg.line("bar-range", frame.x.px(low), y, frame.x.px(high), y);
    }
    if let Some((low, high)) = point.y.range() {
        svg.line("bar-range", x, frame.y.px(low), x, frame.y.px(high));
    }
    match on_front {
        true => svg.rect("point", x - 4.0, y - 4.0, 8.0, 8.0),
        false => svg.dot("ring", x, y, 4.5),
    }
    let name = (number + 1).to_string();
    svg.text("number", x + 8.0, y - 6.0, Anchor::Start, &name);
}

/// Statistics of a distribution that are drawn, with their mark.
const QUANTILES: [&str; 4] = ["p50", "p90", "p99", "max"];

/// Quantiles of a latency, a row an arm of one condition.
pub(super) fn quantiles(
    id: &str,
    title: &str,
    of: &dyn Fn(&str) -> Measure,
    settings: &[&Setting<'_>],
) -> Option<Figure> {
    let rows: Vec<(&str, Vec<Over>)> = settings
        .iter()
        .take(MOST_ROWS)
        .map(|setting| {
            let over = QUANTILES.map(|statistic| setting.over(&of(statistic)));
            (setting.arm, over.to_vec())
        })
        .collect();
    let ends = rows.iter().flat_map(|(_, all)| all).flat_map(|over| {
        let interval = over.geometric().into_iter().flat_map(|(p, l, h)| [p, l, h]);
        interval.chain(over.median())
    });
    let ends: Vec<f64> = ends.collect();
    if ends.is_empty() {
        return None;
    }
    let height = 30.0;
    let bottom = TOP + height * rows.len() as f64;
    let description = "Median, 90th and 99th percentile and largest value, a row an arm.";
    let mut svg = Svg::new(id, WIDTH, bottom + FOOT, title, description);
    let x = Scale::log(ends).over(LABELS, WIDTH - 20.0);
    vertical(&mut svg, x, TOP, bottom);
    for (number, (arm, all)) in rows.iter().enumerate() {
        let top = TOP + height * number as f64;
        svg.line("grid", LABELS, top, WIDTH - 20.0, top);
        let (label, y) = (shorten(arm, 40), top + height / 2.0);
        svg.text("tick", LABELS - 8.0, y + 4.0, Anchor::End, &label);
        for (kind, over) in all.iter().enumerate() {
            quantile(&mut svg, x, top + 6.0 + 6.0 * kind as f64, kind, over);
        }
        if all.iter().all(|over| over.values.is_empty()) {
            svg.text(
                "tick",
                LABELS + 8.0,
                y + 4.0,
                Anchor::Start,
                "no cell that may be used",
            );
        }
    }
    key(&mut svg);
    let middle = (LABELS + WIDTH) / 2.0;
    svg.text(
        "label",
        middle,
        bottom + 38.0,
        Anchor::Middle,
        "ms (logarithmic)",
    );
    let more = settings.len().saturating_sub(MOST_ROWS);
    let more = match more {
        0 => String::new(),
        n => format!(" {n} further arms are not drawn."),
    };
    Some(Figure {
        title: title.to_owned(),
        caption: format!(
            "Each statistic of a cell is one value; shown is the geometric mean over the blocks \
             that may be used, with its 95 % t interval (a mark without a bar has fewer than three \
             blocks). Within an arm from above: p50, p90, p99, max.{more}"
        ),
        svg: svg.finish(),
    })
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

fn key(svg: &mut Svg) {
    for (kind, name) in QUANTILES.iter().enumerate() {
        let x = LABELS + 70.0 * kind as f64;
        shape(svg, kind, x, 14.0);
        svg.text("tick", x + 9.0, 18.0, Anchor::Start, name);
    }
}
