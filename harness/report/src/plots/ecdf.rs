//! Whole distributions, because two numbers of a tail hide its shape.

use std::collections::BTreeMap;

use pb_judge::run::Counted;

use super::{Figure, WIDTH};
use crate::svg::Svg;
use crate::svg::frame::{Frame, arm_class, legend};
use crate::svg::scale::Scale;

const HEIGHT: f64 = 320.0;

/// The samples of one arm in nanoseconds, ascending.
pub(crate) struct Series<'a> {
    /// Arm.
    pub(crate) name: &'a str,
    /// Samples.
    pub(crate) sorted: Counted,
}

/// Which share is drawn over the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// At or below each value, on a linear axis: for few samples.
    AtOrBelow,
    /// Above each value, on a logarithmic axis: for many samples whose rare ones matter. One gap
    /// in a hundred is a hundredth of a linear axis and a whole decade of this one.
    Above,
}

impl Share {
    /// Percent of `n` samples, when `rank` of them lie at or below the value.
    fn percent(self, rank: u64, n: u64) -> f64 {
        let counted = match self {
            Share::AtOrBelow => rank,
            Share::Above => n - rank,
        };
        counted as f64 / n as f64 * 100.0
    }

    fn axis(self, series: &[Series<'_>]) -> Scale {
        let most = series.iter().map(|s| s.sorted.len()).max().unwrap_or(0);
        match self {
            Share::AtOrBelow => Scale::linear([0.0, 100.0]),
            // One sample has to have a place above the bottom.
            Share::Above => Scale::log([100.0, 50.0 / most.max(10) as f64]),
        }
    }
}

/// Draws the distributions of all arms over a logarithmic axis of values.
pub(crate) fn ecdf(
    id: &str,
    title: &str,
    what: &str,
    share: Share,
    series: &[Series<'_>],
) -> Figure {
    let counts: Vec<String> = series
        .iter()
        .map(|s| format!("{}: {} samples", s.name, s.sorted.len()))
        .collect();
    let counts = counts.join("; ");
    let (axis, guides, caption) = match share {
        Share::AtOrBelow => (
            "% at or below",
            [50.0, 99.0],
            format!("Share of {what} at or below each value; dotted lines at 50 % and 99 %."),
        ),
        Share::Above => (
            "% above (logarithmic)",
            [50.0, 1.0],
            format!(
                "Share of {what} above each value, so that the rare long ones can be seen: where \
                 a curve crosses the dotted line at 1 % is its p99; the other is at 50 %."
            ),
        ),
    };
    let description = format!("Distribution of {what}. {counts}.");
    let mut svg = Svg::new(id, WIDTH, HEIGHT, title, &description);
    let ends = series
        .iter()
        .flat_map(|s| [s.sorted.runs().first(), s.sorted.runs().last()]);
    let x = Scale::log(ends.flatten().map(|run| run.ns as f64 / 1e6));
    let frame = Frame::new(&svg, 34.0, HEIGHT, x, share.axis(series));
    frame.draw(&mut svg, &format!("{what}, ms (logarithmic)"), axis);
    for percent in guides {
        let y = frame.y.px(percent);
        svg.line("guide", frame.left, y, frame.right, y);
    }
    if series.iter().all(|s| s.sorted.is_empty()) {
        frame.empty(&mut svg, "no samples");
    }
    for (arm, one) in series.iter().enumerate() {
        svg.path(&arm_class("line", arm), &steps(&one.sorted, share, &frame));
    }
    let names = series.iter().enumerate();
    let names = names.map(|(arm, s)| (arm_class("fill", arm), s.name.to_owned()));
    legend(&mut svg, 18.0, &names.collect::<Vec<_>>());
    let caption = format!("{caption} Further left is faster. {counts}. Exact to the pixel.");
    Figure {
        title: title.to_owned(),
        caption,
        svg: svg.finish(),
    }
}

/// The staircase, one corner for each pixel column. The curve goes one way only, so its last point
/// in a column loses nothing that a pixel could show.
fn steps(sorted: &Counted, share: Share, frame: &Frame) -> Vec<(f64, f64)> {
    let mut columns: BTreeMap<i64, f64> = BTreeMap::new();
    let (mut rank, n) = (0, sorted.len());
    for run in sorted.runs() {
        rank += run.count;
        columns.insert(frame.x.column(run.ns as f64 / 1e6), share.percent(rank, n));
    }
    if columns.is_empty() {
        return Vec::new();
    }
    let mut level = frame.y.px(share.percent(0, n));
    let mut points = vec![(frame.left, level)];
    for (column, percent) in columns {
        let x = column as f64;
        points.push((x, level));
        level = frame.y.px(percent);
        points.push((x, level));
    }
    if share == Share::AtOrBelow {
        points.push((frame.right, level));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A frame of values from 1 to 100 ms, so that 10 ms lies in its middle.
    fn frame(share: Share, series: &[Series<'_>]) -> Frame {
        let svg = Svg::new("e", WIDTH, HEIGHT, "", "");
        let x = Scale::log([1.15, 100.0 / 1.15]);
        Frame::new(&svg, 34.0, HEIGHT, x, share.axis(series))
    }

    #[test]
    fn the_staircase_ends_at_one_hundred_percent() {
        let frame = frame(Share::AtOrBelow, &[]);
        let samples = [10 * MS, 10 * MS, 80 * MS, 80 * MS];
        let points = steps(&Counted::of(&samples), Share::AtOrBelow, &frame);
        let middle = (frame.left + frame.right) / 2.0;
        assert_eq!(points[0], (frame.left, frame.y.px(0.0)));
        assert_eq!(points[2], (middle, frame.y.px(50.0)));
        assert_eq!(points.last(), Some(&(frame.right, frame.y.px(100.0))));
    }

    #[test]
    fn the_tail_falls_to_the_bottom_at_the_largest() {
        let samples = [10 * MS, 10 * MS, 10 * MS, 80 * MS];
        let series = [Series {
            name: "a",
            sorted: Counted::of(&samples),
        }];
        let frame = frame(Share::Above, &series);
        let points = steps(&Counted::of(&samples), Share::Above, &frame);
        assert_eq!(points[0], (frame.left, frame.y.px(100.0)));
        // Three quarters are 10 ms, one quarter lies above.
        assert_eq!(points[2].1, frame.y.px(25.0));
        assert_eq!(points.last().map(|p| p.1), Some(frame.bottom));
        assert!(frame.y.px(25.0) < frame.bottom);
    }

    #[test]
    fn no_samples_is_said() {
        let series = [Series {
            name: "a",
            sorted: Counted::default(),
        }];
        for share in [Share::AtOrBelow, Share::Above] {
            let figure = ecdf("e", "TTFT", "time", share, &series);
            assert!(figure.svg.contains("no samples"), "{}", figure.svg);
        }
    }
}
