//! The pictures of a load run.

use pb_bench::{Document, ServerPoint};

use super::collect::Pictures;
use super::waterfall;
use crate::plots::ecdf::{Series, Share, ecdf};
use crate::plots::{Figure, WIDTH, column_maxima};
use crate::svg::frame::{Frame, arm_class, legend};
use crate::svg::scale::Scale;
use crate::svg::{Anchor, Svg};

/// Height of a picture over time.
const HEIGHT: f64 = 250.0;

/// Classes with a colour of their own; the others share the last one.
const COLOURS: usize = 6;

/// Label of every axis of time.
const TIME: &str = "time since the start, s";

/// All pictures, each with the key of the section in which it stands.
pub(super) fn figures(document: &Document, pictures: &Pictures) -> Vec<(&'static str, Figure)> {
    let mut figures = Vec::new();
    for (id, title, what, share, samples) in [
        (
            "ttft",
            "Time to first token",
            "time to first token",
            Share::AtOrBelow,
            &pictures.ttft,
        ),
        (
            "itl",
            "Time between tokens",
            "inter-token latency",
            Share::Above,
            &pictures.itl,
        ),
        (
            "e2e",
            "Time to last token",
            "time to last token",
            Share::AtOrBelow,
            &pictures.e2e,
        ),
    ] {
        let series = [Series {
            name: "all requests that ended well",
            sorted: samples.clone(),
        }];
        figures.push(("latency", ecdf(id, title, what, share, &series)));
    }
    figures.push(("time", ttft_over_time(pictures)));
    figures.push(("time", in_flight(pictures)));
    figures.push(("time", gaps(pictures)));
    figures.push(("load", lag(document, pictures)));
    figures.extend(
        server(pictures)
            .into_iter()
            .map(|figure| ("server", figure)),
    );
    let transfers = super::transfers::figure(&pictures.transfers);
    figures.extend(transfers.map(|figure| ("transfers", figure)));
    figures.extend(
        waterfall::figures(pictures)
            .into_iter()
            .map(|figure| ("requests", figure)),
    );
    figures
}

pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// The axis of time, from the start to the end of the last stream.
fn time_axis(pictures: &Pictures) -> Scale {
    Scale::linear([0.0, seconds(pictures.span)])
}

/// One mark a pixel: what lies on another of its class is not drawn twice.
fn on_pixels(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let pixels = points.map(|(x, y)| (x.round() as i64, y.round() as i64));
    let pixels: std::collections::BTreeSet<(i64, i64)> = pixels.collect();
    pixels
        .into_iter()
        .map(|(x, y)| (x as f64, y as f64))
        .collect()
}

fn class_colour(class: usize) -> usize {
    class.min(COLOURS - 1)
}

/// The legend of the classes, and of what failed when something did.
fn class_legend(svg: &mut Svg, pictures: &Pictures, failed: bool) {
    let mut entries: Vec<(String, String)> = Vec::new();
    for (class, name) in pictures.classes.iter().enumerate().take(COLOURS) {
        let others = pictures.classes.len() > COLOURS && class == COLOURS - 1;
        let name = if others {
            "other classes"
        } else {
            name.as_str()
        };
        entries.push((arm_class("fill", class), name.to_owned()));
    }
    if failed {
        entries.push(("lost".to_owned(), "did not end well".to_owned()));
    }
    legend(svg, 18.0, &entries);
}

fn ttft_over_time(pictures: &Pictures) -> Figure {
    let title = "Time to first token by arrival".to_owned();
    let value = |dot: &super::collect::Dot| {
        let first = dot.first.filter(|_| dot.ok)?;
        Some((
            seconds(dot.intended),
            ms(first.saturating_sub(dot.intended)),
        ))
    };
    let lost: Vec<f64> = pictures
        .dots
        .iter()
        .filter(|d| !d.ok)
        .map(|d| seconds(d.intended))
        .collect();
    let description = format!(
        "A mark for each request at its intended arrival; {} did not end well.",
        lost.len()
    );
    let mut svg = Svg::new("ttft-time", WIDTH, HEIGHT, &title, &description);
    let y = Scale::log(pictures.dots.iter().filter_map(value).map(|(_, ms)| ms));
    let frame = Frame::new(&svg, 34.0, HEIGHT, time_axis(pictures), y);
    frame.draw(&mut svg, TIME, "TTFT, ms (log)");
    for class in 0..pictures.classes.len().min(COLOURS) {
        let of_class = |d: &&super::collect::Dot| class_colour(d.class) == class;
        let dots = pictures.dots.iter().filter(of_class).filter_map(value);
        let points = on_pixels(dots.map(|(x, v)| (frame.x.px(x), frame.y.px(v))));
        svg.marks(&arm_class("cloud", class), &points, 3.0);
    }
    let marks = on_pixels(lost.iter().map(|x| (frame.x.px(*x), frame.top)));
    svg.marks("lost", &marks, 6.0);
    if pictures.dots.is_empty() {
        frame.empty(&mut svg, "no requests");
    }
    class_legend(&mut svg, pictures, !lost.is_empty());
    Figure {
        title,
        caption: "Each mark is a request at its intended arrival. A rising cloud means that the \
                  load is above what the server can do. Requests that did not end well stand at \
                  the upper edge."
            .to_owned(),
        svg: svg.finish(),
    }
}

fn in_flight(pictures: &Pictures) -> Figure {
    let title = "Requests in flight".to_owned();
    let most = pictures
        .in_flight
        .iter()
        .map(|(_, n)| *n)
        .max()
        .unwrap_or(0);
    let description = format!("Requests sent and not yet closed over time; at most {most}.");
    let mut svg = Svg::new("in-flight", WIDTH, HEIGHT, &title, &description);
    let frame = Frame::new(
        &svg,
        14.0,
        HEIGHT,
        time_axis(pictures),
        Scale::counts([most as f64]),
    );
    frame.draw(&mut svg, TIME, "in flight");
    let at = |&(at, n): &(u64, u64)| (frame.x.column(seconds(at)), n as f64);
    let columns = column_maxima(pictures.in_flight.iter().map(at));
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (column, n) in columns {
        let (x, y) = (column as f64, frame.y.px(n));
        points.extend(points.last().map(|last| (x, last.1)));
        points.push((x, y));
    }
    svg.path(&arm_class("line", 0), &points);
    if points.is_empty() {
        frame.empty(&mut svg, "no requests");
    }
    Figure {
        title,
        caption: "From the first byte sent to the end of the stream; the most of each pixel \
                  column."
            .to_owned(),
        svg: svg.finish(),
    }
}

fn gaps(pictures: &Pictures) -> Figure {
    let title = "Gaps between tokens over time".to_owned();
    let description = "The largest gap that ended in each part of the run.";
    let mut svg = Svg::new("gaps", WIDTH, HEIGHT, &title, description);
    let values = pictures.gaps.values().map(|&(_, gap)| ms(gap));
    let y = Scale::log(values.chain(pictures.stall_ns.map(ms)));
    let frame = Frame::new(&svg, 14.0, HEIGHT, time_axis(pictures), y);
    frame.draw(&mut svg, TIME, "gap, ms (log)");
    let at = |&(at, gap): &(u64, u64)| (frame.x.column(seconds(at)), ms(gap));
    let columns = column_maxima(pictures.gaps.values().map(at));
    let points: Vec<(f64, f64)> = columns
        .into_iter()
        .map(|(column, gap)| (column as f64, frame.y.px(gap)))
        .collect();
    svg.marks(&arm_class("fill", 0), &points, 3.0);
    if let Some(stall) = pictures.stall_ns {
        let y = frame.y.px(ms(stall));
        svg.line("limit", frame.left, y, frame.right, y);
        svg.text("tick", frame.right, y - 4.0, Anchor::End, "stall");
    }
    if points.is_empty() {
        frame.empty(&mut svg, "no gaps");
    }
    Figure {
        title,
        caption: "Each mark is the largest gap that ended in its pixel column; above the dashed \
                  line it is a stall."
            .to_owned(),
        svg: svg.finish(),
    }
}

fn lag(document: &Document, pictures: &Pictures) -> Figure {
    let title = "Arrivals against sends".to_owned();
    let limit = document.load.asked.lag_limit_ms;
    let limit = limit.unwrap_or(pb_bench::load::LAG_LIMIT_MS);
    let value = |dot: &super::collect::Dot| {
        let sent = dot.sent?;
        Some((seconds(dot.intended), ms(sent.saturating_sub(dot.intended))))
    };
    let all: Vec<(f64, f64)> = pictures.dots.iter().filter_map(value).collect();
    let description = "The client's delay in sending each request, at its intended arrival.";
    let mut svg = Svg::new("lag", WIDTH, HEIGHT, &title, description);
    let y = Scale::log(all.iter().map(|(_, lag)| lag.max(1e-3)).chain([limit]));
    let frame = Frame::new(&svg, 14.0, HEIGHT, time_axis(pictures), y);
    frame.draw(&mut svg, TIME, "sent − intended, ms (log)");
    let points = on_pixels(
        all.iter()
            .map(|(x, v)| (frame.x.px(*x), frame.y.px(v.max(1e-3)))),
    );
    svg.marks(&arm_class("cloud", 0), &points, 3.0);
    let y = frame.y.px(limit);
    svg.line("limit", frame.left, y, frame.right, y);
    svg.text("tick", frame.right, y - 4.0, Anchor::End, "limit of p99");
    if all.is_empty() {
        frame.empty(&mut svg, "nothing was sent");
    }
    Figure {
        title,
        caption: "How late the client sent each request. The limit holds for the 99th percentile \
                  of requests that share their arrival with no other and were not held back by \
                  a cap."
            .to_owned(),
        svg: svg.finish(),
    }
}

/// What the server said of itself over time: a panel for requests and one for the cache.
fn server(pictures: &Pictures) -> Option<Figure> {
    let points = &pictures.server;
    let start = pictures.start;
    let at = |p: &ServerPoint| seconds(p.at_ns.0.saturating_sub(start));
    let any = |of: fn(&ServerPoint) -> Option<f64>| points.iter().any(|p| of(p).is_some());
    let (requests, cache) = (any(|p| p.running.or(p.waiting)), any(|p| p.kv_usage));
    if !requests && !cache {
        return None;
    }
    let title = "The server's own view over time".to_owned();
    let description = "Requests running and waiting, and the used share of the KV cache.";
    let mut svg = Svg::new("server-time", WIDTH, 2.0 * HEIGHT, &title, description);
    let x = Scale::linear(
        [0.0, seconds(pictures.span)]
            .into_iter()
            .chain(points.iter().map(at)),
    );
    let series = |of: fn(&ServerPoint) -> Option<f64>| -> Vec<(f64, f64)> {
        let known = points.iter().filter_map(|p| Some((at(p), of(p)?)));
        known.filter(|(_, value)| value.is_finite()).collect()
    };
    let (running, waiting) = (series(|p| p.running), series(|p| p.waiting));
    let usage = series(|p| p.kv_usage);
    let values = running.iter().chain(&waiting).map(|(_, value)| *value);
    let y = Scale::counts(values);
    let upper = Frame::new(&svg, 34.0, HEIGHT, x, y);
    upper.draw(&mut svg, TIME, "requests");
    let lower = Frame::new(
        &svg,
        HEIGHT + 14.0,
        2.0 * HEIGHT,
        x,
        Scale::linear([0.0, 100.0]),
    );
    lower.draw(&mut svg, TIME, "KV cache in use, %");
    for (number, series) in [&running, &waiting].into_iter().enumerate() {
        draw(&mut svg, &upper, number, series, 1.0);
    }
    draw(&mut svg, &lower, 2, &usage, 100.0);
    let entries = [(0, "running"), (1, "waiting"), (2, "KV cache")];
    let entries = entries.map(|(n, name)| (arm_class("fill", n), name.to_owned()));
    legend(&mut svg, 18.0, &entries);
    Some(Figure {
        title,
        caption: "From the server's metrics page, at the cadence of the readings; the largest of \
                  each pixel column."
            .to_owned(),
        svg: svg.finish(),
    })
}

fn draw(svg: &mut Svg, frame: &Frame, number: usize, series: &[(f64, f64)], factor: f64) {
    let at = |&(x, value): &(f64, f64)| (frame.x.column(x), value * factor);
    let columns = column_maxima(series.iter().map(at));
    let points: Vec<(f64, f64)> = columns
        .into_iter()
        .map(|(column, value)| (column as f64, frame.y.px(value)))
        .collect();
    svg.path(&arm_class("line", number), &points);
    if points.is_empty() {
        frame.empty(svg, "the server does not say");
    }
}
