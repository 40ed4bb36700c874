//! The pictures of comparisons: changes with their intervals and a mark for each block.

use super::read::Comparison;
use crate::plots::{Figure, WIDTH};
use crate::svg::frame::shorten;
use crate::svg::scale::{Scale, tick_label};
use crate::svg::{Anchor, Svg};

const ROW: f64 = 24.0;
pub(super) const TOP: f64 = 34.0;
pub(super) const FOOT: f64 = 48.0;
pub(super) const LABELS: f64 = 252.0;
const WORDS: f64 = 128.0;

/// Rows that a picture has at most; the table beside has all.
pub(super) const MOST_ROWS: usize = 64;

/// A comparison in a picture: the heading under which it stands, what it is there.
pub(super) struct Row<'a> {
    pub(super) group: String,
    pub(super) label: String,
    pub(super) one: &'a Comparison,
}

/// Changes of one scale, a row a comparison, under their headings; `what` says what all of them
/// are of. `None` without any interval.
pub(super) fn forest(id: &str, title: &str, all: &[Row<'_>], what: &str) -> Option<Figure> {
    let known: Vec<&Row<'_>> = all.iter().filter(|row| row.one.change.is_some()).collect();
    let rows = &known[..known.len().min(MOST_ROWS)];
    let ratio = rows.first()?.one.scale == "ratio";
    let words = rows.iter().map(|row| {
        let (group, label, one) = (&row.group, &row.label, row.one);
        format!("{group} {label} {} {}", one.verdict, one.change_text())
    });
    let words: Vec<String> = words.collect();
    let headings = rows
        .windows(2)
        .filter(|pair| pair[0].group != pair[1].group);
    let headings = headings.count() + usize::from(!rows[0].group.is_empty());
    let bottom = TOP + ROW * (rows.len() + headings) as f64;
    let mut svg = Svg::new(id, WIDTH, bottom + FOOT, title, &words.join("; "));
    let x = axis(rows, ratio).over(LABELS, WIDTH - WORDS);
    vertical(&mut svg, x, TOP, bottom);
    let none = x.px(if ratio { 1.0 } else { 0.0 });
    svg.line("axis", none, TOP - 6.0, none, bottom);
    svg.text("tick", none, TOP - 12.0, Anchor::Middle, "no change");
    let (mut top, mut group) = (TOP, "");
    for row in rows {
        if row.group != group {
            group = &row.group;
            let text = shorten(group, 60);
            svg.text("heading", 10.0, top + ROW - 7.0, Anchor::Start, &text);
            top += ROW;
        }
        comparison(&mut svg, x, top, &row.label, row.one);
        top += ROW;
    }
    let label = axis_label(rows, ratio);
    svg.text("label", WIDTH / 2.0, bottom + 38.0, Anchor::Middle, &label);
    let mut caption = format!(
        "One mark a block; in front the mean change with its interval ({what}), which the verdict \
         rests on. The grey band is the margin within which a change does not matter."
    );
    for (left_out, why) in [
        (all.len() - known.len(), "have no interval"),
        (known.len() - rows.len(), "more are in the table"),
    ] {
        if left_out > 0 {
            caption.push_str(&format!(" {left_out} comparisons {why}."));
        }
    }
    let svg = svg.finish();
    Some(Figure {
        title: title.to_owned(),
        caption,
        svg,
    })
}

/// What the axis shows, and which side of it is better where that is the same for all.
fn axis_label(rows: &[&Row<'_>], ratio: bool) -> String {
    let what = match ratio {
        true => "candidate / baseline (logarithmic)",
        false => "candidate − baseline",
    };
    let first = rows[0].one;
    if rows.iter().any(|row| row.one.metric != first.metric) {
        return what.to_owned();
    }
    let measure = first.measure();
    let better = if measure.more_is_better() {
        "right"
    } else {
        "left"
    };
    format!("{}: {what}; further {better} is better", measure.words())
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

fn axis(rows: &[&Row<'_>], ratio: bool) -> Scale {
    let ends = rows.iter().flat_map(|row| {
        let change = row.one.change.into_iter();
        let ends = change.flat_map(|change| [change.low, change.high]);
        ends.chain(by_block(row.one))
    });
    match ratio {
        true => Scale::log(ends.chain([0.9, 1.1])),
        false => {
            let margin = rows.first().map_or(0.0, |row| row.one.margin);
            Scale::linear(ends.chain([-1.5 * margin, 1.5 * margin]))
        }
    }
}

/// The grid of a horizontal axis with its ticks.
pub(super) fn vertical(svg: &mut Svg, x: Scale, top: f64, bottom: f64) {
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
    let word = one.marked();
    svg.text("tick", right, middle + 4.0, Anchor::Start, &word);
}
