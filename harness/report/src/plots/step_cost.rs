//! What a step costs by the number of tokens in it: the curve that a token budget is chosen from.

use std::collections::BTreeSet;

use pb_record::RunData;

use super::{Figure, WIDTH};
use crate::svg::Svg;
use crate::svg::frame::{Frame, arm_class, legend};
use crate::svg::scale::Scale;

/// Draws step duration against scheduled tokens, both on logarithmic axes.
pub(crate) fn step_cost(id: &str, data: &RunData, arms: &[String]) -> Figure {
    let title = "Step duration against scheduled tokens".to_owned();
    let points = |arm: &str| -> Vec<(f64, f64)> {
        let steps = data.steps.iter().filter(|step| step.arm == arm);
        let point = |row: &pb_contract::StepRow| {
            let tokens = row.prefill_tokens.saturating_add(row.decode_tokens) as f64;
            (tokens, row.duration_ns.0 as f64 / 1e6)
        };
        steps
            .map(|step| point(&step.row))
            .filter(|p| p.0 > 0.0 && p.1 > 0.0)
            .collect()
    };
    let series: Vec<Vec<(f64, f64)>> = arms.iter().map(|arm| points(arm)).collect();
    let all = || series.iter().flatten();
    let counts: Vec<String> = arms
        .iter()
        .zip(&series)
        .map(|(arm, points)| format!("{arm}: {} steps", points.len()))
        .collect();
    let description = format!("Scatter of engine steps. {}.", counts.join("; "));
    let mut svg = Svg::new(id, WIDTH, 340.0, &title, &description);
    let (x, y) = (
        Scale::log(all().map(|p| p.0)).whole(),
        Scale::log(all().map(|p| p.1)),
    );
    let frame = Frame::new(&svg, 34.0, 340.0, x, y);
    frame.draw(
        &mut svg,
        "prompt and decode tokens in the step (logarithmic)",
        "duration, ms",
    );
    if all().next().is_none() {
        frame.empty(&mut svg, "no step rows");
    }
    for (arm, points) in series.iter().enumerate() {
        let cells: BTreeSet<(i64, i64)> = points
            .iter()
            .map(|&(t, ms)| (frame.x.column(t), frame.y.column(ms)))
            .collect();
        let marks: Vec<(f64, f64)> = cells
            .into_iter()
            .map(|(x, y)| (x as f64, y as f64))
            .collect();
        svg.marks(&arm_class("cloud", arm), &marks, 4.0);
    }
    let names = arms
        .iter()
        .enumerate()
        .map(|(arm, name)| (arm_class("fill", arm), name.clone()));
    legend(&mut svg, 18.0, &names.collect::<Vec<_>>());
    let caption = format!(
        "Every step with at least one token; steps that fall on the same pixel are drawn once. {}.",
        counts.join("; ")
    );
    Figure {
        title,
        caption,
        svg: svg.finish(),
    }
}
