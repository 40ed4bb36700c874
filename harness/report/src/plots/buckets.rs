//! Where the blocks stood over time: in use, cached without a user, without data.

use std::collections::BTreeMap;

use pb_record::{RunData, StepRecord};

use super::{Figure, WIDTH};
use crate::svg::frame::{Frame, legend, shorten};
use crate::svg::scale::Scale;
use crate::svg::{Anchor, Svg};

const PANEL: f64 = 200.0;
const LEGEND: f64 = 26.0;

/// Draws the three buckets stacked over time, a panel an arm.
pub(crate) fn buckets(id: &str, data: &RunData, arms: &[String], block: u32) -> Figure {
    let title = "Blocks of the KV pool over time".to_owned();
    let panels: Vec<(&str, Vec<Moment>)> = arms
        .iter()
        .map(|arm| (arm.as_str(), moments(data, arm, block)))
        .collect();
    let description = format!(
        "Stacked areas for block {block}: active, reclaimable and free blocks, a panel an arm."
    );
    let height = LEGEND + PANEL * panels.len().max(1) as f64;
    let mut svg = Svg::new(id, WIDTH, height, &title, &description);
    let all = || panels.iter().flat_map(|(_, moments)| moments);
    let x = Scale::linear(std::iter::once(0.0).chain(all().map(|m| m.at)));
    let y = Scale::counts(all().map(|m| m.levels[2]));
    for (number, (arm, moments)) in panels.iter().enumerate() {
        let top = LEGEND + PANEL * number as f64;
        let frame = Frame::new(&svg, top + 24.0, top + PANEL, x, y);
        draw_panel(&mut svg, &frame, arm, moments);
    }
    let names = ["active", "reclaimable", "free"];
    let entries = names.map(|name| (format!("bucket-{name}"), name.to_owned()));
    legend(&mut svg, 18.0, &entries);
    Figure {
        title,
        caption: format!(
            "Block {block}. The three are disjoint and sum to the pool; free does not contain \
             reclaimable. Where steps share a pixel column, the one with most active blocks is \
             drawn."
        ),
        svg: svg.finish(),
    }
}

/// The three buckets after one step, as heights of a stack.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Moment {
    /// Seconds since the first step.
    at: f64,
    /// active, active + reclaimable, all three.
    levels: [f64; 3],
}

fn moments(data: &RunData, arm: &str, block: u32) -> Vec<Moment> {
    let here = || {
        data.steps
            .iter()
            .filter(|s| s.arm == arm && s.block == block)
    };
    let origin = here().map(|s| s.row.start_ns.0).min().unwrap_or(0);
    let moment = |step: &StepRecord| {
        let row = &step.row;
        let end = (row.start_ns + row.duration_ns).0;
        let cached = row.active_blocks.saturating_add(row.reclaimable_blocks);
        Moment {
            at: end.saturating_sub(origin) as f64 / 1e9,
            levels: [
                row.active_blocks,
                cached,
                cached.saturating_add(row.free_blocks),
            ]
            .map(|n| n as f64),
        }
    };
    let mut moments: Vec<Moment> = here().map(moment).collect();
    moments.sort_by(|a, b| a.at.total_cmp(&b.at));
    moments
}

fn draw_panel(svg: &mut Svg, frame: &Frame, arm: &str, moments: &[Moment]) {
    let mut columns: BTreeMap<i64, Moment> = BTreeMap::new();
    for moment in moments {
        let kept = columns.entry(frame.x.column(moment.at)).or_insert(*moment);
        if moment.levels[0] > kept.levels[0] {
            *kept = *moment;
        }
    }
    // Levels hold until the next step: a staircase, not a slope. The highest area goes first so
    // that the lower ones lie on it.
    for (level, name) in [
        (2, "bucket-free"),
        (1, "bucket-reclaimable"),
        (0, "bucket-active"),
    ] {
        let mut outline: Vec<(f64, f64)> = Vec::with_capacity(columns.len() * 2 + 2);
        for (&column, moment) in &columns {
            let x = column as f64;
            let y = outline
                .last()
                .map_or(frame.y.px(moment.levels[level]), |p| p.1);
            outline.push((x, y));
            outline.push((x, frame.y.px(moment.levels[level])));
        }
        if let (Some(first), Some(last)) = (outline.first().copied(), outline.last().copied()) {
            outline.push((last.0, frame.bottom));
            outline.push((first.0, frame.bottom));
        }
        svg.area(name, &outline);
    }
    frame.draw(svg, "time since the first step, s", "blocks");
    svg.text(
        "heading",
        frame.left,
        frame.top - 8.0,
        Anchor::Start,
        &shorten(arm, 80),
    );
    if moments.is_empty() {
        frame.empty(svg, "no step rows");
    }
}
