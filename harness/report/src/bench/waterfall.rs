//! Requests one by one: waiting in the client, waiting for the first token, streaming.

use super::collect::{Dot, FIRST, Pictures, SLOWEST};
use super::pictures::seconds;
use crate::plots::{Figure, WIDTH};
use crate::svg::frame::{Frame, arm_class, legend};
use crate::svg::scale::Scale;
use crate::svg::{Anchor, Svg};

/// Room above the bars for the legend.
const TOP: f64 = 34.0;

/// Room below the bars for the axis.
const BOTTOM: f64 = 42.0;

/// The first requests by arrival, and the slowest ones.
pub(super) fn figures(pictures: &Pictures) -> Vec<Figure> {
    if pictures.dots.is_empty() {
        return Vec::new();
    }
    let first: Vec<&Dot> = pictures.dots.iter().take(FIRST).collect();
    let mut slowest: Vec<&Dot> = pictures
        .drawn
        .values()
        .map(|&i| &pictures.dots[i])
        .filter(|dot| dot.ok)
        .collect();
    slowest.sort_by_key(|dot| (std::cmp::Reverse(dot.e2e()), dot.request));
    slowest.truncate(SLOWEST);
    let mut figures = vec![waterfall(
        "first",
        &format!("The first {} requests", first.len()),
        &first,
        5.0,
        false,
    )];
    if !slowest.is_empty() {
        let title = format!("The slowest {} requests", slowest.len());
        figures.push(waterfall("slowest", &title, &slowest, 14.0, true));
    }
    figures
}

/// A bar for each request. With `aligned` each begins at its own arrival, so that lengths can be
/// compared; without, at the time of the run.
fn waterfall(id: &str, title: &str, dots: &[&Dot], row: f64, aligned: bool) -> Figure {
    let height = TOP + row * dots.len() as f64 + BOTTOM;
    let description = format!(
        "{} bars, one a request, in parts by what it waited for.",
        dots.len()
    );
    let mut svg = Svg::new(id, WIDTH, height, title, &description);
    let place = |dot: &Dot, at: u64| {
        let origin = if aligned { dot.intended } else { 0 };
        seconds(at.saturating_sub(origin))
    };
    let ends = dots.iter().map(|dot| {
        let end = dot.closed.or(dot.last).or(dot.sent).unwrap_or(dot.intended);
        place(dot, end)
    });
    let starts = dots.iter().map(|dot| place(dot, dot.intended));
    let x = Scale::linear(starts.chain(ends));
    let frame = Frame::new(&svg, TOP, height, x, Scale::linear([0.0, 1.0]));
    let label = match aligned {
        true => "time since the intended arrival, s",
        false => "time since the start, s",
    };
    axis(&mut svg, &frame, label);
    for (number, dot) in dots.iter().enumerate() {
        let y = TOP + row * number as f64;
        bar(&mut svg, &frame, dot, y, (row - 1.0).max(1.0), |at| {
            place(dot, at)
        });
        if aligned {
            let name = format!("{}", dot.request);
            svg.text("tick", frame.left - 6.0, y + row - 3.0, Anchor::End, &name);
        }
    }
    let entries = [
        ("wait".to_owned(), "not yet sent"),
        (arm_class("fill", 1), "to first token"),
        (arm_class("fill", 0), "streaming"),
        ("stall".to_owned(), "stall"),
        ("lost".to_owned(), "did not end well"),
    ];
    legend(
        &mut svg,
        18.0,
        &entries.map(|(class, name)| (class, name.to_owned())),
    );
    let order = match aligned {
        true => "The slowest first, each from its own arrival, with its number",
        false => "In the order of arrival",
    };
    Figure {
        title: title.to_owned(),
        caption: format!(
            "{order}. A bar goes from the intended arrival to the last token; a red end is where a \
             request that did not end well was given up."
        ),
        svg: svg.finish(),
    }
}

/// The axis of time alone: rows need no scale.
fn axis(svg: &mut Svg, frame: &Frame, label: &str) {
    for tick in frame.x.ticks() {
        let x = frame.x.px(tick);
        svg.line("grid", x, frame.top, x, frame.bottom);
        let text = crate::svg::scale::tick_label(tick);
        svg.text("tick", x, frame.bottom + 16.0, Anchor::Middle, &text);
    }
    svg.line("axis", frame.left, frame.bottom, frame.right, frame.bottom);
    let middle = (frame.left + frame.right) / 2.0;
    svg.text("label", middle, frame.bottom + 34.0, Anchor::Middle, label);
}

fn bar(svg: &mut Svg, frame: &Frame, dot: &Dot, y: f64, height: f64, place: impl Fn(u64) -> f64) {
    let mut part = |class: &str, from: u64, to: u64| {
        let (from, to) = (frame.x.px(place(from)), frame.x.px(place(to)));
        // What happened has a place, however short it was.
        if to > from {
            svg.rect(class, from, y, (to - from).max(0.5), height);
        }
    };
    let sent = dot.sent.unwrap_or(dot.intended);
    part("wait", dot.intended, sent);
    if let Some(first) = dot.first {
        part(&arm_class("fill", 1), sent, first);
        part(&arm_class("fill", 0), first, dot.last.unwrap_or(first));
    }
    for &(from, to) in &dot.stalls {
        part("stall", from, to);
    }
    if !dot.ok {
        let given_up = dot.closed.unwrap_or(sent);
        part("lost", dot.last.unwrap_or(sent), given_up);
        let x = frame.x.px(place(given_up));
        svg.rect("lost", x - 1.5, y, 3.0, height);
    }
}
