//! Where the engine's time went, moment by moment: kernels, host, nothing.

use pb_contract::StepRow;
use pb_record::RunData;

use super::{Figure, WIDTH};
use crate::svg::frame::{Frame, legend, shorten};
use crate::svg::scale::Scale;
use crate::svg::{Anchor, Svg};

/// Height of one arm's panel in pixels.
const PANEL: f64 = 190.0;

/// Room for the legend above the first panel.
const LEGEND: f64 = 26.0;

/// Parts of the time axis, each about two pixels wide.
const BINS: usize = 340;

/// Styles and names of the parts of a step, from the bottom up.
const PARTS: [(&str, &str); 6] = [
    ("part0", "pre. GEMM"),
    ("part1", "pre. attn"),
    ("part2", "dec. GEMM"),
    ("part3", "dec. attn"),
    ("part4", "host"),
    ("part5", "other"),
];

/// Nanoseconds of a step in the order of [`PARTS`].
fn split(row: &StepRow) -> [u64; 6] {
    [
        row.prefill_gemm_ns.0,
        row.prefill_attention_ns.0,
        row.decode_gemm_ns.0,
        row.decode_attention_ns.0,
        row.schedule_ns.0 + row.sampling_ns.0,
        row.other_ns.0,
    ]
}

/// Draws for each arm which share of each moment of a block went where. `None` without steps.
pub(crate) fn step_time(id: &str, data: &RunData, arms: &[String], block: u32) -> Option<Figure> {
    let panels: Vec<(&str, Vec<Step>)> = arms
        .iter()
        .map(|arm| (arm.as_str(), steps(data, arm, block)))
        .collect();
    let end = panels
        .iter()
        .flat_map(|(_, steps)| steps)
        .map(|s| s.end_ns)
        .max()?;
    let title = "Where the time went, moment by moment".to_owned();
    let parts: Vec<String> = panels
        .iter()
        .map(|(arm, steps)| in_words(arm, steps))
        .collect();
    let height = LEGEND + PANEL * panels.len() as f64;
    let mut svg = Svg::new(id, WIDTH, height, &title, &parts.join("; "));
    let entries = PARTS.map(|(class, name)| (class.to_owned(), name.to_owned()));
    legend(&mut svg, 18.0, &entries);
    let x = Scale::linear([0.0, end as f64 / 1e9]);
    for (number, (arm, steps)) in panels.iter().enumerate() {
        let top = LEGEND + PANEL * number as f64;
        let y = Scale::linear([0.0, 100.0]);
        let frame = Frame::new(&svg, top + 24.0, top + PANEL, x, y);
        frame.draw(&mut svg, "time since the first arrival, s", "% of time");
        let heading = shorten(arm, 80);
        svg.text(
            "heading",
            frame.left,
            frame.top - 8.0,
            Anchor::Start,
            &heading,
        );
        panel(&mut svg, &frame, &shares(steps, end));
        if steps.is_empty() {
            frame.empty(&mut svg, "no steps");
        }
    }
    Some(Figure {
        title,
        caption: format!(
            "Block {block}: of each {BINS}th of it, the share of time in each part of the engine's \
             steps; what is left blank is time without a step. Host is scheduling and sampling. A \
             row tells how long the parts of a step took and not their order, so within a step \
             each part is spread evenly. The sums are in the table."
        ),
        svg: svg.finish(),
    })
}

/// A step in nanoseconds since the first arrival.
struct Step {
    start_ns: u64,
    end_ns: u64,
    parts_ns: [u64; 6],
}

fn steps(data: &RunData, arm: &str, block: u32) -> Vec<Step> {
    let here = data
        .requests
        .iter()
        .filter(|r| r.arm == arm && r.block == block);
    let origin = here.map(|row| row.intended_ns.0).min().unwrap_or(0);
    let own = data
        .steps
        .iter()
        .filter(|s| s.arm == arm && s.block == block);
    let own = own.filter(|step| step.row.start_ns.0 >= origin);
    own.map(|step| {
        let start_ns = step.row.start_ns.0 - origin;
        Step {
            start_ns,
            end_ns: start_ns + step.row.duration_ns.0,
            parts_ns: split(&step.row),
        }
    })
    .collect()
}

/// Of each bin the share of time in each part, 0 to 1.
fn shares(steps: &[Step], end_ns: u64) -> Vec<[f64; 6]> {
    let width = (end_ns as f64 / BINS as f64).max(1.0);
    let mut bins = vec![[0.0; 6]; BINS];
    for step in steps.iter().filter(|step| step.end_ns > step.start_ns) {
        let (start, end) = (step.start_ns as f64, step.end_ns as f64);
        let first = (start / width) as usize;
        let last = ((end / width) as usize).min(BINS - 1);
        for (bin, shares) in bins.iter_mut().enumerate().take(last + 1).skip(first) {
            let (from, to) = (bin as f64 * width, (bin + 1) as f64 * width);
            let inside = (end.min(to) - start.max(from)).max(0.0) / (end - start);
            for (share, part) in shares.iter_mut().zip(step.parts_ns) {
                *share += inside * part as f64 / width;
            }
        }
    }
    bins
}

/// The parts stacked on one another.
fn panel(svg: &mut Svg, frame: &Frame, bins: &[[f64; 6]]) {
    let mut below = vec![0.0; bins.len()];
    let edge = |bin: usize| {
        let share = bin as f64 / bins.len() as f64;
        frame.left + share * (frame.right - frame.left)
    };
    for (part, (class, _)) in PARTS.iter().enumerate() {
        let above: Vec<f64> = below
            .iter()
            .zip(bins)
            .map(|(b, bin)| b + bin[part])
            .collect();
        if above.iter().zip(&below).any(|(above, below)| above > below) {
            let stairs = |level: &[f64]| {
                let each = level.iter().enumerate();
                let both = each.flat_map(|(bin, share)| {
                    let y = frame.y.px(100.0 * share);
                    [(edge(bin), y), (edge(bin + 1), y)]
                });
                both.collect::<Vec<(f64, f64)>>()
            };
            let mut outline = stairs(&above);
            outline.extend(stairs(&below).into_iter().rev());
            svg.area(class, &outline);
        }
        below = above;
    }
}

fn in_words(arm: &str, steps: &[Step]) -> String {
    let mut sums = [0; 6];
    for step in steps {
        for (sum, part) in sums.iter_mut().zip(step.parts_ns) {
            *sum += part;
        }
    }
    let all: u64 = sums.iter().sum();
    let parts = PARTS.iter().zip(sums).map(|((_, name), sum)| {
        let share = sum as f64 / all.max(1) as f64;
        format!("{name} {} %", crate::format::percent(share))
    });
    let parts: Vec<String> = parts.collect();
    format!("{arm}: {} steps, {}", steps.len(), parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_shared_out_by_overlap_and_none_is_lost() {
        let step = |start_ns, end_ns, parts_ns| Step {
            start_ns,
            end_ns,
            parts_ns,
        };
        // Bins of 10 ns. The first step fills bin 0 and half of bin 1, a third of it in part 0.
        let steps = [
            step(0, 15, [5, 0, 0, 0, 0, 10]),
            step(20, 24, [0, 0, 4, 0, 0, 0]),
            step(30, 30, [0; 6]),
        ];
        let bins = shares(&steps, 10 * BINS as u64);
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        near(bins[0][0], 1.0 / 3.0);
        near(bins[0][5], 2.0 / 3.0);
        near(bins[1][0], 0.5 / 3.0);
        near(bins[2][2], 0.4);
        assert!(bins[3..].iter().flatten().all(|share| *share == 0.0));
        let all: f64 = bins.iter().flatten().sum();
        near(all * 10.0, 19.0);
    }

    #[test]
    fn a_step_at_the_very_end_stays_in_the_last_bin() {
        let end = 10 * BINS as u64;
        let steps = [Step {
            start_ns: end - 10,
            end_ns: end,
            parts_ns: [10, 0, 0, 0, 0, 0],
        }];
        let bins = shares(&steps, end);
        assert!((bins[BINS - 1][0] - 1.0).abs() < 1e-9);
    }
}
