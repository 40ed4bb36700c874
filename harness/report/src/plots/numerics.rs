//! How much of each numerical limit is used.

use pb_judge::numerics::{ConfigVerdict, plain};
use pb_judge::run::RunVerdict;

use super::{Figure, WIDTH};
use crate::svg::frame::shorten;
use crate::svg::scale::Scale;
use crate::svg::{Anchor, Svg};

const ROW: f64 = 20.0;
const TOP: f64 = 34.0;
/// Width of a character of a label, and the bounds of the room for labels, in pixels.
const CHARACTER: f64 = 6.2;
const LABELS: (f64, f64) = (190.0, 400.0);

/// One bar: a check of one configuration.
struct Bar {
    label: String,
    share: f64,
    planted: bool,
}

/// Draws the worst share of a limit for each statistic over all variants, and below them the
/// worst share of each planted fault. `None` when no statistical check was made.
pub(crate) fn numerics(id: &str, verdict: &RunVerdict) -> Option<Figure> {
    let bars = bars(verdict);
    if bars.is_empty() {
        return None;
    }
    let title = "Share of each numerical limit that is used".to_owned();
    let words: Vec<String> = bars
        .iter()
        .map(|bar| format!("{} {} %", bar.label, plain(bar.share * 100.0)))
        .collect();
    let height = TOP + ROW * bars.len() as f64 + 44.0;
    let mut svg = Svg::new(id, WIDTH, height, &title, &words.join("; "));
    // 1 % is drawn as the least: a share of 0 has no place on a logarithmic axis.
    let place = |share: f64| (share * 100.0).clamp(1.0, 1e7);
    let ends = bars.iter().map(|bar| place(bar.share)).chain([1.0, 130.0]);
    let longest = bars.iter().map(|bar| bar.label.chars().count()).max();
    let labels = longest.unwrap_or(0) as f64 * CHARACTER + 16.0;
    let labels = labels.clamp(LABELS.0, LABELS.1);
    let room = ((labels - 16.0) / CHARACTER) as usize;
    let x = Scale::log(ends).over(labels, WIDTH - 90.0);
    let bottom = TOP + ROW * bars.len() as f64;
    for tick in x.ticks() {
        svg.line("grid", x.px(tick), TOP, x.px(tick), bottom);
        let label = crate::svg::scale::tick_label(tick);
        svg.text("tick", x.px(tick), bottom + 16.0, Anchor::Middle, &label);
    }
    for (row, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let end = x.px(place(bar.share));
        let class = if bar.planted {
            "bar planted"
        } else {
            "bar clean"
        };
        svg.rect(class, labels, y + 3.0, (end - labels).max(1.0), ROW - 6.0);
        let label = shorten(&bar.label, room);
        svg.text("tick", labels - 8.0, y + 14.0, Anchor::End, &label);
        let value = format!("{} %", plain(bar.share * 100.0));
        svg.text("tick", end + 6.0, y + 14.0, Anchor::Start, &value);
    }
    let limit = x.px(100.0);
    svg.line("limit", limit, TOP - 6.0, limit, bottom);
    svg.text("tick", limit, TOP - 12.0, Anchor::Middle, "limit (100 %)");
    let middle = (labels + WIDTH - 90.0) / 2.0;
    svg.text(
        "label",
        middle,
        bottom + 36.0,
        Anchor::Middle,
        "% of the limit (logarithmic)",
    );
    let caption = "Worst value of each statistic over all variants and positions, as a share of \
                   its limit; a correct engine stays left of the line. Planted faults, \
                   each with its worst finite share, must lie to the right of it."
        .to_owned();
    Some(Figure {
        title,
        caption,
        svg: svg.finish(),
    })
}

fn bars(verdict: &RunVerdict) -> Vec<Bar> {
    let mut bars: Vec<Bar> = Vec::new();
    let configs = verdict
        .correctness
        .reports
        .iter()
        .filter_map(|note| note.config.as_ref());
    for check in configs.flat_map(|config| &config.checks) {
        let Some(share) = check.share else { continue };
        let label = check.name.words().to_owned();
        match bars.iter_mut().find(|bar| bar.label == label) {
            Some(bar) => bar.share = bar.share.max(share),
            None => bars.push(Bar {
                label,
                share,
                planted: false,
            }),
        }
    }
    for fault in &verdict.correctness.planted_faults {
        // A count with the limit 0 is infinitely beyond it and would say nothing of the size.
        let worst = fault.config.as_ref().and_then(ConfigVerdict::worst_finite);
        if let Some(share) = worst.and_then(|check| check.share) {
            let label = fault.label.clone();
            bars.push(Bar {
                label,
                share,
                planted: true,
            });
        }
    }
    bars
}
