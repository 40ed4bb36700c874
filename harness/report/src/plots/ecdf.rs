//! Whole distributions, because two numbers of a tail hide its shape.

use std::collections::BTreeMap;

use super::{Figure, WIDTH};
use crate::svg::Svg;
use crate::svg::frame::{Frame, arm_class, legend};
use crate::svg::scale::Scale;

/// The samples of one arm in nanoseconds, ascending.
pub(crate) struct Series<'a> {
    /// Arm.
    pub(crate) name: &'a str,
    /// Samples.
    pub(crate) sorted_ns: &'a [u64],
}

/// Draws the share of samples at or below each value, values on a logarithmic axis.
pub(crate) fn ecdf(id: &str, title: &str, what: &str, series: &[Series<'_>]) -> Figure {
    let counts: Vec<String> = series
        .iter()
        .map(|s| format!("{}: {} samples", s.name, s.sorted_ns.len()))
        .collect();
    let description = format!("Empirical distribution of {what}. {}.", counts.join("; "));
    let mut svg = Svg::new(id, WIDTH, 320.0, title, &description);
    let ends = series
        .iter()
        .flat_map(|s| [s.sorted_ns.first(), s.sorted_ns.last()])
        .flatten();
    let x = Scale::log(ends.map(|&ns| ns as f64 / 1e6));
    let frame = Frame::new(&svg, 34.0, 320.0, x, Scale::linear([0.0, 100.0]));
    frame.draw(
        &mut svg,
        &format!("{what}, ms (logarithmic)"),
        "requests or gaps, % at or below",
    );
    for percentile in [50.0, 99.0] {
        let y = frame.y.px(percentile);
        svg.line("guide", frame.left, y, frame.right, y);
    }
    if series.iter().all(|s| s.sorted_ns.is_empty()) {
        frame.empty(&mut svg, "no samples");
    }
    for (arm, one) in series.iter().enumerate() {
        svg.path(&arm_class("line", arm), &steps(one.sorted_ns, &frame));
    }
    let names = series
        .iter()
        .enumerate()
        .map(|(arm, s)| (arm_class("fill", arm), s.name.to_owned()));
    legend(&mut svg, 18.0, &names.collect::<Vec<_>>());
    Figure {
        title: title.to_owned(),
        caption: format!(
            "Share of {what} at or below each value; dashed lines at 50 % and 99 %. Further left \
             is faster. {}. Exact to the pixel.",
            counts.join("; ")
        ),
        svg: svg.finish(),
    }
}

/// The staircase, one corner for each pixel column: the curve rises only, so the highest point of
/// a column loses nothing that a pixel could show.
fn steps(sorted_ns: &[u64], frame: &Frame) -> Vec<(f64, f64)> {
    let n = sorted_ns.len() as f64;
    let mut columns: BTreeMap<i64, f64> = BTreeMap::new();
    for (rank, &ns) in sorted_ns.iter().enumerate() {
        columns.insert(
            frame.x.column(ns as f64 / 1e6),
            (rank + 1) as f64 / n * 100.0,
        );
    }
    let mut points = Vec::with_capacity(columns.len() * 2 + 2);
    let mut level = frame.y.px(0.0);
    for (column, share) in columns {
        let x = column as f64;
        points.push((x, level));
        level = frame.y.px(share);
        points.push((x, level));
    }
    if !points.is_empty() {
        points.push((frame.right, level));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_staircase_ends_at_one_hundred_percent() {
        let svg = Svg::new("e", WIDTH, 320.0, "", "");
        let x = Scale::log([1.15, 100.0 / 1.15]);
        let frame = Frame::new(&svg, 34.0, 320.0, x, Scale::linear([0.0, 100.0]));
        let points = steps(&[10_000_000, 10_000_000, 80_000_000, 80_000_000], &frame);
        // Half of the samples are 10 ms (the middle of 1..100 on a log axis), all are below 80.
        let middle = (frame.left + frame.right) / 2.0;
        assert_eq!(points[0], (middle, frame.y.px(0.0)));
        assert_eq!(points[1], (middle, frame.y.px(50.0)));
        assert_eq!(points.last(), Some(&(frame.right, frame.y.px(100.0))));
    }

    #[test]
    fn no_samples_is_said() {
        let figure = ecdf(
            "e",
            "TTFT",
            "time",
            &[Series {
                name: "a",
                sorted_ns: &[],
            }],
        );
        assert!(figure.svg.contains("no samples"), "{}", figure.svg);
    }
}
