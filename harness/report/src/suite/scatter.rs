//! The picture of a front: settings as points of two latencies.

use super::fronts::Front;
use super::measure::Measure;
use crate::plots::{Figure, WIDTH};
use crate::svg::frame::{Frame, shorten};
use crate::svg::labels::{Area, place};
use crate::svg::scale::Scale;
use crate::svg::{Anchor, Svg};

/// Height of a panel.
const PANEL: f64 = 350.0;

/// Room for the groups above the plotted area.
const TOP: f64 = 30.0;

/// Longest label, in characters.
const LABEL: usize = 16;

/// Colours of groups.
const COLOURS: usize = 6;

/// One condition's points against each other, on axes that others share.
pub(super) fn front(id: &str, found: &Front<'_>, x: Scale, y: Scale) -> Figure {
    let (points, standings) = (&found.points, &found.standings);
    let title = found.title();
    let on = |i: &usize| standings[*i].as_ref().is_some_and(|s| s.is_on_front());
    let mut front: Vec<usize> = (0..points.len()).filter(on).collect();
    let middle = |i: usize| points[i].middle().unwrap_or((0.0, 0.0));
    front.sort_by(|&a, &b| middle(a).0.total_cmp(&middle(b).0));
    let names: Vec<&str> = front.iter().map(|&i| points[i].arm.as_str()).collect();
    let names = names.join(", ");
    let description = format!("{} points; on the front: {names}.", points.len());
    let mut svg = Svg::new(id, WIDTH, PANEL, &title, &description);
    let frame = Frame::new(&svg, TOP, PANEL, x, y);
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
    for i in 0..points.len() {
        draw_point(&mut svg, &frame, found, i, on(&i));
    }
    let unnamed = draw_labels(&mut svg, &frame, found, &steps);
    groups(&mut svg, found);
    if points.iter().all(|point| point.middle().is_none()) {
        frame.empty(&mut svg, "no cell that may be used");
    }
    let mut caption = "Further left and further down is better. A point is the median over \
                       blocks. Filled squares on the line are the front, with bars from the \
                       smallest to the largest block; rings are beaten by another point. The \
                       pictures of one pair of latencies have the same axes."
        .to_owned();
    if standings
        .iter()
        .flatten()
        .any(|standing| standing.unfit.is_some())
    {
        caption.push_str(
            " Crosses jump from block to block or miss the stalls: they are neither on the front \
             nor do they beat another.",
        );
    }
    if unnamed > 0 {
        caption.push_str(&format!(" {unnamed} points have no room for their name."));
    }
    let svg = svg.finish();
    Figure {
        title,
        caption,
        svg,
    }
}

fn draw_point(svg: &mut Svg, frame: &Frame, found: &Front<'_>, i: usize, on_front: bool) {
    let point = &found.points[i];
    let Some((x, y)) = point.middle() else { return };
    let (x, y) = (frame.x.px(x), frame.y.px(y));
    let colour = format!("g{}", found.legend.groups[i] % COLOURS);
    if point.unfit.is_some() {
        for (down, up) in [(-4.0, 4.0), (4.0, -4.0)] {
            svg.line(
                &format!("ring {colour}"),
                x - 4.0,
                y + down,
                x + 4.0,
                y + up,
            );
        }
        return;
    }
    if on_front {
        if let Some((low, high)) = point.x.range() {
            svg.line("bar-range", frame.x.px(low), y, frame.x.px(high), y);
        }
        if let Some((low, high)) = point.y.range() {
            svg.line("bar-range", x, frame.y.px(low), x, frame.y.px(high));
        }
        svg.rect(&format!("point {colour}"), x - 4.0, y - 4.0, 8.0, 8.0);
    } else {
        svg.dot(&format!("ring {colour}"), x, y, 4.5);
    }
}

/// Names the points, with a line to those whose name is not beside them; how many had no room.
fn draw_labels(svg: &mut Svg, frame: &Frame, found: &Front<'_>, steps: &[(f64, f64)]) -> usize {
    let short: Vec<String> = found
        .legend
        .labels
        .iter()
        .map(|l| shorten(l, LABEL))
        .collect();
    let shown: Vec<(f64, f64, &str)> = found
        .points
        .iter()
        .zip(&short)
        .filter_map(|(point, label)| {
            let (x, y) = point.middle()?;
            Some((frame.x.px(x), frame.y.px(y), label.as_str()))
        })
        .collect();
    let bounds = Area {
        left: frame.left,
        top: frame.top,
        right: frame.right,
        bottom: frame.bottom,
    };
    let lines: Vec<_> = steps.windows(2).map(|pair| (pair[0], pair[1])).collect();
    let places = place(&shown, &lines, bounds);
    for ((x, y, label), at) in shown.iter().zip(&places) {
        let Some((to_x, to_y)) = *at else { continue };
        let half = label.chars().count() as f64 * 3.0;
        let near_x = x.clamp(to_x - half, to_x + half);
        let near_y = y.clamp(to_y - 5.0, to_y + 5.0);
        if (near_x - x).hypot(near_y - y) > 9.0 {
            svg.line("leader", *x, *y, near_x, near_y);
        }
        svg.text("tick", to_x, to_y + 4.0, Anchor::Middle, label);
    }
    places.iter().filter(|place| place.is_none()).count()
}

/// What the colours are, above the plotted area.
fn groups(svg: &mut Svg, found: &Front<'_>) {
    let names = &found.legend.names;
    let room = (WIDTH - 78.0) / names.len().max(1) as f64;
    for (number, name) in names.iter().enumerate() {
        let x = 62.0 + room * number as f64;
        svg.rect(&format!("point g{}", number % COLOURS), x, 9.0, 8.0, 8.0);
        let text = shorten(name, ((room - 20.0) / 6.6).max(4.0) as usize);
        svg.text("tick", x + 14.0, 17.0, Anchor::Start, &text);
    }
}
