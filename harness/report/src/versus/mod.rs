//! Runs against runs: comparisons and gates, in a terminal, as Markdown, and as JUnit XML.

mod comparison;
mod gate;
mod junit;

pub use junit::junit;

use pb_judge::compare::Comparison;
use pb_judge::gate::GateReport;

use crate::format::in_unit;
use crate::sections::Section;
use crate::table::markdown_safe;
use crate::text::{Paint, in_terminal, markdown_sections, wrapped};

/// A comparison for a terminal of `width` columns (at least 40); colours only when asked for.
pub fn comparison_terminal(comparison: &Comparison, width: u16, color: bool) -> String {
    let tone = comparison::tone(comparison);
    let sections = comparison::sections(comparison);
    terminal(&comparison.sentence, tone.style(), &sections, width, color)
}

/// A comparison as Markdown.
pub fn comparison_markdown(comparison: &Comparison) -> String {
    markdown(
        "Comparison",
        &comparison.sentence,
        &comparison::sections(comparison),
    )
}

/// A gate for a terminal of `width` columns (at least 40); colours only when asked for.
pub fn gate_terminal(report: &GateReport, width: u16, color: bool) -> String {
    let tone = gate::tone(report);
    let sections = gate::sections(report);
    terminal(&report.sentence, tone.style(), &sections, width, color)
}

/// A gate as Markdown, for the summary of a CI job.
pub fn gate_markdown(report: &GateReport) -> String {
    let title = format!("Gate {}", report.policy.name);
    markdown(&title, &report.sentence, &gate::sections(report))
}

fn terminal(head: &str, style: &str, sections: &[Section], width: u16, color: bool) -> String {
    let (paint, width) = (Paint { color }, width.max(40));
    let mut out = wrapped(&paint, style, &format!("{head}."), usize::from(width));
    for section in sections {
        out.push('\n');
        out.push_str(&in_terminal(section, &paint, width));
    }
    out
}

fn markdown(title: &str, head: &str, sections: &[Section]) -> String {
    let (title, head) = (markdown_safe(title), markdown_safe(head));
    format!("# {title}\n\n**{head}.**\n{}", markdown_sections(sections))
}

/// A value in its unit; bytes in MiB.
fn shown(value: f64, unit: &str) -> String {
    match unit {
        "bytes" => in_unit(value / (1_u64 << 20) as f64, "MiB"),
        unit => in_unit(value, unit),
    }
}

#[cfg(test)]
mod tests;
