//! When the gaps happened: a prompt's prefill lies under the stall that it caused, or it does not.

use pb_judge::run::rows_of;
use pb_record::RunData;
use pb_record::metrics::event_gaps;

use super::{Figure, WIDTH, column_maxima};
use crate::svg::frame::{Frame, arm_class, shorten};
use crate::svg::scale::Scale;
use crate::svg::{Anchor, Svg};

/// Height of one arm's panel in pixels.
const PANEL: f64 = 210.0;

/// What one panel shows, times relative to the first arrival of the block.
struct Panel<'a> {
    arm: &'a str,
    /// (end of the gap in seconds, gap in milliseconds).
    gaps: Vec<(f64, f64)>,
    /// (start, end) of steps with prompt tokens, in seconds.
    prefills: Vec<(f64, f64)>,
}

/// Draws gaps between content events over time, a panel an arm, with prefill steps marked.
pub(crate) fn timeline(
    id: &str,
    data: &RunData,
    arms: &[String],
    class: Option<&str>,
    block: u32,
) -> Figure {
    let panels: Vec<Panel<'_>> = arms
        .iter()
        .map(|arm| panel(data, arm, class, block))
        .collect();
    let title = "Gaps between tokens over time".to_owned();
    let total: usize = panels.iter().map(|p| p.gaps.len()).sum();
    let of_class = class.map_or_else(String::new, |class| format!(" of class {class}"));
    let description = format!(
        "One panel an arm for block {block}: {total} gaps{of_class} at the time at which they \
         ended, on a logarithmic axis, with the times of prefill steps marked below."
    );
    let height = PANEL * panels.len().max(1) as f64;
    let mut svg = Svg::new(id, WIDTH, height, &title, &description);
    let x = Scale::linear(std::iter::once(0.0).chain(panels.iter().flat_map(ends)));
    let y = Scale::log(panels.iter().flat_map(|p| p.gaps.iter().map(|g| g.1)));
    for (number, panel) in panels.iter().enumerate() {
        let top = PANEL * number as f64;
        let frame = Frame::new(&svg, top + 26.0, top + PANEL, x, y);
        draw_panel(&mut svg, &frame, panel, number);
    }
    Figure {
        title,
        caption: format!(
            "Block {block}{}. Each dot is the longest gap that ended in its pixel column (the \
             maximum is always kept); bars below mark steps that computed prompt tokens. Both \
             panels have the same axes.",
            class.map_or_else(String::new, |class| format!(", class {class}"))
        ),
        svg: svg.finish(),
    }
}

fn ends<'a>(panel: &'a Panel<'_>) -> impl Iterator<Item = f64> + 'a {
    panel
        .gaps
        .iter()
        .map(|g| g.0)
        .chain(panel.prefills.iter().map(|p| p.1))
}

fn panel<'a>(data: &RunData, arm: &'a str, class: Option<&str>, block: u32) -> Panel<'a> {
    let here = || {
        data.requests
            .iter()
            .filter(|row| row.arm == arm && row.block == block)
    };
    let origin = here().map(|row| row.intended_ns.0).min().unwrap_or(0);
    let seconds = |ns: u64| ns.saturating_sub(origin) as f64 / 1e9;
    let rows = rows_of(data, arm, class).filter(|row| row.block == block);
    let gaps = rows
        .flat_map(|row| event_gaps(data.tokens_of(row)))
        .map(|gap| (seconds(gap.at_ns.0), gap.gap_ns as f64 / 1e6))
        .collect();
    let steps = data
        .steps
        .iter()
        .filter(|s| s.arm == arm && s.block == block);
    let prefills = steps
        .filter(|step| step.row.prefill_tokens > 0 && step.row.start_ns.0 >= origin)
        .map(|step| {
            let start = step.row.start_ns;
            (seconds(start.0), seconds((start + step.row.duration_ns).0))
        })
        .collect();
    Panel {
        arm,
        gaps,
        prefills,
    }
}

fn draw_panel(svg: &mut Svg, frame: &Frame, panel: &Panel<'_>, number: usize) {
    frame.draw(svg, "time since the first arrival, s", "gap, ms");
    let heading = shorten(panel.arm, 80);
    svg.text(
        "heading",
        frame.left,
        frame.top - 8.0,
        Anchor::Start,
        &heading,
    );
    for (from, to) in merged(&panel.prefills, frame) {
        svg.rect(
            "prefill",
            from,
            frame.bottom - 7.0,
            (to - from).max(1.0),
            7.0,
        );
    }
    let columns = panel
        .gaps
        .iter()
        .map(|&(at, gap)| (frame.x.column(at), gap));
    let points: Vec<(f64, f64)> = column_maxima(columns)
        .into_iter()
        .map(|(column, gap)| (column as f64, frame.y.px(gap)))
        .collect();
    svg.marks(&arm_class("fill", number), &points, 3.0);
    if points.is_empty() {
        frame.empty(svg, "no gaps");
    }
}

/// Pixel spans of the prefill steps, those that touch joined.
fn merged(prefills: &[(f64, f64)], frame: &Frame) -> Vec<(f64, f64)> {
    let mut spans: Vec<(f64, f64)> = prefills
        .iter()
        .map(|&(from, to)| (frame.x.px(from), frame.x.px(to)))
        .collect();
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut joined: Vec<(f64, f64)> = Vec::new();
    for (from, to) in spans {
        match joined.last_mut() {
            Some(last) if from <= last.1 + 0.5 => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    joined
}
